//! The type table: one row per type a container function may take or return.
//!
//! Each row ties together the SQL name, the Arrow type (with the extension name that tells apart what Arrow alone
//! does not), and the JSON form. Arrays, ranges and composite types are built of the table's types. Engines map their
//! own type tags to [`Type`]; nobody maps types anywhere else. `docs/types.md` is generated from this table, and the
//! codec tests walk it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit};

use crate::error::{Error, Result};
use crate::limits::MAX_DEPTH;

/// The key under which Arrow keeps extension names (Arrow columnar format, "Extension Types").
pub const EXTENSION_KEY: &str = "ARROW:extension:name";

/// The extension name of ranges.
const RANGE_EXTENSION: &str = "transship.range";

/// The five fields of a range; `lower` and `upper` are of the range's type.
const RANGE_FIELDS: [&str; 5] = ["lower", "upper", "lower_inc", "upper_inc", "empty"];

/// A type: one of the table, or one built of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant up to DateTime2 is a row of TABLE, which documents it")]
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
    Time,
    TimeTz,
    Interval,
    Inet,
    Cidr,
    MacAddr,
    DateTime2,
    /// One-dimensional, its first element at index 1.
    Array(Arc<Type>),
    /// A range of a type.
    Range(Arc<Type>),
    /// A composite type: a row of attributes.
    Composite(Arc<[Attribute]>),
}

/// A named part of a composite type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Type,
}

impl Attribute {
    /// The name of a column for it, the attribute at `position`: engines want one where servers leave names empty.
    pub fn column_name(&self, position: usize) -> String {
        if self.name.is_empty() { format!("f{}", position + 1) } else { self.name.clone() }
    }
}

/// A pattern of the types whose values travel as text.
#[macro_export]
macro_rules! textual_type {
    () => {
        $crate::types::Type::Text
            | $crate::types::Type::Numeric
            | $crate::types::Type::Json
            | $crate::types::Type::TimeTz
            | $crate::types::Type::Inet
            | $crate::types::Type::Cidr
            | $crate::types::Type::MacAddr
            | $crate::types::Type::DateTime2
    };
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
    /// What SQL Server gets, and sends: what it has no type for is text there, of the JSON form.
    pub tsql: &'static str,
    /// SQL literal and JSON text of the same value, for tests and documentation.
    pub examples: &'static [(&'static str, &'static str)],
}

/// The table.
pub static TABLE: &[TypeEntry] = &[
    TypeEntry {
        ty: Type::Bool,
        name: "bool",
        aliases: &["boolean"],
        extension: None,
        json: "`true` or `false`",
        tsql: "bit",
        examples: &[("true", "true"), ("false", "false")],
    },
    TypeEntry {
        ty: Type::Int2,
        name: "int2",
        aliases: &["smallint"],
        extension: None,
        json: "number",
        tsql: "smallint",
        examples: &[("-32768", "-32768"), ("0", "0"), ("32767", "32767")],
    },
    TypeEntry {
        ty: Type::Int4,
        name: "int4",
        aliases: &["integer", "int"],
        extension: None,
        json: "number",
        tsql: "int",
        examples: &[("-2147483648", "-2147483648"), ("2147483647", "2147483647")],
    },
    TypeEntry {
        ty: Type::Int8,
        name: "int8",
        aliases: &["bigint"],
        extension: None,
        json: "number; a string of digits outside ±2^53",
        tsql: "bigint",
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
        tsql: "real",
        examples: &[("1.5", "1.5"), ("'NaN'", "\"NaN\""), ("'-Infinity'", "\"-Infinity\"")],
    },
    TypeEntry {
        ty: Type::Float8,
        name: "float8",
        aliases: &["double precision"],
        extension: None,
        json: "number; `\"NaN\"`, `\"Infinity\"`, `\"-Infinity\"`",
        tsql: "float",
        examples: &[
            ("0.1", "0.1"),
            ("'-0'", "-0.0"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
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
        tsql: "nvarchar(max)",
        examples: &[("''", "\"\""), ("'Grüße 🚢'", "\"Grüße 🚢\"")],
    },
    TypeEntry {
        ty: Type::Bytea,
        name: "bytea",
        aliases: &["blob", "binary", "varbinary"],
        extension: None,
        json: "string in base64",
        tsql: "varbinary(max)",
        examples: &[("'\\x00ff'", "\"AP8=\""), ("''", "\"\"")],
    },
    TypeEntry {
        ty: Type::Date,
        name: "date",
        aliases: &[],
        extension: None,
        json: "string `YYYY-MM-DD`; `\"infinity\"`, `\"-infinity\"`",
        tsql: "date",
        examples: &[("'2000-02-29'", "\"2000-02-29\""), ("'infinity'", "\"infinity\"")],
    },
    TypeEntry {
        ty: Type::Timestamp,
        name: "timestamp",
        aliases: &["timestamp without time zone"],
        extension: None,
        json: "string `YYYY-MM-DDTHH:MM:SS.ffffff`; `\"infinity\"`, `\"-infinity\"`",
        tsql: "datetime2(6)",
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
        tsql: "nvarchar(max)",
        examples: &[("'1969-12-31 23:59:59.5+00'", "\"1969-12-31T23:59:59.500000Z\"")],
    },
    TypeEntry {
        ty: Type::Numeric,
        name: "numeric",
        aliases: &["decimal"],
        extension: Some("arrowudf.decimal"),
        json: "string of decimal digits; `\"NaN\"`, `\"Infinity\"`, `\"-Infinity\"`",
        tsql: "decimal(38, 10)",
        examples: &[("12345678901234567890.123456789", "\"12345678901234567890.123456789\""), ("'NaN'", "\"NaN\"")],
    },
    TypeEntry {
        ty: Type::Uuid,
        name: "uuid",
        aliases: &[],
        extension: Some("arrow.uuid"),
        json: "string in the 8-4-4-4-12 form",
        tsql: "uniqueidentifier",
        examples: &[("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "\"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\"")],
    },
    TypeEntry {
        ty: Type::Json,
        name: "json",
        aliases: &["jsonb"],
        extension: Some("arrowudf.json"),
        json: "string that holds the JSON text",
        tsql: "nvarchar(max)",
        examples: &[("'{\"a\": [1, null]}'", "\"{\\\"a\\\": [1, null]}\"")],
    },
    TypeEntry {
        ty: Type::Time,
        name: "time",
        aliases: &["time without time zone"],
        extension: None,
        json: "string `HH:MM:SS.ffffff`; midnight at the end of a day is `24:00:00.000000`",
        tsql: "nvarchar(max)",
        examples: &[("'00:00'", "\"00:00:00.000000\""), ("'23:59:59.999999'", "\"23:59:59.999999\"")],
    },
    TypeEntry {
        ty: Type::TimeTz,
        name: "timetz",
        aliases: &["time with time zone"],
        extension: Some("transship.timetz"),
        json: "string `HH:MM:SS.ffffff+HH:MM`",
        tsql: "nvarchar(max)",
        examples: &[("'12:30:00.5+02'", "\"12:30:00.5+02\"")],
    },
    TypeEntry {
        ty: Type::Interval,
        name: "interval",
        aliases: &[],
        extension: None,
        json: "object `{\"months\": 1, \"days\": 2, \"microseconds\": 3}`; microseconds outside ±2^53 are a string of digits",
        tsql: "nvarchar(max)",
        examples: &[("'1 mon -2 days 00:00:03.5'", "{\"months\":1,\"days\":-2,\"microseconds\":3500000}")],
    },
    TypeEntry {
        ty: Type::Inet,
        name: "inet",
        aliases: &[],
        extension: Some("transship.inet"),
        json: "string, with the prefix length if it is not a single address's",
        tsql: "nvarchar(max)",
        examples: &[("'192.168.1.5/24'", "\"192.168.1.5/24\""), ("'::1'", "\"::1\"")],
    },
    TypeEntry {
        ty: Type::Cidr,
        name: "cidr",
        aliases: &[],
        extension: Some("transship.cidr"),
        json: "string with prefix length",
        tsql: "nvarchar(max)",
        examples: &[("'10.0.0.0/8'", "\"10.0.0.0/8\"")],
    },
    TypeEntry {
        ty: Type::MacAddr,
        name: "macaddr",
        aliases: &[],
        extension: Some("transship.macaddr"),
        json: "string of six hexadecimal pairs with colons",
        tsql: "nvarchar(max)",
        examples: &[("'08:00:2b:01:02:03'", "\"08:00:2b:01:02:03\"")],
    },
    TypeEntry {
        ty: Type::DateTime2,
        name: "datetime2",
        aliases: &[],
        extension: Some("transship.datetime2"),
        json: "string `YYYY-MM-DDTHH:MM:SS.fffffff`, years 0001 to 9999",
        tsql: "datetime2(7)",
        examples: &[
            ("'0001-01-01T00:00:00.0000001'", "\"0001-01-01T00:00:00.0000001\""),
            ("'9999-12-31T23:59:59.9999999'", "\"9999-12-31T23:59:59.9999999\""),
        ],
    },
];

impl Type {
    /// The type's row of the table; none for a type that is built of others.
    pub fn entry(&self) -> Option<&'static TypeEntry> {
        TABLE.iter().find(|entry| entry.ty == *self)
    }

    /// The SQL Server type that stands for it.
    pub fn tsql(&self) -> &'static str {
        self.entry().map_or("nvarchar(max)", |entry| entry.tsql)
    }

    /// The Arrow type its values travel in.
    pub fn data_type(&self) -> DataType {
        match self {
            Type::Bool => DataType::Boolean,
            Type::Int2 => DataType::Int16,
            Type::Int4 => DataType::Int32,
            Type::Int8 => DataType::Int64,
            Type::Float4 => DataType::Float32,
            Type::Float8 => DataType::Float64,
            textual_type!() => DataType::Utf8,
            Type::Bytea => DataType::Binary,
            Type::Date => DataType::Date32,
            Type::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            Type::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Type::Uuid => DataType::FixedSizeBinary(16),
            Type::Time => DataType::Time64(TimeUnit::Microsecond),
            Type::Interval => DataType::Interval(IntervalUnit::MonthDayNano),
            Type::Array(element) => DataType::List(Arc::new(element.field("item"))),
            Type::Range(_) | Type::Composite(_) => DataType::Struct(self.attribute_fields()),
        }
    }

    /// The attributes of a composite type, and the parts of a range.
    pub fn attributes(&self) -> Vec<Attribute> {
        match self {
            Type::Composite(attributes) => attributes.to_vec(),
            Type::Range(element) => {
                let ty = |position| if position < 2 { (**element).clone() } else { Type::Bool };
                let attribute =
                    |(position, name): (usize, &&str)| Attribute { name: name.to_string(), ty: ty(position) };
                RANGE_FIELDS.iter().enumerate().map(attribute).collect()
            }
            _ => Vec::new(),
        }
    }

    fn attribute_fields(&self) -> Fields {
        self.attributes().iter().map(|attribute| attribute.ty.field(&attribute.name)).collect()
    }

    /// A nullable Arrow field of this type.
    pub fn field(&self, name: &str) -> Field {
        let field = Field::new(name, self.data_type(), true);
        let extension = match self {
            Type::Range(_) => Some(RANGE_EXTENSION),
            other => other.entry().and_then(|entry| entry.extension),
        };
        match extension {
            Some(extension) => field.with_metadata(HashMap::from([(EXTENSION_KEY.to_string(), extension.to_string())])),
            None => field,
        }
    }

    /// The type that an Arrow field carries, by extension name first.
    pub fn from_field(field: &Field) -> Result<Type> {
        Type::from_field_at(field, 0)
    }

    /// The type for what a field of a foreign server holds: servers of the Flight family use other Arrow types for the
    /// same values. `udf_codec::adapt` makes one of the other.
    pub fn from_foreign_field(field: &Field) -> Result<Type> {
        Type::from_field(&native_field(field))
    }

    fn from_field_at(field: &Field, depth: usize) -> Result<Type> {
        let unsupported = || Error::unsupported_type(&format!("\"{}\" (Arrow)", field.data_type()));
        if depth > MAX_DEPTH {
            return Err(unsupported());
        }
        let extension = field.metadata().get(EXTENSION_KEY).map(String::as_str);
        match field.data_type() {
            DataType::List(element) => Ok(Type::Array(Arc::new(Type::from_field_at(element, depth + 1)?))),
            // A row without attributes has no text either.
            DataType::Struct(fields) if !fields.is_empty() => {
                let mut attributes = Vec::with_capacity(fields.len());
                for field in fields {
                    attributes
                        .push(Attribute { name: field.name().clone(), ty: Type::from_field_at(field, depth + 1)? });
                }
                if extension == Some(RANGE_EXTENSION) {
                    let range = Type::Range(Arc::new(attributes.first().ok_or_else(unsupported)?.ty.clone()));
                    return if range.attributes() == attributes { Ok(range) } else { Err(unsupported()) };
                }
                Ok(Type::Composite(attributes.into()))
            }
            plain => {
                let matches = |entry: &&TypeEntry, wanted| entry.extension == wanted && entry.ty.data_type() == *plain;
                let by_extension = TABLE.iter().find(|entry| extension.is_some() && matches(entry, extension));
                let entry = by_extension.or_else(|| TABLE.iter().find(|entry| matches(entry, None)));
                entry.map(|entry| entry.ty.clone()).ok_or_else(unsupported)
            }
        }
    }

    /// Whether a part of the type is an attribute without a name.
    pub fn has_nameless_parts(&self) -> bool {
        match self {
            Type::Array(element) => element.has_nameless_parts(),
            Type::Composite(attributes) => {
                attributes.iter().any(|attribute| attribute.name.is_empty() || attribute.ty.has_nameless_parts())
            }
            _ => false,
        }
    }

    /// Whether an attribute's name, at any depth, has control characters.
    pub fn has_control_characters(&self) -> bool {
        match self {
            Type::Array(element) => element.has_control_characters(),
            Type::Composite(attributes) => attributes
                .iter()
                .any(|attribute| attribute.name.contains(char::is_control) || attribute.ty.has_control_characters()),
            _ => false,
        }
    }

    /// Whether a column of type `found` may stand for one of this type. Plain text may stand for a type that travels as
    /// text, since the engine's own parser judges it; the servers of arrow-udf leave names of attributes empty.
    pub fn accepts(&self, found: &Type) -> bool {
        match (self, found) {
            (Type::Array(mine), Type::Array(theirs)) | (Type::Range(mine), Type::Range(theirs)) => mine.accepts(theirs),
            (Type::Composite(mine), Type::Composite(theirs)) => {
                mine.len() == theirs.len()
                    && mine.iter().zip(theirs.iter()).all(|(mine, theirs)| {
                        (theirs.name.is_empty() || mine.name == theirs.name) && mine.ty.accepts(&theirs.ty)
                    })
            }
            // PostgreSQL has no type for datetime2, which is text there.
            (Type::Text, Type::DateTime2) => true,
            _ => self == found || (*found == Type::Text && self.data_type() == DataType::Utf8),
        }
    }
}

/// The field of this protocol for the values of a foreign field.
fn native_field(field: &Field) -> Field {
    let extension = field.metadata().get(EXTENSION_KEY).map(String::as_str);
    // Databend's word for JSON.
    let is_variant = field.metadata().get("Extension").is_some_and(|name| name == "Variant");
    let data_type = match field.data_type() {
        _ if is_variant => return Type::Json.field(field.name()),
        DataType::LargeBinary if extension == Some("arrowudf.decimal") => return Type::Numeric.field(field.name()),
        DataType::LargeUtf8 if extension == Some("arrowudf.json") => return Type::Json.field(field.name()),
        DataType::Decimal128(..) | DataType::Decimal256(..) | DataType::UInt64 => {
            return Type::Numeric.field(field.name());
        }
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Int8 | DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::Float16 => DataType::Float32,
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "UTC".into())),
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Microsecond),
        DataType::LargeList(element) | DataType::FixedSizeList(element, _) | DataType::List(element) => {
            DataType::List(Arc::new(native_field(element)))
        }
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|field| native_field(field)).collect()),
        other => other.clone(),
    };
    field.clone().with_data_type(data_type)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn built_types_survive_their_own_field_and_text() {
        for text in [
            "int4[]",
            "text[][]",
            "range(timestamptz)",
            "(a int4, \"b \"\" c\" (d text[], größe range(numeric)[])[])",
            "(\"\" int4)",
        ] {
            let ty = Type::from_name(text).unwrap();
            assert_eq!(ty.to_string(), text);
            assert_eq!(Type::from_field(&ty.field("x")).unwrap(), ty);
            assert!(ty.accepts(&ty) && !ty.accepts(&Type::Int2));
        }
        assert_eq!(Type::from_name(" TSTZRANGE [] ").unwrap().to_string(), "range(timestamptz)[]");
        assert_eq!(Type::from_name("(a double precision)").unwrap().to_string(), "(a float8)");
        for text in ["", "[]", "int4[", "int4[3]", "(", "()", "(int4)", "(a int4", "range(int4", "int4 x", "(a int4,)"]
        {
            assert!(Type::from_name(text).is_err(), "{text}");
        }
        assert!(Type::from_name(&"(a ".repeat(100_000)).is_err());
    }

    #[test]
    fn text_and_nameless_attributes_stand_for_more() {
        let declared = Type::from_name("(a numeric, b inet[])").unwrap();
        assert!(!declared.has_nameless_parts() && !Type::Text.has_nameless_parts());
        for text in ["(\"\" text)", "(a (b (\"\" text)[])[])[]"] {
            assert!(Type::from_name(text).unwrap().has_nameless_parts(), "{text}");
        }
        assert!(declared.accepts(&Type::from_name("(\"\" text, \"\" text[])").unwrap()));
        assert!(!declared.accepts(&Type::from_name("(b numeric, a inet[])").unwrap()));
        assert!(!Type::Text.accepts(&Type::Numeric));
    }

    #[test]
    fn unmapped_types_are_refused_by_name() {
        assert!(Type::from_name("point").unwrap_err().message().contains("\"point\""));
        let field = Field::new("x", DataType::Duration(TimeUnit::Second), true);
        assert!(Type::from_field(&field).unwrap_err().message().contains("Duration"));
        let field = Field::new("x", DataType::Struct(Fields::empty()), true);
        assert!(Type::from_field(&field).is_err() && Type::from_foreign_field(&field).is_err());
    }

    #[test]
    fn foreign_fields_hold_the_types_of_this_protocol() {
        let field = |data_type: DataType, key: &str, value: &str| {
            let metadata =
                if key.is_empty() { HashMap::new() } else { HashMap::from([(key.to_string(), value.to_string())]) };
            Field::new("x", data_type, false).with_metadata(metadata)
        };
        let list = DataType::LargeList(Arc::new(Field::new("element", DataType::LargeUtf8, false)));
        for (foreign, expected) in [
            (field(DataType::LargeUtf8, "", ""), "text"),
            (field(DataType::LargeBinary, "", ""), "bytea"),
            (field(DataType::LargeBinary, "Extension", "Variant"), "json"),
            // Version 1 of arrow-udf.
            (field(DataType::LargeBinary, EXTENSION_KEY, "arrowudf.decimal"), "numeric"),
            (field(DataType::LargeUtf8, EXTENSION_KEY, "arrowudf.json"), "json"),
            (field(DataType::Utf8, EXTENSION_KEY, "arrowudf.decimal"), "numeric"),
            (field(DataType::Decimal128(18, 2), "", ""), "numeric"),
            (field(DataType::UInt64, "", ""), "numeric"),
            (field(DataType::UInt32, "", ""), "int8"),
            (field(DataType::Int8, "", ""), "int2"),
            (field(DataType::Timestamp(TimeUnit::Millisecond, Some("Europe/Berlin".into())), "", ""), "timestamptz"),
            (field(list, "", ""), "text[]"),
        ] {
            assert_eq!(Type::from_foreign_field(&foreign).unwrap().to_string(), expected, "{foreign}");
        }
        assert!(Type::from_foreign_field(&field(DataType::Duration(TimeUnit::Second), "", "")).is_err());
    }
}
