package server

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// ownBatch has columns of every nested kind, in the protocol's layout.
func ownBatch(t *testing.T) arrow.RecordBatch {
	text, bytea := &Type{Type: "text", Text: "text"}, &Type{Type: "bytea", Text: "bytea", Name: "b"}
	named := &Type{Type: "text", Text: "text", Name: "a"}
	columns := []Argument{
		{"t", text},
		{"b", bytea},
		{"ns", &Type{Type: "array", Text: "numeric[]", Element: &Type{Type: "numeric", Text: "numeric"}}},
		{"c", &Type{Type: "composite", Text: "(a text, b bytea[])", Attributes: []*Type{named, {Type: "array", Name: "b", Element: bytea}}}},
		{"i", int8Type},
	}
	values := [][]string{
		{`"größer als zwölf Bytes"`, `null`, `""`},
		{`"AP8="`, `null`, `""`},
		{`["1.50", null]`, `null`, `[]`},
		{`{"a": "x", "b": ["AP8=", null]}`, `null`, `{"a": null, "b": null}`},
		{`1`, `null`, `3`},
	}
	var arrays []arrow.Array
	for i, column := range columns {
		builder := array.NewBuilder(memory.DefaultAllocator, column.Type.Arrow())
		for _, value := range values[i] {
			if err := appendJSON(builder, column.Type, json.RawMessage(value)); err != nil {
				t.Fatal(err)
			}
		}
		arrays = append(arrays, builder.NewArray())
	}
	return array.NewRecordBatch(schemaOf(columns), arrays, 3)
}

func TestRepliesHaveTheLayoutOfTheCalls(t *testing.T) {
	own := ownBatch(t)
	if found := layoutOf(own.Schema()); found != (layout{}) {
		t.Fatalf("the protocol's own layout is %+v", found)
	}
	for _, wanted := range []layout{{largeText: true}, {largeLists: true}, {views: true}, {largeText: true, largeLists: true}} {
		// Of slices as well.
		for _, batch := range []arrow.RecordBatch{own, own.NewSlice(1, 3), own.NewSlice(1, 1)} {
			written, err := wanted.write(batch)
			if err != nil {
				t.Fatal(err)
			}
			if found := layoutOf(written.Schema()); found != wanted || !written.Schema().Equal(wanted.schema(own.Schema())) {
				t.Fatalf("%+v became %+v", wanted, found)
			}
			read, err := wanted.read(written)
			if err != nil || !array.RecordEqual(read, batch) || !read.Schema().Equal(own.Schema()) {
				t.Fatalf("%+v: %v came back as %v, %v", wanted, batch, read, err)
			}
		}
	}
}

func TestWhatViewsStandForIsBounded(t *testing.T) {
	builder := array.NewStringViewBuilder(memory.DefaultAllocator)
	builder.Append(strings.Repeat("x", 1<<20))
	one := builder.NewArray().Data()
	// Two thousand views of the same megabyte.
	view := one.Buffers()[1].Bytes()[:arrow.ViewHeaderSizeBytes]
	headers := memory.NewBufferBytes([]byte(strings.Repeat(string(view), 2000)))
	data := array.NewData(one.DataType(), 2000, []*memory.Buffer{nil, headers, one.Buffers()[2]}, nil, 0, 0)
	schema := arrow.NewSchema([]arrow.Field{{Type: one.DataType()}}, nil)
	batch := array.NewRecordBatch(schema, []arrow.Array{array.MakeFromData(data)}, 2000)
	var failure *CallError
	if _, err := layoutOf(schema).read(batch); !errors.As(err, &failure) || failure.Kind != "protocol_violation" {
		t.Fatal(err)
	}
	// A view that leads nowhere.
	data = array.NewData(one.DataType(), 2, []*memory.Buffer{nil, headers}, nil, 0, 0)
	batch = array.NewRecordBatch(schema, []arrow.Array{array.MakeFromData(data)}, 2)
	if _, err := layoutOf(schema).read(batch); !errors.As(err, &failure) || failure.Kind != "protocol_violation" {
		t.Fatal(err)
	}
}
