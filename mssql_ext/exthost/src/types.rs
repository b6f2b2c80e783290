//! SQL Server's types: their codes and sizes in the API, and their values as text.
//!
//! A value is the bytes that the API passes for it. Text is what a person writes in a job file or reads in CSV.

use std::fmt::Write as _;

/// A type, as `InitColumn` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiType {
    /// ODBC's C type code.
    pub code: i16,
    /// ColumnSize: bytes, of a decimal its precision.
    pub size: u64,
    /// DecimalDigits.
    pub digits: i16,
}

pub const CHAR: i16 = 1;
pub const NUMERIC: i16 = 2;
pub const REAL: i16 = 7;
pub const DOUBLE: i16 = 8;
pub const DATE: i16 = 91;
pub const TIMESTAMP: i16 = 93;
pub const BINARY: i16 = -2;
pub const BIT: i16 = -7;
pub const WCHAR: i16 = -8;
pub const GUID: i16 = -11;
pub const SSHORT: i16 = -15;
pub const SLONG: i16 = -16;
pub const SBIGINT: i16 = -25;
pub const UTINYINT: i16 = -28;
/// Types that no server sends to a script; here to see how an extension refuses them.
pub const TIME: i16 = 0x4000;
pub const TIMESTAMPOFFSET: i16 = 0x4001;

/// ColumnSize of a (max) column.
pub const LOB: u64 = i32::MAX as u64;

impl ApiType {
    /// Reads a type as T-SQL writes it.
    pub fn parse(name: &str, arguments: &[String]) -> Result<ApiType, String> {
        let number = |position: usize, default: u64| {
            arguments
                .get(position)
                .map_or(Ok(default), |text| text.parse::<u64>().map_err(|_| format!("wrong type {name}({text})")))
        };
        let length = |width: u64| match arguments.first().map(String::as_str) {
            Some("max") => Ok(LOB),
            _ => number(0, 1).map(|n| n * width),
        };
        let (code, size, digits) = match name {
            "bit" => (BIT, 1, 0),
            "tinyint" => (UTINYINT, 1, 0),
            "smallint" => (SSHORT, 2, 0),
            "int" => (SLONG, 4, 0),
            "bigint" => (SBIGINT, 8, 0),
            "real" => (REAL, 4, 0),
            "float" => (DOUBLE, 8, 0),
            "decimal" | "numeric" => (NUMERIC, number(0, 18)?, number(1, 0)?),
            "money" => (NUMERIC, 19, 4),
            "smallmoney" => (NUMERIC, 10, 4),
            "char" | "varchar" => (CHAR, length(1)?, 0),
            "nchar" | "nvarchar" => (WCHAR, length(2)?, 0),
            "binary" | "varbinary" => (BINARY, length(1)?, 0),
            "date" => (DATE, 6, 0),
            "datetime2" => (TIMESTAMP, 16, number(0, 7)?),
            "datetime" => (TIMESTAMP, 16, 3),
            "smalldatetime" => (TIMESTAMP, 16, 0),
            "uniqueidentifier" => (GUID, 16, 0),
            "time" => (TIME, 16, 7),
            "datetimeoffset" => (TIMESTAMPOFFSET, 20, 7),
            _ => return Err(format!("there is no type {name}")),
        };
        Ok(ApiType { code, size, digits: digits as i16 })
    }

    /// Bytes of one value; none if values differ in length.
    pub fn element_bytes(&self) -> Option<usize> {
        match self.code {
            BIT | UTINYINT => Some(1),
            SSHORT => Some(2),
            SLONG | REAL => Some(4),
            SBIGINT | DOUBLE => Some(8),
            DATE => Some(6),
            TIMESTAMP | GUID | TIME => Some(16),
            TIMESTAMPOFFSET => Some(20),
            NUMERIC => Some(19),
            _ => None,
        }
    }

    /// The address that values want to lie at.
    pub fn alignment(&self) -> usize {
        match self.code {
            SSHORT | DATE | WCHAR => 2,
            SLONG | REAL | TIMESTAMP | GUID => 4,
            SBIGINT | DOUBLE => 8,
            _ => 1,
        }
    }

    /// The bytes of a value that a person wrote.
    pub fn encode(&self, text: &str) -> Result<Vec<u8>, String> {
        let wrong = || format!("{text:?} is no value of the column's type");
        let number =
            |min: i64, max: i64| text.trim().parse::<i64>().ok().filter(|n| (min..=max).contains(n)).ok_or_else(wrong);
        Ok(match self.code {
            BIT => match text {
                "0" | "false" => vec![0],
                "1" | "true" => vec![1],
                _ => return Err(wrong()),
            },
            UTINYINT => vec![number(0, 255)? as u8],
            SSHORT => (number(i64::from(i16::MIN), i64::from(i16::MAX))? as i16).to_le_bytes().to_vec(),
            SLONG => (number(i64::from(i32::MIN), i64::from(i32::MAX))? as i32).to_le_bytes().to_vec(),
            SBIGINT => number(i64::MIN, i64::MAX)?.to_le_bytes().to_vec(),
            REAL => text.trim().parse::<f32>().map_err(|_| wrong())?.to_le_bytes().to_vec(),
            DOUBLE => text.trim().parse::<f64>().map_err(|_| wrong())?.to_le_bytes().to_vec(),
            NUMERIC => self.encode_decimal(text).ok_or_else(wrong)?,
            CHAR => self.bounded(text.as_bytes().to_vec(), text)?,
            WCHAR => self.bounded(text.encode_utf16().flat_map(u16::to_le_bytes).collect(), text)?,
            BINARY => {
                let digits = text.strip_prefix("0x").unwrap_or(text);
                let bytes: Option<Vec<u8>> =
                    (0..digits.len() / 2).map(|i| u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok()).collect();
                self.bounded(bytes.filter(|_| digits.len().is_multiple_of(2)).ok_or_else(wrong)?, text)?
            }
            DATE => encode_date(text).ok_or_else(wrong)?,
            TIMESTAMP => encode_timestamp(text).ok_or_else(wrong)?,
            GUID => encode_guid(text).ok_or_else(wrong)?,
            _ => vec![0; self.element_bytes().unwrap_or(0)],
        })
    }

    fn bounded(&self, bytes: Vec<u8>, text: &str) -> Result<Vec<u8>, String> {
        if bytes.len() as u64 > self.size { Err(format!("{text:?} is too long for its column")) } else { Ok(bytes) }
    }

    fn encode_decimal(&self, text: &str) -> Option<Vec<u8>> {
        let text = text.trim();
        let (digits, is_negative) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let scale = self.digits as usize;
        if fraction.len() > scale || (whole.is_empty() && fraction.is_empty()) {
            return None;
        }
        let all = format!("{whole}{fraction:0<scale$}");
        let magnitude: u128 = if all.is_empty() { 0 } else { all.parse().ok()? };
        if magnitude >= 10u128.pow(self.size as u32) {
            return None;
        }
        let mut bytes = vec![self.size as u8, self.digits as u8, u8::from(!(is_negative && magnitude != 0))];
        bytes.extend(magnitude.to_le_bytes());
        Some(bytes)
    }

    /// What a person reads for a value's bytes.
    pub fn decode(&self, bytes: &[u8]) -> String {
        fn read<const N: usize>(bytes: &[u8]) -> [u8; N] {
            *bytes.first_chunk().expect("the checker has seen the value's length")
        }
        match self.code {
            BIT | UTINYINT => bytes[0].to_string(),
            SSHORT => i16::from_le_bytes(read(bytes)).to_string(),
            SLONG => i32::from_le_bytes(read(bytes)).to_string(),
            SBIGINT => i64::from_le_bytes(read(bytes)).to_string(),
            REAL => format!("{:?}", f32::from_le_bytes(read(bytes))),
            DOUBLE => format!("{:?}", f64::from_le_bytes(read(bytes))),
            NUMERIC => decode_decimal(bytes),
            CHAR => String::from_utf8_lossy(bytes).into_owned(),
            WCHAR => {
                let units: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
                String::from_utf16_lossy(&units)
            }
            DATE => decode_date(bytes),
            TIMESTAMP => {
                let part = |position: usize| u16::from_le_bytes([bytes[position], bytes[position + 1]]);
                let nanoseconds = u32::from_le_bytes(*bytes.last_chunk().expect("it has 16 bytes"));
                let mut text = format!("{} {:02}:{:02}:{:02}", decode_date(bytes), part(6), part(8), part(10));
                if self.digits > 0 {
                    let fraction = format!("{nanoseconds:09}");
                    let _ = write!(text, ".{}", &fraction[..usize::from(self.digits as u16).min(9)]);
                }
                text
            }
            GUID => decode_guid(bytes),
            _ => bytes.iter().fold("0x".to_string(), |mut text, byte| {
                let _ = write!(text, "{byte:02X}");
                text
            }),
        }
    }

    /// What is wrong with a value that an extension returned; none if nothing is.
    pub fn find_fault(&self, bytes: &[u8]) -> Option<String> {
        let part = |position: usize| u16::from_le_bytes([bytes[position], bytes[position + 1]]);
        let is_day = |bytes: &[u8]| encode_date(&decode_date(bytes)).is_some();
        match self.code {
            BIT if bytes[0] > 1 => Some(format!("a bit of {}", bytes[0])),
            REAL if !f32::from_le_bytes(*bytes.first_chunk()?).is_finite() => {
                Some("a real that is not finite".to_string())
            }
            DOUBLE if !f64::from_le_bytes(*bytes.first_chunk()?).is_finite() => {
                Some("a float that is not finite".to_string())
            }
            NUMERIC => {
                let magnitude = u128::from_le_bytes(*bytes.last_chunk()?);
                let is_right = u64::from(bytes[0]) == self.size && i16::from(bytes[1]) == self.digits && bytes[2] <= 1;
                (!is_right || magnitude >= 10u128.pow(self.size as u32))
                    .then(|| format!("a decimal structure of {bytes:?}"))
            }
            CHAR => std::str::from_utf8(bytes).err().map(|_| "text that is not UTF-8".to_string()),
            WCHAR => {
                let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
                let is_right = bytes.len().is_multiple_of(2) && char::decode_utf16(units).all(|c| c.is_ok());
                (!is_right).then(|| "text that is not UTF-16".to_string())
            }
            DATE => (!is_day(bytes)).then(|| format!("a date of {bytes:?}")),
            TIMESTAMP => {
                let nanoseconds = u32::from_le_bytes(*bytes.last_chunk()?);
                let unit = 10u32.pow(9 - (self.digits.clamp(0, 9) as u32));
                let is_right =
                    is_day(bytes) && part(6) < 24 && part(8) < 60 && part(10) < 60 && nanoseconds < 1_000_000_000;
                (!is_right || nanoseconds % unit != 0).then(|| format!("a timestamp of {bytes:?}"))
            }
            _ => None,
        }
    }
}

fn encode_date(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.splitn(3, '-').map(|part| part.parse::<u16>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u16::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let is_day = (1..=9999).contains(&year) && (1..=days).contains(&day);
    is_day.then(|| [year, month, day].iter().flat_map(|part| part.to_le_bytes()).collect())
}

fn decode_date(bytes: &[u8]) -> String {
    let part = |position: usize| u16::from_le_bytes([bytes[position], bytes[position + 1]]);
    format!("{:04}-{:02}-{:02}", part(0), part(2), part(4))
}

fn encode_timestamp(text: &str) -> Option<Vec<u8>> {
    let (date, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
    let mut bytes = encode_date(date)?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    for (part, limit) in clock.split(':').zip([24, 60, 60]) {
        bytes.extend(part.parse::<u16>().ok().filter(|part| *part < limit)?.to_le_bytes());
    }
    let nanoseconds: u32 = format!("{fraction:0<9}").parse().ok()?;
    bytes.extend(nanoseconds.to_le_bytes());
    (bytes.len() == 16 && fraction.len() <= 9).then_some(bytes)
}

fn encode_guid(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32 && text.len() == 36)?;
    let mut bytes = number.to_be_bytes().to_vec();
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    Some(bytes)
}

fn decode_guid(bytes: &[u8]) -> String {
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::new();
    for (position, index) in order.into_iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{:02X}", bytes[index]);
    }
    text
}

fn decode_decimal(bytes: &[u8]) -> String {
    let scale = usize::from(bytes[1]);
    let magnitude = u128::from_le_bytes(*bytes.last_chunk().expect("it has 19 bytes"));
    let digits = format!("{magnitude:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if bytes[2] == 0 { "-" } else { "" };
    if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, arguments: &[&str]) -> ApiType {
        ApiType::parse(name, &arguments.iter().map(|text| text.to_string()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn values_read_back_as_written() {
        for (name, arguments, values) in [
            ("bit", &[][..], &["0", "1"][..]),
            ("tinyint", &[], &["0", "255"]),
            ("bigint", &[], &["-9223372036854775808"]),
            ("float", &[], &["0.1", "-0.0", "1.7976931348623157e308"]),
            ("decimal", &["38", "4"], &["-1.0000", "9999999999999999999999999999999999.9999", "0.0001"]),
            ("decimal", &["5"], &["-12345"]),
            ("nvarchar", &["10"], &["", "Grüße 🚢"]),
            ("varbinary", &["max"], &["0x", "0x00FF"]),
            ("date", &[], &["0001-01-01", "9999-12-31"]),
            ("datetime2", &[], &["2024-02-29 23:59:59.9999999"]),
            ("smalldatetime", &[], &["2024-02-29 23:59:00"]),
            ("uniqueidentifier", &[], &["00112233-4455-6677-8899-AABBCCDDEEFF"]),
        ] {
            let ty = parse(name, arguments);
            for value in values {
                let bytes = ty.encode(value).unwrap();
                assert_eq!(ty.find_fault(&bytes), None, "{name} {value}");
                assert_eq!(ty.decode(&bytes), *value, "{name}");
            }
        }
        assert_eq!(
            parse("uniqueidentifier", &[]).encode("00112233-4455-6677-8899-AABBCCDDEEFF").unwrap()[..4],
            [0x33, 0x22, 0x11, 0]
        );
    }

    #[test]
    fn wrong_values_are_refused() {
        for (name, value) in
            [("int", "2147483648"), ("date", "2023-02-29"), ("nvarchar", "ab"), ("decimal", "1.5"), ("bit", "2")]
        {
            assert!(parse(name, &[]).encode(value).is_err(), "{name} {value}");
        }
        assert!(ApiType::parse("xml", &[]).is_err());
    }
}
