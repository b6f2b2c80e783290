package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"transship/udf"
)

// Calls that have tables: each function has those of its own call.

const unknownOffer = "the server does not have the offer of tables that the call names"

func nameOfNumber(ctx context.Context, key int64) (*string, error) {
	numbers, err := udf.Table(ctx, "numbers")
	if err != nil {
		return nil, err
	}
	var found struct{ Name *string }
	_, err = numbers.Get(&found, key)
	return found.Name, err
}

func namesOfNumbers(ctx context.Context, keys []int64) (names []*string, err error) {
	numbers, err := udf.Table(ctx, "numbers")
	if err != nil {
		return nil, err
	}
	rows, err := numbers.Lookup(keys)
	if err != nil {
		return nil, err
	}
	err = rows.Scan("name", &names)
	return names, err
}

func columnOfNames(ctx context.Context, batch arrow.RecordBatch) (arrow.Array, error) {
	numbers, err := udf.Table(ctx, "numbers")
	if err != nil {
		return nil, err
	}
	rows, err := numbers.Lookup(batch.Column(0))
	if err != nil {
		return nil, err
	}
	return rows.Column("name")
}

// wholeColumn gives the column of the table's first batch where it lies.
func wholeColumn(ctx context.Context, _ arrow.RecordBatch) (arrow.Array, error) {
	numbers, err := udf.Table(ctx, "numbers")
	if err != nil {
		return nil, err
	}
	for batch := range numbers.Batches() {
		return batch.Column("name")
	}
	return nil, fmt.Errorf("there are no rows")
}

func eachName(ctx context.Context, key int64) (iter.Seq[*string], error) {
	names, err := namesOfNumbers(ctx, []int64{key, key + 1})
	return slices.Values(names), err
}

type joinedNames struct{ Names []string }

func (j *joinedNames) Step(ctx context.Context, key int64) error {
	name, err := nameOfNumber(ctx, key)
	if err == nil && name != nil {
		j.Names = append(j.Names, *name)
	}
	return err
}

func (j *joinedNames) Finish() string { return strings.Join(j.Names, " ") }

func mappedNames(ctx context.Context, keys iter.Seq[int64]) iter.Seq2[*string, error] {
	return func(yield func(*string, error) bool) {
		for key := range keys {
			if name, err := nameOfNumber(ctx, key); !yield(name, err) {
				return
			}
		}
	}
}

// tableFunctions are functions that look keys of type int8 up, by name.
func tableFunctions(t *testing.T) map[string]*Function {
	functions := map[string]*Function{}
	add := func(name, kind, batch string, target any) {
		functions[name] = bound(t, Function{Name: name, Kind: kind, Batch: batch, Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("text")}, target)
	}
	add("row", "scalar", "row", nameOfNumber)
	add("columns", "scalar", "columns", namesOfNumbers)
	add("arrow", "scalar", "arrow", columnOfNames)
	add("whole", "scalar", "arrow", wholeColumn)
	add("each", "table", "row", eachName)
	add("joined", "aggregate", "row", func(context.Context) *joinedNames { return &joinedNames{} })
	add("mapped", "map", "row", mappedNames)
	return functions
}

// posted is the answer to a call in JSON, which names these offers.
func posted(handler http.Handler, function, body string, offers ...string) string {
	asked := httptest.NewRequest(http.MethodPost, functionsPath+function, strings.NewReader(body))
	for _, offer := range offers {
		asked.Header.Add("Transship-Tables", offer)
	}
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, asked)
	text, _ := io.ReadAll(response.Body)
	return fmt.Sprint(response.Code, " ", string(text))
}

func TestCallsSeeTheirOwnTables(t *testing.T) {
	stage := staged(t, 100, linePatience)
	handler := &restServer{functions: tableFunctions(t), tables: stage.offers, exchanges: exchanges{groups: map[string]*groups{}}, idle: testIdle}
	client := stage.connect()
	client.offer(offerName(1), "numbers", "a", 1, 2)
	client.offer(offerName(2), "numbers", "b", 1, 2)
	client.offer(offerName(3), "others", "c", 1)
	call := `{"batch": 0, "rows": 2, "columns": [[1, 3]]}`
	var calls sync.WaitGroup
	for number := range 40 {
		name, prefix := offerName(1+number%2), string(rune('a'+number%2))
		calls.Go(func() {
			for function, wanted := range map[string]string{
				"row": `[["` + prefix + `1",null]]`, "columns": `[["` + prefix + `1",null]]`, "arrow": `[["` + prefix + `1",null]]`,
				"whole": `[["` + prefix + `1","` + prefix + `2"]]`, "each": `[[0,0,1,1],["` + prefix + `1","` + prefix + `2",null,null]]`,
			} {
				if answer := posted(handler, function, call, name); !strings.HasPrefix(answer, "200 ") || !strings.Contains(answer, `"columns":`+wanted) {
					t.Errorf("%s: %s", function, answer)
				}
			}
			exchange := fmt.Sprint("e", number)
			step := func(batch int, step string) string {
				body := fmt.Sprintf(`{"batch": %d, "rows": 1, "exchange": %q, "step": %q, "columns": [[5], [2], [null]]}`, batch, exchange, step)
				return posted(handler, "joined", body, name)
			}
			_, _ = step(0, "accumulate"), step(1, "accumulate")
			if answer := step(2, "finish"); !strings.Contains(answer, `[["`+prefix+"2 "+prefix+`2"],[null]]`) {
				t.Error(answer)
			}
		})
	}
	calls.Wait()
	for _, refused := range []struct {
		offers []string
		wanted string
	}{
		{nil, `500 {"error":{"kind":"user_code","message":"no shared table \"numbers\"\ndetail: The caller gives no tables to this call."`},
		{[]string{offerName(3)}, `500 {"error":{"kind":"user_code","message":"no shared table \"numbers\"\ndetail: The caller does not give it to this call."`},
		{[]string{offerName(4)}, `400 {"error":{"kind":"protocol_violation","message":"` + unknownOffer + `"}}`},
		{[]string{""}, `400 {"error":{"kind":"protocol_violation","message":"` + unknownOffer + `"}}`},
	} {
		for _, function := range []string{"row", "columns", "arrow", "each"} {
			if answer := posted(handler, function, call, refused.offers...); !strings.HasPrefix(answer, refused.wanted) {
				t.Errorf("%s: %s", function, answer)
			}
		}
	}
	// A server without a socket knows no offers.
	if answer := posted(&restServer{functions: handler.functions, idle: testIdle}, "row", call, offerName(1)); !strings.Contains(answer, unknownOffer) {
		t.Error(answer)
	}
	// Errors of rows: a key that cannot be looked for is the row's error alone.
	again := `{"batch": 0, "rows": 2, "columns": [[1, 3]], "row_errors": "again"}`
	if answer := posted(handler, "columns", again, offerName(3)); !strings.Contains(answer, `[null,null],["no shared table`) {
		t.Error(answer)
	}
}

func TestWhatACallLeavesRunningHasNoTables(t *testing.T) {
	stage := staged(t, 100, linePatience)
	var kept context.Context
	var table udf.SharedTable
	begun, goOn := make(chan bool), make(chan bool)
	target := func(ctx context.Context, key int64) (int64, error) {
		var err error
		kept = ctx
		if table, err = udf.Table(ctx, "numbers"); err != nil {
			return 0, err
		}
		own := make(chan error)
		go func() {
			_, err := udf.Table(ctx, "numbers")
			own <- err
		}()
		if err := <-own; err != nil {
			return 0, err
		}
		begun <- true
		<-goOn
		// The offer has ended meanwhile.
		_, err = udf.Table(ctx, "numbers")
		return int64(table.Rows()), err
	}
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")}, target)
	handler := &restServer{functions: map[string]*Function{"f": function}, tables: stage.offers, idle: testIdle}
	client, answers := stage.connect(), make(chan string)
	client.offer(offerName(1), "numbers", "a", 1, 2)
	go func() { answers <- posted(handler, "f", `{"rows": 1, "columns": [[1]]}`, offerName(1)) }()
	<-begun
	_ = client.socket.Close()
	wait(t, "the offer ends", func() bool { return stage.offers.find(offerName(1)) == nil })
	goOn <- true
	if answer := <-answers; !strings.Contains(answer, `"columns":[[2]]`) {
		t.Error(answer)
	}
	if _, err := udf.Table(kept, "numbers"); err == nil || err.Error() != "no shared table \"numbers\"\ndetail: The call has ended." {
		t.Errorf("%v", err)
	}
	if rows, err := table.Lookup([]int64{2}); err != nil || *scanned[*string](t, rows, "name")[0] != "a2" {
		t.Errorf("%v", err)
	}
	if _, err := udf.Table(context.Background(), "numbers"); err == nil || !strings.HasPrefix(err.Error(), "no shared table \"numbers\"\n") {
		t.Errorf("%v", err)
	}
}

// exchanged are the texts of an exchange of a function over Flight, in the last column of its answers.
func exchanged(t *testing.T, server *flightServer, function string, offers []string, keys ...int64) ([]string, error) {
	t.Helper()
	sent := &exchange{}
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	writer := flight.NewRecordWriter(sent, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{function}})
	if err := writer.WriteWithAppMetadata(array.NewRecordBatch(schema, []arrow.Array{int8s(keys...)}, int64(len(keys))), []byte(`{"batch": 0}`)); err != nil {
		t.Fatal(err)
	}
	stream := &exchange{sent: sent.answers, fields: metadata.MD{}}
	stream.fields.Append(tablesField, offers...)
	if err := server.DoExchange(stream); err != nil {
		var told errorMetadata
		for _, answer := range stream.answers {
			_ = json.Unmarshal(answer.AppMetadata, &told)
		}
		if told.Error == nil {
			t.Errorf("%s: the client is not told of %v", function, err)
		}
		return nil, err
	}
	reader, err := flight.NewRecordReader(&answersOfExchange{stream.answers})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for reader.Next() {
		column := reader.RecordBatch().Column(int(reader.RecordBatch().NumCols()) - 1)
		for row := range column.Len() {
			texts = append(texts, column.ValueStr(row))
		}
	}
	return texts, nil
}

type answersOfExchange struct{ left []*flight.FlightData }

func (a *answersOfExchange) Recv() (*flight.FlightData, error) {
	for len(a.left) > 0 {
		next := a.left[0]
		if a.left = a.left[1:]; len(next.DataHeader) > 0 {
			return &flight.FlightData{DataHeader: bytes.Clone(next.DataHeader), DataBody: bytes.Clone(next.DataBody), AppMetadata: next.AppMetadata}, nil
		}
	}
	return nil, io.EOF
}

func TestExchangesSeeTheirOwnTables(t *testing.T) {
	stage := staged(t, 100, linePatience)
	server := &flightServer{functions: tableFunctions(t), tables: stage.offers}
	client := stage.connect()
	client.offer(offerName(1), "numbers", "a", 1, 2)
	client.offer(offerName(2), "numbers", "b", 1, 2)
	for number, prefix := range []string{"a", "b"} {
		for _, function := range []string{"row", "columns", "arrow", "mapped"} {
			found, err := exchanged(t, server, function, []string{offerName(1 + number)}, 2, 7)
			if err != nil || !slices.Equal(found, []string{prefix + "2", array.NullValueStr}) {
				t.Errorf("%s: %v, %v", function, found, err)
			}
		}
		found, err := exchanged(t, server, "whole", []string{offerName(1 + number)}, 1, 2)
		if err != nil || !slices.Equal(found, []string{prefix + "1", prefix + "2"}) {
			t.Errorf("%v, %v", found, err)
		}
	}
	for _, function := range []string{"row", "columns", "arrow", "mapped"} {
		if _, err := exchanged(t, server, function, []string{offerName(3)}, 2); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != unknownOffer {
			t.Errorf("%s: %v", function, err)
		}
		if _, err := exchanged(t, server, function, nil, 2); status.Code(err) != codes.Unknown || !strings.HasPrefix(status.Convert(err).Message(), "no shared table \"numbers\"") {
			t.Errorf("%s: %v", function, err)
		}
	}
}

func TestContextsComeFirst(t *testing.T) {
	arguments, text := []Argument{{"x", typeOf("int8")}}, typeOf("text")
	for _, refused := range []struct {
		function Function
		target   any
	}{
		{Function{Kind: "scalar", Batch: "arrow"}, func(arrow.RecordBatch, context.Context) arrow.Array { return nil }},
		{Function{Kind: "scalar", Batch: "columns"}, func([]int64, context.Context) []string { return nil }},
		{Function{Kind: "scalar", Batch: "row"}, func(context.Context, context.Context, int64) string { return "" }},
		{Function{Kind: "map", Batch: "row"}, func(iter.Seq[int64], context.Context) iter.Seq[string] { return nil }},
		{Function{Kind: "aggregate", Batch: "row"}, func(int) *joinedNames { return nil }},
	} {
		refused.function.Arguments, refused.function.Returns = arguments, text
		if err := refused.function.bind(reflect.ValueOf(refused.target)); err == nil {
			t.Errorf("%T is bound", refused.target)
		}
	}
	// Without arguments, only the number of rows comes behind it.
	function := bound(t, Function{Name: "f", Kind: "scalar", Batch: "columns", Arguments: []Argument{}, Returns: text}, func(ctx context.Context, rows int) []string {
		return slices.Repeat([]string{fmt.Sprint(ctx != nil)}, rows)
	})
	if found, err := answersOf(t, function, wishes{}, 2); err != nil || found[0] != `"true" "true" ` {
		t.Errorf("%v, %v", found, err)
	}
}
