package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// bound is a function of the handler, bound as load does.
func bound(t *testing.T, function Function, target any) *Function {
	t.Helper()
	if err := function.bind(reflect.ValueOf(target)); err != nil {
		t.Fatal(err)
	}
	function.concurrency = max(function.concurrency, 1)
	return &function
}

func int8s(values ...int64) arrow.Array {
	builder := array.NewInt64Builder(memory.DefaultAllocator)
	builder.AppendValues(values, nil)
	return builder.NewArray()
}

// answersOf are the columns of a reply in one part, as texts in the JSON form.
func answersOf(t *testing.T, function *Function, wished wishes, rows int, columns ...arrow.Array) ([]string, error) {
	t.Helper()
	var found []string
	err := function.answer(context.Background(), batchOf(function.callColumns(), columns, rows), wished, func(part arrow.RecordBatch, _ bool) error {
		for i, column := range function.replyColumns(wished.rowErrors) {
			found = append(found, textOf(column.Type, part.Column(i)))
		}
		return nil
	})
	return found, err
}

func failAt13(x []int64, y []int64) ([]int64, error) {
	sums := make([]int64, len(x))
	for row := range x {
		if x[row] == 13 {
			return nil, errors.New("13 is bad")
		}
		sums[row] = x[row] + y[row]
	}
	return sums, nil
}

func failAt13InArrow(batch arrow.RecordBatch) (arrow.Array, error) {
	sums, err := failAt13(batch.Column(0).(*array.Int64).Int64Values(), batch.Column(1).(*array.Int64).Int64Values())
	return int8s(sums...), err
}

// The functions that handlers may write, each of which adds two numbers, and fails for 13.
func adders(t *testing.T) map[string]*Function {
	arguments := []Argument{{"x", typeOf("int8")}, {"y", typeOf("int8")}}
	function := func(batch string) Function {
		return Function{Name: "add", Kind: "scalar", Batch: batch, Arguments: arguments, Returns: typeOf("int8"), concurrency: 3}
	}
	one := func(x, y int64) (int64, error) {
		sums, err := failAt13([]int64{x}, []int64{y})
		if err != nil {
			return 0, err
		}
		return sums[0], nil
	}
	return map[string]*Function{
		"row":     bound(t, function("row"), one),
		"columns": bound(t, function("columns"), failAt13),
		"arrow":   bound(t, function("arrow"), failAt13InArrow),
		"waiting": bound(t, function("row"), func(_ context.Context, x, y int64) (int64, error) {
			time.Sleep(time.Duration(x%3) * time.Millisecond)
			return one(x, y)
		}),
	}
}

func TestConstantsStandInEachRow(t *testing.T) {
	for form, function := range adders(t) {
		for _, columns := range [][]arrow.Array{
			{int8s(1, 2, 3), repeated(int8s(10), 3)}, {repeated(int8s(10), 3), int8s(1, 2, 3)}, {int8s(1, 2, 3), dictionaryOf(int8s(10), 0, 0, 0)},
		} {
			if found, err := answersOf(t, function, wishes{}, 3, columns...); err != nil || found[0] != "11 12 13 " {
				t.Errorf("%s: %v, %v", form, found, err)
			}
		}
		if found, err := answersOf(t, function, wishes{}, 0, int8s(), repeated(int8s(10), 0)); err != nil || found[0] != "" {
			t.Errorf("%s without rows: %v, %v", form, found, err)
		}
		if _, err := answersOf(t, function, wishes{}, 2, int8s(1, 2), dictionaryOf(int8s(1, 2), 0, 1)); err == nil {
			t.Errorf("%s took a dictionary of two values", form)
		}
		if _, err := answersOf(t, function, wishes{}, 2, int8s(1, 2), dictionaryOf(int8s(1), 0, 1)); err == nil {
			t.Errorf("%s took an index that leads nowhere", form)
		}
	}
}

func dictionaryOf(values arrow.Array, indexes ...int8) arrow.Array {
	builder := array.NewInt8Builder(memory.DefaultAllocator)
	builder.AppendValues(indexes, nil)
	kind := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: values.DataType()}
	return array.NewDictionaryArray(kind, builder.NewArray(), values)
}

// A function of whole columns gets as many rows at a time as there is room for repeated constants.
func TestLargeConstantsComeInPieces(t *testing.T) {
	large := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	large.Append(make([]byte, 24<<20))
	var sizes []int
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "arrow", Arguments: []Argument{{"x", typeOf("int8")}, {"y", typeOf("bytea")}}, Returns: typeOf("int8")},
		func(batch arrow.RecordBatch) arrow.Array {
			sizes = append(sizes, int(batch.NumRows()))
			return batch.Column(0)
		})
	found, err := answersOf(t, function, wishes{}, 5, int8s(1, 2, 3, 4, 5), repeated(large.NewArray(), 5))
	if err != nil || found[0] != "1 2 3 4 5 " || !reflect.DeepEqual(sizes, []int{2, 2, 1}) {
		t.Errorf("%v, %v, %v", found, sizes, err)
	}
}

func TestRowsThatFailAreFound(t *testing.T) {
	for form, function := range adders(t) {
		for _, mode := range []string{"once", "again"} {
			for _, values := range [][]int64{{13, 1, 2}, {1, 13, 13}, {4, 5}, {13}, {}, {1, 2, 13, 4, 5, 13, 13, 8}} {
				results, failures := "", ""
				for _, value := range values {
					if value == 13 {
						results, failures = results+"null ", failures+`"13 is bad" `
					} else {
						results, failures = fmt.Sprintf("%s%d ", results, value+1), failures+"null "
					}
				}
				found, err := answersOf(t, function, wishes{rowErrors: mode}, len(values), int8s(values...), repeated(int8s(1), len(values)))
				if err != nil || !reflect.DeepEqual(found, []string{results, failures}) {
					t.Errorf("%s, %s, %v: %v, %v", form, mode, values, found, err)
				}
			}
		}
		if _, err := answersOf(t, function, wishes{rowErrors: "sometimes"}, 1, int8s(1), int8s(1)); err == nil {
			t.Errorf("%s took an unrecognized mode", form)
		}
	}
}

func TestNoRowRunsTwiceIfNoneMay(t *testing.T) {
	var calls atomic.Int64
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "columns", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")},
		func(x []int64) ([]int64, error) {
			calls.Add(int64(len(x)))
			return x, errors.New("no")
		})
	if _, err := answersOf(t, function, wishes{rowErrors: "once"}, 4, int8s(1, 2, 3, 4)); err != nil || calls.Load() != 4 {
		t.Errorf("%d rows ran: %v", calls.Load(), err)
	}
}

// The first error in the order of the rows is the batch's, and calls that are still under way end.
func TestErrorsOfFunctionsThatWait(t *testing.T) {
	ended := make(chan struct{})
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8"), concurrency: 3},
		func(ctx context.Context, x int64) (int64, error) {
			switch x {
			case 0:
				time.Sleep(20 * time.Millisecond)
				return 0, errors.New("first")
			case 1:
				return 0, errors.New("second")
			}
			<-ctx.Done()
			close(ended)
			return 0, ctx.Err()
		})
	_, err := answersOf(t, function, wishes{}, 3, int8s(0, 1, 2))
	if failed := (*CallError)(nil); !errors.As(err, &failed) || failed.Message != "first" || *failed.Row != 0 {
		t.Errorf("%v", err)
	}
	<-ended
}

func TestAFunctionThatEndsItsGoroutineFailsItsRow(t *testing.T) {
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8"), concurrency: 2},
		func(_ context.Context, x int64) int64 {
			if x == 13 {
				runtime.Goexit()
			}
			return x
		})
	_, err := answersOf(t, function, wishes{}, 3, int8s(1, 13, 2))
	if failed := (*CallError)(nil); !errors.As(err, &failed) || failed.Kind != "user_code" || *failed.Row != 1 {
		t.Errorf("%v", err)
	}
	found, err := answersOf(t, function, wishes{rowErrors: "once"}, 3, int8s(1, 13, 2))
	if err != nil || found[0] != "1 null 2 " {
		t.Errorf("%v, %v", found, err)
	}
}

func TestPartsOfLargeResults(t *testing.T) {
	many := func(size int64) iter.Seq[string] {
		return func(yield func(string) bool) {
			for range 7 {
				if !yield(strings.Repeat("x", int(size))) {
					return
				}
			}
		}
	}
	function := bound(t, Function{Name: "f", Kind: "table", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("text")}, many)
	var sizes []int64
	err := function.answer(context.Background(), batchOf(function.Arguments, []arrow.Array{int8s(400_000)}, 1), wishes{}, func(part arrow.RecordBatch, _ bool) error {
		sizes = append(sizes, part.NumRows())
		return nil
	})
	if err != nil || !reflect.DeepEqual(sizes, []int64{3, 3, 1}) {
		t.Errorf("%v, %v", sizes, err)
	}
}

func TestCancelledFunctionsThatWait(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")},
		func(ctx context.Context, _ int64) (int64, error) {
			cancel()
			<-ctx.Done()
			return 0, ctx.Err()
		})
	batch := batchOf(function.Arguments, []arrow.Array{int8s(1, 2)}, 2)
	if err := function.answer(ctx, batch, wishes{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A handler may write to what it takes: its results are what it returned, rows that are given again are what they were, and so are constants.
func TestHandlersMayWriteToTheirArguments(t *testing.T) {
	arguments := []Argument{{"x", typeOf("int8")}, {"y", typeOf("int8")}}
	function := bound(t, Function{Name: "double", Kind: "scalar", Batch: "arrow", Arguments: arguments, Returns: typeOf("int8")},
		func(batch arrow.RecordBatch) (arrow.Array, error) {
			x, y := batch.Column(0).(*array.Int64).Int64Values(), batch.Column(1).(*array.Int64).Int64Values()
			var err error
			for row := range x {
				if x[row] == 13 {
					err = errors.New("13 is bad")
				}
				x[row] *= y[row]
				y[row] = 0
			}
			return batch.Column(0), err
		})
	for _, mode := range []string{"", "once", "again"} {
		two := int8s(2)
		for _, values := range [][]int64{{1, 2, 3, 4, 5}, {7}, {}, {7}} {
			if found, err := answersOf(t, function, wishes{rowErrors: mode}, len(values), int8s(values...), repeated(two, len(values))); err != nil || found[0] != textOf(typeOf("int8"), doubles(values)) {
				t.Errorf("%q, %v: %v, %v", mode, values, found, err)
			}
		}
	}
	found, err := answersOf(t, function, wishes{rowErrors: "again"}, 5, int8s(1, 2, 13, 4, 5), int8s(2, 2, 2, 2, 2))
	if err != nil || found[0] != "2 4 null 8 10 " {
		t.Errorf("%v, %v", found, err)
	}
	function = bound(t, Function{Name: "double", Kind: "scalar", Batch: "arrow", Arguments: arguments[:1], Returns: typeOf("int8")},
		func(batch arrow.RecordBatch) arrow.Array {
			x := batch.Column(0).(*array.Int64).Int64Values()
			for row := range x {
				x[row] *= 2
			}
			return batch.Column(0)
		})
	body := bodyOf(t, function, int8s(1, 2, 3))
	asked, _, err := readColumns(function, body, &keptConstants{})
	if err != nil {
		t.Fatal(err)
	}
	var reply replyParts
	err = function.answer(context.Background(), asked.batch, asked.wished, func(part arrow.RecordBatch, _ bool) error {
		reply.parts = append(reply.parts, part)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	written, err := writeColumns(function, asked, &reply, nil)
	if err != nil || !bytes.HasSuffix(written, arrow.Int64Traits.CastToBytes([]int64{2, 4, 6})) {
		t.Errorf("%x, %v", written, err)
	}
}

func doubles(values []int64) arrow.Array {
	doubled := make([]int64, len(values))
	for row, value := range values {
		doubled[row] = 2 * value
	}
	return int8s(doubled...)
}

func TestConstantsAreKept(t *testing.T) {
	function := &Function{Name: "f", Kind: "scalar", Arguments: []Argument{{"x", typeOf("int8")}, {"t", typeOf("text")}}, Returns: typeOf("int8")}
	with := func(header string, data string) []byte {
		body := append(binary.LittleEndian.AppendUint32(nil, uint32(len(header))), header...)
		return append(append(body, make([]byte, -len(body)&7)...), data...)
	}
	number := func(value uint64) string { return string(binary.LittleEndian.AppendUint64(nil, value)) }
	kept := &keptConstants{}
	first := with(`{"rows": 2, "buffers": [0, 0, 0, 16, 0, 0, 16, 8, 24, 2], "constants": [1], "constants_id": "a"}`, number(1)+number(2)+"\x00\x00\x00\x00\x02\x00\x00\x00é")
	if _, _, err := readColumns(function, first, kept); err != nil {
		t.Fatal(err)
	}
	same := `{"rows": 1, "buffers": [0, 0, 0, 8], "constants": [%s], "constants_id": %q, "same_constants": true}`
	read, _, err := readColumns(function, with(fmt.Sprintf(same, "1", "a"), number(7)), kept)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := argumentsOf(read.batch)
	if err != nil || !columns[1].isConstant || columns[1].values.(*array.String).Value(0) != "é" {
		t.Errorf("%v, %v", columns, err)
	}
	other := &Function{Name: "g", Kind: "scalar", Arguments: function.Arguments, Returns: typeOf("int8")}
	for _, refused := range []struct {
		function *Function
		header   string
	}{{function, fmt.Sprintf(same, "1", "b")}, {function, fmt.Sprintf(same, "0", "a")}, {other, fmt.Sprintf(same, "1", "a")}, {function, fmt.Sprintf(same, "1, 1", "a")}} {
		if _, _, err := readColumns(refused.function, with(refused.header, number(7)), kept); err == nil {
			t.Errorf("%s was read for %s", refused.header, refused.function.Name)
		}
	}
}

func TestEncodedTexts(t *testing.T) {
	function := &Function{Name: "f", Kind: "scalar", Returns: typeOf("text")}
	texts := arrayOf(t, typeOf("text"), []string{`"x"`, `"y"`})
	for _, mayEncode := range []bool{false, true} {
		column, err := function.decoded(dictionaryOf(texts, 1, 0, 1), mayEncode)
		if err != nil {
			t.Fatal(err)
		}
		if encoded, ok := column.(*array.Dictionary); ok != mayEncode || ok && encoded.GetValueIndex(0) != 1 {
			t.Errorf("%v became %v", mayEncode, column)
		} else if !ok && textOf(typeOf("text"), column) != `"y" "x" "y" ` {
			t.Errorf("it became %v", column)
		}
	}
	if _, err := function.decoded(dictionaryOf(texts, 0, 2), true); err == nil {
		t.Error("an index that leads nowhere was taken")
	}
	if _, err := function.decoded(dictionaryOf(int8s(1), 0), true); err == nil {
		t.Error("numbers were taken for texts")
	}
}

func TestErrorsOfRowsAreCut(t *testing.T) {
	failed := newRowErrors("once")
	for range 300 {
		if !failed.take(userError(strings.Repeat("é", longestRowError+1), 0, "")) {
			t.Fatal("it is an error of the row")
		}
	}
	found := failed.texts.NewArray().(*array.String)
	for row := range found.Len() {
		most := longestRowError
		if row >= mostCharacters/longestRowError {
			most = fewCharacters
		}
		if length := len([]rune(found.Value(row))); length != most {
			t.Fatalf("error %d has %d characters, not %d", row, length, most)
		}
	}
}
