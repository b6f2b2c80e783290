//! SQL Server's types: what the host calls them, and how they are written in T-SQL.
//!
//! [`raw`] are the host's buffers, which [`to_arrow`] turns into Arrow columns; [`from_arrow`] does the reverse. Which type stands for which
//! is the type table's business (`udf_types::types`); here is only how the values lie in memory.

pub mod decimal;
pub mod from_arrow;
pub mod raw;
pub mod time;
pub mod to_arrow;

use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use crate::abi::code;

/// Sizes above this many bytes are (max) types, whose values are limited by 2^31-1 bytes alone.
pub const MAX_BOUNDED_BYTES: u64 = 8000;
/// The ColumnSize of a (max) column of bytes.
const LOB_BYTES: u64 = i32::MAX as u64;
/// The ColumnSize of nvarchar(max): even, since a character has two bytes.
const WIDE_LOB_BYTES: u64 = i32::MAX as u64 - 1;

/// A value that cannot be converted.
#[derive(Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Its row, counted from zero within what was converted.
    pub row: usize,
    /// What is wrong, as a fragment.
    pub fact: String,
}

impl Misfit {
    /// The same of values of which the first is of row `first`.
    fn behind(self, first: usize) -> Misfit {
        Misfit { row: first + self.row, ..self }
    }

    /// What is wrong, as a sentence.
    pub fn sentence(&self) -> String {
        let mut characters = self.fact.chars();
        let first = characters.next().map(char::to_uppercase).into_iter().flatten();
        first.chain(characters).chain(['.']).collect()
    }
}

/// A SQL Server type, as the API tells it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerType {
    /// bit
    Bit,
    /// tinyint: 0 to 255
    TinyInt,
    /// smallint
    SmallInt,
    /// int
    Int,
    /// bigint
    BigInt,
    /// real
    Real,
    /// float
    Float,
    /// decimal(precision, scale); money is decimal(19, 4)
    Decimal {
        /// 1 to 38.
        precision: u8,
        /// 0 to precision.
        scale: u8,
    },
    /// char, varchar: UTF-8 of at most this many bytes
    Char(u64),
    /// nchar, nvarchar: UTF-16 of at most this many bytes
    WideChar(u64),
    /// binary, varbinary of at most this many bytes
    Binary(u64),
    /// date
    Date,
    /// datetime2(digits); datetime is datetime2(3), smalldatetime datetime2(0)
    DateTime {
        /// Fractional digits of a second, 0 to 7.
        digits: u8,
    },
    /// uniqueidentifier
    Guid,
}

impl ServerType {
    /// The type of a column or parameter, as the host describes it; the error says what is wrong with it.
    /// Sizes are taken as they are: hosts differ in what they pass. A size of 0 is ODBC's for a (max) column.
    pub fn from_host(code: i16, size: u64, digits: i16) -> std::result::Result<ServerType, &'static str> {
        Ok(match code {
            code::BIT => ServerType::Bit,
            code::UTINYINT => ServerType::TinyInt,
            code::SSHORT => ServerType::SmallInt,
            code::SLONG => ServerType::Int,
            code::SBIGINT => ServerType::BigInt,
            code::REAL => ServerType::Real,
            code::DOUBLE => ServerType::Float,
            code::NUMERIC => {
                let precision = u8::try_from(size).ok().filter(|precision| (1..=38).contains(precision));
                let scale = u8::try_from(digits).ok().filter(|scale| *scale <= 38);
                match (precision, scale) {
                    (Some(precision), Some(scale)) if scale <= precision => ServerType::Decimal { precision, scale },
                    // A size of 19 bytes or 0 instead of a precision loses nothing: values carry their own digits.
                    (_, Some(scale)) => ServerType::Decimal { precision: 38, scale },
                    _ => return Err("a decimal of impossible scale"),
                }
            }
            code::CHAR => ServerType::Char(if size == 0 { LOB_BYTES } else { size }),
            code::WCHAR => ServerType::WideChar(if size == 0 { WIDE_LOB_BYTES } else { size }),
            code::BINARY => ServerType::Binary(if size == 0 { LOB_BYTES } else { size }),
            code::DATE => ServerType::Date,
            code::TIMESTAMP => ServerType::DateTime { digits: u8::try_from(digits.clamp(0, 7)).unwrap_or(7) },
            code::GUID => ServerType::Guid,
            code::TIME | code::SS_TIME2 => return Err("time"),
            code::SS_TIMESTAMPOFFSET => return Err("datetimeoffset"),
            _ => return Err("of a type that SQL Server does not send to external scripts"),
        })
    }

    /// Reads a type as T-SQL writes it, for a result column.
    pub fn parse(text: &str) -> Result<ServerType> {
        let wrong = || {
            Error::new(Kind::InvalidDefinition, format!("\"{text}\" is not a type that a result column can have"))
                .with_hint("Write a type of T-SQL, for example float, decimal(19, 4), nvarchar(100) or datetime2(7).")
        };
        let compact: String = text.to_ascii_lowercase().chars().filter(|c| !c.is_whitespace()).collect();
        let (name, inside) = match compact.split_once('(') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(')').ok_or_else(wrong)?)),
            None => (compact.as_str(), None),
        };
        let numbers: Option<Vec<u64>> = inside
            .filter(|inside| *inside != "max")
            .map(|inside| inside.split(',').map(|n| n.parse().unwrap_or(u64::MAX)).collect());
        let length = |limit: u64, fixed: Option<u64>, max: u64| match (inside, numbers.as_deref()) {
            (Some("max"), _) if fixed.is_none() => Ok(max),
            (None, _) => Ok(fixed.unwrap_or(1)),
            (_, Some([n])) if (1..=limit).contains(n) => Ok(*n),
            _ => Err(wrong()),
        };
        let plain = |ty: ServerType| if inside.is_none() { Ok(ty) } else { Err(wrong()) };
        match name {
            "bit" => plain(ServerType::Bit),
            "tinyint" => plain(ServerType::TinyInt),
            "smallint" => plain(ServerType::SmallInt),
            "int" | "integer" => plain(ServerType::Int),
            "bigint" => plain(ServerType::BigInt),
            "real" => plain(ServerType::Real),
            "float" => match numbers.as_deref() {
                None if inside.is_none() => Ok(ServerType::Float),
                Some([1..=24]) => Ok(ServerType::Real),
                Some([25..=53]) => Ok(ServerType::Float),
                _ => Err(wrong()),
            },
            "money" => plain(ServerType::Decimal { precision: 19, scale: 4 }),
            "smallmoney" => plain(ServerType::Decimal { precision: 10, scale: 4 }),
            "decimal" | "numeric" | "dec" => {
                let (precision, scale) = match numbers.as_deref() {
                    None if inside.is_none() => (18, 0),
                    Some([precision]) => (*precision, 0),
                    Some([precision, scale]) => (*precision, *scale),
                    _ => return Err(wrong()),
                };
                match (u8::try_from(precision), u8::try_from(scale)) {
                    (Ok(precision @ 1..=38), Ok(scale)) if scale <= precision => {
                        Ok(ServerType::Decimal { precision, scale })
                    }
                    _ => Err(wrong()),
                }
            }
            "char" => length(8000, Some(1), 0).map(ServerType::Char),
            "varchar" => length(8000, None, LOB_BYTES).map(ServerType::Char),
            "nchar" => length(4000, Some(1), 0).map(|n| ServerType::WideChar(2 * n)),
            "nvarchar" if inside == Some("max") => Ok(ServerType::WideChar(WIDE_LOB_BYTES)),
            "nvarchar" => length(4000, None, 0).map(|n| ServerType::WideChar(2 * n)),
            "binary" => length(8000, Some(1), 0).map(ServerType::Binary),
            "varbinary" => length(8000, None, LOB_BYTES).map(ServerType::Binary),
            "date" => plain(ServerType::Date),
            "datetime" => plain(ServerType::DateTime { digits: 3 }),
            "smalldatetime" => plain(ServerType::DateTime { digits: 0 }),
            "datetime2" => match numbers.as_deref() {
                None if inside.is_none() => Ok(ServerType::DateTime { digits: 7 }),
                Some([digits @ 0..=7]) => Ok(ServerType::DateTime { digits: *digits as u8 }),
                _ => Err(wrong()),
            },
            "uniqueidentifier" => plain(ServerType::Guid),
            _ => Err(wrong()),
        }
    }

    /// The type that a column of `ty` comes back as, where nothing else is asked for.
    pub fn of_result(ty: &Type) -> ServerType {
        ServerType::parse(ty.tsql()).expect("the type table names types of T-SQL")
    }

    /// The host's type code.
    pub fn code(self) -> i16 {
        match self {
            ServerType::Bit => code::BIT,
            ServerType::TinyInt => code::UTINYINT,
            ServerType::SmallInt => code::SSHORT,
            ServerType::Int => code::SLONG,
            ServerType::BigInt => code::SBIGINT,
            ServerType::Real => code::REAL,
            ServerType::Float => code::DOUBLE,
            ServerType::Decimal { .. } => code::NUMERIC,
            ServerType::Char(_) => code::CHAR,
            ServerType::WideChar(_) => code::WCHAR,
            ServerType::Binary(_) => code::BINARY,
            ServerType::Date => code::DATE,
            ServerType::DateTime { .. } => code::TIMESTAMP,
            ServerType::Guid => code::GUID,
        }
    }

    /// Bytes of one value; none if values differ in length.
    pub fn element_bytes(self) -> Option<usize> {
        match self {
            ServerType::Bit | ServerType::TinyInt => Some(1),
            ServerType::SmallInt => Some(2),
            ServerType::Int | ServerType::Real => Some(4),
            ServerType::BigInt | ServerType::Float => Some(8),
            ServerType::Date => Some(6),
            ServerType::DateTime { .. } | ServerType::Guid => Some(16),
            ServerType::Decimal { .. } => Some(19),
            ServerType::Char(_) | ServerType::WideChar(_) | ServerType::Binary(_) => None,
        }
    }

    /// ColumnSize of a result column: bytes, of a decimal its precision. It is never 0.
    pub fn column_size(self) -> u64 {
        match self {
            ServerType::Decimal { precision, .. } => u64::from(precision),
            // What hosts call a (max) column's size differs; a value must fit whatever it is.
            ServerType::Char(bytes) | ServerType::Binary(bytes) if bytes > MAX_BOUNDED_BYTES => LOB_BYTES,
            ServerType::WideChar(bytes) if bytes > MAX_BOUNDED_BYTES => WIDE_LOB_BYTES,
            ServerType::Char(bytes) | ServerType::Binary(bytes) => bytes.max(1),
            ServerType::WideChar(bytes) => bytes.max(2),
            other => other.element_bytes().unwrap_or(1) as u64,
        }
    }

    /// DecimalDigits of a result column.
    pub fn decimal_digits(self) -> i16 {
        match self {
            ServerType::Decimal { scale, .. } => i16::from(scale),
            ServerType::DateTime { digits } => i16::from(digits),
            _ => 0,
        }
    }

    /// The longest value that a column of this type takes, in bytes.
    pub fn max_bytes(self) -> usize {
        match self {
            ServerType::Char(bytes) | ServerType::WideChar(bytes) | ServerType::Binary(bytes)
                if bytes <= MAX_BOUNDED_BYTES =>
            {
                bytes as usize
            }
            _ => i32::MAX as usize,
        }
    }
}

impl std::fmt::Display for ServerType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bounded = |f: &mut std::fmt::Formatter<'_>, name: &str, bytes: u64, width: u64| {
            if bytes > MAX_BOUNDED_BYTES { write!(f, "{name}(max)") } else { write!(f, "{name}({})", bytes / width) }
        };
        match *self {
            ServerType::Bit => f.write_str("bit"),
            ServerType::TinyInt => f.write_str("tinyint"),
            ServerType::SmallInt => f.write_str("smallint"),
            ServerType::Int => f.write_str("int"),
            ServerType::BigInt => f.write_str("bigint"),
            ServerType::Real => f.write_str("real"),
            ServerType::Float => f.write_str("float"),
            ServerType::Decimal { precision, scale } => write!(f, "decimal({precision}, {scale})"),
            ServerType::Char(bytes) => bounded(f, "varchar", bytes, 1),
            ServerType::WideChar(bytes) => bounded(f, "nvarchar", bytes, 2),
            ServerType::Binary(bytes) => bounded(f, "varbinary", bytes, 1),
            ServerType::Date => f.write_str("date"),
            ServerType::DateTime { digits } => write!(f, "datetime2({digits})"),
            ServerType::Guid => f.write_str("uniqueidentifier"),
        }
    }
}

/// An identifier as T-SQL quotes it.
pub fn quote(name: &str) -> String {
    format!("[{}]", name.replace(']', "]]"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use udf_types::types::TABLE;

    #[test]
    fn types_read_back_as_written() {
        for text in [
            "bit",
            "tinyint",
            "smallint",
            "int",
            "bigint",
            "real",
            "float",
            "decimal(38, 0)",
            "varchar(8000)",
            "varchar(max)",
            "nvarchar(4000)",
            "nvarchar(max)",
            "varbinary(1)",
            "varbinary(max)",
            "date",
            "datetime2(7)",
            "uniqueidentifier",
        ] {
            assert_eq!(ServerType::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(ServerType::parse(" MONEY ").unwrap(), ServerType::Decimal { precision: 19, scale: 4 });
        for text in [
            "",
            "xml",
            "float(54)",
            "decimal(39)",
            "decimal(5, 6)",
            "nvarchar(4001)",
            "varchar(0)",
            "char(max)",
            "int(4)",
            "datetime2(8)",
            "nvarchar(3",
            "time",
            "varchar(1,2)",
        ] {
            assert!(ServerType::parse(text).is_err(), "{text}");
        }
        for entry in TABLE {
            ServerType::of_result(&entry.ty);
        }
    }

    #[test]
    fn sizes_are_those_of_the_api() {
        assert_eq!(ServerType::parse("nvarchar(10)").unwrap().column_size(), 20);
        assert_eq!(ServerType::parse("nvarchar(max)").unwrap().column_size(), 2_147_483_646);
        assert_eq!(ServerType::parse("decimal(19, 4)").unwrap().column_size(), 19);
        assert_eq!(ServerType::parse("decimal(19, 4)").unwrap().element_bytes(), Some(19));
        assert_eq!((ServerType::Char(0).column_size(), ServerType::WideChar(0).column_size()), (1, 2));
        assert_eq!(ServerType::parse("nvarchar(10)").unwrap().max_bytes(), 20);
        assert_eq!(ServerType::parse("varchar(max)").unwrap().max_bytes(), i32::MAX as usize);
    }

    #[test]
    fn a_size_of_0_is_max() {
        for (code, name) in [(code::CHAR, "varchar"), (code::WCHAR, "nvarchar"), (code::BINARY, "varbinary")] {
            assert_eq!(ServerType::from_host(code, 0, 0), Ok(ServerType::parse(&format!("{name}(max)")).unwrap()));
        }
    }

    #[test]
    fn what_the_host_cannot_mean_is_named() {
        assert_eq!(ServerType::from_host(code::SS_TIME2, 16, 7), Err("time"));
        assert_eq!(ServerType::from_host(code::SS_TIMESTAMPOFFSET, 20, 7), Err("datetimeoffset"));
        assert!(ServerType::from_host(-18, 4, 0).is_err());
        assert_eq!(ServerType::from_host(code::NUMERIC, 0, 3), Ok(ServerType::Decimal { precision: 38, scale: 3 }));
        assert!(ServerType::from_host(code::NUMERIC, 10, 39).is_err());
    }
}
