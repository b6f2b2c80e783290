package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"transship/udf"
)

// Most results that room is made for before there are any: rows without arguments, or with constants alone, take no bytes, so a few bytes
// may ask for any number of them, and memory that cannot be had ends the program.
const mostReserved = 1 << 16

// Results of a table or map function that go out together, and bytes of them.
const (
	resultsPerPart = 1024
	bytesPerPart   = 1 << 20
)

var (
	errorType  = reflect.TypeFor[error]()
	recordType = reflect.TypeFor[arrow.RecordBatch]()
	arrayType  = reflect.TypeFor[arrow.Array]()
	int8Type   = &Type{Type: "int8", Text: "int8"}
	byteaType  = &Type{Type: "bytea", Text: "bytea"}
	textType   = &Type{Type: "text", Text: "text"}
	rowType    = &Type{Type: "int4", Text: "int4"}
)

// Function is one function of the handler.
type Function struct {
	Name      string
	Kind      string
	Batch     string
	Arguments []Argument
	Returns   *Type

	target  reflect.Value
	readers []reader
	write   writer
	merges  bool
	// Whether it, or a method of an aggregate's state, takes a context.Context first, and how many of its calls may be under way at a time.
	takesContext bool
	concurrency  int
}

// load reads functions.json and finds the handler's functions.
func load(root string, offered udf.Functions) ([]*Function, error) {
	text, err := os.ReadFile(root + "/functions.json")
	if err != nil {
		return nil, err
	}
	var manifest struct{ Functions []*Function }
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, fmt.Errorf("functions.json: %w", err)
	}
	for _, function := range manifest.Functions {
		target, ok := offered[function.Name]
		if !ok {
			return nil, fmt.Errorf("Functions has no function %q", function.Name)
		}
		if err := function.bind(reflect.ValueOf(target)); err != nil {
			return nil, fmt.Errorf("function %q: %w", function.Name, err)
		}
	}
	return manifest.Functions, readConcurrency(root, manifest.Functions)
}

// callColumns are the columns of a batch of calls, replyColumns those of a reply (docs/protocol.md §4).
func (f *Function) callColumns() []Argument {
	if f.Kind != "aggregate" {
		return f.Arguments
	}
	columns := append([]Argument{{"group", int8Type}}, f.Arguments...)
	return append(columns, Argument{"state", byteaType})
}

func (f *Function) replyColumns(rowErrors string) []Argument {
	result := Argument{f.Name, f.Returns}
	if rowErrors != "" {
		return []Argument{result, {"error", textType}}
	}
	switch f.Kind {
	case "table":
		return []Argument{{"row", rowType}, result}
	case "aggregate":
		return []Argument{result, {"state", byteaType}}
	}
	return []Argument{result}
}

func schemaOf(columns []Argument) *arrow.Schema {
	fields := make([]arrow.Field, len(columns))
	for i, column := range columns {
		fields[i] = column.Type.Field(column.Name)
	}
	return arrow.NewSchema(fields, nil)
}

// batchOf is a batch of columns with these names and extensions.
func batchOf(columns []Argument, arrays []arrow.Array, rows int) arrow.RecordBatch {
	fields := make([]arrow.Field, len(columns))
	for i, column := range columns {
		fields[i] = column.Type.Field(column.Name)
		// Names within a type, and whether parts take NULL, may be the client's.
		fields[i].Type = arrays[i].DataType()
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), arrays, int64(rows))
}

func (f *Function) check(batch arrow.RecordBatch) ([]argument, error) {
	columns := f.callColumns()
	if int(batch.NumCols()) != len(columns) {
		return nil, violation("%s takes %d columns, not %d", f.Name, len(columns), batch.NumCols())
	}
	if batch.NumRows() < 0 || batch.NumRows() > math.MaxInt32 {
		return nil, violation("a batch cannot have %d rows", batch.NumRows())
	}
	arguments, err := argumentsOf(batch)
	if err != nil {
		return nil, err
	}
	for i, column := range columns {
		if arguments[i].isConstant && f.Kind != "scalar" && f.Kind != "table" {
			return nil, violation("%s takes no constants", f.Name)
		}
		if found := arguments[i].values.DataType(); !column.Type.isOf(found) {
			return nil, violation("column %d of %s is %s, not %s", i+1, f.Name, column.Type.Text, found)
		}
	}
	return arguments, nil
}

// wishes are what a client asks of the reply to a batch.
type wishes struct {
	// Whether rows may fail alone, and run again: "once", "again", or empty (docs/protocol.md §4.9).
	rowErrors string
	// Whether texts may come as a dictionary (§7.9).
	mayEncode bool
}

// answer gives the reply to a batch in parts, of which the last is said to be it.
func (f *Function) answer(ctx context.Context, batch arrow.RecordBatch, wished wishes, emit func(part arrow.RecordBatch, isLast bool) error) error {
	arguments, err := f.check(batch)
	if err != nil {
		return err
	}
	if err := checkRowErrors(wished.rowErrors, f); err != nil {
		return err
	}
	if f.takesContext {
		var cancel context.CancelFunc
		ctx, cancel = watched(ctx)
		defer cancel()
	}
	switch f.Kind {
	case "table":
		return f.answerTable(ctx, arguments, int(batch.NumRows()), emit)
	case "map":
		return violation("%s is a map function", f.Name)
	}
	failed := newRowErrors(wished.rowErrors)
	rows := int(batch.NumRows())
	var column arrow.Array
	switch f.Batch {
	case "arrow":
		column, err = inPieces(ctx, rows, min(rowsAtATime(arguments), max(rows, 1)), f.null, failed, wished.rowErrors, func(first, count int) (arrow.Array, error) {
			mayRunAgain := wished.rowErrors == "again" && count > 1
			return f.callArrow(ctx, arguments, first, count, mayRunAgain, wished.mayEncode && failed == nil && count == rows)
		})
	case "columns":
		column, err = inPieces(ctx, rows, min(rowsAtATime(arguments), max(rows, 1)), f.null, failed, wished.rowErrors, func(first, count int) (arrow.Array, error) {
			return f.callColumnwise(ctx, arguments, first, count)
		})
	default:
		if f.takesContext {
			column, err = f.callWaiting(ctx, arguments, rows, failed)
		} else {
			column, err = f.callRows(ctx, arguments, rows, failed)
		}
	}
	if err != nil {
		return err
	}
	columns := []arrow.Array{column}
	if failed != nil {
		columns = append(columns, failed.texts.NewArray())
	}
	return emit(batchOf(f.replyColumns(wished.rowErrors), columns, rows), true)
}

// null is a column of one row, which is NULL.
func (f *Function) null() arrow.Array {
	builder := array.NewBuilder(memory.DefaultAllocator, f.Returns.Arrow())
	builder.AppendNull()
	return builder.NewArray()
}

// call runs the handler; a panic becomes an error. row is negative where no single row is to blame.
func call(ctx context.Context, target reflect.Value, arguments []reflect.Value, row int) (result reflect.Value, err error) {
	// What it reads of the call's tables, and what it says of them in an error, may not refer to them, and the call may have ended without it.
	defer runtime.KeepAlive(ctx)
	defer recoverInto(&err, row)
	results := target.Call(withContext(ctx, target, arguments))
	if len(results) > 0 {
		result = results[0]
	}
	// That of a method of an aggregate's state is perhaps all that it returns.
	if last := len(results) - 1; last >= 0 && results[last].Type() == errorType && !results[last].IsNil() {
		failure := results[last].Interface().(error)
		err = userError(failure.Error(), row, fmt.Sprintf("%T: %+v", failure, failure))
	}
	return result, err
}

// recoverInto makes a panic of the handler's code an error. It is deferred where such code is called.
func recoverInto(err *error, row int) {
	if cause := recover(); cause != nil {
		*err = userError(fmt.Sprint(cause), row, string(debug.Stack()))
	}
}

func userError(message string, row int, traceback string) error {
	// A copy: the message may lie in the memory of a table, which it does not hold.
	failure := &CallError{Kind: "user_code", Message: strings.Clone(message), Traceback: traceback}
	if row >= 0 {
		failure.Row = &row
	}
	return failure
}

func (f *Function) arguments(columns []argument, row int, into []reflect.Value) error {
	for i, read := range f.readers {
		at := columns[i].row(row)
		value, err := read(columns[i].values, at)
		if err != nil {
			fact := fmt.Sprintf("Go cannot hold argument %d, of type %s, of row %d of the batch", i+1, f.Arguments[i].Type.Text, row+1)
			if columns[i].values.IsNull(at) {
				fact += ": it is NULL, which takes a pointer"
			}
			return &CallError{Kind: "out_of_range", Message: fact + ".", Row: &row}
		}
		into[i] = value
	}
	return nil
}

func (f *Function) append(builder array.Builder, value reflect.Value, row int) error {
	if err := f.write(builder, value); err != nil {
		return &CallError{Kind: "bad_result", Message: fmt.Sprintf("It returned %v; the declared result is %s.", err, f.Returns.Text), Row: &row}
	}
	return nil
}

func (f *Function) eachRow(ctx context.Context, columns []argument, rows int, work func(row int, arguments []reflect.Value) error) error {
	arguments, pace := make([]reflect.Value, len(f.readers)), newPace(ctx)
	for row := range rows {
		if err := pace.check(row); err != nil {
			return err
		}
		if err := f.arguments(columns, row, arguments); err != nil {
			return err
		}
		if err := work(row, arguments); err != nil {
			return err
		}
	}
	return nil
}

func (f *Function) callRows(ctx context.Context, columns []argument, rows int, failed *rowErrors) (arrow.Array, error) {
	builder := array.NewBuilder(memory.DefaultAllocator, f.Returns.Arrow())
	builder.Reserve(min(rows, mostReserved))
	err := f.eachRow(ctx, columns, rows, func(row int, arguments []reflect.Value) error {
		result, err := call(ctx, f.target, arguments, row)
		switch {
		case err == nil:
			failed.none(1)
			return f.append(builder, result, row)
		case failed.take(err):
			builder.AppendNull()
			return nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return builder.NewArray(), nil
}

func (f *Function) callColumnwise(ctx context.Context, columns []argument, first, rows int) (arrow.Array, error) {
	var arguments []reflect.Value
	inputs := inputsOf(f.target.Type(), 0)
	for i := range f.readers {
		arguments = append(arguments, reflect.MakeSlice(inputs[i], rows, rows))
	}
	values := make([]reflect.Value, len(f.readers))
	for row := range rows {
		if err := f.arguments(columns, first+row, values); err != nil {
			return nil, err
		}
		for i, value := range values {
			arguments[i].Index(row).Set(value)
		}
	}
	if len(inputs) > len(arguments) {
		arguments = append(arguments, reflect.ValueOf(rows))
	}
	results, err := call(ctx, f.target, arguments, -1)
	if err != nil {
		return nil, err
	}
	if results.Len() != rows {
		return nil, wrongCount(results.Len(), rows)
	}
	builder := array.NewBuilder(memory.DefaultAllocator, f.Returns.Arrow())
	for row := range rows {
		if err := f.append(builder, results.Index(row), first+row); err != nil {
			return nil, err
		}
	}
	return builder.NewArray(), nil
}

func wrongCount(results, rows int) error {
	return &CallError{Kind: "bad_result", Message: fmt.Sprintf("It returned %d values for %d rows.", results, rows)}
}

func (f *Function) callArrow(ctx context.Context, columns []argument, first, rows int, mayRunAgain, mayEncode bool) (arrow.Array, error) {
	batch, err := whole(columns, f.Arguments, first, rows, mayRunAgain)
	if err != nil {
		return nil, err
	}
	result, err := call(ctx, f.target, []reflect.Value{reflect.ValueOf(batch)}, -1)
	if err != nil {
		return nil, err
	}
	column, ok := result.Interface().(arrow.Array)
	if ok {
		if column, err = f.decoded(column, mayEncode); err != nil {
			return nil, err
		}
	}
	if !ok || column.DataType().ID() != arrow.DICTIONARY && !f.Returns.isOf(column.DataType()) {
		return nil, &CallError{Kind: "bad_result", Message: fmt.Sprintf("It returned %T; the declared result is %s.", result.Interface(), f.Returns.Text)}
	}
	if column.Len() != rows {
		return nil, wrongCount(column.Len(), rows)
	}
	return column, nil
}

func (f *Function) answerTable(ctx context.Context, columns []argument, rows int, emit func(arrow.RecordBatch, bool) error) error {
	numbers := array.NewInt32Builder(memory.DefaultAllocator)
	results := array.NewBuilder(memory.DefaultAllocator, f.Returns.Arrow())
	schema := schemaOf(f.replyColumns(""))
	flush := func(isLast bool) error {
		rows := int64(numbers.Len())
		return emit(array.NewRecordBatch(schema, []arrow.Array{numbers.NewArray(), results.NewArray()}, rows), isLast)
	}
	err := f.eachRow(ctx, columns, rows, func(row int, arguments []reflect.Value) error {
		answer, err := call(ctx, f.target, arguments, row)
		if err != nil {
			return err
		}
		return f.eachResult(answer, row, func(value reflect.Value) error {
			if numbers.Len() == resultsPerPart || heldBytes(results) >= bytesPerPart {
				if err := errors.Join(ctx.Err(), flush(false)); err != nil {
					return err
				}
			}
			numbers.Append(int32(row))
			return f.append(results, value, row)
		})
	})
	if err != nil {
		return err
	}
	return flush(true)
}

// heldBytes are those of the texts, byte strings and elements that results have so far.
func heldBytes(results array.Builder) int {
	switch held := results.(type) {
	case interface{ DataLen() int }:
		return held.DataLen()
	case *array.ListBuilder:
		return 8*held.ValueBuilder().Len() + heldBytes(held.ValueBuilder())
	case *array.StructBuilder:
		bytes := 0
		for i := range held.NumField() {
			bytes += heldBytes(held.FieldBuilder(i))
		}
		return bytes
	}
	return 0
}

// eachResult walks an iter.Seq or a slice; a panic of the iterator is the handler's.
func (f *Function) eachResult(answer reflect.Value, row int, take func(reflect.Value) error) (err error) {
	if answer.Kind() == reflect.Slice {
		for i := range answer.Len() {
			if err := take(answer.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	if answer.IsNil() {
		return nil
	}
	defer recoverInto(&err, row)
	var values iter.Seq[reflect.Value] = answer.Seq()
	for value := range values {
		if err := take(value); err != nil {
			return err
		}
	}
	return nil
}
