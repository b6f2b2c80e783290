package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// exchange is a client's side of one: what it sends, and what it gets.
type exchange struct {
	flight.FlightService_DoExchangeServer
	sent, answers []*flight.FlightData
	fields        metadata.MD
}

func (e *exchange) Context() context.Context {
	return metadata.NewIncomingContext(context.Background(), e.fields)
}

func (e *exchange) Recv() (*flight.FlightData, error) {
	if len(e.sent) == 0 {
		return nil, io.EOF
	}
	next := e.sent[0]
	e.sent = e.sent[1:]
	return next, nil
}

func (e *exchange) Send(data *flight.FlightData) error {
	// The writer uses its message again.
	e.answers = append(e.answers, &flight.FlightData{
		DataHeader: bytes.Clone(data.DataHeader), DataBody: bytes.Clone(data.DataBody), AppMetadata: bytes.Clone(data.AppMetadata), FlightDescriptor: data.FlightDescriptor,
	})
	return nil
}

// called is an exchange that calls a function with a batch, whose column may be compressed.
func called(t *testing.T, column arrow.Array, options ...ipc.Option) *exchange {
	t.Helper()
	sent := &exchange{}
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: column.DataType(), Nullable: true}}, nil)
	writer := flight.NewRecordWriter(sent, append(options, ipc.WithSchema(schema))...)
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"f"}})
	if err := writer.WriteWithAppMetadata(array.NewRecordBatch(schema, []arrow.Array{column}, int64(column.Len())), []byte(`{"batch": 3}`)); err != nil {
		t.Fatal(err)
	}
	return &exchange{sent: sent.answers}
}

func TestCompressedColumnsAreRefused(t *testing.T) {
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "arrow", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")},
		func(batch arrow.RecordBatch) arrow.Array { return batch.Column(0) })
	server := &flightServer{functions: map[string]*Function{"f": function}}
	for name, column := range map[string]arrow.Array{"values": int8s(1, 2, 3), "a dictionary": dictionaryOf(int8s(7), 0, 0, 0)} {
		for _, options := range [][]ipc.Option{{ipc.WithZstd()}, {ipc.WithLZ4()}} {
			stream := called(t, column, options...)
			if err := server.DoExchange(stream); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != "the columns are compressed" {
				t.Errorf("%s: %v", name, err)
			}
			// Messages with dictionaries have no metadata that would say who asks.
			if name != "values" {
				continue
			}
			var told errorMetadata
			first := stream.answers[0].AppMetadata
			if err := json.Unmarshal(first, &told); err != nil || told.Batch != 3 || told.Error == nil || told.Error.Kind != "protocol_violation" {
				t.Errorf("%s: %s", name, first)
			}
		}
		if err := server.DoExchange(called(t, column)); err != nil {
			t.Errorf("%s that are not compressed: %v", name, err)
		}
	}
}

// Values that lead nowhere come up where the handler takes rows, on whatever goroutine that is.
func TestRowsThatCannotBeReadEndTheExchangeAlone(t *testing.T) {
	count := func(rows iter.Seq[string]) iter.Seq[int64] {
		return func(yield func(int64) bool) {
			counted := make(chan int64)
			go func() {
				count := int64(0)
				for range rows {
					count++
				}
				counted <- count
			}()
			yield(<-counted)
		}
	}
	function := bound(t, Function{Name: "f", Kind: "map", Batch: "row", Arguments: []Argument{{"x", typeOf("text")}}, Returns: typeOf("int8")}, count)
	server := &flightServer{functions: map[string]*Function{"f": function}}
	if err := server.DoExchange(called(t, stringsOf("a", "b", "c"))); err != nil {
		t.Errorf("%v", err)
	}
	stream := called(t, stringsOf("a", "b", "c"))
	isDamaged := false
	for _, data := range stream.sent {
		var offsets []byte
		for offset := range uint32(4) {
			offsets = binary.LittleEndian.AppendUint32(offsets, offset)
		}
		if at := bytes.Index(data.DataBody, offsets); at >= 0 {
			binary.LittleEndian.PutUint32(data.DataBody[at+4:], 1000)
			isDamaged = true
		}
	}
	if err := server.DoExchange(stream); !isDamaged || status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), "the exchange cannot be read: ") {
		t.Errorf("%v, %v", isDamaged, err)
	}
}

// lockstep is a client's side of an exchange that sends each batch once results have come for those before it.
type lockstep struct {
	*exchange
	answered chan struct{}
	isFirst  bool
}

func (l *lockstep) Recv() (*flight.FlightData, error) {
	// The schema comes with the descriptor.
	if len(l.sent) > 0 && len(l.sent[0].DataBody) > 0 {
		if !l.isFirst {
			select {
			case <-l.answered:
			case <-time.After(testPatience):
				return nil, errors.New("no result has come")
			}
		}
		l.isFirst = false
	}
	return l.exchange.Recv()
}

func (l *lockstep) Send(data *flight.FlightData) error {
	if len(data.DataBody) > 0 {
		l.answered <- struct{}{}
	}
	return l.exchange.Send(data)
}

func TestResultsDoNotWaitForRows(t *testing.T) {
	here := func(rows iter.Seq[int64]) iter.Seq[int64] { return rows }
	elsewhere := func(rows iter.Seq[int64]) iter.Seq[int64] {
		return func(yield func(int64) bool) {
			taken := make(chan int64)
			go func() {
				defer close(taken)
				for x := range rows {
					taken <- x
				}
			}()
			for x := range taken {
				// Whoever takes rows waits by now.
				time.Sleep(watchInterval / 10)
				if !yield(x) {
					return
				}
			}
		}
	}
	for name, target := range map[string]any{"here": here, "elsewhere": elsewhere} {
		function := bound(t, Function{Name: "f", Kind: "map", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")}, target)
		server := &flightServer{functions: map[string]*Function{"f": function}}
		client := called(t, int8s(7))
		last := client.sent[len(client.sent)-1]
		client.sent = append(client.sent, last, last)
		if err := server.DoExchange(&lockstep{client, make(chan struct{}, 10), true}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// lossy is an exchange that loses the first results.
type lossy struct {
	*exchange
	isLost bool
}

func (l *lossy) Send(data *flight.FlightData) error {
	if len(data.DataBody) > 0 && !l.isLost {
		l.isLost = true
		return errors.New("it is lost")
	}
	return l.exchange.Send(data)
}

func TestNothingIsSentBehindLostResults(t *testing.T) {
	slow := func(iter.Seq[int64]) iter.Seq[int64] {
		return func(yield func(int64) bool) {
			yield(1)
			time.Sleep(10 * watchInterval)
			yield(2)
		}
	}
	function := bound(t, Function{Name: "f", Kind: "map", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")}, slow)
	server := &flightServer{functions: map[string]*Function{"f": function}}
	stream := &lossy{exchange: called(t, int8s(7))}
	if err := server.DoExchange(stream); err == nil || !strings.Contains(err.Error(), "it is lost") {
		t.Errorf("%v", err)
	}
	for _, data := range stream.answers {
		if len(data.DataBody) > 0 {
			t.Error("results were sent")
		}
	}
}

// left is an exchange whose client goes away after its last batch. Its side ends as if it had closed it.
type left struct{ *exchange }

func (l left) Context() context.Context {
	if len(l.sent) > 0 {
		return l.exchange.Context()
	}
	ctx, cancel := context.WithCancel(l.exchange.Context())
	cancel()
	return ctx
}

func TestAClientThatHasGoneDoesNotEndTheRows(t *testing.T) {
	stored := 0
	store := func(ctx context.Context, rows iter.Seq[int64]) iter.Seq[int64] {
		return func(func(int64) bool) {
			for range rows {
			}
			if ctx.Err() == nil {
				stored++
			}
		}
	}
	function := bound(t, Function{Name: "f", Kind: "map", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")}, store)
	server := &flightServer{functions: map[string]*Function{"f": function}}
	if err := server.DoExchange(left{called(t, int8s(1, 2))}); !errors.Is(err, context.Canceled) || stored != 0 {
		t.Errorf("%v, %d", err, stored)
	}
	// Nor does a row that Go cannot hold.
	if err := server.DoExchange(called(t, array.MakeArrayOfNull(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64, 1))); err == nil || stored != 0 {
		t.Errorf("%v, %d", err, stored)
	}
	if err := server.DoExchange(called(t, int8s(1, 2))); err != nil || stored != 1 {
		t.Errorf("%v, %d", err, stored)
	}
}

func TestAHandlerThatEndsItsGoroutineEndsItsExchange(t *testing.T) {
	leave := func(int64) int64 { runtime.Goexit(); return 0 }
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")}, leave)
	server := &flightServer{functions: map[string]*Function{"f": function}}
	if err := server.DoExchange(called(t, int8s(1))); status.Convert(err).Message() != goexit {
		t.Errorf("%v", err)
	}
}

func TestSocketsLeaveTheUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	address := t.TempDir() + "/socket"
	listener, err := listenAt("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if found, err := os.Stat(address); err != nil || found.Mode().Perm() != 0o777 {
		t.Errorf("%v, %v", found, err)
	}
	if mask := syscall.Umask(0o027); mask != 0o027 {
		t.Errorf("files have mask %o", mask)
	}
}
