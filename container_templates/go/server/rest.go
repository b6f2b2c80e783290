package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"golang.org/x/sys/unix"
)

const (
	functionsPath = "/v1/functions/"
	exchangesPath = "/v1/exchanges/"
	jsonType      = "application/json"
	maxBodyBytes  = 1 << 30
)

// restServer answers the JSON form, docs/protocol.md §6, and columns in memory, §7.
type restServer struct {
	functions map[string]*Function
	greeting  []byte
	exchanges exchanges
	tables    *offers
	// How long a client may let the server wait.
	idle time.Duration
}

type request struct {
	Batch    uint64              `json:"batch"`
	Rows     *int                `json:"rows"`
	Columns  [][]json.RawMessage `json:"columns"`
	Exchange string              `json:"exchange"`
	Step     string              `json:"step"`
	// Numbers of the columns that have one value, for all rows.
	Constants []int  `json:"constants"`
	RowErrors string `json:"row_errors"`
}

// callBatch is a batch of calls, in whichever form it came.
type callBatch struct {
	number uint64
	// Of an aggregate function: the name of the exchange, and what is to be done.
	exchange, step string
	batch          arrow.RecordBatch
	wished         wishes
}

// replyParts are what becomes of it; a table function's reply may have several.
type replyParts struct {
	parts  []arrow.RecordBatch
	micros int64
}

type connectionKey struct{}

// connection is what the requests of a connection share. net/http runs them one after the other.
type connection struct {
	watched syscall.RawConn
	kept    keptConstants
	// Whether it is one too many.
	isExcess bool
}

// withConnection lets the requests of a connection know it.
func withConnection(ctx context.Context, accepted net.Conn) context.Context {
	shared := &connection{}
	if raw, ok := accepted.(syscall.Conn); ok {
		shared.watched, _ = raw.SyscallConn()
	}
	if counted, ok := accepted.(*countedConnection); ok {
		shared.isExcess = counted.isExcess
	}
	return context.WithValue(ctx, connectionKey{}, shared)
}

// clientContext ends when the client closes its connection. net/http does not look while a further request lies there.
type clientContext struct{ context.Context }

func (c clientContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	hasHungUp := false
	if connection, ok := c.Value(connectionKey{}).(*connection); ok && connection.watched != nil {
		_ = connection.watched.Control(func(descriptor uintptr) {
			ready, err := unix.Poll([]unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLRDHUP}}, 0)
			hasHungUp = err == nil && ready > 0
		})
	}
	if hasHungUp {
		return context.Canceled
	}
	return nil
}

// server is the server of HTTP that answers with this.
func (s *restServer) server() *http.Server {
	return &http.Server{Handler: s, ConnContext: withConnection, ReadHeaderTimeout: s.idle, IdleTimeout: s.idle}
}

func (s *restServer) ServeHTTP(response http.ResponseWriter, asked *http.Request) {
	ctx := clientContext{asked.Context()}
	timeBody(response, asked, s.idle)
	body, contentType, err := s.handle(ctx, asked)
	code := http.StatusOK
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		var failure *CallError
		if !errors.As(err, &failure) {
			failure = violation("%v", err)
		}
		switch failure.Kind {
		case "function_not_found":
			code = http.StatusNotFound
		case "protocol_violation":
			code = http.StatusBadRequest
		case "busy":
			code = http.StatusServiceUnavailable
			response.Header().Set("Connection", "close")
		default:
			code = http.StatusInternalServerError
		}
		contentType = jsonType
		body, _ = json.Marshal(map[string]*CallError{"error": failure})
	}
	response.Header().Set("Content-Type", contentType)
	// Otherwise long replies are sent in chunks.
	response.Header().Set("Content-Length", strconv.Itoa(len(body)))
	response.WriteHeader(code)
	writeInTime(response, body, s.idle)
}

// handle gives the body of a reply, and its content type.
func (s *restServer) handle(ctx context.Context, asked *http.Request) ([]byte, string, error) {
	path := asked.URL.Path
	shared, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		shared = &connection{}
	}
	if shared.isExcess && asked.Method == http.MethodPost {
		// A client that is still sending would find the connection closed, and not read why.
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(nil, asked.Body, maxBodyBytes))
		return nil, "", errBusy
	}
	switch {
	case asked.Method == http.MethodGet && path == "/v1":
		return s.greeting, jsonType, nil
	case asked.Method == http.MethodDelete && strings.HasPrefix(path, exchangesPath):
		s.exchanges.forget(strings.TrimPrefix(path, exchangesPath))
		return []byte("{}"), jsonType, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, asked.Body, maxBodyBytes))
	if err != nil {
		return nil, "", violation("the request cannot be read: %v", err)
	}
	name := strings.TrimPrefix(path, functionsPath)
	function, ok := s.functions[name]
	if !ok {
		return nil, "", unknownFunction(name)
	}
	if asked.Method == http.MethodGet {
		described, err := describeFunction(function)
		return described, jsonType, err
	}
	tables := s.tables.ofRequest(asked)
	defer tables.end()
	if err := tables.check(); err != nil {
		return nil, "", err
	}
	ctx = tables.in(ctx)
	if asked.Header.Get("Content-Type") == columnsType {
		asked, segment, err := readColumns(function, body, &shared.kept)
		if err != nil {
			return nil, "", err
		}
		answered, err := s.answer(ctx, function, asked)
		if err != nil {
			return nil, "", err
		}
		reply, err := writeColumns(function, asked, answered, segment)
		return reply, columnsType, err
	}
	read, err := readJSON(function, body)
	if err != nil {
		return nil, "", err
	}
	answered, err := s.answer(ctx, function, read)
	if err != nil {
		return nil, "", err
	}
	return writeJSON(function, read, answered), jsonType, nil
}

func describeFunction(function *Function) ([]byte, error) {
	arguments := []map[string]string{}
	for _, argument := range function.Arguments {
		arguments = append(arguments, map[string]string{"name": argument.Name, "type": argument.Type.Text})
	}
	return json.Marshal(map[string]any{"name": function.Name, "kind": function.Kind, "arguments": arguments, "returns": function.Returns.Text})
}

func readJSON(function *Function, body []byte) (*callBatch, error) {
	var read request
	if err := json.Unmarshal(body, &read); err != nil || read.Rows == nil {
		return nil, violation("the request cannot be read: %v", err)
	}
	columns := function.callColumns()
	if err := checkConstants(read.Constants, function); err != nil {
		return nil, err
	}
	if *read.Rows < 0 || *read.Rows > math.MaxInt32 {
		return nil, violation("a batch cannot have %d rows", *read.Rows)
	}
	if len(read.Columns) != len(columns) {
		return nil, violation("%s takes %d columns, not %d", function.Name, len(columns), len(read.Columns))
	}
	var arrays []arrow.Array
	for i, values := range read.Columns {
		isConstant := slices.Contains(read.Constants, i)
		if wanted := *read.Rows; !isConstant && len(values) != wanted || isConstant && len(values) != 1 {
			return nil, violation("column %d has %d values for %d rows", i+1, len(values), wanted)
		}
		builder := array.NewBuilder(memory.DefaultAllocator, columns[i].Type.Arrow())
		for row, value := range values {
			if err := appendJSON(builder, columns[i].Type, value); err != nil {
				return nil, violation("row %d of column %d is not of type %s: %v", row, i+1, columns[i].Type.Text, err)
			}
		}
		column := builder.NewArray()
		if isConstant {
			column = repeated(column, *read.Rows)
		}
		arrays = append(arrays, column)
	}
	asked := callBatch{number: read.Batch, exchange: read.Exchange, step: read.Step, wished: wishes{rowErrors: read.RowErrors}}
	asked.batch = batchOf(columns, arrays, *read.Rows)
	return &asked, nil
}

func (s *restServer) answer(ctx context.Context, function *Function, asked *callBatch) (*replyParts, error) {
	start := time.Now()
	var parts []arrow.RecordBatch
	if function.Kind == "aggregate" {
		states, err := s.exchanges.begin(function, asked.exchange, asked.number)
		if err != nil {
			return nil, err
		}
		defer s.exchanges.end(states)
		reply, err := states.answer(ctx, asked.batch, asked.step)
		if err != nil {
			return nil, err
		}
		parts = append(parts, reply)
	} else if err := function.answer(ctx, asked.batch, asked.wished, func(part arrow.RecordBatch, _ bool) error {
		parts = append(parts, part)
		return nil
	}); err != nil {
		return nil, err
	}
	return &replyParts{parts, time.Since(start).Microseconds()}, nil
}

func writeJSON(function *Function, asked *callBatch, answered *replyParts) []byte {
	// Columns of a shared table hold its map, which the texts that are written do not.
	defer runtime.KeepAlive(answered)
	rows := 0
	for _, part := range answered.parts {
		rows += int(part.NumRows())
	}
	text := []byte(`{"batch":`)
	text = appendInt(text, int64(asked.number))
	text = appendInt(append(text, `,"rows":`...), int64(rows))
	text = appendInt(append(text, `,"micros":`...), answered.micros)
	text = append(text, `,"columns":[`...)
	for i, column := range function.replyColumns(asked.wished.rowErrors) {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, '[')
		isFirst := true
		for _, part := range answered.parts {
			for row := range int(part.NumRows()) {
				if !isFirst {
					text = append(text, ',')
				}
				isFirst = false
				text = encodeJSON(text, column.Type, part.Column(i), row)
			}
		}
		text = append(text, ']')
	}
	return append(text, `]}`...)
}
