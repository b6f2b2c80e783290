//! Keys of rows: which types they may have, how they hash, and when two are equal.
//!
//! `docs/protocol.md` §10.6 gives the hash of a row's key, which is a part of the format of an [`index`](crate::index).
//!
//! The seed of a segment's index follows from the digest of all its bytes. A user who chooses keys for their hashes changes the
//! seed with every choice.
//!
//! Two keys are equal if their types and bytes are. A caller must not use columns for which its database thinks otherwise: texts
//! of a nondeterministic collation, or texts whose trailing blanks do not count.

use std::mem::discriminant;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Int16Type, Int32Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray, StringArray};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, TimeUnit};
use twox_hash::XxHash3_64;
use udf_types::error::Result;
use udf_types::types::EXTENSION_KEY;

use crate::error;

/// Most columns of a key.
pub const MOST_COLUMNS: usize = 32;
/// Bytes of a UUID.
const UUID_BYTES: i32 = 16;

/// The keys of the rows of a batch, of a segment or of probes.
#[derive(Debug, Clone)]
pub struct Keys {
    columns: Vec<Column>,
    rows: usize,
}

/// One key to look for: the bytes of its values, as the format above has them. It is made once and filled again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probe {
    bytes: Vec<u8>,
    /// Where the bytes of each column end.
    ends: Vec<usize>,
}

impl Probe {
    /// Forgets the key.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds the next column's value, whose bytes `write` appends; how many columns there are is what the caller gives.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    fn parts(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| &self.bytes[std::mem::replace(&mut start, *end)..*end])
    }

    /// The hash of the key with the seed of an index, in the format of an index.
    pub fn hash(&self, seed: u64) -> u64 {
        if self.ends.len() == 1 {
            return XxHash3_64::oneshot_with_seed(seed, &self.bytes);
        }
        let hash = |part: &[u8]| XxHash3_64::oneshot_with_seed(seed, part).to_le_bytes();
        let hashes: Vec<u8> = self.parts().flat_map(hash).collect();
        XxHash3_64::oneshot_with_seed(seed, &hashes)
    }
}

#[derive(Debug, Clone)]
struct Column {
    nulls: Option<NullBuffer>,
    values: Values,
}

#[derive(Debug, Clone)]
enum Values {
    Boolean(BooleanArray),
    Int16(PrimitiveArray<Int16Type>),
    Int32(PrimitiveArray<Int32Type>),
    Int64(PrimitiveArray<Int64Type>),
    Date(PrimitiveArray<Date32Type>),
    Time(PrimitiveArray<Time64MicrosecondType>),
    Timestamp(PrimitiveArray<TimestampMicrosecondType>),
    Text(StringArray),
    Bytes(BinaryArray),
    Uuid(FixedSizeBinaryArray),
}

/// Checks that a column of a table may be a part of its key.
///
/// Refuses types whose equality is not that of their bytes, among them those that travel as texts, such as `numeric`.
pub fn check_key_field(field: &Field) -> Result<()> {
    let name = field.metadata().get(EXTENSION_KEY);
    match (field.data_type(), name) {
        (DataType::Utf8 | DataType::Binary, Some(name)) => Err(error::unsupported_key(name)),
        (ty, _) if is_key_type(ty) => Ok(()),
        (ty, _) => Err(error::unsupported_key(ty)),
    }
}

fn is_key_type(ty: &DataType) -> bool {
    matches!(
        ty,
        DataType::Boolean
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Date32
            | DataType::Time64(TimeUnit::Microsecond)
            | DataType::Timestamp(TimeUnit::Microsecond, _)
            | DataType::Utf8
            | DataType::Binary
            | DataType::FixedSizeBinary(UUID_BYTES)
    )
}

impl Values {
    fn new(array: &ArrayRef) -> Result<Values> {
        Ok(match array.data_type() {
            DataType::Boolean => Values::Boolean(array.as_boolean().clone()),
            DataType::Int16 => Values::Int16(array.as_primitive().clone()),
            DataType::Int32 => Values::Int32(array.as_primitive().clone()),
            DataType::Int64 => Values::Int64(array.as_primitive().clone()),
            DataType::Date32 => Values::Date(array.as_primitive().clone()),
            DataType::Time64(TimeUnit::Microsecond) => Values::Time(array.as_primitive().clone()),
            DataType::Timestamp(TimeUnit::Microsecond, _) => Values::Timestamp(array.as_primitive().clone()),
            DataType::Utf8 => Values::Text(array.as_string().clone()),
            DataType::Binary => Values::Bytes(array.as_binary().clone()),
            DataType::FixedSizeBinary(UUID_BYTES) => Values::Uuid(array.as_fixed_size_binary().clone()),
            other => return Err(error::unsupported_key(other)),
        })
    }

    /// What `work` makes of the bytes of a value that is not NULL.
    fn with_bytes<T>(&self, row: usize, work: impl FnOnce(&[u8]) -> T) -> T {
        match self {
            Values::Boolean(array) => work(&[u8::from(array.value(row))]),
            Values::Int16(array) => work(&array.value(row).to_le_bytes()),
            Values::Int32(array) => work(&array.value(row).to_le_bytes()),
            Values::Int64(array) => work(&array.value(row).to_le_bytes()),
            Values::Date(array) => work(&array.value(row).to_le_bytes()),
            Values::Time(array) => work(&array.value(row).to_le_bytes()),
            Values::Timestamp(array) => work(&array.value(row).to_le_bytes()),
            Values::Text(array) => work(array.value(row).as_bytes()),
            Values::Bytes(array) => work(array.value(row)),
            Values::Uuid(array) => work(array.value(row)),
        }
    }

    /// The hash of a value that is not NULL.
    fn hash(&self, row: usize, seed: u64) -> u64 {
        self.with_bytes(row, |bytes| XxHash3_64::oneshot_with_seed(seed, bytes))
    }

    /// Whether two values are equal, neither of which is NULL.
    fn equals(&self, row: usize, other: &Values, other_row: usize) -> bool {
        match (self, other) {
            (Values::Boolean(one), Values::Boolean(two)) => one.value(row) == two.value(other_row),
            (Values::Int16(one), Values::Int16(two)) => one.value(row) == two.value(other_row),
            (Values::Int32(one), Values::Int32(two)) => one.value(row) == two.value(other_row),
            (Values::Int64(one), Values::Int64(two)) => one.value(row) == two.value(other_row),
            (Values::Date(one), Values::Date(two)) => one.value(row) == two.value(other_row),
            (Values::Time(one), Values::Time(two)) => one.value(row) == two.value(other_row),
            (Values::Timestamp(one), Values::Timestamp(two)) => one.value(row) == two.value(other_row),
            (Values::Text(one), Values::Text(two)) => one.value(row) == two.value(other_row),
            (Values::Bytes(one), Values::Bytes(two)) => one.value(row) == two.value(other_row),
            (Values::Uuid(one), Values::Uuid(two)) => one.value(row) == two.value(other_row),
            _ => false,
        }
    }
}

impl Column {
    fn new(array: &ArrayRef) -> Result<Column> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0).cloned();
        Ok(Column { nulls, values: Values::new(array)? })
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }
}

impl Keys {
    /// The keys whose columns these are. They share the memory of the arrays.
    ///
    /// # Errors
    /// A column of a type that cannot be a key, columns of different lengths, no column, or more than [`MOST_COLUMNS`].
    pub fn new(columns: &[ArrayRef]) -> Result<Keys> {
        let Some(first) = columns.first() else { return Err(error::invalid_key("has no columns")) };
        if columns.len() > MOST_COLUMNS {
            return Err(error::invalid_key(format!(
                "has {} columns, of which {MOST_COLUMNS} are possible",
                columns.len()
            )));
        }
        if columns.iter().any(|column| column.len() != first.len()) {
            return Err(error::invalid_key("has columns of different lengths"));
        }
        Ok(Keys { columns: columns.iter().map(Column::new).collect::<Result<_>>()?, rows: first.len() })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// True if keys of both can be equal: the same number of columns, of the same types. Time zones do not count.
    pub fn is_comparable(&self, other: &Keys) -> bool {
        let kinds = |keys: &Keys| keys.columns.iter().map(|column| discriminant(&column.values)).collect::<Vec<_>>();
        kinds(self) == kinds(other)
    }

    /// The hash of a row's key with the seed of an index, in the format of an index; `None` if a part of the
    /// key is NULL.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn hash(&self, row: usize, seed: u64) -> Option<u64> {
        if let [column] = &self.columns[..] {
            return (!column.is_null(row)).then(|| column.values.hash(row, seed));
        }
        let mut hashes = [0; 8 * MOST_COLUMNS];
        let (used, _) = hashes.split_at_mut(8 * self.columns.len());
        for (column, hash) in self.columns.iter().zip(used.chunks_exact_mut(8)) {
            if column.is_null(row) {
                return None;
            }
            hash.copy_from_slice(&column.values.hash(row, seed).to_le_bytes());
        }
        Some(XxHash3_64::oneshot_with_seed(seed, used))
    }

    /// A row's key, to be looked for; `None` if a part of it is NULL.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn probe(&self, row: usize) -> Option<Probe> {
        let mut probe = Probe::default();
        for column in &self.columns {
            if column.is_null(row) {
                return None;
            }
            probe.push(|out| column.values.with_bytes(row, |bytes| out.extend_from_slice(bytes)));
        }
        Some(probe)
    }

    /// Whether a row has the key, whose values are of the columns' types.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn is_at(&self, row: usize, probe: &Probe) -> bool {
        let is_equal = |(column, part): (&Column, &[u8])| {
            !column.is_null(row) && column.values.with_bytes(row, |bytes| bytes == part)
        };
        self.columns.len() == probe.ends.len() && self.columns.iter().zip(probe.parts()).all(is_equal)
    }

    /// Whether two keys are equal. A key with a NULL equals nothing, nor does one of other types.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn equals(&self, row: usize, other: &Keys, other_row: usize) -> bool {
        let are_equal = |(one, two): (&Column, &Column)| {
            !one.is_null(row) && !two.is_null(other_row) && one.values.equals(row, &two.values, other_row)
        };
        self.columns.len() == other.columns.len() && self.columns.iter().zip(&other.columns).all(are_equal)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Float64Array, Int32Array, Int64Array, new_null_array};

    use super::*;

    fn keys<const N: usize>(columns: [&ArrayRef; N]) -> Keys {
        Keys::new(&columns.map(ArrayRef::clone)).unwrap()
    }

    #[test]
    fn hashes_are_those_of_the_format() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some(""), Some("a"), Some("abc"), None]));
        let one = keys([&texts]);
        let known = [Some(0x2d06_8005_38d3_94c2), Some(0xe6c6_32b6_1e96_4e1f), Some(0x78af_5f94_892f_3950), None];
        assert_eq!([0, 1, 2, 3].map(|row| one.hash(row, 0)), known);
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, -2, 3, 4]));
        assert_eq!(keys([&numbers]).hash(1, 0), Some(XxHash3_64::oneshot(&[0xfe, 0xff, 0xff, 0xff])));
        let truths: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
        assert_eq!(keys([&truths]).hash(0, 0), Some(XxHash3_64::oneshot(&[1])));
        let both = keys([&texts, &numbers]);
        let parts = [0x78af_5f94_892f_3950_u64, keys([&numbers]).hash(2, 0).unwrap()].map(u64::to_le_bytes).concat();
        assert_eq!((both.hash(2, 0), both.hash(3, 0)), (Some(XxHash3_64::oneshot(&parts)), None));
    }

    #[test]
    fn every_hash_takes_the_seed() {
        let seed = 0x0123_4567_89ab_cdef;
        let long = "x".repeat(1000);
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["abc", &long]));
        let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
        let of = |bytes: &[u8]| XxHash3_64::oneshot_with_seed(seed, bytes);
        for (row, (text, number)) in [("abc", 1_i32), (&long, 2)].into_iter().enumerate() {
            let parts = [of(text.as_bytes()), of(&number.to_le_bytes())];
            for (keys, expected) in [
                (keys([&texts]), parts[0]),
                (keys([&numbers]), parts[1]),
                (keys([&texts, &numbers]), of(&parts.map(u64::to_le_bytes).concat())),
            ] {
                assert_eq!(keys.hash(row, seed), Some(expected));
                assert_eq!(keys.probe(row).unwrap().hash(seed), expected);
                assert_ne!(keys.hash(row, seed + 1), Some(expected));
            }
        }
    }

    #[test]
    fn only_equal_values_of_one_type_are_equal() {
        let zoned = |zone: &str| -> ArrayRef {
            Arc::new(PrimitiveArray::<TimestampMicrosecondType>::from(vec![5, 6]).with_timezone(zone))
        };
        assert!(keys([&zoned("UTC")]).equals(0, &keys([&zoned("Europe/Berlin")]), 0));
        assert!(!keys([&zoned("UTC")]).equals(0, &keys([&zoned("UTC")]), 1));
        let long: ArrayRef = Arc::new(Int64Array::from(vec![5, 6]));
        assert!(!keys([&long]).equals(0, &keys([&zoned("UTC")]), 0));
        assert!(!keys([&long]).is_comparable(&keys([&zoned("UTC")])));
        assert!(keys([&zoned("UTC")]).is_comparable(&keys([&zoned("+01")])));
        let null = new_null_array(&DataType::Int64, 2);
        assert!(!keys([&null]).equals(0, &keys([&null]), 0));
        assert!(!keys([&long, &long]).equals(0, &keys([&long]), 0));
    }

    #[test]
    fn what_cannot_be_a_key_is_refused_by_name() {
        let float: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        let error = Keys::new(&[float]).unwrap_err();
        assert_eq!(error.message(), "type Float64 cannot be a key of a shared table");
        assert!(Keys::new(&[]).is_err());
        let (one, two): (ArrayRef, ArrayRef) =
            (Arc::new(Int64Array::from(vec![1])), Arc::new(Int64Array::from(vec![1, 2])));
        assert!(Keys::new(&[one.clone(), two]).is_err());
        assert!(Keys::new(&vec![one.clone(); MOST_COLUMNS]).unwrap().hash(0, 0).is_some());
        assert!(Keys::new(&vec![one; MOST_COLUMNS + 1]).is_err());
        for (ty, is_key) in [
            (udf_types::types::Type::Text, true),
            (udf_types::types::Type::Uuid, true),
            (udf_types::types::Type::Numeric, false),
            (udf_types::types::Type::Interval, false),
        ] {
            assert_eq!(check_key_field(&ty.field("x")).is_ok(), is_key, "{ty:?}");
        }
    }
}
