//! What is called: a function's name, argument types, result type, NULL rule and volatility.

use std::fmt;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
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

/// One declared argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name; empty if the declaration has none.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

/// A scalar function's signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The name by which the server knows the function.
    pub function: String,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// The result's type.
    pub result: Type,
}

impl Signature {
    /// The schema of a batch of calls: one nullable field per argument.
    pub fn call_schema(&self) -> SchemaRef {
        let fields = self.arguments.iter().enumerate().map(|(position, argument)| {
            let name = if argument.name.is_empty() { format!("arg{}", position + 1) } else { argument.name.clone() };
            argument.ty.field(&name)
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// Reads a signature as `GetFlightInfo` gives it: `docs/protocol.md` §3, "inputs" fields of arguments, then one
    /// field of the result.
    pub fn from_schema(function: &str, schema: &Schema, inputs: usize) -> Result<Signature> {
        let fields = schema.fields();
        if fields.len() != inputs + 1 {
            return Err(Error::protocol(
                function,
                format!(
                    "It declares {inputs} inputs but {} fields; a scalar function has one field more than inputs.",
                    fields.len()
                ),
            ));
        }
        let mut arguments = Vec::with_capacity(inputs);
        for field in &fields[..inputs] {
            arguments.push(Argument { name: field.name().clone(), ty: Type::from_field(field)? });
        }
        Ok(Signature { function: function.to_string(), arguments, result: Type::from_field(&fields[inputs])? })
    }

    /// Checks what the caller declared (`self`) against what the server `offered`. Types are compared by position;
    /// names do not matter.
    pub fn check_against(&self, offered: &Signature, place: &str) -> Result<()> {
        let same_arguments = self.arguments.len() == offered.arguments.len()
            && self.arguments.iter().zip(&offered.arguments).all(|(mine, theirs)| mine.ty == theirs.ty);
        if same_arguments && self.result == offered.result {
            return Ok(());
        }
        let mut differences = Vec::new();
        if self.arguments.len() != offered.arguments.len() {
            differences.push(format!("it takes {} arguments, not {}", offered.arguments.len(), self.arguments.len()));
        } else {
            for (position, (mine, theirs)) in self.arguments.iter().zip(&offered.arguments).enumerate() {
                if mine.ty != theirs.ty {
                    differences.push(format!("argument {} is {}, not {}", position + 1, theirs.ty, mine.ty));
                }
            }
        }
        if self.result != offered.result {
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

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments: Vec<String> = self.arguments.iter().map(|argument| argument.ty.to_string()).collect();
        write!(f, "{}({}) returns {}", self.function, arguments.join(", "), self.result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(arguments: &[Type], result: Type) -> Signature {
        let arguments = arguments.iter().map(|ty| Argument { name: String::new(), ty: ty.clone() }).collect();
        Signature { function: "f".into(), arguments, result }
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
    fn zero_arguments_have_an_empty_schema() {
        let offered = signature(&[], Type::Int4);
        assert_eq!(offered.call_schema().fields().len(), 0);
        let schema = Schema::new(vec![Type::Int4.field("f")]);
        assert_eq!(Signature::from_schema("f", &schema, 0).unwrap(), offered);
    }
}
