//! Types as signatures, manifests and messages write them: `int4`, `text[]`, `range(date)`, `(name text, at timestamptz)`.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::limits::MAX_DEPTH;
use crate::types::{Attribute, TABLE, Type};

/// Longest text of a type, in bytes: 1,600 attributes, which is all that a table of PostgreSQL has, with names of 63 characters
/// of four bytes each.
const MAX_BYTES: usize = 512 << 10;

/// Most columns that a type stands for, its parts included: a range has two of its element's, so that a short text may stand
/// for any number.
const MAX_FIELDS: usize = 64 << 10;

/// Reads a type's text; none if it is not one, nests deeper than [`MAX_DEPTH`], or stands for more than [`MAX_FIELDS`].
pub(crate) fn read(text: &str) -> Option<Type> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let mut parser = Parser { text, depth: 0 };
    let (ty, _, _) = parser.read_type()?;
    parser.text.trim().is_empty().then_some(ty)
}

impl Type {
    /// Reads a type as signatures write it: a SQL name or alias in any case, `T[]`, `range(T)`, `(name T, ...)`.
    pub fn from_name(name: &str) -> Result<Type> {
        read(name).ok_or_else(|| Error::unsupported_type(&format!("\"{}\"", name.trim())))
    }
}

impl Serialize for Type {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Type {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Type, D::Error> {
        let name = String::deserialize(deserializer)?;
        Type::from_name(&name).map_err(serde::de::Error::custom)
    }
}

/// What is left to be read.
struct Parser<'a> {
    text: &'a str,
    /// How many types stand around what is read.
    depth: usize,
}

impl Parser<'_> {
    fn skip(&mut self, token: &str) -> bool {
        self.text = self.text.trim_start();
        match self.text.get(..token.len()) {
            Some(start) if start.eq_ignore_ascii_case(token) => {
                self.text = &self.text[token.len()..];
                true
            }
            _ => false,
        }
    }

    /// A type, how deep it nests, and how many columns it stands for: brackets stand behind what they make an array of, so that
    /// the depth of the whole is known last.
    fn read_type(&mut self) -> Option<(Type, usize, usize)> {
        if self.depth > MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let (mut height, mut fields) = (0, 1);
        let mut ty = if self.skip("(") {
            let mut attributes = Vec::new();
            loop {
                let name = self.read_identifier()?;
                let (ty, inner, parts) = self.read_type()?;
                height = height.max(inner + 1);
                fields += parts;
                attributes.push(Attribute { name, ty });
                if !self.skip(",") {
                    break;
                }
            }
            self.skip(")").then(|| Type::Composite(attributes.into()))?
        } else if self.skip("range(") {
            let (element, inner, parts) = self.read_type()?;
            height = inner + 1;
            fields = 2 * parts + 4;
            self.skip(")").then(|| Type::Range(Arc::new(element)))?
        } else {
            self.text = self.text.trim_start();
            let end = self
                .text
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ' '))
                .unwrap_or(self.text.len());
            let wanted = self.text[..end].trim_end().to_ascii_lowercase();
            self.text = &self.text[end..];
            match wanted.strip_suffix("range") {
                Some(element @ ("int4" | "int8")) => Type::Range(Arc::new(by_name(element)?)),
                Some("num") => Type::Range(Arc::new(Type::Numeric)),
                Some("date") => Type::Range(Arc::new(Type::Date)),
                Some("ts") => Type::Range(Arc::new(Type::Timestamp)),
                Some("tstz") => Type::Range(Arc::new(Type::TimestampTz)),
                _ => by_name(&wanted)?,
            }
        };
        self.depth -= 1;
        while self.skip("[") {
            height += 1;
            if !self.skip("]") || self.depth + height > MAX_DEPTH {
                return None;
            }
            ty = Type::Array(Arc::new(ty));
            fields += 1;
        }
        (fields <= MAX_FIELDS).then_some((ty, height, fields))
    }

    /// A name; in double quotes, with double quotes doubled, if it is not of letters, digits and underscores.
    fn read_identifier(&mut self) -> Option<String> {
        self.text = self.text.trim_start();
        if let Some(quoted) = self.text.strip_prefix('"') {
            let mut name = String::new();
            let mut characters = quoted.char_indices().peekable();
            while let Some((position, character)) = characters.next() {
                if character != '"' {
                    name.push(character);
                } else if characters.next_if(|(_, next)| *next == '"').is_some() {
                    name.push('"');
                } else {
                    self.text = &quoted[position + 1..];
                    return Some(name);
                }
            }
            return None;
        }
        let end = self.text.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
        let (name, rest) = self.text.split_at(end);
        self.text = rest;
        (!name.is_empty()).then(|| name.to_string())
    }
}

fn by_name(wanted: &str) -> Option<Type> {
    TABLE.iter().find(|entry| entry.name == wanted || entry.aliases.contains(&wanted)).map(|entry| entry.ty.clone())
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Array(element) => write!(f, "{element}[]"),
            Type::Range(element) => write!(f, "range({element})"),
            Type::Composite(attributes) => {
                f.write_str("(")?;
                for (position, Attribute { name, ty }) in attributes.iter().enumerate() {
                    let separator = if position > 0 { ", " } else { "" };
                    if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                        write!(f, "{separator}{name} {ty}")?;
                    } else {
                        write!(f, "{separator}\"{}\" {ty}", name.replace('"', "\"\""))?;
                    }
                }
                f.write_str(")")
            }
            plain => f.write_str(plain.entry().map_or("", |entry| entry.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nests_too_deep_or_is_too_long_is_no_type() {
        // On the stack that a thread of a manager or a backend has.
        let reading = std::thread::Builder::new().stack_size(256 << 10).spawn(|| {
            let arrays = |count: usize| format!("int4{}", "[]".repeat(count));
            let deepest = read(&arrays(MAX_DEPTH)).unwrap();
            assert_eq!(deepest.to_string(), arrays(MAX_DEPTH));
            // What is read can be sent and read again.
            assert_eq!(Type::from_field(&deepest.field("x")).unwrap(), deepest);
            for text in [
                arrays(MAX_DEPTH + 1),
                arrays(120_000),
                format!("({}", "(a ".repeat(120_000)),
                "range(".repeat(120_000),
                format!("{}int4{}", "(a ".repeat(MAX_DEPTH), ")[]".repeat(MAX_DEPTH)),
                format!("(a {}, b int4)", arrays(MAX_DEPTH)),
                format!("(a {})[]", arrays(MAX_DEPTH - 1)),
                format!("(a int4{})", ", b int4".repeat(100_000)),
                format!("{}int4{}", "range(".repeat(16), ")".repeat(16)),
                format!("(a int4{})", ", b range(range(range(range(range(int4)))))".repeat(600)),
            ] {
                assert_eq!(read(&text), None, "{:.40}", text);
                assert!(Type::from_name(&text).unwrap_err().to_string().len() < 1000);
            }
            assert!(read(&format!("(a {}, b int4)", arrays(MAX_DEPTH - 1))).is_some());
            assert!(read(&format!("(a int4{})", ", b int4".repeat(1599))).is_some());
            assert!(read(&format!("{}int4{}", "range(".repeat(8), ")".repeat(8))).is_some());
        });
        reading.unwrap().join().unwrap();
    }
}
