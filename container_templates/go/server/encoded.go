package server

import (
	"fmt"
	"runtime"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// decoded is a result that a handler may have encoded as a dictionary of texts. It stays one if the client takes dictionaries
// (docs/protocol.md §7.9), then with indexes of int32.
func (f *Function) decoded(column arrow.Array, mayEncode bool) (arrow.Array, error) {
	// It may hold the map of a shared table, which its texts do not.
	defer runtime.KeepAlive(column)
	encoded, ok := column.(*array.Dictionary)
	if !ok {
		return column, nil
	}
	texts, ok := encoded.Dictionary().(*array.String)
	if !ok || !f.Returns.IsText() {
		return nil, &CallError{Kind: "bad_result", Message: fmt.Sprintf("It returned a %s; the declared result is %s.", encoded.DataType(), f.Returns.Text)}
	}
	mayEncode = mayEncode && texts.NullN() == 0
	indexes := array.NewInt32Builder(memory.DefaultAllocator)
	plain := array.NewStringBuilder(memory.DefaultAllocator)
	if !mayEncode && spelledOut(encoded, texts) > maxSegmentBytes {
		return nil, &CallError{Kind: "bad_result", Message: "Its texts are larger than 1 GiB."}
	}
	for row := range encoded.Len() {
		isNull := encoded.IsNull(row)
		index := 0
		if !isNull {
			if index = encoded.GetValueIndex(row); index < 0 || index >= texts.Len() {
				return nil, &CallError{Kind: "bad_result", Message: fmt.Sprintf("It returned index %d into a dictionary of %d values.", index, texts.Len()), Row: &row}
			}
		}
		switch {
		case isNull && mayEncode:
			indexes.AppendNull()
		case mayEncode:
			indexes.Append(int32(index))
		case isNull || texts.IsNull(index):
			plain.AppendNull()
		default:
			plain.Append(texts.Value(index))
		}
	}
	if !mayEncode {
		return plain.NewArray(), nil
	}
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
	return array.NewDictionaryArray(kind, indexes.NewArray(), texts), nil
}

// spelledOut is the size of all rows' texts: a few bytes may stand for any number of them. Indexes that lead nowhere are left out.
func spelledOut(encoded *array.Dictionary, texts *array.String) int {
	size := 0
	for row := range encoded.Len() {
		if encoded.IsNull(row) {
			continue
		}
		if index := encoded.GetValueIndex(row); index >= 0 && index < texts.Len() {
			size += texts.ValueLen(index)
		}
	}
	return size
}
