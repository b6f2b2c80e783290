package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

const (
	functionsPath = "/v1/functions/"
	exchangesPath = "/v1/exchanges/"
	maxBodyBytes  = 1 << 30
)

// restServer answers the JSON form, docs/protocol.md §6.
type restServer struct {
	functions map[string]*Function
	greeting  []byte
	exchanges exchanges
}

type request struct {
	Batch    uint64              `json:"batch"`
	Rows     *int                `json:"rows"`
	Columns  [][]json.RawMessage `json:"columns"`
	Exchange string              `json:"exchange"`
	Step     string              `json:"step"`
}

func (s *restServer) ServeHTTP(response http.ResponseWriter, asked *http.Request) {
	body, err := s.handle(asked)
	code := http.StatusOK
	if err != nil {
		if asked.Context().Err() != nil {
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
		default:
			code = http.StatusInternalServerError
		}
		body, _ = json.Marshal(map[string]*CallError{"error": failure})
	}
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(code)
	_, _ = response.Write(body)
}

func (s *restServer) handle(asked *http.Request) ([]byte, error) {
	path := asked.URL.Path
	switch {
	case asked.Method == http.MethodGet && path == "/v1":
		return s.greeting, nil
	case asked.Method == http.MethodDelete && strings.HasPrefix(path, exchangesPath):
		s.exchanges.end(strings.TrimPrefix(path, exchangesPath))
		return []byte("{}"), nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, asked.Body, maxBodyBytes))
	if err != nil {
		return nil, violation("the request cannot be read: %v", err)
	}
	name := strings.TrimPrefix(path, functionsPath)
	function, ok := s.functions[name]
	if !ok {
		return nil, unknownFunction(name)
	}
	if asked.Method == http.MethodGet {
		arguments := []map[string]string{}
		for _, argument := range function.Arguments {
			arguments = append(arguments, map[string]string{"name": argument.Name, "type": argument.Type.Text})
		}
		return json.Marshal(map[string]any{"name": name, "kind": function.Kind, "arguments": arguments, "returns": function.Returns.Text})
	}
	var call request
	if err := json.Unmarshal(body, &call); err != nil || call.Rows == nil {
		return nil, violation("the request cannot be read: %v", err)
	}
	batch, err := readBatch(function, call)
	if err != nil {
		return nil, err
	}
	return s.answer(asked.Context(), function, call, batch)
}

func readBatch(function *Function, call request) (arrow.RecordBatch, error) {
	columns := function.callColumns()
	if len(call.Columns) != len(columns) {
		return nil, violation("%s takes %d columns, not %d", function.Name, len(columns), len(call.Columns))
	}
	var arrays []arrow.Array
	for i, values := range call.Columns {
		if len(values) != *call.Rows {
			return nil, violation("column %d has %d values for %d rows", i+1, len(values), *call.Rows)
		}
		builder := array.NewBuilder(memory.DefaultAllocator, columns[i].Type.Arrow())
		for row, value := range values {
			if err := appendJSON(builder, columns[i].Type, value); err != nil {
				return nil, violation("row %d of column %d is not of type %s: %v", row, i+1, columns[i].Type.Text, err)
			}
		}
		arrays = append(arrays, builder.NewArray())
	}
	return array.NewRecordBatch(schemaOf(columns), arrays, int64(*call.Rows)), nil
}

func (s *restServer) answer(ctx contextType, function *Function, call request, batch arrow.RecordBatch) ([]byte, error) {
	start := time.Now()
	var parts []arrow.RecordBatch
	if function.Kind == "aggregate" {
		states, err := s.exchanges.find(function, call.Exchange, call.Batch)
		if err != nil {
			return nil, err
		}
		reply, err := states.answer(ctx, batch, call.Step)
		if err != nil {
			return nil, err
		}
		parts = append(parts, reply)
	} else if err := function.answer(ctx, batch, func(part arrow.RecordBatch, _ bool) error {
		parts = append(parts, part)
		return nil
	}); err != nil {
		return nil, err
	}
	micros := time.Since(start).Microseconds()
	rows := 0
	for _, part := range parts {
		rows += int(part.NumRows())
	}
	text := []byte(`{"batch":`)
	text = appendInt(text, int64(call.Batch))
	text = appendInt(append(text, `,"rows":`...), int64(rows))
	text = appendInt(append(text, `,"micros":`...), micros)
	text = append(text, `,"columns":[`...)
	for i, column := range function.replyColumns() {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, '[')
		isFirst := true
		for _, part := range parts {
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
	return append(text, `]}`...), nil
}
