//! JSON text as a tree that keeps numbers as they are written, and values of a declared type out of it.
//!
//! In: text that nobody has checked, with the words that Python writes for what JSON lacks. Out: what
//! [`decode_column`](super::json::decode_column) takes. No number passes through a float unless its type is one: a decimal
//! keeps every digit, and an integer beyond 2^53 is that integer.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

use udf_types::types::Type;

/// Deeper values are refused before the stack ends.
const MAX_DEPTH: usize = 128;
/// Digits of PostgreSQL's `numeric` before and after the decimal point.
const MAX_WHOLE_DIGITS: i64 = 131_072;
const MAX_FRACTION_DIGITS: i64 = 16_383;
/// Zeros that an exponent may stand for where digits are written out; more would let a short text take much memory.
const MAX_WRITTEN_ZEROS: i64 = 64;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Json<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it is written.
    Number(&'a str),
    /// A string; also Python's `NaN`, `Infinity` and `-Infinity`.
    String(Cow<'a, str>),
    /// An array.
    Array(Vec<Json<'a>>),
    /// An object's members in their order.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// Reads a text that is one value.
    pub fn parse(text: &'a str) -> Option<Json<'a>> {
        let mut parser = Parser { rest: text };
        let value = parser.value(0)?;
        parser.skip_space();
        parser.rest.is_empty().then_some(value)
    }

    /// The last member of that name, if this is an object.
    pub fn get(&self, name: &str) -> Option<&Json<'a>> {
        match self {
            Json::Object(members) => members.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Takes the last member of that name out, if this is an object.
    pub fn take(&mut self, name: &str) -> Option<Json<'a>> {
        match self {
            Json::Object(members) => {
                let place = members.iter().rposition(|(known, _)| known == name)?;
                Some(members.swap_remove(place).1)
            }
            _ => None,
        }
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(text) => Some(text),
            _ => None,
        }
    }
}

/// The value's text, its numbers as they were written.
impl fmt::Display for Json<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => out.write_str("null"),
            Json::Bool(value) => write!(out, "{value}"),
            Json::Number(token) => out.write_str(token),
            Json::String(text) => quote(out, text),
            Json::Array(items) => {
                for (position, item) in items.iter().enumerate() {
                    write!(out, "{}{item}", if position == 0 { '[' } else { ',' })?;
                }
                out.write_str(if items.is_empty() { "[]" } else { "]" })
            }
            Json::Object(members) => {
                for (position, (name, value)) in members.iter().enumerate() {
                    out.write_str(if position == 0 { "{" } else { "," })?;
                    quote(out, name)?;
                    write!(out, ":{value}")?;
                }
                out.write_str(if members.is_empty() { "{}" } else { "}" })
            }
        }
    }
}

fn quote(out: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    out.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    /// Whether the next character, after space, is this one, which is taken then.
    fn takes(&mut self, wanted: char) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Json<'a>> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.takes('[') {
            let mut items = Vec::new();
            if self.takes(']') {
                return Some(Json::Array(items));
            }
            loop {
                items.push(self.value(depth + 1)?);
                if !self.takes(',') {
                    return self.takes(']').then_some(Json::Array(items));
                }
            }
        }
        if self.takes('{') {
            let mut members = Vec::new();
            if self.takes('}') {
                return Some(Json::Object(members));
            }
            loop {
                self.skip_space();
                let name = self.string()?;
                if !self.takes(':') {
                    return None;
                }
                members.push((name, self.value(depth + 1)?));
                if !self.takes(',') {
                    return self.takes('}').then_some(Json::Object(members));
                }
            }
        }
        if self.rest.starts_with('"') {
            return self.string().map(Json::String);
        }
        for (word, value) in [
            ("null", Json::Null),
            ("true", Json::Bool(true)),
            ("false", Json::Bool(false)),
            ("NaN", Json::String("NaN".into())),
            ("Infinity", Json::String("Infinity".into())),
            ("-Infinity", Json::String("-Infinity".into())),
        ] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Some(value);
            }
        }
        let length = number_length(self.rest.as_bytes())?;
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(Json::Number(token))
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        let bytes = self.rest.as_bytes();
        if bytes.first() != Some(&b'"') {
            return None;
        }
        let (mut end, mut has_escapes) = (1, false);
        loop {
            match bytes.get(end)? {
                b'"' => break,
                b'\\' => {
                    has_escapes = true;
                    end += 2;
                }
                0..0x20 => return None,
                _ => end += 1,
            }
        }
        let (token, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        match has_escapes {
            true => serde_json::from_str(token).ok().map(Cow::Owned),
            false => Some(Cow::Borrowed(&token[1..end])),
        }
    }
}

/// How many bytes the number at the beginning of a text takes, as RFC 8259 writes numbers.
fn number_length(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut length = usize::from(text.first() == Some(&b'-'));
    let whole = digits(length);
    if whole == 0 || (whole > 1 && text[length] == b'0') {
        return None;
    }
    length += whole;
    if text.get(length) == Some(&b'.') {
        let fraction = digits(length + 1);
        if fraction == 0 {
            return None;
        }
        length += 1 + fraction;
    }
    if matches!(text.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(length + 1 + sign);
        if exponent == 0 {
            return None;
        }
        length += 1 + sign + exponent;
    }
    Some(length)
}

/// A value of `ty` as [`decode_column`](super::json::decode_column) takes it, which refuses what is not of that type.
pub fn value_of(ty: &Type, json: Json<'_>) -> Value {
    match (ty, json) {
        (_, Json::Null) => Value::Null,
        // A string is the text of a JSON value already.
        (_, Json::String(text)) => Value::String(text.into_owned()),
        (Type::Json, other) => Value::String(other.to_string()),
        (_, Json::Bool(value)) => Value::Bool(value),
        (_, Json::Number(token)) => number(ty, token),
        (_, Json::Array(items)) => {
            let element = if let Type::Array(element) = ty { element } else { ty };
            Value::Array(items.into_iter().map(|item| value_of(element, item)).collect())
        }
        (_, Json::Object(members)) => {
            let attributes = ty.attributes();
            let mut object = serde_json::Map::new();
            for (name, value) in members {
                let attribute = attributes.iter().find(|attribute| attribute.name == name);
                // The parts of an interval are integers; of other types a member that is no attribute is not looked at.
                let value = match attribute {
                    Some(attribute) => value_of(&attribute.ty, value),
                    None if *ty == Type::Interval => value_of(&Type::Int8, value),
                    None => continue,
                };
                object.insert(name.into_owned(), value);
            }
            Value::Object(object)
        }
    }
}

/// The same of a number.
pub(crate) fn number(ty: &Type, token: &str) -> Value {
    match ty {
        Type::Numeric => Value::String(token.to_string()),
        Type::Int2 | Type::Int4 | Type::Int8 => match token.parse::<i64>() {
            Ok(value) => Value::from(value),
            Err(_) => Value::String(integer_text(token).unwrap_or_else(|| token.to_string())),
        },
        // Neither is in the range of the type, which says so.
        Type::Float4 | Type::Float8 => serde_json::from_str(token).unwrap_or_else(|_| Value::String(token.to_string())),
        // A number is of no other type, so any number will do.
        _ => serde_json::from_str(token).unwrap_or_else(|_| Value::from(f64::MAX)),
    }
}

/// A number's digits without an exponent, where that takes little memory; none if PostgreSQL's `numeric` has no room for it.
/// What is no number is left as it is, for the engine's own parser to judge.
pub fn decimal_text(token: &str) -> Option<Cow<'_, str>> {
    let Some((mantissa, exponent)) = token.split_once(['e', 'E']) else { return Some(Cow::Borrowed(token)) };
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |rest| ("-", rest));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let digits = format!("{whole}{fraction}");
    if !are_digits(&digits) || !are_digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)) {
        return Some(Cow::Borrowed(token));
    }
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Some(Cow::Borrowed("0"));
    }
    let exponent: i64 = exponent.parse().ok().filter(|exponent: &i64| exponent.unsigned_abs() <= i32::MAX as u64)?;
    // Where the point lies, counted from the beginning of the digits.
    let point = i64::try_from(whole.len()).ok()? + exponent;
    let length = i64::try_from(digits.len()).ok()?;
    let leading = length - i64::try_from(significant.len()).ok()?;
    if point - leading > MAX_WHOLE_DIGITS || length - point > MAX_FRACTION_DIGITS {
        return None;
    }
    let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap_or(0));
    if point > length + MAX_WRITTEN_ZEROS || point < -MAX_WRITTEN_ZEROS {
        return Some(Cow::Borrowed(token));
    }
    let text = if point >= length {
        format!("{}{}", significant, zeros(point - length))
    } else if point <= 0 {
        format!("0.{}{digits}", zeros(-point))
    } else {
        let (before, after) = digits.split_at(usize::try_from(point).ok()?);
        let before = before.trim_start_matches('0');
        format!("{}.{after}", if before.is_empty() { "0" } else { before })
    };
    Some(Cow::Owned(format!("{sign}{text}")))
}

/// The digits of a number that is an integer, however it is written; none if it has a fraction or more digits than any type.
pub fn integer_text(token: &str) -> Option<String> {
    let text = decimal_text(token)?;
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    // A negative zero is zero; an exponent that is left says that there are more digits than any type has.
    let whole = if whole == "-0" { "0" } else { whole };
    let is_whole = fraction.bytes().all(|digit| digit == b'0') && whole.len() <= 20 && !whole.contains(['e', 'E']);
    is_whole.then(|| whole.to_string())
}

/// The value of a text that is JSON of type `ty`; none if it is not JSON.
pub fn read_value(ty: &Type, text: &str) -> Option<Value> {
    Json::parse(text).map(|json| value_of(ty, json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::decode_column;

    #[test]
    fn numbers_are_what_they_are_written_as() {
        for (token, expected) in [
            ("0", Some("0")),
            ("-0", Some("-0")),
            ("99999999999999.9999", Some("99999999999999.9999")),
            ("12345678901234567890.50", Some("12345678901234567890.50")),
            ("1e3", Some("1000")),
            ("1.5E+3", Some("1500")),
            ("-1.2345e2", Some("-123.45")),
            ("1E-8", Some("0.00000001")),
            ("-6.1728394506172835E+18", Some("-6172839450617283500")),
            ("0.00e5", Some("0")),
            ("0e999999999999", Some("0")),
            ("0.001e2", Some("0.1")),
            ("0.001e5", Some("100")),
            ("1e100", Some("1e100")),
            ("Infinity", Some("Infinity")),
            ("true", Some("true")),
            ("1e", Some("1e")),
            ("e5", Some("e5")),
            ("1.5.2e5", Some("1.5.2e5")),
            ("1e131071", Some("1e131071")),
            ("1e131072", None),
            ("1e-16383", Some("1e-16383")),
            ("1e-16384", None),
            ("1e999999999", None),
            ("1e-999999999", None),
            ("1e99999999999999999999", None),
            ("1e-9223372036854775808", None),
            ("1e9223372036854775807", None),
        ] {
            assert_eq!(decimal_text(token).as_deref(), expected, "{token}");
        }
        for (token, expected) in [
            ("9007199254740993", Some("9007199254740993")),
            ("9007199254740993.0", Some("9007199254740993")),
            ("-9223372036854775808.000", Some("-9223372036854775808")),
            ("1e3", Some("1000")),
            ("1.50e1", Some("15")),
            ("-0.0", Some("0")),
            ("1.5", None),
            ("9007199254740992.5", None),
            ("1e100", None),
            ("1e999999999", None),
        ] {
            assert_eq!(integer_text(token).as_deref(), expected, "{token}");
        }
    }

    #[test]
    fn texts_are_read_or_refused_as_json() {
        let text = r#" {"a": [1.10, -2e+5, null, true], "b\n": "x\"\u00e9", "c": {}, "d": [], "n": NaN} "#;
        let read = Json::parse(text).unwrap();
        assert_eq!(read.to_string(), r#"{"a":[1.10,-2e+5,null,true],"b\n":"x\"é","c":{},"d":[],"n":"NaN"}"#);
        for text in [
            "",
            " ",
            "[1",
            "[1,]",
            "[,]",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "+1",
            "-",
            "1e",
            "1e+",
            "nul",
            "\"a",
            "\"\\",
            "\"\\x\"",
            "\"\n\"",
            "1 2",
            "[1]]",
            "{\"a\":1,}",
            "'a'",
        ] {
            assert_eq!(Json::parse(text), None, "{text}");
        }
        assert_eq!(Json::parse(&"[".repeat(1_000_000)), None);
        let nested = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(Json::parse(&nested).is_some());
    }

    #[test]
    fn values_are_of_the_declared_type() {
        let read = |ty: &str, text: &str| read_value(&Type::from_name(ty).unwrap(), text).unwrap();
        for (ty, text, expected) in [
            ("numeric", "99999999999999.9999", r#""99999999999999.9999""#),
            ("numeric", "\"1.50\"", r#""1.50""#),
            ("numeric[]", "[1e2, null, 0.1000]", r#"["1e2",null,"0.1000"]"#),
            ("range(numeric)", r#"{"lower": 1.10, "upper": null}"#, r#"{"lower":"1.10","upper":null}"#),
            ("(a numeric, b json)", r#"{"a": 1.10, "b": {"c": 1.10}}"#, r#"{"a":"1.10","b":"{\"c\":1.10}"}"#),
            ("json", "12345678901234567890.12", r#""12345678901234567890.12""#),
            ("json", "1e400", r#""1e400""#),
            ("json", "\"[1.10]\"", r#""[1.10]""#),
            ("int8", "9223372036854775807", "9223372036854775807"),
            ("int8", "9007199254740993.0", r#""9007199254740993""#),
            ("interval", r#"{"days": 1.0}"#, r#"{"days":"1"}"#),
            ("float8", "0.1", "0.1"),
            ("text", "1", "1"),
            ("bool", "1", "1"),
        ] {
            assert_eq!(read(ty, text).to_string(), expected, "{ty} {text}");
        }
        let column =
            |ty: &str, text: &str| decode_column(&Type::from_name(ty).unwrap(), &[Value::Null, read(ty, text)]);
        let numeric = column("numeric", "1.5e3").unwrap();
        assert_eq!(arrow_array::cast::AsArray::as_string::<i32>(&numeric).value(1), "1500");
        for (ty, text) in [
            ("numeric", "1e999999999"),
            ("numeric", "\"1e-999999999\""),
            ("int8", "1.5"),
            ("int8", "9223372036854775808"),
            ("int4", "1e40"),
            ("float8", "1e400"),
            ("text", "1e400"),
            ("text", "1"),
            ("interval", r#"{"days": 1.5}"#),
        ] {
            assert!(column(ty, text).unwrap_err().starts_with("Row 2 holds "), "{ty} {text}");
        }
    }
}
