// Package function holds the functions of the conformance suite, as docs/conformance.md describes them.
package function

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"transship/udf"
)

type pair struct {
	A *int32
	B *string
}

type decimals struct {
	A *string
	B []*string
}

// Functions of the suite.
var Functions = udf.Functions{
	"echo_bool": same[*bool], "echo_int2": same[*int16], "echo_int4": same[*int32], "echo_int8": same[*int64],
	"echo_float4": same[*float32], "echo_float8": same[*float64], "echo_text": same[*string], "echo_bytea": same[[]byte],
	"echo_date":        func(batch arrow.RecordBatch) arrow.Array { return batch.Column(0) },
	"echo_timestamp":   func(batch arrow.RecordBatch) arrow.Array { return batch.Column(0) },
	"echo_timestamptz": same[*time.Time], "echo_numeric": same[*string], "echo_uuid": same[*[16]byte],
	"echo_json": same[json.RawMessage], "echo_time": same[*time.Duration], "echo_timetz": same[*string],
	"echo_interval": same[*udf.Interval], "echo_inet": same[*string], "echo_cidr": same[*string],
	"echo_macaddr": same[*string], "echo_datetime2": same[*string], "echo_array": same[[]*int32],
	"echo_range": same[*udf.Range[int64]], "echo_composite": same[*pair], "echo_decimals": same[*decimals],
	"constant": func() int32 { return 7 },
	"add":      add, "fail_at": failAt, "fail_in_batch": failInBatch, "label": label, "wait": wait, "repeat": repeat,
	"table_lookup": tableLookup,
	"rows_waited":  waited.Load, "running_sum": runningSum,
	"total": func() *total { return &total{} },
}

func same[T any](x T) T { return x }

func add(a, b []*int64) []*int64 {
	results := make([]*int64, len(a))
	for row := range a {
		if a[row] != nil && b[row] != nil {
			sum := *a[row] + *b[row]
			results[row] = &sum
		}
	}
	return results
}

func failAt(x int64) (int64, error) {
	if x == 13 {
		return 0, errors.New("13 is bad")
	}
	return x, nil
}

func failInBatch(x []int64) ([]int64, error) {
	if slices.Contains(x, 13) {
		return nil, errors.New("13 is bad")
	}
	return x, nil
}

// label returns its argument, with each distinct text once.
func label(batch arrow.RecordBatch) (arrow.Array, error) {
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.BinaryTypes.String}
	builder := array.NewDictionaryBuilder(memory.DefaultAllocator, kind).(*array.BinaryDictionaryBuilder)
	texts := batch.Column(0).(*array.String)
	for row := range texts.Len() {
		if texts.IsNull(row) {
			builder.AppendNull()
		} else if err := builder.AppendString(texts.Value(row)); err != nil {
			return nil, err
		}
	}
	return builder.NewArray(), nil
}

var waited atomic.Int64

func wait(seconds float64) float64 {
	waited.Add(1)
	time.Sleep(time.Duration(seconds * float64(time.Second)))
	return seconds
}

func repeat(n *int32) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for i := int32(1); n != nil && i <= *n && yield(i); i++ {
		}
	}
}

func tableLookup(ctx context.Context, keys []*int64) (names []*string, err error) {
	numbers, err := udf.Table(ctx, "numbers")
	if err != nil {
		return nil, err
	}
	rows, err := numbers.Lookup(keys)
	if err != nil {
		return nil, err
	}
	err = rows.Scan("name", &names)
	return names, err
}

func runningSum(rows iter.Seq[int64]) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		sum := int64(0)
		for x := range rows {
			if sum += x; !yield(sum) {
				return
			}
		}
	}
}

type total struct{ Sum int64 }

func (t *total) Step(x *int64) {
	if x != nil {
		t.Sum += *x
	}
}

func (t *total) Merge(other *total) { t.Sum += other.Sum }

func (t *total) Finish() int64 { return t.Sum }
