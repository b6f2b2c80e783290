package server

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

func typeOf(name string) *Type { return &Type{Type: name, Text: name} }

// columnsOf are types, each with the values of a column in the JSON form.
func columnsOf() map[*Type][]string {
	pair := &Type{Type: "composite", Text: "pair", Attributes: []*Type{
		{Type: "int4", Text: "int4", Name: "n"}, {Type: "array", Text: "text[]", Name: "t", Element: typeOf("text")},
	}}
	return map[*Type][]string{
		typeOf("bool"):        {`true`, `null`, `false`, `true`, `true`, `false`, `true`, `true`, `true`, `null`},
		typeOf("int2"):        {`-32768`, `32767`, `null`},
		typeOf("int4"):        {`1`, `2`, `3`},
		typeOf("int8"):        {`null`, `"9223372036854775807"`, `-5`},
		typeOf("float4"):      {`1.5`, `null`, `"NaN"`},
		typeOf("float8"):      {`-0.1`, `"-Infinity"`, `1e300`},
		typeOf("text"):        {`"grüße"`, `""`, `null`, `"日本"`},
		typeOf("bytea"):       {`"AP8="`, `null`, `""`},
		typeOf("date"):        {`"2024-02-29"`, `null`},
		typeOf("timestamptz"): {`"2024-02-29T12:30:00.000001Z"`, `null`},
		typeOf("uuid"):        {`"123e4567-e89b-12d3-a456-426614174000"`, `null`},
		typeOf("numeric"):     {`"12.340"`, `null`},
		{Type: "array", Text: "int8[]", Element: typeOf("int8")}: {`[1, null]`, `null`, `[]`, `[2, 3, 4]`},
		pair: {`{"n": 1, "t": ["a", null]}`, `null`, `{"n": null, "t": null}`, `{"n": 2, "t": ["bc"]}`},
	}
}

func functionOf(kind *Type) *Function {
	return &Function{Name: "f", Kind: "scalar", Arguments: []Argument{{"x", kind}}, Returns: kind}
}

func arrayOf(t *testing.T, kind *Type, values []string) arrow.Array {
	builder := array.NewBuilder(memory.DefaultAllocator, kind.Arrow())
	for _, value := range values {
		if err := appendJSON(builder, kind, json.RawMessage(value)); err != nil {
			t.Fatalf("%s: %v", kind.Text, err)
		}
	}
	return builder.NewArray()
}

func textOf(kind *Type, column arrow.Array) string {
	var text []byte
	for row := range column.Len() {
		text = append(encodeJSON(text, kind, column, row), ' ')
	}
	return string(text)
}

// bodyOf is a column as a reply, which is read like a call.
func bodyOf(t *testing.T, function *Function, parts ...arrow.Array) []byte {
	reply := &replyParts{}
	for _, part := range parts {
		reply.parts = append(reply.parts, array.NewRecordBatch(schemaOf(function.replyColumns("")), []arrow.Array{part}, int64(part.Len())))
	}
	body, err := writeColumns(function, &callBatch{}, reply, nil)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestColumnsGiveBackWhatTheyTook(t *testing.T) {
	for kind, values := range columnsOf() {
		function, whole := functionOf(kind), arrayOf(t, kind, values)
		for start := range len(values) + 1 {
			for end := start; end <= len(values); end++ {
				column := array.NewSlice(whole, int64(start), int64(end))
				read, _, err := readColumns(function, bodyOf(t, function, column), &keptConstants{})
				if err != nil {
					t.Fatalf("%s: %v", kind.Text, err)
				}
				if found, sent := textOf(kind, read.batch.Column(0)), textOf(kind, column); found != sent {
					t.Errorf("%s came back as %s, not %s", kind.Text, found, sent)
				}
			}
		}
		middle := int64(len(values) / 2)
		parts := []arrow.Array{array.NewSlice(whole, 0, middle), array.NewSlice(whole, middle, int64(len(values)))}
		read, _, err := readColumns(function, bodyOf(t, function, parts...), &keptConstants{})
		if err != nil || textOf(kind, read.batch.Column(0)) != textOf(kind, whole) {
			t.Errorf("%s did not come back from two parts: %v", kind.Text, err)
		}
	}
}

func TestDecimalsAreReadToTheLastDigit(t *testing.T) {
	for _, token := range []string{"12345678901234567890.12", "-0.1000000000000000000000001", "0.10", "7"} {
		if found := textOf(typeOf("numeric"), arrayOf(t, typeOf("numeric"), []string{token})); found != `"`+token+`" ` {
			t.Errorf("%s became %s", token, found)
		}
	}
	for token, digits := range map[string]string{
		"1.5e3": "1500", "-12E-3": "-0.012", "0.5e1": "5", "100e-2": "1.00", "0.05e+3": "50", "0e999999999999999999999": "0", "1e400": "1" + strings.Repeat("0", 400),
	} {
		if found := textOf(typeOf("numeric"), arrayOf(t, typeOf("numeric"), []string{token})); found != `"`+digits+`" ` {
			t.Errorf("%s became %s", token, found)
		}
	}
	for token, value := range map[string]string{"9007199254740993.0": "9007199254740993", "900719925474099300e-2": "9007199254740993", "7.0": "7", "-0.0": "0"} {
		if found := textOf(typeOf("int8"), arrayOf(t, typeOf("int8"), []string{token})); strings.Trim(found, `" `) != value {
			t.Errorf("%s became %s", token, found)
		}
	}
	for _, pair := range [][2]string{
		{"numeric", "1e131072"}, {"numeric", "1e-16384"}, {"numeric", "1e999999999999999999999"}, {"float8", "1e400"}, {"float4", "1e39"}, {"int8", "1e400"},
		{"int8", "1.5"}, {"int8", "15e-1"}, {"int8", "9223372036854775808.0"}, {"int2", "32768.0"},
	} {
		builder := array.NewBuilder(memory.DefaultAllocator, typeOf(pair[0]).Arrow())
		if appendJSON(builder, typeOf(pair[0]), json.RawMessage(pair[1])) == nil {
			t.Errorf("%s was taken as %s", pair[1], pair[0])
		}
	}
	for kind, value := range map[string]string{"numeric": "true", "text": "1.5", "inet": "7"} {
		builder := array.NewBuilder(memory.DefaultAllocator, typeOf(kind).Arrow())
		if appendJSON(builder, typeOf(kind), json.RawMessage(value)) == nil {
			t.Errorf("%s was taken as %s", value, kind)
		}
	}
}

func TestIntervalsAreExact(t *testing.T) {
	kind := typeOf("interval")
	for sent, wanted := range map[string]string{
		`{"months": 1, "days": -2, "microseconds": 9007199254740992}`:                     `{"months":1,"days":-2,"microseconds":9007199254740992}`,
		`{"microseconds": 9007199254740993}`:                                              `{"months":0,"days":0,"microseconds":"9007199254740993"}`,
		`{"months": "1", "days": 2.0, "microseconds": "-9007199254740993"}`:               `{"months":1,"days":2,"microseconds":"-9007199254740993"}`,
		`{"months": 2147483647, "microseconds": "9223372036854775", "nanoseconds": 807}`:  `{"months":2147483647,"days":0,"microseconds":"9223372036854775","nanoseconds":807}`,
		`{"days": -2147483648, "microseconds": -9223372036854775, "nanoseconds": "-808"}`: `{"months":0,"days":-2147483648,"microseconds":"-9223372036854775","nanoseconds":-808}`,
	} {
		found := strings.TrimSpace(textOf(kind, arrayOf(t, kind, []string{sent})))
		if found != wanted || textOf(kind, arrayOf(t, kind, []string{found})) != wanted+" " {
			t.Errorf("%s became %s, not %s", sent, found, wanted)
		}
	}
	for _, refused := range []string{
		`{"months": 2147483648}`, `{"days": "-2147483649"}`, `{"microseconds": "9223372036854776"}`, `{"microseconds": 9223372036854775, "nanoseconds": 808}`,
		`{"microseconds": -9223372036854775, "nanoseconds": -809}`, `{"microseconds": "x"}`, `{"microseconds": 0.5}`, `7`,
	} {
		if appendJSON(array.NewBuilder(memory.DefaultAllocator, kind.Arrow()), kind, json.RawMessage(refused)) == nil {
			t.Errorf("%s was taken", refused)
		}
	}
}

func TestDatesBeyondTheirRangeAreRefused(t *testing.T) {
	for name, refused := range map[string][]string{
		"date":      {`"+5900000-01-01"`, `"+10000000-01-01"`, `"+584554051153-01-01"`, `"-584554051153-01-01"`},
		"timestamp": {`"+294277-01-01T00:00:00"`, `"-300000-01-01T00:00:00"`, `"+584554051153-01-01T00:00:00"`},
	} {
		kind := typeOf(name)
		for _, text := range refused {
			if appendJSON(array.NewBuilder(memory.DefaultAllocator, kind.Arrow()), kind, json.RawMessage(text)) == nil {
				t.Errorf("%s was taken as %s", text, name)
			}
		}
	}
}

// The first and the last day stand for infinity.
func TestDaysThatStandForInfinityAreNoResults(t *testing.T) {
	write, err := newWriter(typeOf("date"), timeType)
	if err != nil {
		t.Fatal(err)
	}
	for days, isRight := range map[int64]bool{math.MinInt32: false, math.MinInt32 + 1: true, math.MaxInt32 - 1: true, math.MaxInt32: false} {
		day := time.Unix(days*86400, 0).UTC()
		if err := write(array.NewDate32Builder(memory.DefaultAllocator), reflect.ValueOf(day)); (err == nil) != isRight {
			t.Errorf("day %d: %v", days, err)
		}
	}
}

func TestDamagedColumnsAreRefusedOrRead(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for kind, values := range columnsOf() {
		function := functionOf(kind)
		body := bodyOf(t, function, arrayOf(t, kind, values))
		for range 3000 {
			damaged := append([]byte{}, body...)
			for range 1 + random.Intn(3) {
				damaged[random.Intn(len(damaged))] = byte(random.Intn(256))
			}
			damaged = damaged[:len(damaged)-random.Intn(2)*random.Intn(len(damaged))]
			if read, _, err := readColumns(function, damaged, &keptConstants{}); err == nil {
				textOf(kind, read.batch.Column(0))
			}
		}
	}
}

func TestSegmentsAreReadAndWritten(t *testing.T) {
	segmentFolder = t.TempDir()
	defer func() { segmentFolder = "" }()
	kind := typeOf("int8")
	function, calls, replies := functionOf(kind), strings.Repeat("0", 32), strings.Repeat("f", 32)
	for _, name := range []string{calls, replies} {
		if err := os.WriteFile(segmentFolder+"/"+name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bodyWith := func(header string) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(header))), header...)
	}
	reply := &replyParts{parts: []arrow.RecordBatch{array.NewRecordBatch(schemaOf(function.replyColumns("")), []arrow.Array{arrayOf(t, kind, []string{"7", "8"})}, 2)}}
	if _, err := writeColumns(function, &callBatch{}, reply, &calls); err != nil {
		t.Fatal(err)
	}
	read, segment, err := readColumns(function, bodyWith(fmt.Sprintf(`{"rows": 2, "segment": %q, "reply_segment": %q, "buffers": [0, 0, 0, 16]}`, calls, replies)), &keptConstants{})
	if err != nil || textOf(kind, read.batch.Column(0)) != "7 8 " || *segment != replies {
		t.Fatalf("%v, %v", read, err)
	}
	for _, header := range []string{
		fmt.Sprintf(`{"rows": 2, "segment": %q, "buffers": [0, 0, 0, 24]}`, calls),
		fmt.Sprintf(`{"rows": 2, "segment": %q, "buffers": [0, 0, 9223372036854775800, 16]}`, calls),
		fmt.Sprintf(`{"rows": 2, "segment": %q, "buffers": [0, 0, -8, 16]}`, calls),
		`{"rows": 2, "segment": "../other", "buffers": [0, 0, 0, 16]}`,
		fmt.Sprintf(`{"rows": 2, "segment": %q, "buffers": [0, 0, 0, 16]}`, strings.Repeat("a", 32)),
	} {
		if _, _, err := readColumns(function, bodyWith(header), &keptConstants{}); err == nil {
			t.Errorf("%s was read", header)
		}
	}
}
