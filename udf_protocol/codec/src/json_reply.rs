//! Replies of the native columnar JSON form (`docs/protocol.md` §6), read from left to right into the columns that they are
//! to be.
//!
//! In: the text of a body that nobody has checked. Out: columns of the declared types. No tree is made of the text, which would
//! take many times its size: a list of small numbers 16 times. What is made is counted before it is made, and more rows than
//! were asked for are not made at all.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, ListArray, RecordBatch, StringArray, StructArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow_select::concat::concat;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::IgnoredAny;
use serde_json::Value;
use udf_types::signature::Signature;
use udf_types::textual_type;
use udf_types::types::Type;

use crate::json::decode_column;
use crate::json_text::{Json, number, read_value};
use crate::unreadable::Unreadable;

/// Values that are converted at a time.
const CHUNK_ROWS: usize = 1024;
/// Longest text of a value of fixed width; whatever is longer is none.
const MAX_SCALAR_BYTES: usize = 4096;
/// The same of the one such type whose values are objects, an interval.
const MAX_OBJECT_BYTES: usize = 512;
/// What a value of fixed width costs while it is converted, at most.
const SCALAR_COST: usize = 32;
/// What each value of a list, text or row costs beside its content.
const VALUE_COST: usize = 8;
/// How much of a value that does not fit is repeated.
const SHOWN_BYTES: usize = 40;

/// What a value of a tree costs at most, with the copies that are made of it: lists that grow, lists of a list's elements.
const TREE_VALUE_BYTES: usize = 128;
/// What a member's name costs beside that.
const TREE_NAME_BYTES: usize = 64;
/// What an object costs beside its members: a node of a map, which has room for eleven.
const TREE_OBJECT_BYTES: usize = 768;

/// Bytes that a tree of a text takes at most; strings of the text may hold further JSON, if `has_inner`.
pub fn tree_bytes(text: &[u8], has_inner: bool) -> usize {
    let (mut bytes, mut is_inside, mut is_escaped) = (text.len(), false, false);
    for byte in text {
        let cost = match byte {
            b'"' if !is_escaped => {
                is_inside = !is_inside;
                0
            }
            // An escape of the kind that any character may have.
            b'u' if is_escaped && has_inner => TREE_OBJECT_BYTES,
            b'{' if has_inner || !is_inside => TREE_OBJECT_BYTES,
            b',' | b'[' if has_inner || !is_inside => TREE_VALUE_BYTES,
            b':' if has_inner || !is_inside => TREE_NAME_BYTES,
            _ => 0,
        };
        bytes = bytes.saturating_add(cost);
        is_escaped = is_inside && *byte == b'\\' && !is_escaped;
    }
    bytes
}

/// Bytes that reading a text of so many as columns of these types takes at most: a list has a value in every two bytes.
pub fn most_bytes(types: &[Type], text: usize) -> usize {
    let cost = types.iter().map(most_cost).max().unwrap_or_default();
    (text / 2).saturating_mul(cost)
}

/// What a value of two bytes takes at most. One that is longer takes less for each of its bytes.
fn most_cost(ty: &Type) -> usize {
    match ty {
        Type::Array(element) => most_cost(element),
        Type::Range(_) | Type::Composite(_) => {
            VALUE_COST + ty.attributes().iter().map(|part| most_cost(&part.ty)).sum::<usize>()
        }
        _ => VALUE_COST + SCALAR_COST,
    }
}

/// A reply whose columns have not been read yet.
#[derive(Debug)]
pub struct Reply<'a> {
    /// The number of the batch it answers.
    pub batch: Option<u64>,
    /// How long the server computed, in microseconds.
    pub micros: u64,
    /// The text of its columns.
    columns: &'a str,
}

impl<'a> Reply<'a> {
    /// Reads what stands around the columns. The error says what is wrong.
    pub fn read(body: &'a [u8]) -> Result<Reply<'a>, String> {
        let mut text = Text { rest: std::str::from_utf8(body).map_err(|cause| cause.to_string())? };
        let (mut batch, mut micros, mut columns) = (None, 0, None);
        let number = |text: &str| serde_json::from_str::<Option<u64>>(text).map_err(|cause| cause.to_string());
        let read = text.each(b'{', b'}', |text| {
            let name = text.name()?;
            let value = text.value()?;
            match name.as_str() {
                "batch" => batch = number(value).map_err(Failure::Malformed)?,
                "micros" => micros = number(value).map_err(Failure::Malformed)?.unwrap_or_default(),
                "columns" => columns = Some(value),
                _ => {}
            }
            Ok(())
        });
        let malformed = |failure| match failure {
            Failure::Malformed(fact) => fact,
            _ => "it is not an object".to_string(),
        };
        read.map_err(malformed)?;
        if text.peek().is_some() {
            return Err("something follows it".to_string());
        }
        Ok(Reply { batch, micros, columns: columns.ok_or("it has no columns")? })
    }

    /// Reads the columns as `signature` says, of `rows` rows if that is known. What that takes, in bytes, is taken from `left`.
    pub fn columns(&self, signature: &Signature, rows: Option<usize>, left: &mut usize) -> Result<Columns, Unreadable> {
        let types = signature.reply_types();
        let mut text = Text { rest: self.columns };
        let (mut texts, mut count) = (Vec::new(), 0);
        let split = text.each(b'[', b']', |text| {
            let column = text.value()?;
            count += 1;
            if count <= types.len() {
                texts.push(column);
            }
            Ok(())
        });
        split.map_err(|failure| failure.explain("Its columns are no list"))?;
        if count != types.len() {
            return Err(format!("The reply has {count} columns, not {}.", types.len()).into());
        }
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for (ty, text) in types.iter().zip(texts) {
            fields.push(ty.field(&signature.function));
            match read_column(ty, text, rows, left) {
                Ok(Ok(column)) => columns.push(column),
                Ok(Err(count)) => return Ok(Columns::TooMany(count)),
                Err(Failure::Misfit) => return Err(find_misfit(ty, text).into()),
                Err(failure) => return Err(failure.explain("A column is no list")),
            }
        }
        let schema = Arc::new(arrow_schema::Schema::new(fields));
        let batch = RecordBatch::try_new(schema, columns);
        batch.map(Columns::Read).map_err(|cause| format!("The reply is malformed: {cause}.").into())
    }
}

/// What was read of a reply's columns.
#[derive(Debug)]
pub enum Columns {
    /// All of them.
    Read(RecordBatch),
    /// So many rows were there, which is more than were asked for.
    TooMany(usize),
}

/// Why a value was not read.
#[derive(Debug)]
enum Failure {
    /// It is not of the type.
    Misfit,
    /// It is not JSON.
    Malformed(String),
    /// There is no room for it.
    TooLarge,
}

impl Failure {
    fn explain(self, misfit: &str) -> Unreadable {
        match self {
            Failure::Misfit => format!("{misfit}.").into(),
            Failure::Malformed(fact) => format!("The reply is malformed: {fact}.").into(),
            Failure::TooLarge => Unreadable::TooLarge,
        }
    }
}

/// JSON that is left to be read.
struct Text<'a> {
    rest: &'a str,
}

impl<'a> Text<'a> {
    /// What comes next but for white space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
        self.rest.bytes().next()
    }

    fn skip(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    /// The text of the next value, whatever it is.
    fn value(&mut self) -> Result<&'a str, Failure> {
        self.peek();
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => {
                let (value, rest) = self.rest.split_at(values.byte_offset());
                self.rest = rest;
                Ok(value)
            }
            Some(Err(cause)) => Err(Failure::Malformed(cause.to_string())),
            None => Err(Failure::Malformed("it ends early".to_string())),
        }
    }

    /// The name of a member, up to its value.
    fn name(&mut self) -> Result<String, Failure> {
        let name = serde_json::from_str(self.value()?).map_err(|cause| Failure::Malformed(cause.to_string()))?;
        match self.skip(b':') {
            true => Ok(name),
            false => Err(Failure::Malformed("a name has no value".to_string())),
        }
    }

    /// Reads a list or an object, item by item.
    fn each(
        &mut self,
        open: u8,
        close: u8,
        mut read: impl FnMut(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.skip(open) {
            return Err(Failure::Misfit);
        }
        if self.skip(close) {
            return Ok(());
        }
        loop {
            read(self)?;
            if self.skip(close) {
                return Ok(());
            }
            if !self.skip(b',') {
                return Err(Failure::Malformed(format!("'{}' is missing", char::from(close))));
            }
        }
    }
}

/// Reads one column; how many rows it has, if these are more than `rows`.
fn read_column(
    ty: &Type,
    text: &str,
    rows: Option<usize>,
    left: &mut usize,
) -> Result<Result<ArrayRef, usize>, Failure> {
    let mut column = Column::new(ty);
    let mut count = 0;
    Text { rest: text }.each(b'[', b']', |text| {
        count += 1;
        match rows {
            Some(rows) if count > rows => text.value().map(drop),
            _ => column.append(text, left),
        }
    })?;
    if rows.is_some_and(|rows| count > rows) {
        return Ok(Err(count));
    }
    column.finish().map(Ok)
}

/// Which row of a column does not fit.
fn find_misfit(ty: &Type, text: &str) -> String {
    let (mut row, mut found) = (0, None);
    let _ = Text { rest: text }.each(b'[', b']', |text| {
        row += 1;
        let value = text.value()?;
        let mut column = Column::new(ty);
        let mut left = usize::MAX;
        let read = column.append(&mut Text { rest: value }, &mut left).and_then(|()| column.finish());
        if read.is_err() {
            found = Some(value);
            return Err(Failure::Misfit);
        }
        Ok(())
    });
    let Some(value) = found else { return format!("A value is not of type {ty}.") };
    // As short as it can be written, if it is not long anyway; its numbers as they are.
    let parsed = Some(value).filter(|value| value.len() < MAX_SCALAR_BYTES).and_then(Json::parse);
    let mut shown =
        parsed.map_or_else(|| value.get(..SHOWN_BYTES * 2).unwrap_or(value).to_string(), |it| it.to_string());
    if shown.len() > SHOWN_BYTES {
        shown.truncate((0..=SHOWN_BYTES).rev().find(|end| shown.is_char_boundary(*end)).unwrap_or(0));
        shown.push_str("...");
    }
    format!("Row {row} holds {shown}, which is not of type {ty}.")
}

/// A column that grows value by value.
struct Column {
    ty: Type,
    validity: Vec<bool>,
    /// Where each text or list ends.
    ends: Vec<i32>,
    values: Values,
}

enum Values {
    /// Of texts and bytes, one after the other.
    Bytes(Vec<u8>),
    /// Those that are converted, and those that wait for it.
    Scalars(Vec<ArrayRef>, Vec<Value>),
    /// The elements of lists.
    Elements(Box<Column>),
    /// The attributes of rows, with their names.
    Parts(Vec<(String, Column)>),
}

impl Column {
    fn new(ty: &Type) -> Column {
        let values = match ty {
            textual_type!() | Type::Bytea => Values::Bytes(Vec::new()),
            Type::Array(element) => Values::Elements(Box::new(Column::new(element))),
            Type::Range(_) | Type::Composite(_) => {
                let parts = ty.attributes().into_iter();
                Values::Parts(parts.map(|part| (part.name, Column::new(&part.ty))).collect())
            }
            _ => Values::Scalars(Vec::new(), Vec::new()),
        };
        Column { ty: ty.clone(), validity: Vec::new(), ends: Vec::new(), values }
    }

    /// Reads the next value.
    fn append(&mut self, text: &mut Text<'_>, left: &mut usize) -> Result<(), Failure> {
        if text.peek() == Some(b'n') {
            text.value()?;
            return self.append_null(left);
        }
        take(left, VALUE_COST)?;
        match &mut self.values {
            Values::Bytes(bytes) => {
                append_bytes(&self.ty, bytes, text.value()?, left)?;
                self.ends.push(offset(bytes.len())?);
            }
            Values::Scalars(..) => {
                let value = text.value()?;
                let is_nested = value.starts_with(['[', '{']) && self.ty != Type::Interval;
                let most = if value.starts_with('{') { MAX_OBJECT_BYTES } else { MAX_SCALAR_BYTES };
                if value.len() > most || is_nested {
                    return Err(Failure::Misfit);
                }
                return self.append_scalar(scalar(&self.ty, value)?, left);
            }
            Values::Elements(elements) => {
                text.each(b'[', b']', |text| elements.append(text, left))?;
                self.ends.push(offset(elements.len())?);
            }
            Values::Parts(parts) => {
                let row = self.validity.len();
                text.each(b'{', b'}', |text| {
                    let name = text.name()?;
                    match parts.iter_mut().find(|(wanted, _)| *wanted == name) {
                        // Twice the same name.
                        Some((_, part)) if part.len() > row => Err(Failure::Misfit),
                        Some((_, part)) => part.append(text, left),
                        None => text.value().map(drop),
                    }
                })?;
                for (_, part) in parts.iter_mut().filter(|(_, part)| part.len() == row) {
                    part.append_null(left)?;
                }
            }
        }
        self.validity.push(true);
        Ok(())
    }

    fn append_null(&mut self, left: &mut usize) -> Result<(), Failure> {
        take(left, VALUE_COST)?;
        match &mut self.values {
            Values::Scalars(..) => return self.append_scalar(Value::Null, left),
            Values::Bytes(_) | Values::Elements(_) => self.ends.push(self.ends.last().copied().unwrap_or_default()),
            Values::Parts(parts) => parts.iter_mut().try_for_each(|(_, part)| part.append_null(left))?,
        }
        self.validity.push(false);
        Ok(())
    }

    fn append_scalar(&mut self, value: Value, left: &mut usize) -> Result<(), Failure> {
        take(left, SCALAR_COST)?;
        self.validity.push(!value.is_null());
        let Values::Scalars(converted, waiting) = &mut self.values else { return Err(Failure::Misfit) };
        waiting.push(value);
        if waiting.len() == CHUNK_ROWS {
            converted.push(decode_column(&self.ty, waiting).map_err(|_| Failure::Misfit)?);
            waiting.clear();
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.validity.len()
    }

    fn finish(self) -> Result<ArrayRef, Failure> {
        let malformed = |cause: arrow_schema::ArrowError| Failure::Malformed(cause.to_string());
        let rows = self.len();
        let nulls = Some(NullBuffer::from(self.validity)).filter(|nulls| nulls.null_count() > 0);
        let mut ends = vec![0];
        ends.extend(self.ends);
        Ok(match self.values {
            Values::Bytes(bytes) => {
                let (ends, bytes) = (OffsetBuffer::new(ends.into()), Buffer::from_vec(bytes));
                match self.ty {
                    Type::Bytea => Arc::new(BinaryArray::try_new(ends, bytes, nulls).map_err(malformed)?),
                    _ => Arc::new(StringArray::try_new(ends, bytes, nulls).map_err(malformed)?),
                }
            }
            Values::Scalars(mut converted, waiting) => {
                if converted.is_empty() || !waiting.is_empty() {
                    converted.push(decode_column(&self.ty, &waiting).map_err(|_| Failure::Misfit)?);
                }
                match converted.as_slice() {
                    [only] => only.clone(),
                    several => concat(&several.iter().map(AsRef::as_ref).collect::<Vec<_>>()).map_err(malformed)?,
                }
            }
            Values::Elements(elements) => {
                let field = Arc::new(elements.ty.field("item"));
                let (ends, elements) = (OffsetBuffer::new(ends.into()), elements.finish()?);
                Arc::new(ListArray::try_new(field, ends, elements, nulls).map_err(malformed)?)
            }
            Values::Parts(parts) => {
                let (mut fields, mut columns) = (Vec::new(), Vec::new());
                for (name, part) in parts {
                    fields.push(part.ty.field(&name));
                    columns.push(part.finish()?);
                }
                let array = StructArray::try_new_with_length(fields.into(), columns, nulls, rows);
                Arc::new(array.map_err(malformed)?)
            }
        })
    }
}

/// What a token stands for, in a column of fixed width. No integer passes through a float, which would round it.
fn scalar(ty: &Type, token: &str) -> Result<Value, Failure> {
    match ty {
        Type::Int2 | Type::Int4 | Type::Int8 if token.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
            Ok(number(ty, token))
        }
        Type::Interval => read_value(ty, token).ok_or(Failure::Misfit),
        _ => serde_json::from_str(token).map_err(|cause| Failure::Malformed(cause.to_string())),
    }
}

/// Appends what a token stands for, in a column of text or bytes.
fn append_bytes(ty: &Type, bytes: &mut Vec<u8>, token: &str, left: &mut usize) -> Result<(), Failure> {
    take(left, token.len())?;
    bytes.try_reserve(token.len()).map_err(|_| Failure::TooLarge)?;
    let plain = token.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    // Most strings need no more than a copy.
    let owned;
    let content = match plain {
        Some(plain) if !plain.contains('\\') => plain,
        Some(_) => {
            take(left, token.len())?;
            owned = serde_json::from_str::<String>(token).map_err(|cause| Failure::Malformed(cause.to_string()))?;
            &owned
        }
        None if *ty == Type::Json => token,
        None if *ty == Type::Numeric && !token.starts_with(['t', 'f', '[', '{']) => token,
        None => return Err(Failure::Misfit),
    };
    if *ty != Type::Bytea {
        bytes.extend_from_slice(content.as_bytes());
        return Ok(());
    }
    if !content.contains(|c: char| c.is_ascii_whitespace()) {
        return BASE64.decode_vec(content, bytes).map_err(|_| Failure::Misfit);
    }
    take(left, content.len())?;
    let compact: String = content.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    BASE64.decode_vec(compact, bytes).map_err(|_| Failure::Misfit)
}

fn take(left: &mut usize, bytes: usize) -> Result<(), Failure> {
    *left = left.checked_sub(bytes).ok_or(Failure::TooLarge)?;
    Ok(())
}

/// Offsets have 32 bits.
fn offset(end: usize) -> Result<i32, Failure> {
    i32::try_from(end).map_err(|_| Failure::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ty: &str, text: &str, rows: Option<usize>, mut most: usize) -> Result<Columns, Unreadable> {
        let signature = Signature::scalar("f", Vec::new(), Type::from_name(ty).unwrap());
        let body = format!("{{ \"micros\": 7, \"columns\" : [{text}], \"other\": [{{}}]}}");
        let reply = Reply::read(body.as_bytes()).unwrap();
        assert_eq!((reply.batch, reply.micros), (None, 7));
        reply.columns(&signature, rows, &mut most)
    }

    #[test]
    fn columns_are_those_that_a_tree_gives() {
        for (ty, text) in [
            ("int8", "[1, null, \"9007199254740993\", 3.0]".to_string()),
            ("int8", "[ ]".to_string()),
            ("bool", "[true,false,null]".to_string()),
            ("text", "[\"a\", null, \"\\u00e9\\n\\\"\", \"\"]".to_string()),
            ("bytea", "[\"AP8=\", \"AP\\n8=\", null]".to_string()),
            ("json", "[\"{}\", \"[1]\"]".to_string()),
            ("interval", "[{\"days\": 2}, null]".to_string()),
            ("timestamptz", "[\"2013-01-01T00:00:00Z\", null]".to_string()),
            ("int4[]", "[[1, null], null, [], [3]]".to_string()),
            ("text[][]", "[[[\"a\"], null], null, [[]]]".to_string()),
            ("(a int4[], b text)", "[{\"b\": \"x\", \"c\": [[]]}, null, {\"a\": [1], \"b\": null}]".to_string()),
            (
                "range(int4)",
                "[{\"lower\": 1, \"upper\": null, \"lower_inc\": true, \"upper_inc\": false, \"empty\": false}]"
                    .to_string(),
            ),
            ("int4", format!("[{}]", (0..5000).map(|i| i.to_string()).collect::<Vec<_>>().join(","))),
        ] {
            let tree: Vec<Value> = serde_json::from_str(&text).unwrap();
            let expected = decode_column(&Type::from_name(ty).unwrap(), &tree).unwrap();
            match read(ty, &text, Some(tree.len()), 1 << 20).unwrap() {
                Columns::Read(batch) => assert_eq!(batch.column(0), &expected, "{ty} {text}"),
                Columns::TooMany(count) => panic!("{count}"),
            }
        }
    }

    #[test]
    fn numbers_keep_their_digits() {
        let Columns::Read(batch) = read("numeric", "[99999999999999.99990, \"1.50\"]", None, 1000).unwrap() else {
            panic!("no rows are too many");
        };
        assert_eq!(batch.column(0).as_ref(), &StringArray::from(vec!["99999999999999.99990", "1.50"]));
    }

    #[test]
    fn integers_may_be_written_as_other_numbers() {
        let Columns::Read(batch) = read("int8", "[9007199254740993.0, -0.0, 1.5e1, \"4\", -0]", None, 1000).unwrap()
        else {
            panic!("no rows are too many");
        };
        assert_eq!(batch.column(0).as_ref(), &arrow_array::Int64Array::from(vec![9_007_199_254_740_993, 0, 15, 4, 0]));
    }

    #[test]
    fn misfits_name_their_rows() {
        for (ty, text, shown) in [
            ("int4", "[1, 3.5]", "3.5"),
            ("int4", "[1, [[[1]]]]", "[[[1]]]"),
            ("text", "[\"a\", 1]", "1"),
            ("text", "[null, {}]", "{}"),
            ("numeric", "[1, true]", "true"),
            ("bytea", "[\"AP8=\", \"*\"]", "\"*\""),
            ("int4[]", "[[1, 2, 3], [4, \"x\"]]", "[4,\"x\"]"),
            ("int4[]", "[[1, 2, 3], 4]", "4"),
            ("(a int4[], b text)", "[{\"a\": [1]}, {\"a\": 1}]", "{\"a\":1}"),
            ("(a int4)", "[{}, {\"a\": 1, \"a\": 2}]", "{\"a\":1,\"a\":2}"),
            ("int8", "[1, 4503599627370497.5]", "4503599627370497.5"),
            ("int8", "[1, 1.00000000000000000001]", "1.00000000000000000001"),
            ("int8", "[1, 9223372036854775808]", "9223372036854775808"),
            ("int4", "[1, 1e-400]", "1e-400"),
            ("int4", "[1, 1e400]", "1e400"),
            ("int2", "[1, 0.99999999999999999999]", "0.99999999999999999999"),
            ("int8[]", "[[1], [4503599627370497.5]]", "[4503599627370497.5]"),
            ("(a int4)", "[{}, {\"a\": 1.00000000000000000001}]", "{\"a\":1.00000000000000000001}"),
            ("interval", "[{}, {\"days\": 1e-400}]", "{\"days\":1e-400}"),
            ("interval", "[{}, {\"days\": 1.00000000000000000001}]", "{\"days\":1.00000000000000000001}"),
        ] {
            let error = read(ty, text, Some(2), 1 << 20).unwrap_err();
            assert_eq!(error, format!("Row 2 holds {shown}, which is not of type {ty}.").into(), "{text}");
        }
        for text in ["[1", "[1 2]", "[1,]", "[nul]", "1", "[1]]"] {
            let body = format!("{{\"columns\": [{text}]}}");
            let signature = Signature::scalar("f", Vec::new(), Type::Int4);
            let read = Reply::read(body.as_bytes()).map(|reply| reply.columns(&signature, None, &mut 1000));
            assert!(!matches!(read, Ok(Ok(_))), "{text}");
        }
        assert!(matches!(read("int4", "[1, 2, 3, \"x\"]", Some(2), 1000), Ok(Columns::TooMany(4))));
        assert_eq!(
            read("int4", "[1], [2]", None, 1000).unwrap_err(),
            "The reply has 2 columns, not 1.".to_string().into()
        );
    }

    #[test]
    fn what_grows_too_large_is_not_read() {
        let ones = format!("[[{}1]]", "1,".repeat(10_000));
        for (ty, text) in [("int4[]", &ones), ("text", &format!("[\"{}\"]", "x".repeat(20_000)))] {
            assert_eq!(read(ty, text, Some(1), 10_000).unwrap_err(), Unreadable::TooLarge);
        }
        // However deep it nests.
        let deep = format!("[{}{}]", "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert!(matches!(read("int4[]", &deep, Some(1), 10_000), Err(Unreadable::Misfit(_))));
    }

    #[test]
    fn trees_are_not_taken_for_smaller_than_they_are() {
        let values = |text: &str, has_inner| (tree_bytes(text.as_bytes(), has_inner) - text.len()) / TREE_VALUE_BYTES;
        assert_eq!(values("[1,[2],3]", false), 4);
        assert_eq!(values(r#"["a,b","\",","\\",1]"#, false), 4);
        // Strings that are JSON, and separators that are escapes there.
        assert_eq!(values(r#"["[1,2]"]"#, true), 3);
        assert!(values(r#"["[1\u002c2]"]"#, true) >= 3);
        assert!(values(r#"[{"a":1}]"#, false) >= 6);
    }

    #[test]
    fn estimates_of_columns_are_no_lower_than_what_they_take() {
        for (ty, text) in [
            ("int8[]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]".to_string()),
            ("text[]", format!("[{}\"\"]", "\"\",".repeat(100))),
            ("(a text, b int8, c (d int4, e float8))[]", format!("[{}{{}}]", "{},".repeat(100))),
            ("range(int8)[]", format!("[{}{{}}]", "{},".repeat(100))),
        ] {
            let signature = Signature::scalar("f", Vec::new(), Type::from_name(ty).unwrap());
            let body = format!("{{\"columns\":[[{text}]]}}");
            let mut left = 1 << 20;
            Reply::read(body.as_bytes()).unwrap().columns(&signature, Some(1), &mut left).unwrap();
            let taken = (1 << 20) - left;
            assert!(taken > 100 && taken <= most_bytes(&signature.reply_types(), body.len()), "{ty}: {taken}");
        }
    }
}
