//! Values of other engines' envelopes and of this protocol's JSON form (`docs/types.md`), each as the other writes it.

use std::borrow::Cow;

use arrow_array::ArrayRef;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use udf_codec::json::encode_value_or_null;
use udf_codec::json_text::{Json, value_of};
use udf_types::types::Type;

/// Whose envelope a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// An array of rows, as of functions on Azure.
    Array,
    AzureMl,
    BigQuery,
    MlFlow,
    Redshift,
    SingleStore,
    Snowflake,
}

impl Envelope {
    /// Whether JSON travels as it is, not as a string that holds it.
    fn has_json(self) -> bool {
        matches!(self, Envelope::Snowflake | Envelope::BigQuery)
    }
}

/// An engine's value as `decode_column` takes it, which refuses what is not of that type. The error says what cannot be read.
pub(crate) fn incoming(envelope: Envelope, ty: &Type, value: Json<'_>) -> Result<Value, Cow<'static, str>> {
    Ok(match (ty, value) {
        (_, Json::Null) => Value::Null,
        (Type::Array(element), Json::Array(items)) => {
            let items = items.into_iter().map(|item| incoming(envelope, element, item));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        (Type::Range(_) | Type::Composite(_), mut object @ Json::Object(_)) => {
            let mut read = serde_json::Map::new();
            for attribute in ty.attributes() {
                let value = object.take(&attribute.name).unwrap_or(Json::Null);
                read.insert(attribute.name, incoming(envelope, &attribute.ty, value)?);
            }
            Value::Object(read)
        }
        (Type::Json, Json::String(text)) if !envelope.has_json() => Value::String(text.into_owned()),
        (Type::Json, value) => Value::String(value.to_string()),
        (Type::Bytea, Json::String(text)) if envelope == Envelope::Snowflake => {
            let bytes = from_hexadecimal(&text).ok_or("bytes are hexadecimal digits")?;
            Value::String(BASE64.encode(bytes))
        }
        // SingleStore's BOOL is a TINYINT.
        (Type::Bool, Json::Number("0")) => Value::Bool(false),
        (Type::Bool, Json::Number("1")) => Value::Bool(true),
        (Type::Timestamp | Type::TimestampTz, Json::String(text)) => Value::String(text.replacen(' ', "T", 1)),
        (ty, value) => value_of(ty, value),
    })
}

/// A result as the engine reads it, as JSON. The error shows what cannot be written.
pub(crate) fn outgoing(envelope: Envelope, ty: &Type, column: &ArrayRef, row: usize) -> Result<String, String> {
    let mut text = String::new();
    encode_value_or_null(&mut text, ty, column, row);
    if !differs(envelope, ty) {
        return Ok(text);
    }
    let value = Json::parse(&text).ok_or_else(|| text.clone())?;
    let mut written = String::new();
    write(&mut written, envelope, ty, &value)?;
    Ok(written)
}

/// Whether an engine writes some values of a type in another way.
fn differs(envelope: Envelope, ty: &Type) -> bool {
    match ty {
        Type::Array(element) | Type::Range(element) => differs(envelope, element),
        Type::Composite(attributes) => attributes.iter().any(|attribute| differs(envelope, &attribute.ty)),
        Type::Json => envelope.has_json(),
        Type::Bytea => envelope == Envelope::Snowflake,
        Type::Int8 => envelope != Envelope::BigQuery,
        _ => false,
    }
}

fn write(out: &mut String, envelope: Envelope, ty: &Type, value: &Json<'_>) -> Result<(), String> {
    match (ty, value) {
        (Type::Array(element), Json::Array(items)) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                out.push_str(if position == 0 { "" } else { "," });
                write(out, envelope, element, item)?;
            }
            out.push(']');
        }
        (Type::Range(_) | Type::Composite(_), Json::Object(_)) => {
            out.push('{');
            for (position, attribute) in ty.attributes().iter().enumerate() {
                out.push_str(if position == 0 { "" } else { "," });
                out.push_str(&Json::String(Cow::Borrowed(&attribute.name)).to_string());
                out.push(':');
                write(out, envelope, &attribute.ty, value.get(&attribute.name).unwrap_or(&Json::Null))?;
            }
            out.push('}');
        }
        (Type::Json, Json::String(text)) if envelope.has_json() => {
            // A handler may have written anything.
            let inner = Json::parse(text).ok_or_else(|| format!("{text:?}, which is no JSON"))?;
            out.push_str(&inner.to_string());
        }
        (Type::Bytea, Json::String(text)) if envelope == Envelope::Snowflake => {
            let bytes = BASE64.decode(text.as_bytes()).map_err(|cause| cause.to_string())?;
            let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
            out.push_str(&Json::String(Cow::Owned(digits)).to_string());
        }
        // Only BigQuery and this protocol write large integers as strings.
        (Type::Int8, Json::String(digits)) if envelope != Envelope::BigQuery => out.push_str(digits),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}
