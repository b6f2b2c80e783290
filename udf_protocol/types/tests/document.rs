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
        "# Types\n\nGenerated from the type table in `udf_protocol/types/src/types.rs`; a test keeps the two equal.\n\n\
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
         \nArrays have one dimension and start at index 1; others are refused when they are sent. An infinite bound of a \
         range is NULL.\n\n",
    );
    text.push_str(
        "Every type may be NULL, in both directions: Arrow validity, JSON `null`, Python `None`.\n\n\
         Infinite dates and timestamps are the smallest and the largest integer of their Arrow type. Python's `datetime`\n\
         cannot hold them: a handler that reads rows gets an error that names the row, a handler that reads Arrow\n\
         columns gets the integers. An infinite interval has the largest or the smallest months, days and nanoseconds.\n\n\
         ## PostgreSQL\n\n\
         Further types travel as one of these: `varchar`, `char`, `name`, `xml` and enums as `text`, `jsonb` as `json`,\n\
         domains as the type that they are over (and are checked on the way back), pgvector's `vector` as `float4[]`.\n\
         Table row types are composite types. What has no entry here is refused by `CREATE FUNCTION`; most of it can be\n\
         cast to `text`. A `datetime2`, which has more digits than any of its types, is `text`.\n\n\
         ## SQL Server\n\n\
         Arguments also take columns that widen to them without loss: `tinyint`, `smallint` and `int` for wider integers,\n\
         for `numeric` and for floats that hold them, `real` for `float8`, `char` and `varchar` for text, `datetime` and\n\
         `smalldatetime` for `timestamp` and `datetime2`. What SQL Server has no type for travels as text of the JSON form.\n\
         Digits below a microsecond for a `timestamp`, a `NaN`, an infinite value or a decimal with more digits than its\n\
         column are refused with their row. `docs/sqlserver.md` has the table.\n",
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
