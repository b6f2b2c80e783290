package server

import (
	"context"
	"errors"
	"math"
	"runtime"
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
