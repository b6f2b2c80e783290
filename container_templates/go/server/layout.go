package server

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// layout is what the schema of a client's calls says of its layout (docs/protocol.md §4.1): large offsets, and views. The zero
// value is the protocol's own.
type layout struct {
	largeText, largeLists, views bool
}

func layoutOf(schema *arrow.Schema) layout {
	found := layout{}
	for _, field := range schema.Fields() {
		found.lookAt(field.Type)
	}
	return found
}

func (l *layout) lookAt(kind arrow.DataType) {
	switch kind := kind.(type) {
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		l.largeText = true
	case *arrow.StringViewType, *arrow.BinaryViewType:
		l.views = true
	case *arrow.LargeListType:
		l.largeLists = true
		l.lookAt(kind.Elem())
	case *arrow.ListType:
		l.lookAt(kind.Elem())
	case *arrow.StructType:
		for _, field := range kind.Fields() {
			l.lookAt(field.Type)
		}
	}
}

// kind is a type in the client's layout. Where the client has both, text and bytes are views.
func (l layout) kind(own arrow.DataType) arrow.DataType {
	switch {
	case own.ID() == arrow.STRING && l.views:
		return arrow.BinaryTypes.StringView
	case own.ID() == arrow.BINARY && l.views:
		return arrow.BinaryTypes.BinaryView
	case own.ID() == arrow.STRING && l.largeText:
		return arrow.BinaryTypes.LargeString
	case own.ID() == arrow.BINARY && l.largeText:
		return arrow.BinaryTypes.LargeBinary
	case own.ID() == arrow.LIST && l.largeLists:
		return arrow.LargeListOfField(own.(*arrow.ListType).ElemField())
	}
	return own
}

// ownKind is a client's type in the protocol's layout.
func ownKind(found arrow.DataType) arrow.DataType {
	switch found.ID() {
	case arrow.LARGE_STRING, arrow.STRING_VIEW:
		return arrow.BinaryTypes.String
	case arrow.LARGE_BINARY, arrow.BINARY_VIEW:
		return arrow.BinaryTypes.Binary
	case arrow.LARGE_LIST:
		return arrow.ListOfField(found.(*arrow.LargeListType).ElemField())
	}
	return found
}

// changed is a type with its parts changed, then itself.
func changed(kind arrow.DataType, change func(arrow.DataType) arrow.DataType) arrow.DataType {
	field := func(part arrow.Field) arrow.Field {
		part.Type = changed(part.Type, change)
		return part
	}
	switch found := kind.(type) {
	case *arrow.ListType:
		kind = arrow.ListOfField(field(found.ElemField()))
	case *arrow.LargeListType:
		kind = arrow.LargeListOfField(field(found.ElemField()))
	case *arrow.StructType:
		fields := make([]arrow.Field, found.NumFields())
		for i := range fields {
			fields[i] = field(found.Field(i))
		}
		kind = arrow.StructOf(fields...)
	}
	return change(kind)
}

func changedSchema(schema *arrow.Schema, change func(arrow.DataType) arrow.DataType) *arrow.Schema {
	fields := make([]arrow.Field, schema.NumFields())
	for i := range fields {
		fields[i] = schema.Field(i)
		fields[i].Type = changed(fields[i].Type, change)
	}
	metadata := schema.Metadata()
	return arrow.NewSchema(fields, &metadata)
}

// schema is that of a reply, in the client's layout.
func (l layout) schema(own *arrow.Schema) *arrow.Schema {
	if l == (layout{}) {
		return own
	}
	return changedSchema(own, l.kind)
}

// write gives a reply in the client's layout.
func (l layout) write(reply arrow.RecordBatch) (arrow.RecordBatch, error) {
	if l == (layout{}) {
		return reply, nil
	}
	return recastBatch(reply, l.schema(reply.Schema()))
}

// read gives a client's batch in the protocol's layout.
func (l layout) read(batch arrow.RecordBatch) (read arrow.RecordBatch, err error) {
	if l == (layout{}) {
		return batch, nil
	}
	defer func() {
		// A view may lead anywhere.
		if cause := recover(); cause != nil {
			err = unreadable("%v", cause)
		}
	}()
	return recastBatch(batch, changedSchema(batch.Schema(), ownKind))
}

func recastBatch(batch arrow.RecordBatch, schema *arrow.Schema) (arrow.RecordBatch, error) {
	columns := make([]arrow.Array, batch.NumCols())
	for i := range columns {
		var err error
		if columns[i], err = recast(batch.Column(i), schema.Field(i).Type); err != nil {
			return nil, err
		}
	}
	return array.NewRecordBatch(schema, columns, batch.NumRows()), nil
}

// recast is a column in another layout.
func recast(column arrow.Array, kind arrow.DataType) (arrow.Array, error) {
	if arrow.TypeEqual(column.DataType(), kind) {
		return column, nil
	}
	rows := column.Len()
	switch column := column.(type) {
	case array.ListLike:
		return recastList(column, kind)
	case *array.Struct:
		var parts []arrow.ArrayData
		for i, field := range kind.(*arrow.StructType).Fields() {
			part, err := recast(column.Field(i), field.Type)
			if err != nil {
				return nil, err
			}
			parts = append(parts, part.Data())
		}
		return made(column, kind, nil, parts), nil
	case array.StringLike:
		builder := array.NewBuilder(memory.DefaultAllocator, kind).(array.StringLikeBuilder)
		return recastValues(column, builder, rows, column.ValueLen, func(row int) { builder.Append(column.Value(row)) })
	case *array.BinaryView:
		builder := array.NewBuilder(memory.DefaultAllocator, kind).(array.BinaryLikeBuilder)
		return recastValues(column, builder, rows, column.ValueLen, func(row int) { builder.Append(column.Value(row)) })
	case interface {
		array.BinaryLike
		Value(int) []byte
	}:
		builder := array.NewBuilder(memory.DefaultAllocator, kind).(array.BinaryLikeBuilder)
		return recastValues(column, builder, rows, column.ValueLen, func(row int) { builder.Append(column.Value(row)) })
	}
	return nil, fmt.Errorf("there is no layout %s of %s", kind, column.DataType())
}

// recastValues appends row after row. Any number of views may stand for the same bytes: what they come to is bounded first.
func recastValues(column arrow.Array, builder array.Builder, rows int, length func(int) int, take func(int)) (arrow.Array, error) {
	size := 0
	for row := range rows {
		if column.IsValid(row) {
			size += length(row)
		}
		if size > maxSegmentBytes {
			return nil, violation("a column has more than %d bytes", maxSegmentBytes)
		}
	}
	builder.Reserve(rows)
	for row := range rows {
		if column.IsNull(row) {
			builder.AppendNull()
		} else {
			take(row)
		}
	}
	return builder.NewArray(), nil
}

func recastList(column array.ListLike, kind arrow.DataType) (arrow.Array, error) {
	elements, err := recast(column.ListValues(), kind.(arrow.ListLikeType).Elem())
	if err != nil {
		return nil, err
	}
	// One more than rows; an array without rows may have none.
	offsets := make([]int64, 1, column.Len()+1)
	for row := range column.Len() {
		start, end := column.ValueOffsets(row)
		offsets[row] = start
		offsets = append(offsets, end)
	}
	bytes := arrow.Int64Traits.CastToBytes(offsets)
	if kind.ID() == arrow.LIST {
		small := make([]int32, len(offsets))
		for i, offset := range offsets {
			if offset > math.MaxInt32 {
				return nil, violation("a column has too many elements")
			}
			small[i] = int32(offset)
		}
		bytes = arrow.Int32Traits.CastToBytes(small)
	}
	return made(column, kind, []*memory.Buffer{memory.NewBufferBytes(bytes)}, []arrow.ArrayData{elements.Data()}), nil
}

// made has the NULLs of another column.
func made(column arrow.Array, kind arrow.DataType, buffers []*memory.Buffer, children []arrow.ArrayData) arrow.Array {
	var bitmap *memory.Buffer
	if validity := column.Data().Buffers()[0]; validity != nil && column.NullN() > 0 {
		bitmap = memory.NewBufferBytes(bits(validity, column.Data().Offset(), column.Len()))
	}
	buffers = append([]*memory.Buffer{bitmap}, buffers...)
	return array.MakeFromData(array.NewData(kind, column.Len(), buffers, children, column.NullN(), 0))
}
