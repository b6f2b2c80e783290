package server

import (
	"context"
	"errors"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// A few bytes may ask for any number of rows of a function without arguments. Memory that cannot be had ends the program.
func TestRowsWithoutArguments(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	function := &Function{Name: "f", Kind: "scalar", Batch: "row", Returns: typeOf("int4")}
	schema := arrow.NewSchema(nil, nil)
	for _, rows := range []int64{math.MaxInt32 + 1, 1 << 40, math.MaxInt64} {
		err := function.answer(gone, array.NewRecordBatch(schema, nil, rows), wishes{}, nil)
		if failed := (*CallError)(nil); !errors.As(err, &failed) || failed.Kind != "protocol_violation" {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
	if err := function.answer(gone, array.NewRecordBatch(schema, nil, math.MaxInt32), wishes{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the most rows: %v", err)
	}
}

// So may they for rows whose arguments are all constants: neither those nor the results are given room before there are any.
func TestRowsWithConstantsAlone(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("uuid")},
		func(x int64) [16]byte { return [16]byte{byte(x)} })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	asked, err := readJSON(function, []byte(`{"rows": 2147483647, "columns": [[7]], "constants": [0]}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := function.answer(gone, asked.batch, wishes{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 64<<20 {
		t.Errorf("it took %d bytes", taken)
	}
	// Values in Go take more than the bits of a column.
	flag := argument{values: arrayOf(t, typeOf("bool"), []string{"true"}), isConstant: true}
	if most := rowsAtATime([]argument{flag}); most > mostRepeatedBytes/leastRepeatedBytes {
		t.Errorf("%d rows at a time", most)
	}
}

// Go would convert any slice of bytes to the first 16 of them.
func TestResultsOfByteStringsAreUUIDsOfSixteenBytes(t *testing.T) {
	declared := Function{Name: "f", Kind: "scalar", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("uuid")}
	function := bound(t, declared, func(x int64) []byte {
		if x < 0 {
			return nil
		}
		return slices.Repeat([]byte{1}, int(x))
	})
	if found, err := answersOf(t, function, wishes{}, 2, int8s(16, -1)); err != nil || found[0] != `"01010101-0101-0101-0101-010101010101" null ` {
		t.Errorf("%v, %v", found, err)
	}
	for _, bytes := range []int64{0, 15, 17, 36} {
		_, err := answersOf(t, function, wishes{}, 2, int8s(16, bytes))
		if failed := (*CallError)(nil); !errors.As(err, &failed) || failed.Kind != "bad_result" || *failed.Row != 1 || !strings.Contains(failed.Message, "bytes, which are not a uuid; the declared result is uuid") {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	declared.Arguments, declared.Returns = []Argument{{"x", typeOf("uuid")}}, typeOf("int8")
	if err := declared.bind(reflect.ValueOf(func([]byte) int64 { return 0 })); err == nil || err.Error() != "Go type []uint8 does not hold SQL type uuid" {
		t.Errorf("%v", err)
	}
}
