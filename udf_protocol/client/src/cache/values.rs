//! Results as the bytes that the store keeps, one by one, and back. The store is not trusted: every length, tag and text is
//! checked when it is read.
//!
//! A value is a byte that says whether it is NULL, and if it is not: the bytes of a type of fixed width, a byte for a boolean,
//! length and bytes of a text or of bytes, the number of elements of a list and the elements, or the attributes of a struct.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, ListArray, StringArray, StructArray, make_array};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef, Fields};

const NULL: u8 = 0;
const VALUE: u8 = 1;

/// Reads the values of a column.
#[derive(Debug)]
pub(super) struct Encoder {
    nulls: Option<NullBuffer>,
    kind: EncoderKind,
}

#[derive(Debug)]
enum EncoderKind {
    Fixed(Buffer, usize),
    Bool(BooleanArray),
    Bytes(OffsetBuffer<i32>, Buffer),
    /// Places in another column.
    Dictionary(ScalarBuffer<i32>, Box<Encoder>),
    List(OffsetBuffer<i32>, Box<Encoder>),
    Struct(Vec<Encoder>),
}

impl Encoder {
    /// One for a column; none if its type is not one that replies have.
    pub(super) fn new(column: &ArrayRef) -> Option<Encoder> {
        let nulls = column.nulls().cloned();
        let kind = match column.data_type() {
            DataType::Boolean => EncoderKind::Bool(column.as_boolean().clone()),
            DataType::Utf8 => {
                let texts = column.as_string::<i32>();
                EncoderKind::Bytes(texts.offsets().clone(), texts.values().clone())
            }
            DataType::Binary => {
                let texts = column.as_binary::<i32>();
                EncoderKind::Bytes(texts.offsets().clone(), texts.values().clone())
            }
            DataType::Dictionary(..) => {
                let encoded = column.as_dictionary_opt::<Int32Type>()?;
                EncoderKind::Dictionary(encoded.keys().values().clone(), Box::new(Encoder::new(encoded.values())?))
            }
            DataType::List(_) => {
                let lists = column.as_list::<i32>();
                EncoderKind::List(lists.offsets().clone(), Box::new(Encoder::new(lists.values())?))
            }
            DataType::Struct(_) => {
                let columns = column.as_struct().columns().iter();
                EncoderKind::Struct(columns.map(Encoder::new).collect::<Option<_>>()?)
            }
            fixed => {
                let width = width_of(fixed)?;
                let data = column.to_data();
                EncoderKind::Fixed(data.buffers().first()?.slice(data.offset() * width), width)
            }
        };
        Some(Encoder { nulls, kind })
    }

    /// Appends the value at a place, which the column has.
    pub(super) fn encode(&self, row: usize, out: &mut Vec<u8>) {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return out.push(NULL);
        }
        if let EncoderKind::Dictionary(places, values) = &self.kind {
            return values.encode(places[row] as usize, out);
        }
        out.push(VALUE);
        let ends = |offsets: &OffsetBuffer<i32>| offsets[row] as usize..offsets[row + 1] as usize;
        match &self.kind {
            EncoderKind::Fixed(bytes, width) => out.extend_from_slice(&bytes[row * width..(row + 1) * width]),
            EncoderKind::Bool(values) => out.push(u8::from(values.value(row))),
            EncoderKind::Bytes(offsets, bytes) => {
                let bytes = &bytes[ends(offsets)];
                out.extend((bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            EncoderKind::List(offsets, elements) => {
                let ends = ends(offsets);
                out.extend((ends.len() as u32).to_le_bytes());
                ends.for_each(|element| elements.encode(element, out));
            }
            EncoderKind::Struct(columns) => columns.iter().for_each(|column| column.encode(row, out)),
            EncoderKind::Dictionary(..) => {}
        }
    }
}

fn width_of(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        other => other.primitive_width(),
    }
}

/// Builds a column of values that the store gave.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Bytes that its values may need if they are NULL: a byte of the store's says so of a row with any number of attributes.
    most: usize,
    nulls: NullBufferBuilder,
    kind: DecoderKind,
}

#[derive(Debug)]
enum DecoderKind {
    Fixed { data_type: DataType, width: usize, bytes: Vec<u8> },
    Bool(Vec<bool>),
    Bytes { is_text: bool, offsets: Vec<i32>, bytes: Vec<u8> },
    List { field: FieldRef, offsets: Vec<i32>, elements: Box<Decoder> },
    Struct { fields: Fields, columns: Vec<Decoder> },
}

impl Decoder {
    /// One for a column of this type, which may have `most` bytes; none if replies have no such columns.
    pub(super) fn new(data_type: &DataType, most: usize) -> Option<Decoder> {
        let kind = match data_type {
            DataType::Boolean => DecoderKind::Bool(Vec::new()),
            DataType::Utf8 | DataType::Binary => {
                DecoderKind::Bytes { is_text: *data_type == DataType::Utf8, offsets: vec![0], bytes: Vec::new() }
            }
            DataType::List(field) => {
                let elements = Box::new(Decoder::new(field.data_type(), most)?);
                DecoderKind::List { field: field.clone(), offsets: vec![0], elements }
            }
            DataType::Struct(fields) => {
                let columns =
                    fields.iter().map(|field| Decoder::new(field.data_type(), most)).collect::<Option<_>>()?;
                DecoderKind::Struct { fields: fields.clone(), columns }
            }
            fixed => DecoderKind::Fixed { data_type: fixed.clone(), width: width_of(fixed)?, bytes: Vec::new() },
        };
        Some(Decoder { most, nulls: NullBufferBuilder::new(0), kind })
    }

    /// Whether it has room for so many more values.
    pub(super) fn has_room(&self, values: usize) -> bool {
        let count = self.len().checked_add(values);
        count.and_then(|count| count.checked_mul(self.width())).is_some_and(|bytes| bytes <= self.most)
    }

    /// Adds a value; none if it is not one of the type, and no more than that.
    pub(super) fn decode(&mut self, mut value: &[u8]) -> Option<()> {
        self.read(&mut value)?;
        value.is_empty().then_some(())
    }

    fn read(&mut self, value: &mut &[u8]) -> Option<()> {
        match take(value, 1)? {
            [NULL] => self.push_null(),
            [VALUE] => self.read_value(value)?,
            _ => return None,
        }
        Some(())
    }

    fn read_value(&mut self, value: &mut &[u8]) -> Option<()> {
        self.nulls.append_non_null();
        match &mut self.kind {
            DecoderKind::Fixed { width, bytes, .. } => bytes.extend_from_slice(take(value, *width)?),
            DecoderKind::Bool(values) => values.push(match take(value, 1)? {
                [0] => false,
                [1] => true,
                _ => return None,
            }),
            DecoderKind::Bytes { offsets, bytes, .. } => {
                let length = count(value)?;
                bytes.extend_from_slice(take(value, length)?);
                offsets.push(i32::try_from(bytes.len()).ok()?);
            }
            DecoderKind::List { offsets, elements, .. } => {
                let length = count(value)?;
                // Each has a byte at least.
                if length > value.len() || !elements.has_room(length) {
                    return None;
                }
                (0..length).try_for_each(|_| elements.read(value))?;
                offsets.push(i32::try_from(elements.len()).ok()?);
            }
            DecoderKind::Struct { columns, .. } => columns.iter_mut().try_for_each(|column| column.read(value))?,
        }
        Some(())
    }

    fn push_null(&mut self) {
        self.nulls.append_null();
        match &mut self.kind {
            DecoderKind::Fixed { width, bytes, .. } => bytes.resize(bytes.len() + *width, 0),
            DecoderKind::Bool(values) => values.push(false),
            DecoderKind::Bytes { offsets, .. } | DecoderKind::List { offsets, .. } => {
                offsets.extend(offsets.last().copied());
            }
            DecoderKind::Struct { columns, .. } => columns.iter_mut().for_each(Decoder::push_null),
        }
    }

    fn len(&self) -> usize {
        self.nulls.len()
    }

    /// Bytes that a value needs if it is NULL, at most.
    fn width(&self) -> usize {
        match &self.kind {
            DecoderKind::Fixed { width, .. } => 1 + width,
            DecoderKind::Bool(_) => 2,
            DecoderKind::Bytes { .. } | DecoderKind::List { .. } => 5,
            DecoderKind::Struct { columns, .. } => 1 + columns.iter().map(Decoder::width).sum::<usize>(),
        }
    }

    /// The column; none if a text in it is not UTF-8.
    pub(super) fn finish(mut self) -> Option<ArrayRef> {
        let (rows, nulls) = (self.nulls.len(), self.nulls.finish());
        Some(match self.kind {
            DecoderKind::Fixed { data_type, bytes, .. } => {
                // Aligned for any type of fixed width.
                let mut aligned = arrow_buffer::MutableBuffer::with_capacity(bytes.len());
                aligned.extend_from_slice(&bytes);
                let data = ArrayData::builder(data_type).len(rows).add_buffer(aligned.into()).nulls(nulls);
                make_array(data.build().ok()?)
            }
            DecoderKind::Bool(values) => Arc::new(BooleanArray::new(values.into(), nulls)),
            DecoderKind::Bytes { is_text, offsets, bytes } => {
                let offsets = OffsetBuffer::new(offsets.into());
                match is_text {
                    true => Arc::new(StringArray::try_new(offsets, bytes.into(), nulls).ok()?),
                    false => Arc::new(BinaryArray::try_new(offsets, bytes.into(), nulls).ok()?),
                }
            }
            DecoderKind::List { field, offsets, elements } => {
                let offsets = OffsetBuffer::new(offsets.into());
                Arc::new(ListArray::try_new(field, offsets, elements.finish()?, nulls).ok()?)
            }
            DecoderKind::Struct { fields, columns } => {
                let columns = columns.into_iter().map(Decoder::finish).collect::<Option<Vec<_>>>()?;
                Arc::new(StructArray::try_new_with_length(fields, columns, nulls, rows).ok()?)
            }
        })
    }
}

fn take<'a>(value: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = value.split_at_checked(length)?;
    *value = rest;
    Some(taken)
}

fn count(value: &mut &[u8]) -> Option<usize> {
    take(value, 4)?.try_into().ok().map(|bytes| u32::from_le_bytes(bytes) as usize)
}

#[cfg(test)]
mod tests {
    use arrow_array::{DictionaryArray, Int64Array};
    use proptest::prelude::*;
    use udf_types::types::{Attribute, TABLE, Type};

    use super::*;

    fn all_types() -> Vec<Type> {
        let plain: Vec<Type> = TABLE.iter().map(|entry| entry.ty.clone()).collect();
        let arrays = plain.iter().map(|ty| Type::Array(Arc::new(ty.clone())));
        let ranges = [Type::Int4, Type::Numeric, Type::Date].map(|ty| Type::Range(Arc::new(ty)));
        let attributes = plain.iter().map(|ty| Attribute { name: "a".to_string(), ty: ty.clone() }).collect();
        let row = Type::Composite(attributes);
        let rows = Type::Array(Arc::new(row.clone()));
        plain.iter().cloned().chain(arrays).chain(ranges).chain([row, rows]).collect()
    }

    /// Bytes that are a value of a type.
    fn value_of(data_type: &DataType) -> BoxedStrategy<Vec<u8>> {
        fn sized(count: usize, values: Vec<Vec<u8>>) -> Vec<u8> {
            [&(count as u32).to_le_bytes()[..], &values.concat()].concat()
        }
        let value = match data_type {
            DataType::Boolean => (0..2_u8).prop_map(|it| vec![it]).boxed(),
            DataType::Utf8 => ".{0,4}".prop_map(|it| sized(it.len(), vec![it.into_bytes()])).boxed(),
            DataType::Binary => {
                prop::collection::vec(any::<u8>(), 0..4).prop_map(|it| sized(it.len(), vec![it])).boxed()
            }
            DataType::List(field) => {
                prop::collection::vec(value_of(field.data_type()), 0..3).prop_map(|it| sized(it.len(), it)).boxed()
            }
            DataType::Struct(fields) => {
                let values: Vec<_> = fields.iter().map(|field| value_of(field.data_type())).collect();
                values.prop_map(|it| it.concat()).boxed()
            }
            fixed => prop::collection::vec(any::<u8>(), width_of(fixed).unwrap()).boxed(),
        };
        prop_oneof![1 => Just(vec![NULL]), 3 => value.prop_map(|it| [vec![VALUE], it].concat())].boxed()
    }

    fn column_of(data_type: &DataType, values: &[Vec<u8>]) -> Option<ArrayRef> {
        let mut decoder = Decoder::new(data_type, 64 << 20).unwrap();
        values.iter().try_for_each(|value| decoder.decode(value))?;
        decoder.finish()
    }

    fn values_of(column: &ArrayRef) -> Vec<Vec<u8>> {
        let encoder = Encoder::new(column).unwrap();
        let value = |row| {
            let mut out = Vec::new();
            encoder.encode(row, &mut out);
            out
        };
        (0..column.len()).map(value).collect()
    }

    fn typed_values() -> impl Strategy<Value = (DataType, Vec<Vec<u8>>)> {
        prop::sample::select(all_types()).prop_flat_map(|ty| {
            let data_type = ty.data_type();
            (Just(data_type.clone()), prop::collection::vec(value_of(&data_type), 0..6))
        })
    }

    #[test]
    fn every_type_has_a_form() {
        for ty in all_types() {
            let column = column_of(&ty.data_type(), &[vec![NULL]]).unwrap();
            assert_eq!((column.data_type(), column.len(), column.null_count()), (&ty.data_type(), 1, 1), "{ty}");
            assert_eq!(values_of(&column), [vec![NULL]]);
        }
    }

    #[test]
    fn values_of_dictionaries_and_of_parts_of_columns_are_the_same() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("b"), Some("a")]));
        let encoded: ArrayRef =
            Arc::new(DictionaryArray::<Int32Type>::from_iter([Some("a"), None, Some("b"), Some("a")]));
        assert_eq!(values_of(&texts), values_of(&encoded));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
        for column in [texts, encoded, numbers] {
            assert_eq!(values_of(&column.slice(1, 2)), values_of(&column)[1..3]);
        }
    }

    #[test]
    fn what_is_no_value_is_refused() {
        let texts = |value: &[u8]| column_of(&DataType::Utf8, &[value.to_vec()]);
        assert!(texts(&[VALUE, 1, 0, 0, 0, b'a']).is_some());
        for wrong in [
            &[][..],
            &[2],
            &[NULL, 0],
            &[VALUE],
            &[VALUE, 1, 0, 0],
            &[VALUE, 2, 0, 0, 0, b'a'],
            &[VALUE, 0, 0, 0, 0, b'a'],
            &[VALUE, 255, 255, 255, 255],
            &[VALUE, 1, 0, 0, 0, 0xff],
        ] {
            assert!(texts(wrong).is_none(), "{wrong:?}");
        }
        assert!(column_of(&DataType::Boolean, &[vec![VALUE, 2]]).is_none());
        let list = Type::Array(Arc::new(Type::Bool)).data_type();
        assert!(column_of(&list, &[vec![VALUE, 255, 255, 255, 255]]).is_none());
        // Elements that need far more memory than bytes.
        let wide = Type::Composite((0..100).map(|_| Attribute { name: String::new(), ty: Type::Float8 }).collect());
        let wide = Type::Array(Arc::new(wide)).data_type();
        let nulls = |count: u32| [&[VALUE][..], &count.to_le_bytes(), &vec![NULL; count as usize]].concat();
        assert!(column_of(&wide, &[nulls(1000)]).is_some());
        assert!(column_of(&wide, &[nulls(1_000_000)]).is_none());
        assert!(column_of(&wide, &vec![nulls(1000); 100]).is_none());
        // A text whose characters two values share.
        assert!(column_of(&DataType::Utf8, &[vec![VALUE, 1, 0, 0, 0, 0xc3], vec![VALUE, 1, 0, 0, 0, 0xa9]]).is_none());
    }

    proptest! {
        #[test]
        fn values_come_back((data_type, values) in typed_values()) {
            let column = column_of(&data_type, &values).unwrap();
            prop_assert_eq!((column.data_type(), column.len()), (&data_type, values.len()));
            prop_assert_eq!(values_of(&column), values.clone());
            let half = values.len() / 2;
            prop_assert_eq!(values_of(&column.slice(half, values.len() - half)), &values[half..]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            (data_type, mut values) in typed_values(),
            wrong in prop::collection::vec(any::<u8>(), 0..30),
            place: prop::sample::Index,
        ) {
            values.push(wrong);
            if let Some(value) = values.first_mut().filter(|value| !value.is_empty()) {
                let at = place.index(value.len());
                value[at] = value[at].wrapping_add(1);
            }
            if let Some(column) = column_of(&data_type, &values) {
                column.to_data().validate_full().unwrap();
                prop_assert_eq!(values_of(&column), values);
            }
        }
    }
}
