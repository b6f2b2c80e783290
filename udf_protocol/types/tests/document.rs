//! `docs/types.md` is written from the type table.

use udf_types::types::TABLE;

/// Of each type Python's annotation and value.
const PYTHON: &[(&str, &str)] = &[
    ("bool", "bool"),
    ("int2", "int"),
    ("int4", "int"),
    ("int8", "int"),
    ("float4", "float"),
    ("float8", "float"),
    ("text", "str"),
    ("bytea", "bytes"),
    ("date", "datetime.date"),
    ("timestamp", "datetime.datetime"),
    ("timestamptz", "datetime.datetime with a time zone"),
    ("numeric", "decimal.Decimal"),
    ("uuid", "uuid.UUID"),
    ("json", "dict, list, str, int, float, bool or None"),
    ("time", "datetime.time"),
    ("timetz", "datetime.time with a time zone"),
    ("interval", "pyarrow.MonthDayNano; datetime.timedelta as a result"),
    ("inet", "ipaddress.IPv4Interface or IPv6Interface"),
    ("cidr", "ipaddress.IPv4Network or IPv6Network"),
    ("macaddr", "str"),
    ("datetime2", "str"),
];

fn python_of(name: &str) -> &'static str {
    PYTHON.iter().find(|(known, _)| *known == name).map(|(_, python)| *python).expect("every type has a row")
}

/// The text of `docs/types.md`.
fn types_document() -> String {
    let mut text = String::from(
        "# Types\n\nThis page is generated from the type table in `udf_protocol/types/src/types.rs`; a test compares the two.\n\n\
         | type | other SQL names | Arrow type | extension name | JSON form | Python | SQL Server |\n|---|---|---|---|---|---|---|\n",
    );
    for entry in TABLE {
        text.push_str(&format!(
            "| `{}` | {} | `{}` | {} | {} | `{}` | `{}` |\n",
            entry.name,
            entry.aliases.join(", "),
            entry.ty.data_type(),
            entry.extension.map(|name| format!("`{name}`")).unwrap_or_default(),
            entry.json,
            python_of(entry.name),
            entry.tsql,
        ));
    }
    text.push_str(
        "| `T[]` | | `List` of T | | array | `list` | `nvarchar(max)` |\n\
         | `range(T)` | int4range, int8range, numrange, daterange, tsrange, tstzrange | `Struct` of `lower`, `upper`, \
         `lower_inc`, `upper_inc`, `empty` | `transship.range` | object of the same members | `transship_server.types.Range` | `nvarchar(max)` |\n\
         | `(name T, ...)` | composite types | `Struct` | | object | `dict`; a tuple as a result | `nvarchar(max)`; a column per attribute as a result |\n\
         \nArrays have one dimension and start at index 1; other arrays are refused when they are sent. An infinite bound of \
         a range is NULL.\n\n",
    );
    text.push_str(
        "Every type may be NULL, as an argument and as a result: Arrow validity, JSON `null`, Python `None`.\n\n\
         Infinite dates and timestamps are the smallest and the largest integer of their Arrow type. Python's `datetime`\n\
         cannot hold them: a handler that reads rows gets an error that names the row, and a handler that reads Arrow\n\
         columns gets the integers. An infinite interval has the largest or the smallest months, days and nanoseconds.\n\n\
         ## PostgreSQL\n\n\
         Further types travel as one of these: `varchar`, `char`, `name`, `xml` and enums as `text`, `jsonb` as `json`,\n\
         domains as their base type (results are checked against the domain), pgvector's `vector` as `float4[]`. Row\n\
         types of tables are composite types. `CREATE FUNCTION` refuses all other types; most of them can be cast to\n\
         `text`. A `datetime2` is declared as `text`, because it has more digits than any type of PostgreSQL.\n\n\
         ## SQL Server\n\n\
         Arguments also accept columns that widen without loss: `tinyint`, `smallint` and `int` for wider integers, for\n\
         `numeric` and for floats that can hold them, `real` for `float8`, `char` and `varchar` for text, `datetime` and\n\
         `smalldatetime` for `timestamp` and `datetime2`. Types that SQL Server lacks travel as text in their JSON form.\n\
         Digits below a microsecond for a `timestamp`, a `NaN`, an infinite value, or a decimal with more digits than\n\
         its column holds are refused; the error names the row. `docs/sqlserver.md` has the table.\n",
    );
    text
}

#[test]
fn document_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/types.md");
    if std::env::var_os("TRANSSHIP_WRITE_DOCS").is_some() {
        std::fs::write(path, types_document()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == types_document(), "docs/types.md is stale; run the tests with TRANSSHIP_WRITE_DOCS=1");
}
