//! What is called: a function's name, argument types, result type, NULL rule and volatility.

use std::fmt;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::types::Type;

/// How often a result may change, in PostgreSQL's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Volatility {
    /// The result depends on the arguments alone.
    Immutable,
    /// The result is the same within one statement.
    Stable,
    /// The call may have side effects: it is never repeated and never left out.
    #[default]
    Volatile,
}

/// What a function makes of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FunctionKind {
    /// One result per row.
    #[default]
    Scalar,
    /// Any number of results per row.
    Table,
    /// Any number of results for a whole stream of rows.
    Map,
    /// One result per group of rows.
    Aggregate,
}

impl FunctionKind {
    /// The kind's name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            FunctionKind::Scalar => "scalar",
            FunctionKind::Table => "table",
            FunctionKind::Map => "map",
            FunctionKind::Aggregate => "aggregate",
        }
    }
}

/// How a batch goes on after a row on which the handler raises an error (`docs/protocol.md` §4.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowErrors {
    /// No row is run twice.
    Once,
    /// Rows may be run again, to find the one on which a whole batch fails.
    Again,
}

impl RowErrors {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            RowErrors::Once => "once",
            RowErrors::Again => "again",
        }
    }
}

/// The key of the schema's metadata under which map and aggregate functions say what they are.
const KIND_KEY: &str = "transship.kind";

/// The key of the schema's metadata under which an exchange over Flight asks for a column of errors.
pub const ROW_ERRORS_KEY: &str = "transship.row_errors";

/// One declared argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name; empty if the declaration has none.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

/// A function's signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The name by which the server knows the function.
    pub function: String,
    /// What it makes of its calls.
    pub kind: FunctionKind,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// The result's type.
    pub result: Type,
    /// Whether a scalar function's replies have a column of errors behind the results; none if an error ends the exchange.
    pub row_errors: Option<RowErrors>,
}

impl Signature {
    /// A scalar function's signature.
    pub fn scalar(function: &str, arguments: Vec<Argument>, result: Type) -> Signature {
        Signature { function: function.to_string(), kind: FunctionKind::Scalar, arguments, result, row_errors: None }
    }

    /// The schema of a batch of calls (`docs/protocol.md` §4): one nullable field per argument; for an aggregate the
    /// group before them and a state behind them.
    pub fn call_schema(&self) -> SchemaRef {
        let mut fields: Vec<Field> = Vec::with_capacity(self.arguments.len() + 2);
        for (position, argument) in self.arguments.iter().enumerate() {
            let name = if argument.name.is_empty() { format!("arg{}", position + 1) } else { argument.name.clone() };
            fields.push(argument.ty.field(&name));
        }
        if self.kind == FunctionKind::Aggregate {
            fields.insert(0, Type::Int8.field("group"));
            fields.push(Type::Bytea.field("state"));
        }
        Arc::new(Schema::new(fields))
    }

    /// The types of the columns of [`Signature::call_schema`].
    pub fn call_types(&self) -> Vec<Type> {
        let arguments = self.arguments.iter().map(|argument| argument.ty.clone());
        match self.kind {
            FunctionKind::Aggregate => [Type::Int8].into_iter().chain(arguments).chain([Type::Bytea]).collect(),
            FunctionKind::Scalar | FunctionKind::Table | FunctionKind::Map => arguments.collect(),
        }
    }

    /// The types of a reply's columns (`docs/protocol.md` §4).
    pub fn reply_types(&self) -> Vec<Type> {
        match self.kind {
            FunctionKind::Scalar if self.row_errors.is_some() => vec![self.result.clone(), Type::Text],
            FunctionKind::Scalar | FunctionKind::Map => vec![self.result.clone()],
            FunctionKind::Table => vec![Type::Int4, self.result.clone()],
            FunctionKind::Aggregate => vec![self.result.clone(), Type::Bytea],
        }
    }

    /// Reads a signature as `GetFlightInfo` gives it: `docs/protocol.md` §3, "inputs" fields of arguments, then one
    /// field of the result, for a table function behind a field "row" of int32.
    pub fn from_schema(function: &str, schema: &Schema, inputs: usize) -> Result<Signature> {
        Signature::read_schema(function, schema, inputs, Type::from_field)
    }

    /// The same for a server that does not speak this protocol, whose Arrow types may be others.
    pub fn from_foreign_schema(function: &str, schema: &Schema, inputs: usize) -> Result<Signature> {
        Signature::read_schema(function, schema, inputs, Type::from_foreign_field)
    }

    fn read_schema(
        function: &str,
        schema: &Schema,
        inputs: usize,
        read: impl Fn(&Field) -> Result<Type>,
    ) -> Result<Signature> {
        let fields = schema.fields();
        let (result, kind) = match fields.get(inputs..) {
            Some([result]) => (result, FunctionKind::Scalar),
            // Version 1 of arrow-udf has another name for it.
            Some([row, result])
                if matches!(row.name().as_str(), "row" | "row_index") && *row.data_type() == DataType::Int32 =>
            {
                (result, FunctionKind::Table)
            }
            _ => {
                return Err(Error::protocol(
                    function,
                    format!("It declares {inputs} inputs and {} fields, which is no function's form.", fields.len()),
                ));
            }
        };
        let kind = match schema.metadata().get(KIND_KEY).map(String::as_str) {
            Some("map") => FunctionKind::Map,
            Some("aggregate") => FunctionKind::Aggregate,
            _ => kind,
        };
        let mut arguments = Vec::with_capacity(inputs);
        for field in &fields[..inputs] {
            arguments.push(Argument { name: field.name().clone(), ty: read(field)? });
        }
        Ok(Signature { function: function.to_string(), kind, arguments, result: read(result)?, row_errors: None })
    }

    /// Checks what the caller declared (`self`) against what the server `offered`. Types are compared by position;
    /// names do not matter.
    pub fn check_against(&self, offered: &Signature, place: &str) -> Result<()> {
        let same_arguments = self.arguments.len() == offered.arguments.len()
            && self.arguments.iter().zip(&offered.arguments).all(|(mine, theirs)| is_same(&mine.ty, &theirs.ty));
        let same_result = is_same(&self.result, &offered.result) || is_nameless(&self.result, &offered.result);
        if self.kind == offered.kind && same_arguments && same_result {
            return Ok(());
        }
        let mut differences = Vec::new();
        if self.kind != offered.kind {
            differences.push(format!("it is {} function, not {}", with_article(offered.kind), with_article(self.kind)));
        }
        if self.arguments.len() != offered.arguments.len() {
            differences.push(format!("it takes {} arguments, not {}", offered.arguments.len(), self.arguments.len()));
        } else {
            for (position, (mine, theirs)) in self.arguments.iter().zip(&offered.arguments).enumerate() {
                if !is_same(&mine.ty, &theirs.ty) {
                    differences.push(format!("argument {} is {}, not {}", position + 1, theirs.ty, mine.ty));
                }
            }
        }
        if !same_result {
            differences.push(format!("the result is {}, not {}", offered.result, self.result));
        }
        Err(Error::new(
            Kind::SignatureMismatch,
            format!("declaration of container function \"{}\" does not match {place}", self.function),
        )
        .with_detail(format!("It offers {offered}: {}.", differences.join("; ")))
        .with_hint("Declare the function with the types that the image offers."))
    }
}

/// A datetime2 may be declared as text: not every engine has a type for it. Attributes that a server leaves without names
/// (RisingWave, Databend's TUPLE) may be declared with any.
fn is_same(declared: &Type, offered: &Type) -> bool {
    match (declared, offered) {
        (Type::Text, Type::DateTime2) => true,
        (Type::Array(mine), Type::Array(theirs)) => is_same(mine, theirs),
        (Type::Composite(mine), Type::Composite(theirs)) => {
            mine.len() == theirs.len()
                && mine.iter().zip(theirs.iter()).all(|(mine, theirs)| {
                    (theirs.name.is_empty() || mine.name == theirs.name) && is_same(&mine.ty, &theirs.ty)
                })
        }
        _ => declared == offered,
    }
}

/// The servers of arrow-udf leave the names of a result's columns empty.
fn is_nameless(declared: &Type, offered: &Type) -> bool {
    matches!(offered, Type::Composite(attributes) if attributes.iter().all(|attribute| attribute.name.is_empty()))
        && declared.accepts(offered)
}

fn with_article(kind: FunctionKind) -> String {
    let article = if kind == FunctionKind::Aggregate { "an" } else { "a" };
    format!("{article} {}", kind.name())
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments: Vec<String> = self.arguments.iter().map(|argument| argument.ty.to_string()).collect();
        let set = if matches!(self.kind, FunctionKind::Table | FunctionKind::Map) { "setof " } else { "" };
        write!(f, "{}({}) returns {set}{}", self.function, arguments.join(", "), self.result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(arguments: &[Type], result: Type) -> Signature {
        let arguments = arguments.iter().map(|ty| Argument { name: String::new(), ty: ty.clone() }).collect();
        Signature::scalar("f", arguments, result)
    }

    #[test]
    fn mismatch_says_every_difference() {
        let declared = signature(&[Type::Int4, Type::Text], Type::Bool);
        let offered = signature(&[Type::Int8, Type::Text], Type::Float8);
        let error = declared.check_against(&offered, "image \"i\"").unwrap_err();
        assert_eq!(
            error.detail().unwrap(),
            "It offers f(int8, text) returns float8: argument 1 is int8, not int4; the result is float8, not bool."
        );
    }

    #[test]
    fn kinds_are_told_apart_by_their_schemas() {
        let schema = |fields: Vec<Field>| Schema::new(fields);
        let (x, row) = (Type::Int8.field("x"), Type::Int4.field("row"));
        let kind = |fields: Vec<Field>| Signature::from_schema("f", &schema(fields), 1).map(|found| found.kind);
        assert_eq!(kind(vec![x.clone(), x.clone()]).unwrap(), FunctionKind::Scalar);
        assert_eq!(kind(vec![x.clone(), row.clone(), x.clone()]).unwrap(), FunctionKind::Table);
        assert!(kind(vec![x.clone(), x.clone(), x.clone()]).is_err());
        assert!(kind(vec![x.clone()]).is_err());
        let metadata = std::collections::HashMap::from([(KIND_KEY.to_string(), "map".to_string())]);
        let map = schema(vec![x.clone(), x.clone()]).with_metadata(metadata);
        let map = Signature::from_schema("f", &map, 1).unwrap();
        assert_eq!(map.kind, FunctionKind::Map);
        let declared = Signature::scalar("f", map.arguments.clone(), Type::Int8);
        let error = declared.check_against(&map, "image \"i\"").unwrap_err();
        assert_eq!(
            error.detail().unwrap(),
            "It offers f(int8) returns setof int8: it is a map function, not a scalar."
        );
        assert!(Signature::from_schema("f", &schema(vec![row, x]), 7).is_err());
    }

    #[test]
    fn zero_arguments_have_an_empty_schema() {
        let offered = signature(&[], Type::Int4);
        assert_eq!(offered.call_schema().fields().len(), 0);
        let schema = Schema::new(vec![Type::Int4.field("f")]);
        assert_eq!(Signature::from_schema("f", &schema, 0).unwrap(), offered);
    }

    /// What a server leaves without names is declared with names, wherever it stands.
    #[test]
    fn attributes_without_names_may_be_declared_with_any() {
        let ty = |text: &str| Type::from_name(text).unwrap();
        let offered = |argument: &str, result: &str| {
            Signature::scalar("f", vec![Argument { name: String::new(), ty: ty(argument) }], ty(result))
        };
        let nameless = "(\"\" text, \"\" (\"\" int4)[])";
        let named = "(f1 text, f2 (f1 int4)[])";
        for (argument, result) in [(nameless, "int4"), ("int4", nameless), ("(\"\" int8)[]", "(\"\" int8)[]")] {
            let declared = |text: &str| match text {
                _ if text == nameless => named.to_string(),
                _ => text.replace("\"\"", "f1"),
            };
            offered(&declared(argument), &declared(result)).check_against(&offered(argument, result), "x").unwrap();
        }
        for (declared, found) in [
            ("(f1 text)", nameless),
            ("(f1 text, f2 (f1 int8)[])", nameless),
            ("(f1 int4)", "(a int4)"),
            ("(f1 numeric)[]", "(\"\" text)[]"),
        ] {
            let error = offered(declared, "int4").check_against(&offered(found, "int4"), "x").unwrap_err();
            assert_eq!(error.kind(), Kind::SignatureMismatch, "{declared}");
        }
    }
}
