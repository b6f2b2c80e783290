//! Which column or parameter feeds which argument, and what comes back where.
//!
//! Parameters go by name: one that is named like an argument feeds it with the same value in every row. What arguments
//! are left are fed by the input columns. An OUTPUT parameter takes the last row's value of the result column that is
//! named like it, or of the only one.

use udf_types::signature::{FunctionKind, Signature};
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use crate::columns::{ServerType, from_arrow, to_arrow};
use crate::script::{Bind, Script};
use crate::settings::GuidForm;

/// The parameter by which a script is streamed; the engine reads it, and it arrives here as well.
const ROWS_PER_READ: &str = "r_rowsPerRead";

/// A column of the input data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputColumn {
    /// Its name; may be empty, and need not be the only one of that name.
    pub name: String,
    /// Its type.
    pub sql: ServerType,
    /// SQL_NO_NULLS, SQL_NULLABLE or SQL_NULLABLE_UNKNOWN.
    pub nullable: i16,
    /// Its place among the columns that the input is partitioned by; below zero if it is none of them.
    pub partition_by: i16,
}

/// A parameter of `@params`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, without the at sign.
    pub name: String,
    /// Its type.
    pub sql: ServerType,
    /// The bytes of its value; none if it is NULL.
    pub value: Option<Vec<u8>>,
    /// Whether it is declared OUTPUT.
    pub is_output: bool,
}

/// What feeds an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// An input column.
    Column(usize),
    /// A parameter, with the same value in every row.
    Parameter(usize),
}

/// A column of the function's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundResult {
    /// The function's name, or an attribute's of a composite result.
    pub name: String,
    /// The function's type.
    pub ty: Type,
    /// The type that it comes back as.
    pub sql: ServerType,
}

/// Who feeds what.
#[derive(Debug, PartialEq, Eq)]
pub struct Binding {
    /// One per argument.
    pub arguments: Vec<Source>,
    /// Input columns that come back before the results.
    pub passthrough: Vec<usize>,
    /// The function's results.
    pub results: Vec<BoundResult>,
    /// OUTPUT parameters, and the result column that each takes.
    pub outputs: Vec<(usize, usize)>,
}

impl Binding {
    /// Binds a session's columns and parameters to a function, in one of so many tasks.
    pub fn new(
        script: &Script,
        signature: &Signature,
        columns: &[InputColumn],
        parameters: &[Parameter],
        tasks: u16,
        guid: GuidForm,
    ) -> Result<Binding> {
        let function = &signature.function;
        if signature.kind == FunctionKind::Aggregate {
            return Err(Error::new(
                Kind::UnsupportedType,
                format!("\"{function}\" is an aggregate function, which SQL Server cannot call"),
            ));
        }
        let passthrough = find_passthrough(script, signature, columns)?;
        let mut results = result_columns(script, signature, guid)?;
        let outputs = find_outputs(signature, parameters, &results)?;
        if script.result_columns.is_empty() {
            // decimal(38, 10) has no room for what a parameter of other digits takes.
            for (parameter, result) in &outputs {
                let (ty, sql) = (&results[*result].ty, parameters[*parameter].sql);
                if *ty == Type::Numeric && matches!(sql, ServerType::Decimal { .. }) {
                    results[*result].sql = sql;
                }
            }
        }
        if signature.kind == FunctionKind::Map && parameters.iter().any(is_streaming) {
            return Err(invalid(format!("map function \"{function}\" cannot be streamed"))
                .with_hint("Leave out @r_rowsPerRead: the function would see each part as a stream of its own."));
        }
        let is_partitioned = columns.iter().any(|column| column.partition_by >= 0);
        if signature.kind == FunctionKind::Map && tasks > 1 && !is_partitioned {
            return Err(invalid(format!("map function \"{function}\" cannot run in parallel"))
                .with_detail("Each task would see its share of the rows as a stream of its own.")
                .with_hint("Write @parallel = 0, or name columns in @input_data_1_partition_by_columns."));
        }

        let mut arguments: Vec<Option<Source>> = vec![None; signature.arguments.len()];
        for (number, parameter) in parameters.iter().enumerate() {
            let Some(argument) = find_argument(signature, &parameter.name) else { continue };
            if let Some(Source::Parameter(other)) = arguments[argument].replace(Source::Parameter(number)) {
                let (argument, [one, other]) =
                    (argument_name(signature, argument), [other, number].map(|i| &parameters[i].name));
                return Err(invalid(format!(
                    "parameters @{one} and @{other} both feed argument \"{argument}\" of \"{function}\""
                )));
            }
        }
        let unfed: Vec<usize> = (0..arguments.len()).filter(|position| arguments[*position].is_none()).collect();
        match script.keys.bind {
            Bind::Position => {
                let feeding: Vec<usize> = (0..columns.len()).filter(|column| !passthrough.contains(column)).collect();
                if feeding.len() != unfed.len() {
                    return Err(mismatch(signature, &feeding, &unfed, columns, parameters));
                }
                for (column, argument) in feeding.into_iter().zip(unfed) {
                    arguments[argument] = Some(Source::Column(column));
                }
            }
            Bind::Name => {
                for column in columns {
                    let Some(argument) = find_argument(signature, &column.name) else { continue };
                    if let Some(Source::Parameter(number)) = arguments[argument] {
                        let (argument, parameter) = (argument_name(signature, argument), &parameters[number].name);
                        return Err(invalid(format!(
                            "column \"{}\" and parameter @{parameter} both feed argument \"{argument}\" of \"{function}\"",
                            column.name
                        ))
                        .with_hint("Give the column another name in the query."));
                    }
                }
                for argument in unfed {
                    let name = argument_name(signature, argument);
                    let column = find_column(columns, &name, &format!("argument \"{name}\" of \"{function}\""))?;
                    arguments[argument] = Some(Source::Column(column));
                }
            }
        }
        let arguments: Vec<Source> = arguments.into_iter().flatten().collect();
        for (position, source) in arguments.iter().enumerate() {
            let (what, name, sql) = match source {
                Source::Column(column) => ("column", columns[*column].name.as_str(), columns[*column].sql),
                Source::Parameter(number) => ("parameter", parameters[*number].name.as_str(), parameters[*number].sql),
            };
            let argument = argument_name(signature, position);
            to_arrow::check(what, name, sql, &argument, &signature.arguments[position].ty)?;
        }
        Ok(Binding { arguments, passthrough, results, outputs })
    }
}

fn is_streaming(parameter: &Parameter) -> bool {
    parameter.name.eq_ignore_ascii_case(ROWS_PER_READ)
}

/// An argument's name, or the one that its position gives it.
fn argument_name(signature: &Signature, position: usize) -> String {
    let name = &signature.arguments[position].name;
    if name.is_empty() { format!("arg{}", position + 1) } else { name.clone() }
}

fn same_name(one: &str, other: &str) -> bool {
    one == other || one.to_lowercase() == other.to_lowercase()
}

/// The one of this name, or else the only one whose name differs in case alone.
fn position_of<'a>(mut names: impl Iterator<Item = &'a str> + Clone, name: &str) -> Option<usize> {
    let mut alike = names.clone().enumerate().filter(|(_, other)| same_name(other, name)).map(|(position, _)| position);
    names.position(|other| other == name).or_else(|| alike.next().filter(|_| alike.next().is_none()))
}

/// The argument that a parameter or a column of this name feeds. `arg3` is the third, unless one has that name.
fn find_argument(signature: &Signature, name: &str) -> Option<usize> {
    // Arguments may be without a name, and so may columns.
    if name.is_empty() {
        return None;
    }
    let by_name = position_of(signature.arguments.iter().map(|argument| argument.name.as_str()), name);
    by_name.or_else(|| {
        let number: usize = name.strip_prefix("arg")?.parse().ok()?;
        (1..=signature.arguments.len()).contains(&number).then(|| number - 1)
    })
}

/// The one input column of this name.
fn find_column(columns: &[InputColumn], name: &str, whose: &str) -> Result<usize> {
    let exact: Vec<usize> = (0..columns.len()).filter(|i| columns[*i].name == name).collect();
    let found = if exact.is_empty() {
        (0..columns.len()).filter(|i| same_name(&columns[*i].name, name)).collect()
    } else {
        exact
    };
    match found.as_slice() {
        [column] => Ok(*column),
        [] => Err(invalid(format!("no input column is named \"{name}\", as {whose} is"))
            .with_detail(format!("The columns are {}.", list(columns.iter().map(|column| column.name.as_str()))))),
        _ => Err(invalid(format!("several input columns are named \"{name}\", as {whose} is"))),
    }
}

fn find_passthrough(script: &Script, signature: &Signature, columns: &[InputColumn]) -> Result<Vec<usize>> {
    let names = &script.keys.passthrough;
    if !names.is_empty() && signature.kind == FunctionKind::Map {
        return Err(invalid(format!("map function \"{}\" passes no columns through", signature.function))
            .with_detail("Its results belong to no row of the input."));
    }
    names.iter().map(|name| find_column(columns, name, "a name in passthrough")).collect()
}

fn result_columns(script: &Script, signature: &Signature, guid: GuidForm) -> Result<Vec<BoundResult>> {
    let named: Vec<(String, Type)> = match &signature.result {
        Type::Composite(attributes) => {
            attributes.iter().map(|attribute| (attribute.name.clone(), attribute.ty.clone())).collect()
        }
        single => vec![(signature.function.clone(), single.clone())],
    };
    let declared = &script.result_columns;
    if !declared.is_empty() && declared.len() != named.len() {
        return Err(invalid(format!(
            "result_columns names {} types, and \"{}\" has {} result columns",
            declared.len(),
            signature.function,
            named.len()
        )));
    }
    let mut results = Vec::with_capacity(named.len());
    for (position, (name, ty)) in named.into_iter().enumerate() {
        let sql = match declared.get(position) {
            Some(sql) => *sql,
            None if ty == Type::Uuid && guid == GuidForm::Char => ServerType::Char(36),
            None => ServerType::of_result(&ty),
        };
        from_arrow::check(&format!("result column \"{name}\""), &ty, sql)?;
        results.push(BoundResult { name, ty, sql });
    }
    Ok(results)
}

fn find_outputs(
    signature: &Signature,
    parameters: &[Parameter],
    results: &[BoundResult],
) -> Result<Vec<(usize, usize)>> {
    let mut outputs = Vec::new();
    for (number, parameter) in parameters.iter().enumerate() {
        let feeds = find_argument(signature, &parameter.name).is_some();
        if !parameter.is_output {
            if !feeds && !is_streaming(parameter) {
                return Err(invalid(format!(
                    "parameter \"@{}\" feeds no argument of \"{}\"",
                    parameter.name, signature.function
                ))
                .with_detail(format!(
                    "Its arguments are {}.",
                    list((0..signature.arguments.len()).map(|i| argument_name(signature, i)))
                )));
            }
            continue;
        }
        let by_name = position_of(results.iter().map(|result| result.name.as_str()), &parameter.name);
        let is_only = results.len() == 1 && parameters.iter().filter(|other| other.is_output).count() == 1;
        match by_name.or(is_only.then_some(0)) {
            Some(result) => {
                let what = format!("the value of parameter \"@{}\"", parameter.name);
                from_arrow::check(&what, &results[result].ty, parameter.sql)?;
                outputs.push((number, result));
            }
            None => {
                return Err(invalid(format!(
                    "no result column is named like OUTPUT parameter \"@{}\"",
                    parameter.name
                ))
                .with_detail(format!("They are {}.", list(results.iter().map(|result| result.name.as_str())))));
            }
        }
    }
    Ok(outputs)
}

fn mismatch(
    signature: &Signature,
    feeding: &[usize],
    unfed: &[usize],
    columns: &[InputColumn],
    parameters: &[Parameter],
) -> Error {
    let wanted = list(
        unfed
            .iter()
            .map(|position| format!("{} {}", argument_name(signature, *position), signature.arguments[*position].ty)),
    );
    let error = Error::new(
        Kind::SignatureMismatch,
        format!("the input has {} columns for {} arguments of \"{}\"", feeding.len(), unfed.len(), signature.function),
    );
    let found = list(feeding.iter().map(|column| columns[*column].name.as_str()));
    let fed = parameters.iter().filter(|parameter| find_argument(signature, &parameter.name).is_some()).count();
    error
        .with_detail(format!(
            "Columns: {found}. Arguments: {wanted}{}.",
            if fed > 0 { format!(", and {fed} fed by parameters") } else { String::new() }
        ))
        .with_hint("Name columns that are not arguments in passthrough, or write bind = \"name\" in the script.")
}

fn list<T: AsRef<str>>(names: impl Iterator<Item = T>) -> String {
    let names: Vec<String> = names.map(|name| format!("\"{}\"", name.as_ref())).collect();
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}

fn invalid(message: String) -> Error {
    Error::invalid_definition(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use udf_types::signature::Argument;

    fn signature(arguments: &str, result: &str) -> Signature {
        let Ok(Type::Composite(parts)) = Type::from_name(&format!("({arguments})")) else { panic!("{arguments}") };
        let arguments = parts.iter().map(|part| Argument { name: part.name.clone(), ty: part.ty.clone() }).collect();
        Signature::scalar("f", arguments, Type::from_name(result).unwrap())
    }

    fn columns(names: &str) -> Vec<InputColumn> {
        let column =
            |name: &str| InputColumn { name: name.to_string(), sql: ServerType::Float, nullable: 1, partition_by: -1 };
        names.split_whitespace().map(column).collect()
    }

    fn parameter(name: &str, is_output: bool) -> Parameter {
        Parameter { name: name.to_string(), sql: ServerType::Float, value: None, is_output }
    }

    fn bind(script: &str, signature: &Signature, names: &str, parameters: &[Parameter]) -> Result<Binding> {
        let script = Script::parse(&format!("image = 'i'\n{script}"), |_| unreachable!()).unwrap();
        Binding::new(&script, signature, &columns(names), parameters, 1, GuidForm::Guid)
    }

    #[test]
    fn columns_feed_what_parameters_do_not() {
        use Source::{Column, Parameter as Param};
        let f = signature("a float8, k float8, b float8", "float8");
        let bound = bind("passthrough = ['id']", &f, "x id y", &[parameter("K", false)]).unwrap();
        assert_eq!(bound.arguments, [Column(0), Param(0), Column(2)]);
        assert_eq!(bound.passthrough, [1]);
        let bound = bind("bind = 'name'", &f, "b other A k", &[]).unwrap();
        assert_eq!(bound.arguments, [Column(2), Column(3), Column(0)]);
        let bound =
            bind("", &f, "", &[parameter("arg3", false), parameter("a", false), parameter("k", false)]).unwrap();
        assert_eq!(bound.arguments, [Param(1), Param(2), Param(0)]);
        let streamed = bind("", &f, "a b c", &[parameter("r_rowsPerRead", false)]).unwrap();
        assert_eq!(streamed.arguments, [Column(0), Column(1), Column(2)]);
    }

    #[test]
    fn outputs_go_by_name_or_are_the_only_one() {
        let f = signature("a float8", "float8");
        assert_eq!(bind("", &f, "a", &[parameter("anything", true)]).unwrap().outputs, [(0, 0)]);
        let g = signature("a float8", "(x float8, y float8)");
        let bound = bind("", &g, "a", &[parameter("Y", true), parameter("x", true)]).unwrap();
        assert_eq!(bound.outputs, [(0, 1), (1, 0)]);
        assert!(bind("", &g, "a", &[parameter("z", true)]).unwrap_err().detail().unwrap().contains("\"x\", \"y\""));
        // A parameter may both feed and take.
        let bound = bind("", &f, "", &[parameter("a", true)]).unwrap();
        assert_eq!((bound.arguments, bound.outputs), (vec![Source::Parameter(0)], vec![(0, 0)]));
    }

    #[test]
    fn names_that_differ_in_case_are_told_apart() {
        use Source::{Column, Parameter as Param};
        let f = signature("x float8, X float8", "(y float8, Y float8)");
        let bound = bind("", &f, "z", &[parameter("X", false), parameter("Y", true)]).unwrap();
        assert_eq!((bound.arguments, bound.outputs), (vec![Column(0), Param(0)], vec![(1, 1)]));
        assert_eq!(bind("bind = 'name'", &f, "x", &[parameter("X", false)]).unwrap().arguments, [Column(0), Param(0)]);
        let g = signature("ab float8, AB float8", "float8");
        assert!(bind("", &g, "z", &[parameter("Ab", false)]).unwrap_err().message().contains("feeds no argument"));
    }

    #[test]
    fn map_functions_run_in_parallel_by_partition_alone() {
        let map = Signature { kind: FunctionKind::Map, ..signature("a float8", "float8") };
        let script = Script::parse("image = 'i'\nbind = 'name'", |_| unreachable!()).unwrap();
        let mut columns = columns("g a");
        let bind = |signature: &Signature, columns: &[InputColumn], tasks| {
            Binding::new(&script, signature, columns, &[], tasks, GuidForm::Guid)
        };
        assert!(bind(&map, &columns, 1).is_ok());
        assert!(bind(&map, &columns, 2).unwrap_err().message().contains("cannot run in parallel"));
        assert!(bind(&signature("a float8", "float8"), &columns, 2).is_ok());
        columns[0].partition_by = 0;
        assert!(bind(&map, &columns, 2).is_ok());
    }

    #[test]
    fn what_does_not_match_is_told_with_names() {
        let f = signature("a float8, b int4", "float8");
        for (script, names, parameters, word) in [
            ("", "x", vec![], "1 columns for 2 arguments"),
            ("", "x y", vec![], "CAST([y] AS int)"),
            ("bind = 'name'", "a c", vec![], "\"b\""),
            ("passthrough = ['q']", "x y", vec![], "\"q\""),
            ("passthrough = ['x']", "x x y", vec![], "several"),
            ("", "x y", vec![parameter("z", false)], "@z"),
            (
                "",
                "",
                vec![parameter("a", false), parameter("arg1", false), parameter("b", false)],
                "@a and @arg1 both feed",
            ),
            ("", "x", vec![parameter("A", false), parameter("a", false)], "@A and @a both feed"),
            ("bind = 'name'", "A b", vec![parameter("a", false)], "column \"A\" and parameter @a both feed"),
            ("bind = 'name'", "b", vec![parameter("a", false), parameter("arg2", false)], "and parameter @arg2 both"),
            ("result_columns = ['int']", "x y", vec![], "cannot come back as int"),
            ("result_columns = ['float', 'float']", "x y", vec![], "2 types"),
        ] {
            let error = bind(script, &f, names, &parameters).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let map = Signature { kind: FunctionKind::Map, ..signature("a float8", "float8") };
        assert!(bind("", &map, "a", &[parameter("r_rowsPerRead", false)]).unwrap_err().message().contains("streamed"));
        assert!(bind("passthrough = ['a']", &map, "a b", &[]).is_err());
        let aggregate = Signature { kind: FunctionKind::Aggregate, ..signature("a float8", "float8") };
        assert!(bind("", &aggregate, "a", &[]).is_err());
    }
}
