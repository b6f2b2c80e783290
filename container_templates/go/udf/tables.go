package udf

import (
	"context"
	"errors"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
)

// SharedTable is a shared table, which never changes. Any goroutine may use it, also after its call has ended.
//
// Keys have one argument for each column of the table's key. A key with a NULL, which is nil, equals nothing. An integer may be of any
// integer type.
type SharedTable interface {
	// Rows is the number of rows.
	Rows() int
	// Key has the names of the key's columns; there are none if the table has no key.
	Key() []string
	// Schema has the columns of look-ups.
	Schema() *arrow.Schema

	// Get puts the row of a key into a struct, to which `into` points. Each exported field is filled from the column of its name, or of
	// its tag, such as `udf:"name"`; columns without a field are left out. Without such a row the result is false, and the struct zero. A
	// key of several rows is an error.
	Get(into any, key ...any) (bool, error)
	// Lookup finds one row per key, in the order of the keys. All columns are NULL where there is no such row. A key of several rows is
	// an error. The keys of a column are a slice or an arrow.Array.
	Lookup(keys ...any) (Rows, error)
	// Matches finds all rows of all keys, in the order of the keys, and the position of each row's key, counted from 0. Keys are as for
	// Lookup.
	Matches(keys ...any) ([]int32, Rows, error)
	// Batches has all rows, where they lie. They can only be read. A text or a slice in them lasts as long as the table or its Arrow array is
	// held. The tables of a call are held until its function returns; who has kept a table from an earlier call holds it, or the array, with
	// runtime.KeepAlive. Copy what is kept longer. Columns that were shared with a dictionary are of type *array.Dictionary; Scan gives their
	// values.
	Batches() iter.Seq[Rows]
}

// Rows are rows of a shared table.
type Rows interface {
	// Len is the number of rows.
	Len() int
	// Column is the column of a name.
	Column(name string) (arrow.Array, error)
	// Scan puts copies of the values of a column into a slice, to which `into` points.
	Scan(name string, into any) error
	// Record has all columns.
	Record() arrow.RecordBatch
}

type tablesKey struct{}

// Table opens a shared table of the call whose context this is.
func Table(ctx context.Context, name string) (SharedTable, error) {
	open, ok := ctx.Value(tablesKey{}).(func(string) (SharedTable, error))
	if !ok {
		return nil, errors.New("no shared table \"" + name + "\"\ndetail: The context is not that of a call.")
	}
	return open(name)
}

// WithTables is a context in which Table opens tables like this: the server's, or those of a handler's test.
func WithTables(ctx context.Context, open func(name string) (SharedTable, error)) context.Context {
	return context.WithValue(ctx, tablesKey{}, open)
}
