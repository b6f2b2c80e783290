// Package udf holds what handlers need: the table of their functions, and values that Go has no type for.
package udf

// Functions are the handler's functions by the names that transship.toml gives them.
//
// A scalar function takes an argument per SQL argument and returns its result, or its result and an error. A table
// function returns an iter.Seq or a slice. A map function takes an iter.Seq of rows, which are structs unless there is one argument, and
// returns an iter.Seq, or an iter.Seq2 with an error. With batch = "columns" a function takes and returns slices; with batch =
// "arrow" it takes an arrow.RecordBatch and returns an arrow.Array. For an aggregate function the value is a constructor
// of a pointer whose type has the methods Step and Finish, and Merge if queries may run in parallel; its exported fields
// travel between containers. Step and Merge return nothing, or an error.
//
// SQL's types are bool, int16, int32, int64, float32, float64, string, []byte, time.Time (date, timestamp,
// timestamptz), time.Duration (time), [16]byte (uuid), json.RawMessage (json), Interval, Range, slices and structs
// (composite types, whose fields are found by name or by a tag such as `udf:"name"`); what travels as text is a string.
// A pointer or a slice takes NULL as nil; anything else refuses it.
//
// Each of these functions and methods may take a context.Context first, which ends with the query and which Table takes.
type Functions map[string]any

// Interval is a span of time in PostgreSQL's parts.
type Interval struct {
	Months, Days int32
	Nanoseconds  int64
}

// Range is a range; a bound that is nil is infinite.
type Range[T any] struct {
	Lower, Upper       *T
	LowerInc, UpperInc bool
	Empty              bool
}
