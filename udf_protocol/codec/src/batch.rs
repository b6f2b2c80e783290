//! Rows in, batches out: column builders that an engine fills row by row, cut by rows and by bytes, and numbered.
//!
//! In: one value per argument and row, appended to [`ColumnBuilder`]s. Out: [`CallBatch`]es. Row i of a batch is the
//! i-th row that was finished since the batch before; batches are numbered from zero within an exchange.

use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, BooleanBuilder, Date32Builder, FixedSizeBinaryBuilder, Float32Builder, Float64Builder,
    Int16Builder, Int32Builder, Int64Builder, IntervalMonthDayNanoBuilder, StringBuilder, Time64MicrosecondBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, ListArray, RecordBatch, RecordBatchOptions, StructArray};
use arrow_buffer::{NullBufferBuilder, OffsetBufferBuilder};
use arrow_schema::{FieldRef, Fields, SchemaRef};
use udf_types::Result;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::textual_type;
use udf_types::types::Type;

use crate::constants::Constants;

/// One numbered batch of calls.
#[derive(Debug, Clone)]
pub struct CallBatch {
    /// Its place in the exchange, from zero.
    pub number: u64,
    /// One column per argument that is no constant.
    pub columns: RecordBatch,
    /// The arguments whose value is the same in every row.
    pub constants: Constants,
    /// What an aggregate function is to do.
    pub step: Option<AggregateStep>,
    /// Whether results that travel as text may come as a [`arrow_array::DictionaryArray`] of int32 and text.
    pub takes_dictionaries: bool,
}

impl CallBatch {
    /// A batch of calls of a function that is no aggregate.
    pub fn new(number: u64, columns: RecordBatch) -> CallBatch {
        CallBatch { number, columns, constants: Constants::default(), step: None, takes_dictionaries: false }
    }

    /// The same with constants as whole columns, for a server that does not take them otherwise.
    ///
    /// # Errors
    /// If such a column is too large.
    pub fn with_repeated_constants(mut self, signature: &Signature) -> Result<CallBatch> {
        self.columns = std::mem::take(&mut self.constants).repeat_in(signature, &self.columns)?;
        Ok(self)
    }
}

/// What a caller has made of an argument.
#[derive(Debug, Clone)]
pub enum Given {
    /// Nothing: a [`ColumnBuilder`] has its values.
    Built,
    /// A value per row.
    Column(ArrayRef),
    /// One row, for all.
    Constant(ArrayRef),
}

/// What an aggregate function is to do with a batch (`docs/protocol.md` §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AggregateStep {
    /// Add each row's arguments to its group.
    Accumulate,
    /// Add each row's state to its group.
    Merge,
    /// Give each group's state.
    State,
    /// Give each group's result.
    Finish,
    /// Forget each group.
    Forget,
}

impl AggregateStep {
    /// Every one of them.
    const ALL: [AggregateStep; 5] = [
        AggregateStep::Accumulate,
        AggregateStep::Merge,
        AggregateStep::State,
        AggregateStep::Finish,
        AggregateStep::Forget,
    ];

    /// The step of that name.
    pub fn from_name(name: &str) -> Option<AggregateStep> {
        AggregateStep::ALL.into_iter().find(|step| step.name() == name)
    }

    /// The step's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            AggregateStep::Accumulate => "accumulate",
            AggregateStep::Merge => "merge",
            AggregateStep::State => "state",
            AggregateStep::Finish => "finish",
            AggregateStep::Forget => "forget",
        }
    }
}

/// Builds one argument's column. Engines append through the variant, so that no value is boxed on its way.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant is the Arrow builder of the type of that name")]
pub enum ColumnBuilder {
    Bool(BooleanBuilder),
    Int2(Int16Builder),
    Int4(Int32Builder),
    Int8(Int64Builder),
    Float4(Float32Builder),
    Float8(Float64Builder),
    /// Text, and everything that travels as text.
    Text(StringBuilder),
    Bytea(BinaryBuilder),
    /// Days since 1970-01-01.
    Date(Date32Builder),
    /// Microseconds since 1970-01-01, with or without time zone.
    Timestamp(TimestampMicrosecondBuilder),
    Uuid(FixedSizeBinaryBuilder),
    /// Microseconds since midnight.
    Time(Time64MicrosecondBuilder),
    Interval(IntervalMonthDayNanoBuilder),
    Array(ArrayColumn),
    /// A composite type or a range.
    Composite(CompositeColumn),
}

/// Builds a column of arrays: append the elements, then finish the value.
#[derive(Debug)]
pub struct ArrayColumn {
    field: FieldRef,
    elements: Box<ColumnBuilder>,
    offsets: OffsetBufferBuilder<i32>,
    elements_before: usize,
    validity: NullBufferBuilder,
}

impl ArrayColumn {
    /// Where the elements of the value at hand are appended.
    pub fn elements(&mut self) -> &mut ColumnBuilder {
        &mut self.elements
    }

    /// Ends the value, of the elements that were appended since the one before.
    pub fn finish_value(&mut self) {
        self.push_offset();
        self.validity.append_non_null();
    }

    fn append_null(&mut self) {
        self.push_offset();
        self.validity.append_null();
    }

    fn push_offset(&mut self) {
        let elements = self.elements.len();
        self.offsets.push_length(elements - self.elements_before);
        self.elements_before = elements;
    }

    fn finish(&mut self) -> ListArray {
        let offsets = std::mem::replace(&mut self.offsets, OffsetBufferBuilder::new(0)).finish();
        self.elements_before = 0;
        ListArray::new(self.field.clone(), offsets, self.elements.finish(), self.validity.finish())
    }
}

/// Builds a column of composite values: append one value to each attribute, then finish the value.
#[derive(Debug)]
pub struct CompositeColumn {
    fields: Fields,
    attributes: Vec<ColumnBuilder>,
    validity: NullBufferBuilder,
}

impl CompositeColumn {
    /// The column of one attribute.
    pub fn attribute(&mut self, position: usize) -> &mut ColumnBuilder {
        &mut self.attributes[position]
    }

    /// Ends the value.
    pub fn finish_value(&mut self) {
        self.validity.append_non_null();
    }

    fn append_null(&mut self) {
        self.attributes.iter_mut().for_each(ColumnBuilder::append_null);
        self.validity.append_null();
    }

    fn finish(&mut self) -> StructArray {
        let rows = self.validity.len();
        let columns = self.attributes.iter_mut().map(ColumnBuilder::finish).collect();
        StructArray::try_new_with_length(self.fields.clone(), columns, self.validity.finish(), rows)
            .expect("each value appends one value of its type to every attribute")
    }
}

impl ColumnBuilder {
    /// A builder of an empty column.
    pub fn new(ty: &Type) -> ColumnBuilder {
        match ty {
            Type::Bool => ColumnBuilder::Bool(BooleanBuilder::new()),
            Type::Int2 => ColumnBuilder::Int2(Int16Builder::new()),
            Type::Int4 => ColumnBuilder::Int4(Int32Builder::new()),
            Type::Int8 => ColumnBuilder::Int8(Int64Builder::new()),
            Type::Float4 => ColumnBuilder::Float4(Float32Builder::new()),
            Type::Float8 => ColumnBuilder::Float8(Float64Builder::new()),
            textual_type!() => ColumnBuilder::Text(StringBuilder::new()),
            Type::Bytea => ColumnBuilder::Bytea(BinaryBuilder::new()),
            Type::Date => ColumnBuilder::Date(Date32Builder::new()),
            Type::Timestamp | Type::TimestampTz => {
                ColumnBuilder::Timestamp(TimestampMicrosecondBuilder::new().with_data_type(ty.data_type()))
            }
            Type::Uuid => ColumnBuilder::Uuid(FixedSizeBinaryBuilder::new(16)),
            Type::Time => ColumnBuilder::Time(Time64MicrosecondBuilder::new()),
            Type::Interval => ColumnBuilder::Interval(IntervalMonthDayNanoBuilder::new()),
            Type::Array(element) => ColumnBuilder::Array(ArrayColumn {
                field: Arc::new(element.field("item")),
                elements: Box::new(ColumnBuilder::new(element)),
                offsets: OffsetBufferBuilder::new(0),
                elements_before: 0,
                validity: NullBufferBuilder::new(0),
            }),
            Type::Range(_) | Type::Composite(_) => {
                let attributes = ty.attributes();
                ColumnBuilder::Composite(CompositeColumn {
                    fields: attributes.iter().map(|attribute| attribute.ty.field(&attribute.name)).collect(),
                    attributes: attributes.iter().map(|attribute| ColumnBuilder::new(&attribute.ty)).collect(),
                    validity: NullBufferBuilder::new(0),
                })
            }
        }
    }

    /// Appends NULL.
    pub fn append_null(&mut self) {
        match self {
            ColumnBuilder::Bool(builder) => builder.append_null(),
            ColumnBuilder::Int2(builder) => builder.append_null(),
            ColumnBuilder::Int4(builder) => builder.append_null(),
            ColumnBuilder::Int8(builder) => builder.append_null(),
            ColumnBuilder::Float4(builder) => builder.append_null(),
            ColumnBuilder::Float8(builder) => builder.append_null(),
            ColumnBuilder::Text(builder) => builder.append_null(),
            ColumnBuilder::Bytea(builder) => builder.append_null(),
            ColumnBuilder::Date(builder) => builder.append_null(),
            ColumnBuilder::Timestamp(builder) => builder.append_null(),
            ColumnBuilder::Uuid(builder) => builder.append_null(),
            ColumnBuilder::Time(builder) => builder.append_null(),
            ColumnBuilder::Interval(builder) => builder.append_null(),
            ColumnBuilder::Array(builder) => builder.append_null(),
            ColumnBuilder::Composite(builder) => builder.append_null(),
        }
    }

    /// The column of the values so far; none are left.
    pub fn finish(&mut self) -> ArrayRef {
        match self {
            ColumnBuilder::Bool(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Int2(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Int4(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Int8(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Float4(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Float8(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Text(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Bytea(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Date(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Timestamp(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Uuid(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Time(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Interval(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Array(builder) => Arc::new(builder.finish()),
            ColumnBuilder::Composite(builder) => Arc::new(builder.finish()),
        }
    }

    /// Values so far, NULLs included.
    fn len(&self) -> usize {
        match self {
            ColumnBuilder::Bool(builder) => builder.len(),
            ColumnBuilder::Int2(builder) => builder.len(),
            ColumnBuilder::Int4(builder) => builder.len(),
            ColumnBuilder::Int8(builder) => builder.len(),
            ColumnBuilder::Float4(builder) => builder.len(),
            ColumnBuilder::Float8(builder) => builder.len(),
            ColumnBuilder::Text(builder) => builder.len(),
            ColumnBuilder::Bytea(builder) => builder.len(),
            ColumnBuilder::Date(builder) => builder.len(),
            ColumnBuilder::Timestamp(builder) => builder.len(),
            ColumnBuilder::Uuid(builder) => builder.len(),
            ColumnBuilder::Time(builder) => builder.len(),
            ColumnBuilder::Interval(builder) => builder.len(),
            ColumnBuilder::Array(builder) => builder.validity.len(),
            ColumnBuilder::Composite(builder) => builder.validity.len(),
        }
    }

    /// Bytes of values so far, validity left out.
    pub fn bytes(&self) -> usize {
        match self {
            ColumnBuilder::Bool(builder) => builder.len() / 8,
            ColumnBuilder::Int2(builder) => builder.len() * 2,
            ColumnBuilder::Int4(builder) => builder.len() * 4,
            ColumnBuilder::Float4(builder) => builder.len() * 4,
            ColumnBuilder::Date(builder) => builder.len() * 4,
            ColumnBuilder::Int8(builder) => builder.len() * 8,
            ColumnBuilder::Float8(builder) => builder.len() * 8,
            ColumnBuilder::Timestamp(builder) => builder.len() * 8,
            ColumnBuilder::Time(builder) => builder.len() * 8,
            ColumnBuilder::Text(builder) => builder.len() * 4 + builder.values_slice().len(),
            ColumnBuilder::Bytea(builder) => builder.len() * 4 + builder.values_slice().len(),
            ColumnBuilder::Uuid(builder) => builder.len() * 16,
            ColumnBuilder::Interval(builder) => builder.len() * 16,
            ColumnBuilder::Array(builder) => builder.validity.len() * 4 + builder.elements.bytes(),
            ColumnBuilder::Composite(builder) => builder.attributes.iter().map(ColumnBuilder::bytes).sum(),
        }
    }
}

/// Builds the batches of one call. After an error in the middle of a row the builder is unusable.
#[derive(Debug)]
pub struct BatchBuilder {
    // for the exchange
    schema: SchemaRef,
    next_number: u64,
    // for the batch
    columns: Vec<ColumnBuilder>,
    rows: usize,
}

impl BatchBuilder {
    /// A builder for calls of `signature`.
    pub fn new(signature: &Signature) -> BatchBuilder {
        let mut columns: Vec<_> = signature.arguments.iter().map(|argument| ColumnBuilder::new(&argument.ty)).collect();
        if signature.kind == FunctionKind::Aggregate {
            columns.insert(0, ColumnBuilder::new(&Type::Int8));
            columns.push(ColumnBuilder::new(&Type::Bytea));
        }
        BatchBuilder { schema: signature.call_schema(), next_number: 0, columns, rows: 0 }
    }

    /// The column of argument `position`, of an aggregate one behind its group. Append exactly one value to each, then call [`Self::finish_row`].
    pub fn column(&mut self, position: usize) -> &mut ColumnBuilder {
        &mut self.columns[position]
    }

    /// Counts the row whose values were appended.
    pub fn finish_row(&mut self) {
        self.rows += 1;
    }

    /// Rows since the last batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of values since the last batch.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(ColumnBuilder::bytes).sum()
    }

    /// Takes the builder's columns out for a batch that is cut later; what the caller has made stays.
    pub fn take_built(&mut self, arguments: Vec<Given>) -> Vec<Given> {
        let built = self.columns.iter_mut().zip(arguments).map(|(builder, given)| match given {
            Given::Built => Given::Column(builder.finish()),
            made => made,
        });
        built.collect()
    }

    /// Cuts the batch here, which has `rows` rows. What the caller has made takes the place of the builder's columns.
    ///
    /// # Panics
    /// If a column is not of the signature's type, or has not so many rows.
    pub fn finish_batch_with(&mut self, rows: usize, arguments: Vec<Given>) -> CallBatch {
        let (mut columns, mut constants) = (Vec::with_capacity(arguments.len()), Vec::new());
        for (position, (builder, given)) in self.columns.iter_mut().zip(arguments).enumerate() {
            match given {
                Given::Built => columns.push(builder.finish()),
                Given::Column(column) => columns.push(column),
                Given::Constant(value) => constants.push((position, value)),
            }
        }
        self.rows = rows;
        self.cut(columns, Constants::new(constants))
    }

    /// Cuts the batch here.
    ///
    /// # Panics
    /// If the columns differ in length, that is, if a caller appended too few or too many values to a row.
    pub fn finish_batch(&mut self) -> CallBatch {
        let columns = self.columns.iter_mut().map(ColumnBuilder::finish).collect();
        self.cut(columns, Constants::default())
    }

    fn cut(&mut self, columns: Vec<ArrayRef>, constants: Constants) -> CallBatch {
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let schema = match constants.is_empty() {
            true => self.schema.clone(),
            false => Arc::new(constants.schema_of_others(&self.schema)),
        };
        let columns = RecordBatch::try_new_with_options(schema, columns, &options)
            .expect("each row appends one value of the signature's type to every column");
        let number = self.next_number;
        self.next_number += 1;
        self.rows = 0;
        CallBatch { constants, ..CallBatch::new(number, columns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udf_types::signature::Argument;

    #[test]
    fn batches_are_numbered_and_start_empty() {
        let arguments = vec![Argument { name: "x".into(), ty: Type::Text }];
        let mut builder = BatchBuilder::new(&Signature::scalar("f", arguments, Type::Text));
        for number in 0..3 {
            let ColumnBuilder::Text(column) = builder.column(0) else { panic!("text column") };
            column.append_value("four");
            builder.finish_row();
            assert_eq!(builder.bytes(), 8);
            let batch = builder.finish_batch();
            assert_eq!((batch.number, batch.columns.num_rows(), builder.rows()), (number, 1, 0));
        }
    }

    #[test]
    fn zero_arguments_keep_their_row_count() {
        let mut builder = BatchBuilder::new(&Signature::scalar("f", vec![], Type::Int4));
        builder.finish_row();
        builder.finish_row();
        assert_eq!(builder.finish_batch().columns.num_rows(), 2);
    }
}
