//! SQL_DATE_STRUCT and SQL_TIMESTAMP_STRUCT, from year 1 to 9999.

use chrono::{Datelike, NaiveDate};

/// Bytes of SQL_DATE_STRUCT: year, month, day.
pub const DATE_BYTES: usize = 6;
/// Bytes of SQL_TIMESTAMP_STRUCT: the date, hour, minute, second, nanoseconds.
pub const TIMESTAMP_BYTES: usize = 16;

const SECONDS_OF_DAY: i64 = 86_400;

/// A point in time, as SQL Server keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    /// Days since 1970-01-01.
    pub days: i32,
    /// Seconds since midnight.
    pub seconds: u32,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

fn half(bytes: &[u8], position: usize) -> u16 {
    u16::from_le_bytes([bytes[position], bytes[position + 1]])
}

fn is_year(year: i32) -> bool {
    (1..=9999).contains(&year)
}

/// Days since 1970-01-01 of a date; none if there is no such day.
pub fn days_from_struct(bytes: &[u8]) -> Option<i32> {
    let year = i32::from(half(bytes, 0) as i16);
    let date = NaiveDate::from_ymd_opt(year, u32::from(half(bytes, 2)), u32::from(half(bytes, 4)));
    date.filter(|_| is_year(year)).map(|date| date.to_epoch_days())
}

/// A date of SQL Server; none if it lies outside the years 1 to 9999.
pub fn days_to_struct(days: i32) -> Option<[u8; DATE_BYTES]> {
    let date = NaiveDate::from_epoch_days(days).filter(|date| is_year(date.year()))?;
    let mut bytes = [0; DATE_BYTES];
    bytes[..2].copy_from_slice(&(date.year() as i16).to_le_bytes());
    bytes[2..4].copy_from_slice(&(date.month() as u16).to_le_bytes());
    bytes[4..].copy_from_slice(&(date.day() as u16).to_le_bytes());
    Some(bytes)
}

impl DateTime {
    /// Reads a structure; none if there is no such point in time.
    pub fn from_struct(bytes: &[u8; TIMESTAMP_BYTES]) -> Option<DateTime> {
        let days = days_from_struct(bytes)?;
        let (hour, minute, second) = (half(bytes, 6), half(bytes, 8), half(bytes, 10));
        let nanoseconds = u32::from_le_bytes(*bytes.last_chunk()?);
        if hour > 23 || minute > 59 || second > 59 || nanoseconds > 999_999_999 {
            return None;
        }
        let seconds = (u32::from(hour) * 60 + u32::from(minute)) * 60 + u32::from(second);
        Some(DateTime { days, seconds, nanoseconds })
    }

    /// Writes a structure; none outside the years 1 to 9999.
    pub fn to_struct(self) -> Option<[u8; TIMESTAMP_BYTES]> {
        let mut bytes = [0; TIMESTAMP_BYTES];
        bytes[..6].copy_from_slice(&days_to_struct(self.days)?);
        bytes[6..8].copy_from_slice(&((self.seconds / 3600) as u16).to_le_bytes());
        bytes[8..10].copy_from_slice(&((self.seconds / 60 % 60) as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&((self.seconds % 60) as u16).to_le_bytes());
        bytes[12..].copy_from_slice(&self.nanoseconds.to_le_bytes());
        Some(bytes)
    }

    /// Microseconds since 1970-01-01; none if digits would be lost.
    pub fn to_micros(self) -> Option<i64> {
        let seconds = i64::from(self.days) * SECONDS_OF_DAY + i64::from(self.seconds);
        self.nanoseconds.is_multiple_of(1000).then(|| seconds * 1_000_000 + i64::from(self.nanoseconds / 1000))
    }

    /// The point in time of microseconds since 1970-01-01, whatever its year.
    pub fn from_micros(micros: i64) -> DateTime {
        let (seconds, rest) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
        // 64 bits of microseconds are some 107 million days.
        let days = seconds.div_euclid(SECONDS_OF_DAY) as i32;
        let seconds = seconds.rem_euclid(SECONDS_OF_DAY) as u32;
        DateTime { days, seconds, nanoseconds: rest as u32 * 1000 }
    }

    /// Writes `YYYY-MM-DDTHH:MM:SS.fffffff`; false if digits would be lost.
    pub fn write(self, out: &mut String) -> bool {
        let Some(date) = NaiveDate::from_epoch_days(self.days) else { return false };
        if !self.nanoseconds.is_multiple_of(100) {
            return false;
        }
        let mut digits = *b"0000-00-00T00:00:00.0000000";
        let mut put = |range: std::ops::Range<usize>, mut number: u32| {
            for digit in digits[range].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, date.year() as u32);
        put(5..7, date.month());
        put(8..10, date.day());
        put(11..13, self.seconds / 3600);
        put(14..16, self.seconds / 60 % 60);
        put(17..19, self.seconds % 60);
        put(20..27, self.nanoseconds / 100);
        out.push_str(std::str::from_utf8(&digits).expect("digits are ASCII"));
        true
    }

    /// Reads `YYYY-MM-DDTHH:MM:SS` with up to seven digits of a second; none if it is no point in time.
    pub fn parse(text: &str) -> Option<DateTime> {
        let bytes = text.as_bytes();
        let number = |range: std::ops::Range<usize>| -> Option<u32> {
            let mut number = 0;
            for byte in bytes.get(range)? {
                number = number * 10 + u32::from(byte.checked_sub(b'0').filter(|digit| *digit < 10)?);
            }
            Some(number)
        };
        let is_separated = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')]
            .iter()
            .all(|(position, wanted)| bytes.get(*position) == Some(wanted));
        let nanoseconds = match bytes.len() {
            19 => 0,
            21..=27 if bytes[19] == b'.' => number(20..bytes.len())? * 10u32.pow(29 - bytes.len() as u32),
            _ => return None,
        };
        let year = number(0..4)? as i32;
        let date = NaiveDate::from_ymd_opt(year, number(5..7)?, number(8..10)?).filter(|_| is_year(year))?;
        let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
        (is_separated && hour < 24 && minute < 60 && second < 60).then(|| DateTime {
            days: date.to_epoch_days(),
            seconds: (hour * 60 + minute) * 60 + second,
            nanoseconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_tick_survives(days in -719_162..2_932_897, seconds in 0u32..86_400, ticks in 0u32..10_000_000) {
            let time = DateTime { days, seconds, nanoseconds: ticks * 100 };
            prop_assert_eq!(DateTime::from_struct(&time.to_struct().unwrap()), Some(time));
            let mut text = String::new();
            prop_assert!(time.write(&mut text));
            prop_assert_eq!(DateTime::parse(&text), Some(time));
            let whole = DateTime { nanoseconds: time.nanoseconds / 1000 * 1000, ..time };
            prop_assert_eq!(DateTime::from_micros(whole.to_micros().unwrap()), whole);
            prop_assert_eq!(time.to_micros().is_some(), time == whole);
            prop_assert_eq!(days_from_struct(&days_to_struct(days).unwrap()), Some(days));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-0-9T:.]{0,30}|\\PC*") {
            let _ = DateTime::parse(&text);
        }
    }

    #[test]
    fn days_that_are_not_are_refused() {
        for (year, month, day) in [(0, 1, 1), (10_000, 1, 1), (2023, 2, 29), (2024, 13, 1), (2024, 1, 0), (-1, 1, 1)] {
            let mut bytes = [0; 6];
            bytes[..2].copy_from_slice(&i16::to_le_bytes(year));
            bytes[2..4].copy_from_slice(&u16::to_le_bytes(month));
            bytes[4..].copy_from_slice(&u16::to_le_bytes(day));
            assert_eq!(days_from_struct(&bytes), None, "{year}-{month}-{day}");
        }
        assert_eq!((days_to_struct(-719_163), days_to_struct(2_932_897)), (None, None));
        assert_eq!((days_to_struct(i32::MAX), DateTime::from_micros(i64::MAX).to_struct()), (None, None));
        for text in [
            "2024-02-30T00:00:00",
            "2024-01-01T24:00:00",
            "2024-01-01 00:00:00",
            "2024-01-01T00:00:00.",
            "2024-01-01T00:00:00.00000000",
            "0000-01-01T00:00:00",
        ] {
            assert_eq!(DateTime::parse(text), None, "{text}");
        }
        assert_eq!(DateTime::parse("2024-01-01T00:00:00.1").unwrap().nanoseconds, 100_000_000);
    }
}
