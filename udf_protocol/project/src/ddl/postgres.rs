//! DDL for PostgreSQL.

use udf_types::Result;
use udf_types::signature::{FunctionKind, Signature, Volatility};
use udf_types::types::Type;

use crate::ddl::literal::toml_string;
use crate::manifest::{FunctionEntry, Manifest};

/// Which of an image's contents the functions are to call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pin {
    /// The digest; that of the image's name at the time of the statements if left out.
    pub digest: Option<String>,
    /// The digest that they called before.
    pub previous: Option<String>,
}

/// Statements for every function of an image, in an order in which they can be run. Functions are created or replaced
/// in `schema`; composite types that are missing are created beside them.
pub fn postgres(manifest: &Manifest, schema: &str, pin: &Pin) -> Result<Vec<String>> {
    let pairs = [("digest", &pin.digest), ("previous", &pin.previous)];
    let written = pairs.iter().filter_map(|(key, value)| value.as_ref().map(|value| (key, value)));
    let pin: String = written.map(|(key, value)| format!("\n{key} = {}", toml_string(value))).collect();
    let mut statements = Vec::new();
    for entry in &manifest.functions {
        if let Some(signature) = entry.signature()? {
            Writer { image: manifest.image(), pin: &pin, schema: quote(schema), entry, statements: &mut statements }
                .write(&signature);
        }
    }
    Ok(statements)
}

struct Writer<'a> {
    image: String,
    /// Further lines of each body.
    pin: &'a str,
    schema: String,
    entry: &'a FunctionEntry,
    statements: &'a mut Vec<String>,
}

impl Writer<'_> {
    fn write(&mut self, signature: &Signature) {
        let name = &self.entry.name;
        let arguments: Vec<(String, String)> = signature
            .arguments
            .iter()
            .enumerate()
            .map(|(position, argument)| {
                let label =
                    if argument.name.is_empty() { format!("arg{}", position + 1) } else { argument.name.clone() };
                let ty = self.sql_type(&argument.ty, &format!("{name}_{label}"));
                (if argument.name.is_empty() { String::new() } else { format!("{} ", quote(&argument.name)) }, ty)
            })
            .collect();
        let list: Vec<String> = arguments.iter().map(|(name, ty)| format!("{name}{ty}")).collect();
        if signature.kind == FunctionKind::Aggregate {
            let types: Vec<&str> = arguments.iter().map(|(_, ty)| ty.as_str()).collect();
            return self.write_aggregate(signature, &types);
        }
        let is_set = matches!(signature.kind, FunctionKind::Table | FunctionKind::Map);
        let returns = match &signature.result {
            Type::Composite(attributes) if is_set => {
                let mut columns = Vec::new();
                for (position, attribute) in attributes.iter().enumerate() {
                    let column = attribute.column_name(position);
                    let ty = self.sql_type(&attribute.ty, &format!("{name}_{column}"));
                    columns.push(format!("{} {ty}", quote(&column)));
                }
                format!("TABLE ({})", columns.join(", "))
            }
            result => {
                let set = if is_set { "SETOF " } else { "" };
                format!("{set}{}", self.sql_type(result, &format!("{name}_result")))
            }
        };
        self.function(&quote(name), &list.join(", "), &returns, "");
    }

    fn write_aggregate(&mut self, signature: &Signature, types: &[&str]) {
        let name = self.entry.name.clone();
        let part = |part: &str| quote(&format!("{name}_{part}"));
        let alias = format!("\nfunction = {}", toml_string(&name));
        let arguments = types.join(", ");
        let result = self.sql_type(&signature.result, &format!("{name}_result"));
        let step = if arguments.is_empty() { "internal".to_string() } else { format!("internal, {arguments}") };
        self.function(&part("accumulate"), &step, "internal", &alias);
        self.function(&part("finish"), "internal", &result, &alias);
        let schema = self.schema.clone();
        let mut options = format!(
            "SFUNC = {schema}.{}, STYPE = internal, FINALFUNC = {schema}.{}",
            part("accumulate"),
            part("finish")
        );
        if self.entry.merges {
            self.function(&part("combine"), "internal, internal", "internal", &alias);
            self.function(&part("serialize"), "internal", "bytea", &alias);
            self.function(&part("deserialize"), "bytea, internal", "internal", &alias);
            options.push_str(&format!(
                ", COMBINEFUNC = {schema}.{}, SERIALFUNC = {schema}.{}, DESERIALFUNC = {schema}.{}, PARALLEL = SAFE",
                part("combine"),
                part("serialize"),
                part("deserialize"),
            ));
        }
        self.statements.push(format!(
            "CREATE OR REPLACE AGGREGATE {schema}.{} ({}) ({options})",
            quote(&name),
            if arguments.is_empty() { "*" } else { &arguments },
        ));
    }

    fn function(&mut self, name: &str, arguments: &str, returns: &str, more: &str) {
        let is_part = returns == "internal" || arguments.starts_with("internal");
        let volatility = match self.entry.volatility {
            // An aggregate's parts have no effect but on its own state.
            _ if is_part => "IMMUTABLE",
            Volatility::Immutable => "IMMUTABLE",
            Volatility::Stable => "STABLE",
            Volatility::Volatile => "VOLATILE",
        };
        // SERIALFUNC and DESERIALFUNC must be strict, SFUNC and FINALFUNC must not (CREATE AGGREGATE).
        let is_serial = returns == "bytea" && arguments == "internal" || arguments.starts_with("bytea, internal");
        let strict = if if is_part { is_serial } else { self.entry.strict } { " STRICT" } else { "" };
        let parallel = if self.entry.volatility == Volatility::Volatile && !is_part { "" } else { " PARALLEL SAFE" };
        let kind = if self.entry.kind == FunctionKind::Map { "\nkind = \"map\"" } else { "" };
        let body = format!("\nimage = {}{kind}{more}{}\n", toml_string(&self.image), self.pin);
        self.statements.push(format!(
            "CREATE OR REPLACE FUNCTION {}.{name}({arguments}) RETURNS {returns}\nLANGUAGE container {volatility}{strict}{parallel}\nAS {}",
            self.schema,
            literal(&body),
        ));
    }

    /// A type as SQL writes it; composite types get a name, and a statement that creates them.
    fn sql_type(&mut self, ty: &Type, name: &str) -> String {
        match ty {
            Type::Array(element) => format!("{}[]", self.sql_type(element, name)),
            Type::Range(element) => match **element {
                Type::Int4 => "int4range".to_string(),
                Type::Int8 => "int8range".to_string(),
                Type::Numeric => "numrange".to_string(),
                Type::Date => "daterange".to_string(),
                Type::Timestamp => "tsrange".to_string(),
                Type::TimestampTz => "tstzrange".to_string(),
                _ => format!("{element}range"),
            },
            Type::Composite(attributes) => {
                let mut columns = Vec::new();
                for (position, attribute) in attributes.iter().enumerate() {
                    let column = attribute.column_name(position);
                    let ty = self.sql_type(&attribute.ty, &format!("{name}_{column}"));
                    columns.push(format!("{} {ty}", quote(&column)));
                }
                let qualified = format!("{}.{}", self.schema, quote(name));
                self.statements.push(format!("CREATE TYPE {qualified} AS ({})", columns.join(", ")));
                qualified
            }
            Type::DateTime2 => "text".to_string(),
            plain => plain.to_string(),
        }
    }
}

/// An identifier in double quotes if it needs them.
fn quote(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    // Keywords are quoted as well, which does no harm.
    if is_plain && !KEYWORDS.contains(&name) { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// PostgreSQL's keywords that are no names of functions, arguments or types (SQL Key Words, appendix C).
const KEYWORDS: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "between",
    "bigint",
    "binary",
    "bit",
    "boolean",
    "both",
    "case",
    "cast",
    "char",
    "character",
    "check",
    "coalesce",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "dec",
    "decimal",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "exists",
    "extract",
    "false",
    "fetch",
    "float",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "greatest",
    "group",
    "grouping",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "inout",
    "int",
    "integer",
    "intersect",
    "interval",
    "into",
    "is",
    "isnull",
    "join",
    "json_array",
    "json_object",
    "lateral",
    "leading",
    "least",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "national",
    "natural",
    "nchar",
    "none",
    "normalize",
    "not",
    "notnull",
    "null",
    "nullif",
    "numeric",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "out",
    "outer",
    "overlaps",
    "overlay",
    "placing",
    "position",
    "precision",
    "primary",
    "real",
    "references",
    "returning",
    "right",
    "row",
    "select",
    "session_user",
    "setof",
    "similar",
    "smallint",
    "some",
    "substring",
    "symmetric",
    "table",
    "tablesample",
    "then",
    "time",
    "timestamp",
    "to",
    "trailing",
    "treat",
    "trim",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "values",
    "varchar",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
    "xmlattributes",
    "xmlconcat",
    "xmlelement",
    "xmlexists",
    "xmlforest",
    "xmlnamespaces",
    "xmlparse",
    "xmlpi",
    "xmlroot",
    "xmlserialize",
    "xmltable",
];

/// A dollar-quoted literal, whose tag the text does not hold.
fn literal(text: &str) -> String {
    let tag =
        (0..).map(|i| if i == 0 { "$$".to_string() } else { format!("$body{i}$") }).find(|tag| !text.contains(tag));
    let tag = tag.unwrap_or_default();
    format!("{tag}{text}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_function_is_written() {
        let manifest = Manifest::parse(
            r#"
name = "m"
version = "1"
template = "python"
functions = [
  { name = "f", arguments = ["x int8", "text[]"], returns = "range(date)", strict = true, volatility = "immutable" },
  { name = "Select", arguments = ["p (\"\" float8, \"\" float8)"], returns = "(a int4, b text)" },
  { name = "t", arguments = [], returns = "(a int4, \"B c\" text, \"\" int4)", kind = "table", volatility = "stable" },
  { name = "m", arguments = ["int4"], returns = "int4", kind = "map" },
  { name = "g", arguments = ["x int8"], returns = "float8", kind = "aggregate", merges = true },
  { name = "h", arguments = [], returns = "int8", kind = "aggregate" },
]
"#,
        )
        .unwrap();
        let statements = postgres(&manifest, "My schema", &Pin::default()).unwrap();
        let expected = [
            "CREATE OR REPLACE FUNCTION \"My schema\".f(x int8, text[]) RETURNS daterange\nLANGUAGE container IMMUTABLE STRICT PARALLEL SAFE\nAS $$\nimage = \"m:1\"\n$$",
            "CREATE TYPE \"My schema\".\"Select_p\" AS (f1 float8, f2 float8)",
            "CREATE TYPE \"My schema\".\"Select_result\" AS (a int4, b text)",
            "CREATE OR REPLACE FUNCTION \"My schema\".\"Select\"(p \"My schema\".\"Select_p\") RETURNS \"My schema\".\"Select_result\"\nLANGUAGE container VOLATILE\nAS $$\nimage = \"m:1\"\n$$",
            "CREATE OR REPLACE FUNCTION \"My schema\".t() RETURNS TABLE (a int4, \"B c\" text, f3 int4)\nLANGUAGE container STABLE PARALLEL SAFE\nAS $$\nimage = \"m:1\"\n$$",
            "CREATE OR REPLACE FUNCTION \"My schema\".m(int4) RETURNS SETOF int4\nLANGUAGE container VOLATILE\nAS $$\nimage = \"m:1\"\nkind = \"map\"\n$$",
            "CREATE OR REPLACE FUNCTION \"My schema\".g_accumulate(internal, int8) RETURNS internal\nLANGUAGE container IMMUTABLE PARALLEL SAFE\nAS $$\nimage = \"m:1\"\nfunction = \"g\"\n$$",
        ];
        assert_eq!(statements[..expected.len()], expected);
        assert_eq!(statements.len(), expected.len() + 5 + 3);
        assert!(statements[9].contains("g_serialize(internal) RETURNS bytea\nLANGUAGE container IMMUTABLE STRICT"));
        assert!(
            statements[11]
                .starts_with("CREATE OR REPLACE AGGREGATE \"My schema\".g (int8) (SFUNC = \"My schema\".g_accumulate,")
        );
    }

    #[test]
    fn aggregates_that_cannot_merge_are_not_parallel() {
        let manifest = "name = 'm'\ntemplate = 'python'\nfunctions = [{ name = 'h', arguments = [], returns = 'int8', kind = 'aggregate' }]";
        let statements = postgres(&Manifest::parse(manifest).unwrap(), "s", &Pin::default()).unwrap();
        assert_eq!(
            statements.last().unwrap(),
            "CREATE OR REPLACE AGGREGATE s.h (*) (SFUNC = s.h_accumulate, STYPE = internal, FINALFUNC = s.h_finish)"
        );
    }

    #[test]
    fn literals_hold_anything() {
        assert_eq!(literal("a"), "$$a$$");
        assert_eq!(literal("a $$ $body1$"), "$body2$a $$ $body1$$body2$");
    }
}
