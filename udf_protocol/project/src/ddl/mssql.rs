//! T-SQL for SQL Server: the external language, and a stored procedure per function.
//!
//! A procedure takes either a query, whose columns are the function's arguments in order, or the arguments themselves
//! for one call. SQL Server has no other way to call an external script.

use std::fmt::Write as _;

use udf_types::Result;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;

use crate::ddl::literal::toml_string;
use crate::manifest::Manifest;

/// The role of those who may call containers.
const ROLE: &str = "[container_callers]";
/// The parameter that carries the query.
const QUERY: &str = "query";

/// Statements for an image: the language, a role that may use it, and a procedure per function in `schema`. Each is a batch
/// of its own (`GO`). `socket` is the manager's; an aggregate function becomes a comment, since SQL Server cannot call it.
pub fn mssql(manifest: &Manifest, schema: &str, socket: &str) -> Result<Vec<String>> {
    let mut statements = vec![
        format!(
            "-- Once per database, by its owner. TRANSSHIP_ALLOWED lists what scripts may name: further images are added there.\n\
             IF NOT EXISTS (SELECT 1 FROM sys.external_languages WHERE language = N'Container')\n\
             CREATE EXTERNAL LANGUAGE [Container]\n\
             FROM (CONTENT = N'/opt/transship/transship-mssql.zip', FILE_NAME = 'libtransship_mssql.so', \
             PLATFORM = LINUX, ENVIRONMENT_VARIABLES = {})",
            literal(
                &serde_json::json!({ "TRANSSHIP_SOCKET": socket, "TRANSSHIP_ALLOWED": format!("{}:*", manifest.name) })
                    .to_string()
            )
        ),
        format!(
            "-- Once per database: members of this role may call containers.\n\
             IF NOT EXISTS (SELECT 1 FROM sys.database_principals WHERE name = N'container_callers')\n\
             CREATE ROLE {ROLE};\n\
             GRANT EXECUTE EXTERNAL SCRIPT ON EXTERNAL LANGUAGE::[Container] TO {ROLE}"
        ),
    ];
    for entry in &manifest.functions {
        if let Some(signature) = entry.signature()? {
            statements.push(procedure(&manifest.image(), schema, &signature));
            if signature.kind != FunctionKind::Aggregate {
                let name = format!("{}.{}", quote(schema), quote(&signature.function));
                statements.push(format!("GRANT EXECUTE ON {name} TO {ROLE}"));
            }
        }
    }
    Ok(statements)
}

fn procedure(image: &str, schema: &str, signature: &Signature) -> String {
    let name = &signature.function;
    if signature.kind == FunctionKind::Aggregate {
        return format!("-- {} is an aggregate function, which SQL Server cannot call.", comment(name));
    }
    let parameters: Vec<(String, &str)> = signature
        .arguments
        .iter()
        .enumerate()
        .map(|(position, argument)| (parameter_name(&argument.name, position), argument.ty.tsql()))
        .collect();
    let names = |write: &dyn Fn(&str, &str) -> String, separator: &str| -> String {
        let items: Vec<String> = parameters.iter().map(|(name, ty)| write(name, ty)).collect();
        items.join(separator)
    };
    let script = format!("image = {}\nfunction = {}", toml_string(image), toml_string(name));
    let call =
        format!("EXEC sp_execute_external_script\n    @language = N'Container',\n    @script = {}", literal(&script));
    let columns = result_columns(signature);
    let results = format!("WITH RESULT SETS (({columns}))");
    let procedure = format!("{}.{}", quote(schema), quote(name));

    let mut text = format!("CREATE OR ALTER PROCEDURE {procedure}\n    @{QUERY} nvarchar(max) = NULL");
    for (name, ty) in &parameters {
        let _ = write!(text, ",\n    @{name} {ty} = NULL");
    }
    let _ = write!(
        text,
        "\nAS\nBEGIN\nIF @{QUERY} IS NOT NULL\n{call},\n    @input_data_1 = @{QUERY}\n{results};\nELSE\n{call}"
    );
    if !parameters.is_empty() {
        let declared = names(&|name, ty| format!("@{name} {ty}"), ", ");
        let given = names(&|name, _| format!("@{name} = @{name}"), ", ");
        let _ = write!(text, ",\n    @params = {},\n    {given}", literal(&declared));
    }
    let _ = write!(text, "\n{results};\nEND");
    let columns = names(&|name, _| quote(name), ", ");
    let query = format!("SELECT {} FROM dbo.t", if columns.is_empty() { "1 AS x" } else { &columns });
    // A function without arguments has no use for rows.
    let example = if parameters.is_empty() { String::new() } else { format!(" @{QUERY} = {}", literal(&query)) };
    let _ = write!(text, "\n-- Example: EXEC {}{}", comment(&procedure), comment(&example));
    text
}

/// The result set's columns, as `WITH RESULT SETS` declares them: the attributes of a composite result, else one.
fn result_columns(signature: &Signature) -> String {
    let columns: Vec<String> = match &signature.result {
        Type::Composite(attributes) => attributes
            .iter()
            .enumerate()
            .map(|(position, attribute)| {
                format!("{} {} NULL", quote(&attribute.column_name(position)), attribute.ty.tsql())
            })
            .collect(),
        single => vec![format!("{} {} NULL", quote(&signature.function), single.tsql())],
    };
    columns.join(", ")
}

/// An argument's name as a parameter's: its own if T-SQL can write it, else its position, by which it is known too.
fn parameter_name(name: &str, position: usize) -> String {
    let is_plain = name.len() <= 100
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if is_plain && !name.eq_ignore_ascii_case(QUERY) { name.to_string() } else { format!("arg{}", position + 1) }
}

fn quote(name: &str) -> String {
    format!("[{}]", name.replace(']', "]]"))
}

fn literal(text: &str) -> String {
    format!("N'{}'", text.replace('\'', "''"))
}

/// A text that stays within a line's comment.
fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procedures_take_a_query_or_arguments() {
        let manifest = Manifest::parse(
            r#"
name = "m"
version = "1"
template = "python"
functions = [
  { name = "f", arguments = ["x int8", "numeric", "Query text", "it's text"], returns = "bool" },
  { name = "t]", arguments = [], returns = "(a int4, \"B c\" text[])", kind = "table" },
  { name = "g", arguments = ["x int8"], returns = "float8", kind = "aggregate" },
]
"#,
        )
        .unwrap();
        let statements = mssql(&manifest, "dbo", "/run/it's.sock").unwrap();
        assert_eq!(statements.len(), 7);
        assert!(statements[0].contains(r#"N'{"TRANSSHIP_ALLOWED":"m:*","TRANSSHIP_SOCKET":"/run/it''s.sock"}'"#));
        assert_eq!(
            statements[2],
            "CREATE OR ALTER PROCEDURE [dbo].[f]
    @query nvarchar(max) = NULL,
    @x bigint = NULL,
    @arg2 decimal(38, 10) = NULL,
    @arg3 nvarchar(max) = NULL,
    @arg4 nvarchar(max) = NULL
AS
BEGIN
IF @query IS NOT NULL
EXEC sp_execute_external_script
    @language = N'Container',
    @script = N'image = \"m:1\"\nfunction = \"f\"',
    @input_data_1 = @query
WITH RESULT SETS (([f] bit NULL));
ELSE
EXEC sp_execute_external_script
    @language = N'Container',
    @script = N'image = \"m:1\"\nfunction = \"f\"',
    @params = N'@x bigint, @arg2 decimal(38, 10), @arg3 nvarchar(max), @arg4 nvarchar(max)',
    @x = @x, @arg2 = @arg2, @arg3 = @arg3, @arg4 = @arg4
WITH RESULT SETS (([f] bit NULL));
END
-- Example: EXEC [dbo].[f] @query = N'SELECT [x], [arg2], [arg3], [arg4] FROM dbo.t'"
        );
        assert!(
            statements[4].contains("[dbo].[t]]]") && statements[4].contains("([a] int NULL, [B c] nvarchar(max) NULL)")
        );
        assert_eq!(statements[5], "GRANT EXECUTE ON [dbo].[t]]] TO [container_callers]");
        assert!(statements[6].starts_with("-- g is an aggregate"));
    }
}
