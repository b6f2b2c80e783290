package server

import (
	"context"
	"errors"
	"math"
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
