//! SQL_NUMERIC_STRUCT and the decimal text that numeric values travel as.

use std::fmt::Write as _;

/// A number: magnitude × 10^-scale, negative or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    /// Its digits.
    pub magnitude: u128,
    /// How many of them follow the point.
    pub scale: u8,
    /// Whether it is below zero.
    pub is_negative: bool,
}

/// Bytes of SQL_NUMERIC_STRUCT: precision, scale, sign, magnitude.
pub const STRUCT_BYTES: usize = 19;

/// Whether a structure is the empty one of a parameter that is for output alone.
pub fn is_unset(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// One more than the largest magnitude of 38 digits.
const LIMIT: u128 = 10u128.pow(38);

impl Decimal {
    /// Reads a structure. Its own scale is not looked at; the column's counts. None if it has more than 38 digits.
    pub fn from_struct(bytes: &[u8; STRUCT_BYTES], scale: u8) -> Option<Decimal> {
        let magnitude = u128::from_le_bytes(*bytes.last_chunk()?);
        // Sign 1 is positive or zero, 0 is negative.
        (magnitude < LIMIT).then_some(Decimal { magnitude, scale, is_negative: bytes[2] == 0 && magnitude != 0 })
    }

    /// Writes a structure of a column's precision and scale; none if digits would be lost.
    pub fn to_struct(self, precision: u8, scale: u8) -> Option<[u8; STRUCT_BYTES]> {
        let magnitude = if scale >= self.scale {
            self.magnitude.checked_mul(10u128.checked_pow(u32::from(scale - self.scale))?)?
        } else {
            let divisor = 10u128.checked_pow(u32::from(self.scale - scale))?;
            self.magnitude.is_multiple_of(divisor).then_some(self.magnitude / divisor)?
        };
        if magnitude >= 10u128.pow(u32::from(precision)) {
            return None;
        }
        let mut bytes = [0; STRUCT_BYTES];
        (bytes[0], bytes[1], bytes[2]) = (precision, scale, u8::from(!self.is_negative));
        bytes[3..].copy_from_slice(&magnitude.to_le_bytes());
        Some(bytes)
    }

    /// Reads a number as `docs/types.md` writes it, an exponent included. None if it is not a finite number of at most
    /// 38 digits.
    pub fn parse(text: &str) -> Option<Decimal> {
        let (text, is_negative) = match text.as_bytes().first()? {
            b'-' => (&text[1..], true),
            b'+' => (&text[1..], false),
            _ => (text, false),
        };
        let (digits, exponent) = match text.find(['e', 'E']) {
            Some(position) => (&text[..position], text[position + 1..].parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let mut magnitude: u128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            let digit = u128::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
            magnitude = magnitude.checked_mul(10)?.checked_add(digit)?;
        }
        if magnitude == 0 {
            return Some(Decimal { magnitude: 0, scale: 0, is_negative: false });
        }
        let mut scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
        while scale < 0 {
            magnitude = magnitude.checked_mul(10)?;
            scale += 1;
        }
        Some(Decimal { magnitude, scale: u8::try_from(scale).ok()?, is_negative })
    }

    /// Writes the number with all digits of its scale.
    pub fn write(self, out: &mut String) {
        if self.is_negative {
            out.push('-');
        }
        // Division of 128 bits is slow, and most numbers have fewer.
        let scale = usize::from(self.scale);
        // Writing to a String cannot fail.
        let _ = match (u64::try_from(self.magnitude), 10u64.checked_pow(u32::from(self.scale))) {
            (Ok(magnitude), _) if scale == 0 => write!(out, "{magnitude}"),
            (Ok(magnitude), Some(power)) => write!(out, "{}.{:0scale$}", magnitude / power, magnitude % power),
            _ if scale == 0 => write!(out, "{}", self.magnitude),
            _ => {
                let power = 10u128.pow(u32::from(self.scale));
                write!(out, "{}.{:0scale$}", self.magnitude / power, self.magnitude % power)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(decimal: Decimal) -> String {
        let mut out = String::new();
        decimal.write(&mut out);
        out
    }

    proptest! {
        #[test]
        fn numbers_survive_text_and_structure(magnitude in 0..LIMIT, scale in 0u8..=38, sign in any::<bool>()) {
            let number = Decimal { magnitude, scale, is_negative: sign && magnitude != 0 };
            let bytes = number.to_struct(38, scale).unwrap();
            prop_assert_eq!(Decimal::from_struct(&bytes, scale), Some(number));
            let read = Decimal::parse(&text(number)).unwrap();
            prop_assert_eq!(read.to_struct(38, scale).unwrap(), bytes);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9.eE]{0,50}") {
            if let Some(number) = Decimal::parse(&text) {
                let plain: f64 = text.parse().unwrap();
                let value = number.magnitude as f64 / 10f64.powi(i32::from(number.scale));
                prop_assert!((plain.abs() - value).abs() <= value * 1e-12, "{} {:?}", text, number);
            }
        }
    }

    #[test]
    fn texts_are_read_exactly_or_not_at_all() {
        for (given, written) in [
            ("0", "0"),
            ("-0", "0"),
            ("1E+3", "1000"),
            ("-1.50", "-1.5"),
            ("1e-7", "0.0000001"),
            (".5", "0.5"),
            ("7.", "7"),
        ] {
            assert_eq!(text(Decimal::parse(given).unwrap()), written);
        }
        for given in ["", "-", ".", "NaN", "Infinity", "1x", "1e", "e1", "--1", "1E+99", &"9".repeat(40)] {
            assert_eq!(Decimal::parse(given), None, "{given}");
        }
    }

    #[test]
    fn a_structure_with_a_magnitude_is_a_number_whatever_its_precision() {
        let mut bytes = [0; STRUCT_BYTES];
        assert!(is_unset(&bytes));
        bytes[3] = 7;
        assert!(!is_unset(&bytes));
    }

    #[test]
    fn columns_take_only_what_fits() {
        let number = Decimal::parse("123.4500").unwrap();
        assert!(number.to_struct(5, 2).is_some() && number.to_struct(38, 35).is_some());
        assert!(
            number.to_struct(5, 1).is_none() && number.to_struct(4, 2).is_none() && number.to_struct(38, 36).is_none()
        );
        assert_eq!(Decimal::parse("-1").unwrap().to_struct(3, 1).unwrap()[..4], [3, 1, 0, 10]);
    }
}
