//! The layouts that a client of the Flight form may use beside the protocol's own, `docs/protocol.md` §4.1: large offsets for
//! text, bytes and lists, and views of text and bytes. A server reads batches in its own layout, and answers in the client's.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use crate::adapt::{adapt, adapt_within};
use crate::unreadable::Unreadable;

/// What the schema of a client's calls says of its layout. The default is the protocol's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientLayout {
    has_large_text: bool,
    has_large_lists: bool,
    has_views: bool,
}

impl ClientLayout {
    /// The layout of a client that sends batches of this schema.
    pub fn of(schema: &Schema) -> ClientLayout {
        let mut layout = ClientLayout::default();
        schema.fields().iter().for_each(|field| layout.look_at(field.data_type()));
        layout
    }

    fn look_at(&mut self, ty: &DataType) {
        match ty {
            DataType::LargeUtf8 | DataType::LargeBinary => self.has_large_text = true,
            DataType::Utf8View | DataType::BinaryView => self.has_views = true,
            DataType::LargeList(item) => {
                self.has_large_lists = true;
                self.look_at(item.data_type());
            }
            DataType::List(item) => self.look_at(item.data_type()),
            DataType::Struct(parts) => parts.iter().for_each(|part| self.look_at(part.data_type())),
            _ => {}
        }
    }

    /// The schema of a reply, in the client's layout. Where the client has both, text and bytes are views.
    pub fn schema(&self, own: &SchemaRef) -> SchemaRef {
        if *self == ClientLayout::default() {
            return own.clone();
        }
        with_types(own, &|ty| match ty {
            DataType::Utf8 if self.has_views => DataType::Utf8View,
            DataType::Binary if self.has_views => DataType::BinaryView,
            DataType::Utf8 if self.has_large_text => DataType::LargeUtf8,
            DataType::Binary if self.has_large_text => DataType::LargeBinary,
            DataType::List(item) if self.has_large_lists => DataType::LargeList(item),
            other => other,
        })
    }

    /// A reply in the client's layout. The error says what that layout cannot hold.
    pub fn write(&self, reply: RecordBatch) -> Result<RecordBatch, String> {
        let schema = self.schema(reply.schema_ref());
        if schema == *reply.schema_ref() {
            return Ok(reply);
        }
        let pairs = reply.columns().iter().zip(schema.fields());
        let columns = pairs.map(|(column, field)| adapt(column, field.data_type())).collect::<Result<Vec<_>, _>>()?;
        with_columns(schema, columns, reply.num_rows()).map_err(|cause| format!("{cause}."))
    }

    /// A client's batch in the protocol's own layout, of at most `most` bytes. Everything else about its types stays as it is.
    pub fn read(&self, batch: RecordBatch, most: usize) -> Result<RecordBatch, Unreadable> {
        if *self == ClientLayout::default() {
            return Ok(batch);
        }
        let schema = with_types(batch.schema_ref(), &|ty| match ty {
            DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
            DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
            DataType::LargeList(item) => DataType::List(item),
            other => other,
        });
        let mut columns = Vec::new();
        for (column, field) in batch.columns().iter().zip(schema.fields()) {
            columns.push(match column.data_type() == field.data_type() {
                true => column.clone(),
                false => adapt_within(column, field.data_type(), most)?,
            });
        }
        with_columns(schema, columns, batch.num_rows()).map_err(|cause| Unreadable::Misfit(format!("{cause}.")))
    }
}

fn with_columns(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new_with_options(schema, columns, &RecordBatchOptions::new().with_row_count(Some(rows)))
}

/// The schema with other types, those of elements and attributes first.
fn with_types(schema: &SchemaRef, change: &dyn Fn(DataType) -> DataType) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| with_type(field, change)).collect::<Vec<_>>();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn with_type(field: &Field, change: &dyn Fn(DataType) -> DataType) -> Arc<Field> {
    let ty = match field.data_type() {
        DataType::List(item) => DataType::List(with_type(item, change)),
        DataType::LargeList(item) => DataType::LargeList(with_type(item, change)),
        DataType::Struct(parts) => DataType::Struct(parts.iter().map(|part| with_type(part, change)).collect()),
        other => other.clone(),
    };
    Arc::new(field.clone().with_data_type(change(ty)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::decode_column;
    use serde_json::{Value, json};
    use udf_types::types::Type;

    /// A column of every nested kind, in the protocol's own layout.
    fn own() -> RecordBatch {
        let columns: [(&str, Value); 4] = [
            ("text", json!(["größer als zwölf Bytes", null, ""])),
            ("numeric[]", json!([["1.50", null], null, []])),
            ("(a text, b bytea[])", json!([{"a": "x", "b": ["AP8=", null]}, null, {"a": null, "b": null}])),
            ("int8", json!([1, null, 3])),
        ];
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (name, values) in columns {
            let ty = Type::from_name(name).unwrap();
            fields.push(ty.field(name));
            arrays.push(decode_column(&ty, values.as_array().unwrap()).unwrap());
        }
        with_columns(Arc::new(Schema::new(fields)), arrays, 3).unwrap()
    }

    #[test]
    fn replies_have_the_layout_of_the_calls() {
        let own = own();
        assert_eq!(ClientLayout::of(own.schema_ref()), ClientLayout::default());
        let large = ClientLayout { has_large_text: true, ..ClientLayout::default() };
        let lists = ClientLayout { has_large_lists: true, ..ClientLayout::default() };
        let views = ClientLayout { has_views: true, ..ClientLayout::default() };
        let all = ClientLayout { has_large_lists: true, ..large };
        for layout in [large, lists, views, all] {
            let written = layout.write(own.clone()).unwrap();
            assert_ne!(written.schema(), own.schema());
            assert_eq!(ClientLayout::of(written.schema_ref()), layout);
            assert_eq!(layout.schema(&own.schema()), written.schema());
            assert_eq!(layout.read(written, 1 << 20).unwrap(), own);
        }
        let written = all.write(own.clone()).unwrap();
        assert_eq!(written.schema().field(0).data_type(), &DataType::LargeUtf8);
        let DataType::LargeList(element) = written.schema().field(1).data_type().clone() else {
            panic!("no large list")
        };
        assert_eq!(element.data_type(), &DataType::LargeUtf8);
        assert_eq!(element.metadata(), Type::Numeric.field("item").metadata());
    }

    #[test]
    fn what_views_stand_for_is_bounded() {
        let array: ArrayRef = Arc::new(arrow_array::StringViewArray::from(vec!["x".repeat(1000); 10]));
        let schema = Arc::new(Schema::new(vec![Field::new("", DataType::Utf8View, true)]));
        let layout = ClientLayout::of(&schema);
        let batch = with_columns(schema, vec![array], 10).unwrap();
        assert_eq!(layout.read(batch.clone(), 10_000).unwrap_err(), Unreadable::TooLarge);
        assert_eq!(layout.read(batch, 11_000).unwrap().num_rows(), 10);
    }

    #[test]
    fn batches_without_columns_keep_their_rows() {
        let batch = with_columns(Arc::new(Schema::empty()), vec![], 7).unwrap();
        assert_eq!(ClientLayout::of(batch.schema_ref()).read(batch.clone(), 0).unwrap().num_rows(), 7);
    }
}
