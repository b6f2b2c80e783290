package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// flightServer answers the Flight form, docs/protocol.md §2 to §5.
type flightServer struct {
	flight.BaseFlightServer
	functions map[string]*Function
	greeting  []byte
	tables    *offers
}

func (s *flightServer) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	return errors.Join(stream.Send(&flight.ActionType{Type: "transship.hello", Description: "Who answers."}),
		stream.Send(&flight.ActionType{Type: "protocol_version", Description: "The arrow-udf version."}))
}

func (s *flightServer) DoAction(action *flight.Action, stream flight.FlightService_DoActionServer) error {
	switch action.Type {
	case "transship.hello":
		return stream.Send(&flight.Result{Body: s.greeting})
	case "protocol_version":
		return stream.Send(&flight.Result{Body: []byte{2}})
	}
	return status.Errorf(codes.Unimplemented, "unrecognized action %s", action.Type)
}

func nameOf(descriptor *flight.FlightDescriptor) string {
	if path := descriptor.GetPath(); len(path) > 0 {
		return path[0]
	}
	return ""
}

func (s *flightServer) info(function *Function) *flight.FlightInfo {
	columns := append(append([]Argument{}, function.Arguments...), function.replyColumns("")...)
	if function.Kind == "aggregate" {
		columns = columns[:len(columns)-1]
	}
	schema := schemaOf(columns)
	if function.Kind == "aggregate" || function.Kind == "map" {
		metadata := arrow.NewMetadata([]string{"transship.kind"}, []string{function.Kind})
		schema = arrow.NewSchema(schema.Fields(), &metadata)
	}
	return &flight.FlightInfo{
		Schema:           flight.SerializeSchema(schema, memory.DefaultAllocator),
		FlightDescriptor: &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{function.Name}},
		TotalRecords:     int64(len(function.Arguments)),
	}
}

func (s *flightServer) ListFlights(_ *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	for _, function := range s.functions {
		if err := stream.Send(s.info(function)); err != nil {
			return err
		}
	}
	return nil
}

// GetFlightInfo describes a function.
func (s *flightServer) GetFlightInfo(_ context.Context, descriptor *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	function, ok := s.functions[nameOf(descriptor)]
	if !ok {
		return nil, status.Error(codes.NotFound, unknownFunction(nameOf(descriptor)).Message)
	}
	return s.info(function), nil
}

type callMetadata struct {
	Batch uint64 `json:"batch"`
	Step  string `json:"step"`
}

type replyMetadata struct {
	Batch  uint64 `json:"batch"`
	Micros int64  `json:"micros"`
	More   bool   `json:"more,omitempty"`
}

type errorMetadata struct {
	Batch uint64     `json:"batch"`
	Error *CallError `json:"error"`
}

// DoExchange answers on a goroutine of its own. A handler may end that one (runtime.Goexit), and gRPC's own would leave the stream open.
func (s *flightServer) DoExchange(stream flight.FlightService_DoExchangeServer) error {
	ended := make(chan error, 1)
	go func() {
		err := statusOf(&CallError{Kind: "user_code", Message: goexit})
		defer func() { ended <- err }()
		err = s.exchange(stream)
	}()
	return <-ended
}

// exchange answers batch after batch; an error ends the exchange.
func (s *flightServer) exchange(stream flight.FlightService_DoExchangeServer) (err error) {
	defer func() {
		// Otherwise a batch that a library cannot take would end the program.
		if cause := recover(); cause != nil {
			fmt.Fprintf(os.Stderr, "transship: %v\n%s", cause, debug.Stack())
			err = status.Errorf(codes.InvalidArgument, "the exchange cannot be read: %v", cause)
		}
	}()
	arriving := &checkedStream{FlightService_DoExchangeServer: stream}
	reader, err := flight.NewRecordReader(arriving)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	defer reader.Release()
	tables := s.tables.ofStream(stream.Context())
	defer tables.end()
	name := nameOf(reader.LatestFlightDescriptor())
	function, isKnown := s.functions[name]
	// Without a function no reply will need the schema.
	schema := arrow.NewSchema(nil, nil)
	var states *groups
	layout := layoutOf(reader.Schema())
	var wished wishes
	if isKnown {
		if mode, ok := reader.Schema().Metadata().GetValue("transship.row_errors"); ok {
			wished.rowErrors = mode
		}
		if wished.rowErrors != "" && checkRowErrors(wished.rowErrors, function) != nil {
			// The first batch is told.
			schema = layout.schema(schemaOf(function.replyColumns("")))
		} else {
			schema = layout.schema(schemaOf(function.replyColumns(wished.rowErrors)))
		}
		states = newGroups(function)
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	defer writer.Close()
	if isKnown && function.Kind == "map" {
		return (&mapExchange{function: function, stream: stream, reader: reader, writer: writer, layout: layout, tables: tables}).run()
	}
	next := uint64(0)
	for reader.Next() {
		call := callMetadata{Batch: next}
		hasMetadata := false
		if metadata := reader.LatestAppMetadata(); len(metadata) > 0 {
			if err := json.Unmarshal(metadata, &call); err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
			hasMetadata = true
		}
		if err := s.answer(stream.Context(), tables, writer, function, states, layout, wished, reader.RecordBatch(), call, name); err != nil {
			var failure *CallError
			if !errors.As(err, &failure) {
				return err
			}
			return fail(writer, call.Batch, failure, hasMetadata)
		}
		next = call.Batch + 1
	}
	if err := reader.Err(); err != nil && !errors.Is(err, io.EOF) {
		var failure *CallError
		if !errors.As(err, &failure) {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		call := callMetadata{Batch: next}
		_ = json.Unmarshal(arriving.metadata, &call)
		return fail(writer, call.Batch, failure, len(arriving.metadata) > 0)
	}
	if !isKnown {
		// There was no batch to answer with the error.
		return statusOf(unknownFunction(name))
	}
	return nil
}

// Numbers of Arrow's Message.fbs: the kinds of messages with columns, and the fields in which the message has its kind and itself, a
// dictionary its values, and a batch its compression.
const (
	dictionaryMessage, batchMessage = 2, 3
	kindField, messageField         = 4 + 2*1, 4 + 2*2
	valuesField, compressionField   = 4 + 2*1, 4 + 2*3
)

// checkedStream refuses compressed columns, which the protocol does not have: arrow-go would make room for whatever size they say.
type checkedStream struct {
	flight.FlightService_DoExchangeServer
	// Of the last message.
	metadata []byte
}

// Recv gives the next message.
func (c *checkedStream) Recv() (*flight.FlightData, error) {
	data, err := c.FlightService_DoExchangeServer.Recv()
	if err != nil {
		return nil, err
	}
	c.metadata = data.AppMetadata
	if len(data.DataHeader) > 0 && isCompressed(data.DataHeader) {
		return nil, violation("the columns are compressed")
	}
	return data, nil
}

// isCompressed looks at the header of a message. It panics, as arrow-go would, if that is damaged.
func isCompressed(header []byte) bool {
	part := flatbuffers.Table{Bytes: header, Pos: flatbuffers.GetUOffsetT(header)}
	// Gives false if there is no such part.
	follow := func(field flatbuffers.VOffsetT) bool {
		at := flatbuffers.UOffsetT(part.Offset(field))
		if at != 0 {
			part.Pos = part.Indirect(part.Pos + at)
		}
		return at != 0
	}
	kind := part.GetByteSlot(kindField, 0)
	if kind != dictionaryMessage && kind != batchMessage || !follow(messageField) {
		return false
	}
	if kind == dictionaryMessage && !follow(valuesField) {
		return false
	}
	return part.Offset(compressionField) != 0
}

// mostInStatus is the bytes of an error that a status has beside its metadata: a status is a header, and they are bounded.
const mostInStatus = 1000

// fail ends an exchange with an error, first as metadata to clients that send some. Arrow's C++ clients drop what they have not read yet
// once they cannot send, but not the status.
func fail(writer *flight.Writer, batch uint64, failure *CallError, takesMetadata bool) error {
	if takesMetadata {
		metadata, _ := json.Marshal(errorMetadata{batch, failure})
		if err := writer.WriteMetadata(metadata); err != nil {
			return err
		}
		if len(failure.Message) > mostInStatus {
			failure = &CallError{Kind: failure.Kind, Message: strings.ToValidUTF8(failure.Message[:mostInStatus], "")}
		}
	}
	return statusOf(failure)
}

// statusOf is the error as clients know it that send no metadata, such as RisingWave's.
func statusOf(failure *CallError) error {
	code := codes.Unknown
	switch failure.Kind {
	case "function_not_found":
		code = codes.NotFound
	case "protocol_violation":
		code = codes.InvalidArgument
	}
	return status.Error(code, failure.Message)
}

func (s *flightServer) answer(ctx context.Context, tables *callTables, writer *flight.Writer, function *Function, states *groups, layout layout, wished wishes, batch arrow.RecordBatch, call callMetadata, name string) error {
	if function == nil {
		return unknownFunction(name)
	}
	if err := tables.check(); err != nil {
		return err
	}
	ctx = tables.in(ctx)
	if err := checkRowErrors(wished.rowErrors, function); err != nil {
		return err
	}
	batch, err := layout.read(batch)
	if err != nil {
		return err
	}
	start := time.Now()
	emit := func(part arrow.RecordBatch, isLast bool) error {
		written, err := layout.write(part)
		if err != nil {
			return err
		}
		metadata, err := json.Marshal(replyMetadata{call.Batch, time.Since(start).Microseconds(), !isLast})
		if err != nil {
			return err
		}
		err = writer.WriteWithAppMetadata(written, metadata)
		// Columns of a shared table hold its map. What they become in another layout may lie in it, and does not hold it.
		runtime.KeepAlive(part)
		runtime.KeepAlive(written)
		start = time.Now()
		return err
	}
	if function.Kind == "aggregate" {
		reply, err := states.answer(ctx, batch, call.Step)
		if err != nil {
			return err
		}
		return emit(reply, true)
	}
	return function.answer(ctx, batch, wished, emit)
}
