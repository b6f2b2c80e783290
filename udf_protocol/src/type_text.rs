//! Types as signatures, manifests and messages write them: `int4`, `text[]`, `range(date)`, `(name text, at timestamptz)`.

use std::fmt;
use std::sync::Arc;

use crate::types::{Attribute, MAX_DEPTH, TABLE, Type};

/// Reads a type's text; none if it is not one.
pub(crate) fn read(text: &str) -> Option<Type> {
    let mut parser = Parser { text, depth: 0 };
    parser.read_type().filter(|_| parser.text.trim().is_empty())
}

/// What is left to be read.
struct Parser<'a> {
    text: &'a str,
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

    fn read_type(&mut self) -> Option<Type> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut ty = if self.skip("(") {
            let mut attributes = Vec::new();
            loop {
                attributes.push(Attribute { name: self.read_identifier()?, ty: self.read_type()? });
                if !self.skip(",") {
                    break;
                }
            }
            self.skip(")").then(|| Type::Composite(attributes.into()))?
        } else if self.skip("range(") {
            let element = self.read_type()?;
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
            if !self.skip("]") {
                return None;
            }
            ty = Type::Array(Arc::new(ty));
        }
        Some(ty)
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
