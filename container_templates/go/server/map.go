package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Map functions: all rows of a stream in, any number of results out (docs/protocol.md §4.6).

// bindMap accepts a func(iter.Seq[A]) iter.Seq[R]: A is the type of the only argument, or a struct whose fields are the arguments
// in order, and R the result's; with batch = "arrow" they are arrow.RecordBatch and arrow.Array. The result may also be an
// iter.Seq2[R, error].
func (f *Function) bindMap(signature reflect.Type) error {
	isSeq := func(kind reflect.Type) bool { return kind.Kind() == reflect.Func && kind.CanSeq() }
	inputs := inputsOf(signature, 0)
	if len(inputs) != 1 || !isSeq(inputs[0]) || signature.NumOut() != 1 {
		return errors.New("it must take an iter.Seq and return an iter.Seq, or an iter.Seq2 with an error")
	}
	taken, given := inputs[0].In(0).In(0), signature.Out(0)
	hasError := given.Kind() == reflect.Func && given.CanSeq2() && given.In(0).In(1) == errorType
	if !isSeq(given) && !hasError {
		return errors.New("it must return an iter.Seq, or an iter.Seq2 with an error")
	}
	given = given.In(0).In(0)
	if f.Batch == "arrow" {
		if taken != recordType || given != arrayType {
			return errors.New("with batch = \"arrow\" it must take an iter.Seq[arrow.RecordBatch] and return an iter.Seq[arrow.Array]")
		}
		return nil
	}
	if len(f.Arguments) == 1 {
		read, err := newReader(f.Arguments[0].Type, taken)
		if err != nil {
			return err
		}
		f.readers = []reader{read}
	} else {
		if taken.Kind() != reflect.Struct || taken.NumField() != len(f.Arguments) {
			return fmt.Errorf("it must take an iter.Seq of a struct with %d fields", len(f.Arguments))
		}
		for i, argument := range f.Arguments {
			if !taken.Field(i).IsExported() {
				return fmt.Errorf("field %s of Go type %s must be exported", taken.Field(i).Name, taken)
			}
			read, err := newReader(argument.Type, taken.Field(i).Type)
			if err != nil {
				return err
			}
			f.readers = append(f.readers, read)
		}
	}
	var err error
	f.write, err = newWriter(f.Returns, given)
	return err
}

// mapExchange is an exchange of a map function.
type mapExchange struct {
	function *Function
	stream   flight.FlightService_DoExchangeServer
	writer   *flight.Writer
	layout   layout
	tables   *callTables

	// The handler may take rows on another goroutine than the one that gives results. Whoever reads may wait for the client, and holds
	// nothing else meanwhile.
	reading sync.Mutex
	reader  *flight.Reader

	state sync.Mutex
	call  callMetadata
	// Whether the client sends no errors' metadata, and so takes none.
	isPlain bool
	// Why the rows ended early, and what tells the handler's context.
	cut  error
	stop context.CancelCauseFunc
	// Whether the handler is done, and its goroutines get no more rows. Whoever sets it holds writing as well.
	isEnded bool

	writing sync.Mutex
	results array.Builder
	// Whether some parts of a result are missing. It stays so if it does not fit, and nothing goes out any more.
	isHalfway bool
}

func (m *mapExchange) run() error {
	m.results = array.NewBuilder(memory.DefaultAllocator, m.function.Returns.Arrow())
	ctx, stop := context.WithCancelCause(m.stream.Context())
	defer stop(nil)
	m.stop = stop
	ended := make(chan struct{})
	if m.function.Batch != "arrow" {
		go m.look(ended)
	}
	defer func() {
		close(ended)
		// Also if the handler has ended this goroutine.
		_ = m.first(nil)
	}()
	err := m.answer(ctx)
	if err == nil {
		err = m.drain()
	}
	var failure *CallError
	if err == nil || !errors.As(err, &failure) {
		return err
	}
	m.state.Lock()
	isPlain, batch := m.isPlain, m.call.Batch
	m.state.Unlock()
	return fail(m.writer, batch, failure, !isPlain)
}

// look sends results that no others follow soon. The handler may wait for rows on another goroutine than the one that gives results, or
// for something else, and neither may ever come.
func (m *mapExchange) look(ended chan struct{}) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
			if m.flush() != nil {
				return
			}
		}
	}
}

// answer calls the handler, and sends what it returns. A panic of the handler is its error.
func (m *mapExchange) answer(ctx context.Context) (err error) {
	if err := m.tables.check(); err != nil {
		return m.first(err)
	}
	result, err := call(m.tables.in(ctx), m.function.target, []reflect.Value{m.rows()}, -1)
	if err != nil {
		return m.first(err)
	}
	if result.IsNil() {
		return m.first(nil)
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = m.first(userError(fmt.Sprint(cause), -1, string(debug.Stack())))
		}
	}()
	if result.Type().CanSeq2() {
		for value, failed := range result.Seq2() {
			if !failed.IsNil() {
				failure := failed.Interface().(error)
				return m.first(userError(failure.Error(), -1, fmt.Sprintf("%T: %+v", failure, failure)))
			}
			if err := m.take(value); err != nil {
				return m.first(err)
			}
		}
	} else {
		for value := range result.Seq() {
			if err := m.take(value); err != nil {
				return m.first(err)
			}
		}
	}
	return m.first(m.flush())
}

// first ends the rows. It gives why they ended early, or the error: the handler may have made its own of a stream that was cut. A goroutine
// that waits for the client does not hold it up.
func (m *mapExchange) first(err error) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.state.Lock()
	defer m.state.Unlock()
	m.isEnded = true
	if m.cut != nil {
		return m.cut
	}
	return err
}

// drain reads the rows that the handler did not want: the stream ends when all of it has been read.
func (m *mapExchange) drain() error {
	m.reading.Lock()
	defer m.reading.Unlock()
	for m.reader.Next() {
	}
	if err := m.reader.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (m *mapExchange) take(value reflect.Value) error {
	if err := m.stream.Context().Err(); err != nil {
		return err
	}
	if m.function.Batch == "arrow" {
		column, ok := value.Interface().(arrow.Array)
		if ok {
			var err error
			if column, err = m.function.decoded(column, false); err != nil {
				return err
			}
		}
		if !ok || !m.function.Returns.isOf(column.DataType()) {
			return &CallError{Kind: "bad_result", Message: fmt.Sprintf("It returned %T; the declared result is %s.", value.Interface(), m.function.Returns.Text)}
		}
		m.writing.Lock()
		defer m.writing.Unlock()
		return m.send(column)
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	m.isHalfway = true
	if err := m.function.write(m.results, value); err != nil {
		return &CallError{Kind: "bad_result", Message: fmt.Sprintf("It returned %v; the declared result is %s.", err, m.function.Returns.Text)}
	}
	m.isHalfway = false
	if m.results.Len() < resultsPerPart && heldBytes(m.results) < bytesPerPart {
		return nil
	}
	return m.send(m.results.NewArray())
}

// flush sends the results that there are: they do not wait for rows that may never come. Whoever comes next knows if they are lost.
func (m *mapExchange) flush() (err error) {
	m.writing.Lock()
	defer m.writing.Unlock()
	defer func() {
		if cause := recover(); cause != nil {
			err = violation("the results cannot be sent: %v", cause)
		}
		if err != nil {
			m.cutOff(err)
		}
	}()
	if m.isEnded || m.isHalfway || m.results.Len() == 0 {
		return nil
	}
	return m.send(m.results.NewArray())
}

// send does not send results behind others that are lost.
func (m *mapExchange) send(column arrow.Array) error {
	if cause := m.cause(); cause != nil {
		return cause
	}
	part := batchOf(m.function.replyColumns(""), []arrow.Array{column}, column.Len())
	written, err := m.layout.write(part)
	if err != nil {
		return err
	}
	err = m.writer.Write(written)
	// Columns of a shared table hold its map. What they become in another layout may lie in it, and does not hold it.
	runtime.KeepAlive(column)
	runtime.KeepAlive(part)
	runtime.KeepAlive(written)
	return err
}

// rows is the iter.Seq that the handler takes.
func (m *mapExchange) rows() reflect.Value {
	kind := inputsOf(m.function.target.Type(), 0)[0]
	return reflect.MakeFunc(kind, func(given []reflect.Value) []reflect.Value {
		yield := given[0]
		goesOn := func(value reflect.Value) bool { return yield.Call([]reflect.Value{value})[0].Bool() }
		for {
			batch, columns := m.next()
			if batch == nil {
				return nil
			}
			if m.function.Batch == "arrow" {
				if !goesOn(reflect.ValueOf(batch)) {
					return nil
				}
				continue
			}
			for row := range int(batch.NumRows()) {
				value, err := m.row(kind.In(0).In(0), columns, row)
				if err != nil {
					m.cutOff(err)
					return nil
				}
				if !goesOn(value) {
					return nil
				}
			}
		}
	})
}

// row is a row as the handler takes it.
func (m *mapExchange) row(kind reflect.Type, columns []argument, row int) (taken reflect.Value, err error) {
	defer notRead(&err)
	values := make([]reflect.Value, len(m.function.readers))
	if err := m.function.arguments(columns, row, values); err != nil {
		return reflect.Value{}, err
	}
	if len(values) == 1 {
		return values[0], nil
	}
	record := reflect.New(kind).Elem()
	for i, value := range values {
		record.Field(i).Set(value)
	}
	return record, nil
}

// next is the next batch with rows, and its columns; nil at the end, and after an error.
func (m *mapExchange) next() (arrow.RecordBatch, []argument) {
	if m.flush() != nil {
		return nil, nil
	}
	m.reading.Lock()
	defer m.reading.Unlock()
	if m.isClosed() {
		return nil, nil
	}
	batch, columns, err := m.read()
	if err != nil {
		m.cutOff(err)
		return nil, nil
	}
	return batch, columns
}

func (m *mapExchange) cutOff(cause error) {
	m.state.Lock()
	defer m.state.Unlock()
	if m.cut == nil {
		m.cut = cause
		m.stop(cause)
	}
}

// cause is why the rows ended early.
func (m *mapExchange) cause() error {
	m.state.Lock()
	defer m.state.Unlock()
	return m.cut
}

// isClosed says whether the handler gets no more rows.
func (m *mapExchange) isClosed() bool {
	m.state.Lock()
	defer m.state.Unlock()
	return m.cut != nil || m.isEnded
}

func (m *mapExchange) read() (batch arrow.RecordBatch, columns []argument, err error) {
	// The exchange may end meanwhile, and its other references with it.
	m.reader.Retain()
	defer m.reader.Release()
	defer notRead(&err)
	if !m.reader.Next() {
		if err := m.reader.Err(); err != nil && !errors.Is(err, io.EOF) {
			return nil, nil, err
		}
		// A client that goes away may close its side first.
		return nil, nil, m.stream.Context().Err()
	}
	if isEnded, err := m.note(m.reader.LatestAppMetadata()); isEnded || err != nil {
		return nil, nil, err
	}
	if batch, err = m.layout.read(m.reader.RecordBatch()); err != nil {
		return nil, nil, err
	}
	if columns, err = m.function.check(batch); err != nil {
		return nil, nil, err
	}
	// The reader's own is gone with the next one.
	batch.Retain()
	return batch, columns, nil
}

// notRead makes a panic an error. It is deferred where a batch is read: one that a library cannot take, or a value that leads nowhere, would
// otherwise end the program, on a goroutine of the handler's.
func notRead(err *error) {
	if cause := recover(); cause != nil {
		*err = violation("the exchange cannot be read: %v", cause)
	}
}

// note takes a batch's metadata; true if the handler gets no more rows.
func (m *mapExchange) note(metadata []byte) (bool, error) {
	m.state.Lock()
	defer m.state.Unlock()
	if m.isEnded {
		return true, nil
	}
	m.isPlain = len(metadata) == 0
	m.call.Batch++
	if m.isPlain {
		return false, nil
	}
	return false, json.Unmarshal(metadata, &m.call)
}
