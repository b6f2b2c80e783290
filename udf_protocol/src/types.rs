//! The type table: one row per type a container function may take or return.
//!
//! Each row ties together the SQL name, the Arrow type (with the extension name that tells apart what Arrow alone
//! does not), and the JSON form. Engines map their own type tags to [`Type`]; nobody maps types anywhere else.
//! `docs/types.md` is generated from this table, and the codec tests walk it.

use std::collections::HashMap;
use std::fmt;

use arrow_schema::{DataType, Field, TimeUnit};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// The key under which Arrow keeps extension names (Arrow columnar format, "Extension Types").
pub const EXTENSION_KEY: &str = "ARROW:extension:name";

/// A type of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is a row of TABLE, which documents it")]
pub enum Type {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Text,
    Bytea,
    Date,
    Timestamp,
    TimestampTz,
    Numeric,
    Uuid,
    Json,
}

/// One row of the type table.
#[derive(Debug)]
pub struct TypeEntry {
    /// The type.
    pub ty: Type,
    /// Its name in signatures, manifests and DDL: PostgreSQL's short name.
    pub name: &'static str,
    /// Other SQL names that mean it.
    pub aliases: &'static [&'static str],
    /// Arrow's extension name, where the Arrow type alone does not say it.
    pub extension: Option<&'static str>,
    /// The form of a value in JSON, in words.
    pub json: &'static str,
    /// Python's annotation and value.
    pub python: &'static str,
    /// SQL literal and JSON text of the same value, for tests and documentation.
    pub examples: &'static [(&'static str, &'static str)],
}

/// The table.
pub const TABLE: &[TypeEntry] = &[
    TypeEntry {
        ty: Type::Bool,
        name: "bool",
        aliases: &["boolean"],
        extension: None,
        json: "`true` or `false`",
        python: "bool",
        examples: &[("true", "true"), ("false", "false")],
    },
    TypeEntry {
        ty: Type::Int2,
        name: "int2",
        aliases: &["smallint"],
        extension: None,
        json: "number",
        python: "int",
        examples: &[("-32768", "-32768"), ("0", "0"), ("32767", "32767")],
    },
    TypeEntry {
        ty: Type::Int4,
        name: "int4",
        aliases: &["integer", "int"],
        extension: None,
        json: "number",
        python: "int",
        examples: &[("-2147483648", "-2147483648"), ("2147483647", "2147483647")],
    },
    TypeEntry {
        ty: Type::Int8,
        name: "int8",
        aliases: &["bigint"],
        extension: None,
        json: "number; a string of digits outside ±2^53",
        python: "int",
        examples: &[
            ("-9223372036854775808", "\"-9223372036854775808\""),
            ("9007199254740992", "9007199254740992"),
            ("9007199254740993", "\"9007199254740993\""),
            ("9223372036854775807", "\"9223372036854775807\""),
        ],
    },
    TypeEntry {
        ty: Type::Float4,
        name: "float4",
        aliases: &["real"],
        extension: None,
        json: "number; `\"NaN\"`, `\"Infinity\"`, `\"-Infinity\"`",
        python: "float",
        examples: &[("1.5", "1.5"), ("'NaN'", "\"NaN\""), ("'-Infinity'", "\"-Infinity\"")],
    },
    TypeEntry {
        ty: Type::Float8,
        name: "float8",
        aliases: &["double precision"],
        extension: None,
        json: "number; `\"NaN\"`, `\"Infinity\"`, `\"-Infinity\"`",
        python: "float",
        examples: &[
            ("0.1", "0.1"),
            ("'-0'", "-0.0"),
            ("1.7976931348623157e308", "1.7976931348623157e308"),
            ("'NaN'", "\"NaN\""),
            ("'Infinity'", "\"Infinity\""),
        ],
    },
    TypeEntry {
        ty: Type::Text,
        name: "text",
        aliases: &["varchar", "character varying", "char", "character", "bpchar", "string"],
        extension: None,
        json: "string",
        python: "str",
        examples: &[("''", "\"\""), ("'Grüße 🚢'", "\"Grüße 🚢\"")],
    },
    TypeEntry {
        ty: Type::Bytea,
        name: "bytea",
        aliases: &["blob", "binary", "varbinary"],
        extension: None,
        json: "string in base64",
        python: "bytes",
        examples: &[("'\\x00ff'", "\"AP8=\""), ("''", "\"\"")],
    },
    TypeEntry {
        ty: Type::Date,
        name: "date",
        aliases: &[],
        extension: None,
        json: "string `YYYY-MM-DD`; `\"infinity\"`, `\"-infinity\"`",
        python: "datetime.date",
        examples: &[("'2000-02-29'", "\"2000-02-29\""), ("'infinity'", "\"infinity\"")],
    },
    TypeEntry {
        ty: Type::Timestamp,
        name: "timestamp",
        aliases: &["timestamp without time zone"],
        extension: None,
        json: "string `YYYY-MM-DDTHH:MM:SS.ffffff`; `\"infinity\"`, `\"-infinity\"`",
        python: "datetime.datetime",
        examples: &[
            ("'2013-01-01 05:15:00.000001'", "\"2013-01-01T05:15:00.000001\""),
            ("'-infinity'", "\"-infinity\""),
        ],
    },
    TypeEntry {
        ty: Type::TimestampTz,
        name: "timestamptz",
        aliases: &["timestamp with time zone"],
        extension: None,
        json: "string `YYYY-MM-DDTHH:MM:SS.ffffffZ`, in UTC; `\"infinity\"`, `\"-infinity\"`",
        python: "datetime.datetime with a time zone",
        examples: &[("'1969-12-31 23:59:59.5+00'", "\"1969-12-31T23:59:59.500000Z\"")],
    },
    TypeEntry {
        ty: Type::Numeric,
        name: "numeric",
        aliases: &["decimal"],
        extension: Some("arrowudf.decimal"),
        json: "string of decimal digits; `\"NaN\"`, `\"Infinity\"`, `\"-Infinity\"`",
        python: "decimal.Decimal",
        examples: &[("12345678901234567890.123456789", "\"12345678901234567890.123456789\""), ("'NaN'", "\"NaN\"")],
    },
    TypeEntry {
        ty: Type::Uuid,
        name: "uuid",
        aliases: &[],
        extension: Some("arrow.uuid"),
        json: "string in the 8-4-4-4-12 form",
        python: "uuid.UUID",
        examples: &[("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "\"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\"")],
    },
    TypeEntry {
        ty: Type::Json,
        name: "json",
        aliases: &["jsonb"],
        extension: Some("arrowudf.json"),
        json: "string that holds the JSON text",
        python: "dict, list, str, int, float, bool or None",
        examples: &[("'{\"a\": [1, null]}'", "\"{\\\"a\\\": [1, null]}\"")],
    },
];

impl Type {
    /// The type's row of the table.
    pub fn entry(self) -> &'static TypeEntry {
        // TABLE is in the order of the variants; the test below holds it to that.
        &TABLE[self as usize]
    }

    /// The type's name in signatures.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// Looks a SQL name or alias up, in any case.
    pub fn from_name(name: &str) -> Result<Type> {
        let wanted = name.trim().to_ascii_lowercase();
        TABLE
            .iter()
            .find(|entry| entry.name == wanted || entry.aliases.contains(&wanted.as_str()))
            .map(|entry| entry.ty)
            .ok_or_else(|| Error::unsupported_type(&format!("\"{}\"", name.trim())))
    }

    /// The Arrow type its values travel in.
    pub fn data_type(self) -> DataType {
        match self {
            Type::Bool => DataType::Boolean,
            Type::Int2 => DataType::Int16,
            Type::Int4 => DataType::Int32,
            Type::Int8 => DataType::Int64,
            Type::Float4 => DataType::Float32,
            Type::Float8 => DataType::Float64,
            Type::Text | Type::Numeric | Type::Json => DataType::Utf8,
            Type::Bytea => DataType::Binary,
            Type::Date => DataType::Date32,
            Type::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Type::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Type::Uuid => DataType::FixedSizeBinary(16),
        }
    }

    /// A nullable Arrow field of this type.
    pub fn field(self, name: &str) -> Field {
        let field = Field::new(name, self.data_type(), true);
        match self.entry().extension {
            Some(extension) => field.with_metadata(HashMap::from([(EXTENSION_KEY.to_string(), extension.to_string())])),
            None => field,
        }
    }

    /// The type that an Arrow field carries, by extension name first.
    pub fn from_field(field: &Field) -> Result<Type> {
        let extension = field.metadata().get(EXTENSION_KEY).map(String::as_str);
        let by_extension = TABLE.iter().find(|entry| {
            extension.is_some() && entry.extension == extension && entry.ty.data_type() == *field.data_type()
        });
        if let Some(entry) = by_extension {
            return Ok(entry.ty);
        }
        TABLE
            .iter()
            .find(|entry| entry.extension.is_none() && entry.ty.data_type() == *field.data_type())
            .map(|entry| entry.ty)
            .ok_or_else(|| Error::unsupported_type(&format!("\"{}\" (Arrow)", field.data_type())))
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Type {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Type {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Type, D::Error> {
        let name = String::deserialize(deserializer)?;
        Type::from_name(&name).map_err(serde::de::Error::custom)
    }
}

/// The text of `docs/types.md`.
pub fn types_document() -> String {
    let mut text = String::from(
        "# Types\n\nGenerated from the type table in `udf_protocol/src/types.rs`; a test keeps the two equal.\n\n\
         | type | other SQL names | Arrow type | extension name | JSON form | Python |\n|---|---|---|---|---|---|\n",
    );
    for entry in TABLE {
        text.push_str(&format!(
            "| `{}` | {} | `{}` | {} | {} | `{}` |\n",
            entry.name,
            entry.aliases.join(", "),
            entry.ty.data_type(),
            entry.extension.map(|name| format!("`{name}`")).unwrap_or_default(),
            entry.json,
            entry.python,
        ));
    }
    text.push_str(
        "\nEvery type may be NULL, in both directions: Arrow validity, JSON `null`, Python `None`.\n\n\
         Infinite dates and timestamps are the smallest and the largest integer of their Arrow type. Python's `datetime`\n\
         cannot hold them: a handler that reads rows gets an error that names the row, a handler that reads Arrow\n\
         columns gets the integers.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_the_order_of_the_variants() {
        for (position, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.ty as usize, position, "{}", entry.name);
        }
    }

    #[test]
    fn every_type_survives_its_own_field_and_name() {
        for entry in TABLE {
            assert_eq!(Type::from_field(&entry.ty.field("x")).unwrap(), entry.ty);
            assert_eq!(Type::from_name(entry.name).unwrap(), entry.ty);
            for alias in entry.aliases {
                assert_eq!(Type::from_name(&alias.to_uppercase()).unwrap(), entry.ty);
            }
        }
    }

    #[test]
    fn unmapped_types_are_refused_by_name() {
        assert!(Type::from_name("point").unwrap_err().message().contains("\"point\""));
        let field = Field::new("x", DataType::Duration(TimeUnit::Second), true);
        assert!(Type::from_field(&field).unwrap_err().message().contains("Duration"));
    }

    #[test]
    fn document_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/types.md");
        if std::env::var_os("TRANSSHIP_WRITE_DOCS").is_some() {
            std::fs::write(path, types_document()).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert!(found == types_document(), "docs/types.md is stale; run the tests with TRANSSHIP_WRITE_DOCS=1");
    }
}
