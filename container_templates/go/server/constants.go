package server

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Constants are columns with one value in all rows (docs/protocol.md §4.10, §6, §7.11). Over Flight such a column is a dictionary of
// one value, which costs a byte per row, otherwise a repeatedArray.

const (
	// Bytes of repeated constants that a function of whole columns is given at a time.
	mostRepeatedBytes = 64 << 20
	// Bytes of a value in Go, a text or a pointer, which may be more than Arrow has.
	leastRepeatedBytes = 16
)

// argument is a column of a batch, of which a constant has one row.
type argument struct {
	values     arrow.Array
	isConstant bool
}

// row is where the value of a row of the batch lies.
func (a argument) row(row int) int {
	if a.isConstant {
		return 0
	}
	return row
}

// argumentsOf are the columns of a batch. A dictionary that is no constant breaks the protocol.
func argumentsOf(batch arrow.RecordBatch) ([]argument, error) {
	arguments := make([]argument, batch.NumCols())
	for i, column := range batch.Columns() {
		if constant, ok := column.(repeatedArray); ok {
			arguments[i] = argument{values: constant.Array, isConstant: true}
			continue
		}
		encoded, ok := column.(*array.Dictionary)
		if !ok {
			arguments[i] = argument{values: column}
			continue
		}
		indexes, ok := encoded.Indices().(*array.Int8)
		if !ok || encoded.Dictionary().Len() != 1 || indexes.NullN() > 0 {
			return nil, violation("a dictionary has one value, and int8 indexes that are 0")
		}
		for _, index := range indexes.Int8Values() {
			if index != 0 {
				return nil, violation("a dictionary has one value, and int8 indexes that are 0")
			}
		}
		arguments[i] = argument{values: encoded.Dictionary(), isConstant: true}
	}
	return arguments, nil
}

// repeatedArray is a column with the value of an array of one row in each of its rows. Any number of them takes no memory.
type repeatedArray struct {
	arrow.Array
	rows int
}

func (r repeatedArray) Len() int { return r.rows }

func repeated(value arrow.Array, rows int) arrow.Array { return repeatedArray{value, rows} }

// checkConstants refuses numbers of constants that are no columns of so many, or do not ascend.
func checkConstants(constants []int, function *Function) error {
	if len(constants) > 0 && function.Kind != "scalar" && function.Kind != "table" {
		return violation("%s takes no constants", function.Name)
	}
	before := -1
	for _, position := range constants {
		if position <= before || position >= len(function.callColumns()) {
			return unreadable("constants are ascending numbers of columns, not %v", constants)
		}
		before = position
	}
	return nil
}

// rowsAtATime is how many rows of a batch have room for its constants.
func rowsAtATime(arguments []argument) int {
	bytes := uint64(0)
	for _, argument := range arguments {
		if argument.isConstant {
			bytes += max(argument.values.Data().SizeInBytes(), leastRepeatedBytes)
		}
	}
	return int(max(mostRepeatedBytes/max(bytes, 1), 1))
}

// whole is a piece of a batch in which every column has all rows. The handler may write to it: constants, which further batches have as
// well, are copied, and so are rows that may be given again.
func whole(arguments []argument, columns []Argument, first, rows int, mayRunAgain bool) (arrow.RecordBatch, error) {
	arrays := make([]arrow.Array, len(arguments))
	for i, argument := range arguments {
		start, end := first, first+rows
		if argument.isConstant {
			start, end = 0, min(rows, 1)
		}
		column := array.NewSlice(argument.values, int64(start), int64(end))
		var err error
		if argument.isConstant || mayRunAgain {
			column, err = array.Concatenate([]arrow.Array{column}, memory.DefaultAllocator)
		}
		for err == nil && column.Len() < rows {
			more := array.NewSlice(column, 0, int64(min(column.Len(), rows-column.Len())))
			column, err = array.Concatenate([]arrow.Array{column, more}, memory.DefaultAllocator)
		}
		if err != nil {
			return nil, violation("the arguments cannot be copied: %v", err)
		}
		arrays[i] = column
	}
	return batchOf(columns, arrays, rows), nil
}
