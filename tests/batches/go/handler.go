// Package function holds functions of whole batches and streams.
package function

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"transship/udf"
)

// Functions of the test.
var Functions = udf.Functions{
	"join_columns": joinColumns, "add_arrow": addArrow, "double_in_place": doubleInPlace, "echo_list": first, "echo_pair": first, "echo_flag": first,
	"size_columns": sizeColumns, "size_arrow": sizeArrow, "label": label, "mislabel": mislabel, "bloat": bloat, "spell": spell, "join_rows": joinRows,
	"sums": sums, "fail_at": failAt, "endless": endless, "nothing": nothing, "pumped": pumped, "leaves": leaves,
	"triples": triples, "pumped_triples": func(rows iter.Seq[int64]) iter.Seq[[]int64] { return triples(pumped(rows)) },
	"fails_early": failsEarly, "stubborn": stubborn, "later": later,
	"calls_ended": func() int64 { return ended.Swap(0) },
}

var (
	errBad   = errors.New("13 is bad")
	ended    atomic.Int64
	encoding = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
)

type row struct {
	X *int64
	T *string
}

func joinColumns(x []int64, t []*string) ([]*string, error) {
	results := make([]*string, len(x))
	for i := range x {
		if x[i] == 13 {
			return nil, errBad
		}
		text := fmt.Sprint(*t[i], x[i])
		results[i] = &text
	}
	return results, nil
}

func addArrow(batch arrow.RecordBatch) arrow.Array {
	x, y := batch.Column(0).(*array.Int64), batch.Column(1).(*array.Int64)
	results := array.NewInt64Builder(memory.DefaultAllocator)
	for i := range x.Len() {
		switch {
		case x.IsValid(i) && x.Value(i) == 13:
			panic(errBad)
		case x.IsNull(i) || y.IsNull(i):
			results.AppendNull()
		default:
			results.Append(x.Value(i) + y.Value(i))
		}
	}
	return results.NewArray()
}

// doubleInPlace writes to its argument, and fails once it has.
func doubleInPlace(batch arrow.RecordBatch) (arrow.Array, error) {
	var err error
	x := batch.Column(0).(*array.Int64).Int64Values()
	for i := range x {
		if x[i] == 13 {
			err = errBad
		}
		x[i] *= 2
	}
	return batch.Column(0), err
}

func first(batch arrow.RecordBatch) arrow.Array { return batch.Column(0) }

// sizeColumns writes to its arguments: no other row has the same slice.
func sizeColumns(x []*int64, y [][]byte) []int64 {
	results := make([]int64, len(x))
	for i := range results {
		results[i] = -1
		if y[i][0] == 7 {
			results[i] = int64(len(y[i]))
		}
		y[i][0] = 0
	}
	return results
}

func sizeArrow(batch arrow.RecordBatch) arrow.Array {
	results := array.NewInt64Builder(memory.DefaultAllocator)
	for i := range batch.Column(1).Len() {
		results.Append(int64(batch.Column(1).(*array.Binary).ValueLen(i)))
	}
	return results.NewArray()
}

func label(batch arrow.RecordBatch) (arrow.Array, error) {
	builder := array.NewDictionaryBuilder(memory.DefaultAllocator, encoding).(*array.BinaryDictionaryBuilder)
	texts := batch.Column(0).(*array.String)
	for i := range texts.Len() {
		if texts.IsNull(i) {
			builder.AppendNull()
		} else if err := builder.AppendString(texts.Value(i)); err != nil {
			return nil, err
		}
	}
	return builder.NewArray(), nil
}

func mislabel(batch arrow.RecordBatch) arrow.Array {
	indexes, texts := array.NewInt32Builder(memory.DefaultAllocator), array.NewStringBuilder(memory.DefaultAllocator)
	for range batch.NumRows() {
		indexes.Append(77)
	}
	texts.Append("x")
	return array.NewDictionaryArray(encoding, indexes.NewArray(), texts.NewArray())
}

// bloat gives one text of a megabyte for every row.
func bloat(batch arrow.RecordBatch) arrow.Array {
	indexes, texts := array.NewInt32Builder(memory.DefaultAllocator), array.NewStringBuilder(memory.DefaultAllocator)
	for range batch.NumRows() {
		indexes.Append(0)
	}
	texts.Append(strings.Repeat("x", 1<<20))
	return array.NewDictionaryArray(encoding, indexes.NewArray(), texts.NewArray())
}

func spell(n *int32, text string) []string {
	var results []string
	for i := int32(0); n != nil && i < *n; i++ {
		results = append(results, text)
	}
	return results
}

func joinRows(rows iter.Seq[row]) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for row := range rows {
			x, t := "null", "null"
			if row.X != nil {
				x = fmt.Sprint(*row.X)
			}
			if row.T != nil {
				t = *row.T
			}
			if !yield(x+t, nil) {
				return
			}
		}
	}
}

func sums(batches iter.Seq[arrow.RecordBatch]) iter.Seq[arrow.Array] {
	return func(yield func(arrow.Array) bool) {
		sum := int64(0)
		for batch := range batches {
			for _, x := range batch.Column(0).(*array.Int64).Int64Values() {
				sum += x
			}
			result := array.NewInt64Builder(memory.DefaultAllocator)
			result.Append(sum)
			if !yield(result.NewArray()) {
				return
			}
		}
	}
}

func failAt(rows iter.Seq[int64]) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		for x := range rows {
			if x == 13 {
				yield(0, errBad)
				return
			}
			if !yield(x, nil) {
				return
			}
		}
	}
}

func endless(iter.Seq[int64]) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for x := int64(0); yield(x); x++ {
			ended.Store(-x)
		}
	}
}

func nothing(iter.Seq[int64]) iter.Seq[int64] { return nil }

// pumped takes rows on another goroutine.
func pumped(rows iter.Seq[int64]) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		taken := make(chan int64)
		go func() {
			defer close(taken)
			for x := range rows {
				taken <- x
			}
		}()
		for x := range taken {
			if !yield(x) {
				return
			}
		}
	}
}

// triples gives three rows at a time.
func triples(rows iter.Seq[int64]) iter.Seq[[]int64] {
	return func(yield func([]int64) bool) {
		var triple []int64
		for x := range rows {
			if triple = append(triple, x); len(triple) == 3 {
				if !yield(triple) {
					return
				}
				triple = nil
			}
		}
	}
}

// leaves ends while a goroutine still takes rows.
func leaves(rows iter.Seq[int64]) iter.Seq[int64] {
	go func() {
		for range rows {
		}
	}()
	return func(yield func(int64) bool) { yield(1) }
}

// failsEarly fails while a goroutine waits for rows.
func failsEarly(rows iter.Seq[int64]) iter.Seq2[int64, error] {
	leaves(rows)
	time.Sleep(50 * time.Millisecond)
	return func(yield func(int64, error) bool) { yield(0, errBad) }
}

// stubborn asks for rows again after their end, and ends with it.
func stubborn(rows iter.Seq[int64]) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		for x := range rows {
			ended.Store(x)
		}
		for range rows {
		}
		ended.Store(1000)
	}
}

func later(ctx context.Context, seconds *float64) (*float64, error) {
	if seconds == nil {
		return nil, nil
	}
	if *seconds == 13 {
		panic(errBad)
	}
	select {
	case <-time.After(time.Duration(*seconds * float64(time.Second))):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ended.Add(1)
	if *seconds == 0.012 {
		return nil, errors.New("it is late")
	}
	return seconds, nil
}
