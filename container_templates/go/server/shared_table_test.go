package server

import (
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/zeebo/xxh3"

	"transship/udf"
)

// Look-ups in the files in testdata, which shared_tables (Rust) wrote: testdata/README.md.

// opened is the table of segments in a folder. Those that have an index are opened with it.
func opened(t testing.TB, folder string, names ...string) *sharedTable {
	t.Helper()
	var segments []*segment
	for _, name := range names {
		segments = append(segments, openedFiles(t, folder+"/"+name+".segment", folder+"/"+name+".index"))
	}
	table, err := newTable("t", segments)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func openedFiles(t testing.TB, path, indexPath string) *segment {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	descriptor := -1
	if index, err := os.Open(indexPath); err == nil {
		defer index.Close()
		descriptor = int(index.Fd())
	}
	found, err := openTableSegment(int(file.Fd()), descriptor)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return found
}

func scanned[T any](t testing.TB, rows udf.Rows, column string) []T {
	t.Helper()
	var values []T
	if err := rows.Scan(column, &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// numbersOf are the values of a column n, with -1 for NULL.
func numbersOf(t testing.TB, rows udf.Rows) []int32 {
	t.Helper()
	var numbers []int32
	for _, number := range scanned[*int32](t, rows, "n") {
		if number == nil {
			numbers = append(numbers, -1)
		} else {
			numbers = append(numbers, *number)
		}
	}
	return numbers
}

func TestHashesAreThoseOfTheFormat(t *testing.T) {
	for text, hash := range map[string]uint64{"": 0x2d06800538d394c2, "a": 0xe6c632b61e964e1f, "abc": 0x78af5f94892f3950} {
		if found := xxh3.HashStringSeed(text, 0); found != hash {
			t.Errorf("%q: %x", text, found)
		}
	}
}

var textLengths = []int{0, 1, 3, 9, 17, 129, 241, 1025}

// keysOfTypes are the keys of rows 0 to 7 in testdata, by type, in Go.
func keysOfTypes() map[string]any {
	made := func(rows int) (all struct {
		bools  []bool
		int2s  []int16
		int4s  []int32
		int8s  []int64
		dates  []time.Time
		times  []time.Duration
		stamps []time.Time
		texts  []string
		bytes  [][]byte
		uuids  [][16]byte
	}) {
		for row := range rows {
			all.bools = append(all.bools, row%2 == 0)
			all.int2s = append(all.int2s, int16(row-3))
			all.int4s = append(all.int4s, int32(row*1000-3))
			all.int8s = append(all.int8s, int64(row)*1_000_000_000_000-3)
			all.dates = append(all.dates, time.Unix(int64(row-1)*86400, 0).UTC())
			all.times = append(all.times, time.Duration(row)*time.Second+7*time.Microsecond)
			all.stamps = append(all.stamps, time.UnixMicro(int64(row)*1_000_000_000-5).UTC())
			all.texts = append(all.texts, strings.Repeat(string(rune('a'+row)), textLengths[row]))
			all.bytes = append(all.bytes, slices.Repeat([]byte{byte(row)}, textLengths[row]))
			all.uuids = append(all.uuids, [16]byte(slices.Repeat([]byte{byte(row)}, 16)))
		}
		return all
	}(8)
	return map[string]any{
		"bool": made.bools, "int2": made.int2s, "int4": made.int4s, "int8": made.int8s, "date": made.dates, "time": made.times,
		"timestamp": made.stamps, "timestamptz": made.stamps, "text": made.texts, "bytea": made.bytes, "uuid": made.uuids,
	}
}

func TestKeysOfEveryType(t *testing.T) {
	for kind, keys := range keysOfTypes() {
		table := opened(t, "testdata", kind)
		if table.Rows() != 10 || !slices.Equal(table.Key(), []string{"k"}) {
			t.Errorf("%s: %d rows, key %v", kind, table.Rows(), table.Key())
		}
		positions, rows, err := table.Matches(keys)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		wantedPositions, wanted := []int32{0, 1, 1, 2, 3, 4, 5, 6, 7}, []int32{0, 1, 9, 2, 3, 4, 5, 6, 7}
		if kind == "bool" {
			wantedPositions, wanted = nil, nil
			for row := range int32(8) {
				of := [][]int32{{0, 2, 4, 6}, {1, 3, 5, 7, 9}}[row%2]
				wantedPositions, wanted = append(wantedPositions, slices.Repeat([]int32{row}, len(of))...), append(wanted, of...)
			}
		}
		if found := numbersOf(t, rows); !slices.Equal(found, wanted) || !slices.Equal(positions, wantedPositions) {
			t.Errorf("%s: rows %v of keys %v", kind, found, positions)
		}
		// As an Arrow column: that of the table itself, with a NULL.
		for batch := range table.Batches() {
			column, err := batch.Column("k")
			if err != nil {
				t.Fatal(err)
			}
			positions, rows, err := table.Matches(column)
			if err != nil || len(positions) != int(rows.Record().NumRows()) || slices.Contains(positions, 8) || !slices.Contains(positions, 9) {
				t.Errorf("%s: %v, %v", kind, positions, err)
			}
			found, err := rows.Column("k")
			if err != nil || found.NullN() > 0 {
				t.Errorf("%s: %v, %v", kind, found, err)
			}
			for number, position := range positions {
				if !array.SliceEqual(found, int64(number), int64(number+1), column, int64(position), int64(position+1)) {
					t.Errorf("%s: row %d is not that of key %d", kind, number, position)
				}
			}
		}
		_, err = table.Lookup(keys)
		if several := "table \"t\" has 2 rows with the key ("; kind != "bool" && !strings.HasPrefix(fmt.Sprint(err), several) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestKeysOfSeveralRowsAreToldAsElsewhere(t *testing.T) {
	_, err := opened(t, "testdata", "int8").Lookup([]int64{5, 999_999_999_997})
	wanted := "table \"t\" has 2 rows with the key (999999999997)\ndetail: It is key 1, counted from 0, of a look-up of one row per key."
	if err == nil || err.Error() != wanted {
		t.Errorf("%v", err)
	}
	_, err = opened(t, "testdata", "bytea").Get(&struct{ N int32 }{}, []byte{1})
	if err == nil || !strings.Contains(err.Error(), "("+hex.EncodeToString([]byte{1})+")") {
		t.Errorf("%v", err)
	}
}

func TestSegmentsOfOtherColumns(t *testing.T) {
	path := func(name string) string { return "testdata/" + name }
	first, text := openedFiles(t, path("first.segment"), path("first.index")), openedFiles(t, path("text.segment"), path("text.index"))
	if _, err := newTable("t", []*segment{first, first, text}); err == nil || err.Error() != "segment 3 of table \"t\" has other columns than the one before it" {
		t.Errorf("%v", err)
	}
}

func TestKeysOfSeveralColumns(t *testing.T) {
	table, keys := opened(t, "testdata", "all"), keysOfTypes()
	names := []string{"uuid", "bytea", "text", "timestamptz", "timestamp", "time", "date", "int8", "int4", "int2", "bool"}
	if !slices.Equal(table.Key(), names) {
		t.Errorf("%v", table.Key())
	}
	var given []any
	for _, name := range names {
		given = append(given, keys[name])
	}
	positions, rows, err := table.Matches(given...)
	if err != nil || !slices.Equal(numbersOf(t, rows), []int32{0, 1, 9, 2, 3, 4, 5, 6, 7}) || positions[2] != 1 {
		t.Errorf("%v, %v", positions, err)
	}
	// One column of another row.
	given[4] = slices.Concat(keys["timestamp"].([]time.Time)[1:], keys["timestamp"].([]time.Time)[:1])
	if _, rows, err := table.Matches(given...); err != nil || rows.Len() != 0 {
		t.Errorf("%v", err)
	}
	if _, err := table.Lookup(given[1:]...); err == nil || !strings.Contains(err.Error(), "the key of table \"t\" has 11 columns (uuid, bytea, ") {
		t.Errorf("%v", err)
	}
	given[3] = keys["timestamptz"].([]time.Time)[:5]
	wanted := "could not look for keys in table \"t\": the key of a shared table has columns of different lengths"
	if _, err := table.Lookup(given...); err == nil || err.Error() != wanted {
		t.Errorf("%v", err)
	}
}

// everything has a field for each column of testdata/all.segment.
type everything struct {
	Bool        *bool
	Int2        *int16
	Int4        *int32
	Int8        *int64
	Date        *time.Time
	Time        *time.Duration
	Timestamp   *time.Time
	Moment      *time.Time `udf:"timestamptz"`
	Text        *string
	Bytea       []byte
	Uuid        *[16]byte
	N           int32
	Float4      *float32
	Float8      *float64
	Numeric     *string
	JSON        *string
	Interval    *udf.Interval
	List        []*int32
	Texts       []string
	notAColumn_ int
}

func TestRowsAreCopiedWithAllTheirColumns(t *testing.T) {
	table, keyless := opened(t, "testdata", "all"), opened(t, "testdata", "keyless")
	keys := keysOfTypes()
	given := func(row int, isSlice bool) (all []any) {
		for _, name := range table.Key() {
			switch values := keys[name].(type) {
			case []bool:
				all = append(all, at(values, row, isSlice))
			case []int16:
				all = append(all, at(values, row, isSlice))
			case []int32:
				all = append(all, at(values, row, isSlice))
			case []int64:
				all = append(all, at(values, row, isSlice))
			case []time.Time:
				all = append(all, at(values, row, isSlice))
			case []time.Duration:
				all = append(all, at(values, row, isSlice))
			case []string:
				all = append(all, at(values, row, isSlice))
			case [][]byte:
				all = append(all, at(values, row, isSlice))
			case [][16]byte:
				all = append(all, at(values, row, isSlice))
			}
		}
		return all
	}
	for batch := range keyless.Batches() {
		for row := range 8 {
			if row == 1 {
				continue
			}
			rows, err := table.Lookup(given(row, true)...)
			if err != nil {
				t.Fatal(err)
			}
			if wanted := batch.Record().NewSlice(int64(row), int64(row+1)); !array.RecordEqual(rows.Record(), array.NewRecordBatch(table.Schema(), wanted.Columns(), 1)) {
				t.Errorf("row %d is %v", row, rows.Record())
			}
			found := everything{N: 77}
			isThere, err := table.Get(&found, given(row, false)...)
			if err != nil || !isThere || int(found.N) != row || *found.Text != keys["text"].([]string)[row] ||
				*found.Float8 != float64(row)/3 || *found.Numeric != fmt.Sprintf("%d.50", row) || *found.Interval != (udf.Interval{Months: int32(row), Days: 2, Nanoseconds: 3}) ||
				len(found.Texts) != row%4 || (found.List == nil) != (row == 2) || !found.Moment.Equal(keys["timestamptz"].([]time.Time)[row]) {
				t.Errorf("row %d is %+v, %v", row, found, err)
			}
		}
	}
	// Without a row all is NULL, in whatever type.
	none := given(3, true)
	none[7] = []*int64{nil}
	rows, err := table.Lookup(none...)
	if err != nil || rows.Len() != 1 {
		t.Fatal(err)
	}
	for i, column := range rows.Record().Columns() {
		if !column.IsNull(0) {
			t.Errorf("column %d is %v", i, column)
		}
	}
	found := everything{N: 77}
	none = given(3, false)
	none[7] = nil
	if isThere, err := table.Get(&found, none...); isThere || err != nil || found.N != 0 {
		t.Errorf("%v, %v, %v", isThere, err, found)
	}
}

// at is a value, or a slice of it alone.
func at[T any](values []T, row int, isSlice bool) any {
	if isSlice {
		return values[row : row+1]
	}
	return values[row]
}

func TestSegmentsTogether(t *testing.T) {
	table := opened(t, "testdata", "first", "none", "second")
	if table.Rows() != 30 {
		t.Errorf("%d rows", table.Rows())
	}
	rows, err := table.Lookup([]*int64{ptr(int64(25)), nil, ptr(int64(3)), ptr(int64(30)), ptr(int64(25)), ptr(int64(-1))})
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range scanned[*string](t, rows, "name") {
		if name == nil {
			name = ptr("NULL")
		}
		found = append(found, *name)
	}
	if !slices.Equal(found, []string{"number 25", "NULL", "number 3", "NULL", "number 25", "NULL"}) {
		t.Errorf("%v", found)
	}
	var all []int64
	for batch := range table.Batches() {
		all = append(all, scanned[int64](t, batch, "key")...)
	}
	if len(all) != 30 || !slices.IsSorted(all) {
		t.Errorf("%v", all)
	}
	twice := opened(t, "testdata", "first", "second", "first")
	positions, rows, err := twice.Matches([]int64{21, 7})
	if err != nil || !slices.Equal(positions, []int32{0, 1, 1}) || !slices.Equal(scanned[int64](t, rows, "key"), []int64{21, 7, 7}) {
		t.Errorf("%v, %v", positions, err)
	}
	if _, err := twice.Lookup([]int64{21, 7}); err == nil || !strings.Contains(err.Error(), "has 2 rows with the key (7)") {
		t.Errorf("%v", err)
	}
	if rows, err := opened(t, "testdata", "none").Lookup([]int64{1}); err != nil || rows.Len() != 1 || !rows.Record().Column(1).IsNull(0) {
		t.Errorf("%v", err)
	}
	if rows, err := table.Lookup([]int64{}); err != nil || rows.Len() != 0 {
		t.Errorf("%v", err)
	}
}

func ptr[T any](value T) *T { return &value }

func TestKeysThatDoNotFit(t *testing.T) {
	numbers, texts := opened(t, "testdata", "int4"), opened(t, "testdata", "text")
	floats := array.NewFloat64Builder(memory.DefaultAllocator)
	floats.Append(1)
	for _, refused := range []struct {
		table *sharedTable
		keys  any
		fact  string
	}{
		{numbers, []string{"1"}, "the keys do not fit column \"k\" of table \"t\", which is int4: Go type string does not hold SQL type int4"},
		{numbers, []float64{1}, "the keys do not fit column \"k\""},
		{numbers, []int64{1 << 40}, "which is int4: 1099511627776 is out of its range"},
		{numbers, []uint32{1 << 31}, "which is int4: 2147483648 is out of its range"},
		{numbers, 1, "int is no slice and no arrow.Array"},
		{numbers, nil, "no slice"},
		{numbers, int8s(1), "key column \"k\" of table \"t\" has type int32, and the keys have int64"},
		{numbers, floats.NewArray(), "has type int32, and the keys have float64"},
		{texts, []string{"\xff"}, "which is not UTF-8"},
		{texts, []int64{1}, "which is text"},
		{texts, []time.Duration{1}, "which is text"},
		{opened(t, "testdata", "time"), []int64{1}, "which is time"},
		{opened(t, "testdata", "time"), []time.Duration{1}, "not a time of day in microseconds"},
		{opened(t, "testdata", "keyless"), []int64{1}, "table \"t\" has no key"},
	} {
		if _, err := refused.table.Lookup(refused.keys); err == nil || !strings.Contains(err.Error(), refused.fact) {
			t.Errorf("%v: %v", refused.keys, err)
		}
	}
	// Integers of other types, and texts in other layouts.
	for _, keys := range []any{[]int{997}, []uint16{997}, []int64{997}, []*int16{ptr(int16(997))}} {
		if _, rows, err := numbers.Matches(keys); err != nil || !slices.Equal(numbersOf(t, rows), []int32{1, 9}) {
			t.Errorf("%T: %v", keys, err)
		}
	}
	if isThere, err := numbers.Get(&struct{ N int32 }{}, 1997); err != nil || !isThere {
		t.Errorf("%v, %v", isThere, err)
	}
	for _, kind := range []arrow.DataType{arrow.BinaryTypes.LargeString, arrow.BinaryTypes.StringView} {
		builder := array.NewBuilder(memory.DefaultAllocator, kind)
		for _, text := range []string{"ccc", "x", ""} {
			if err := builder.AppendValueFromString(text); err != nil {
				t.Fatal(err)
			}
		}
		if rows, err := texts.Lookup(builder.NewArray()); err != nil || !slices.Equal(numbersOf(t, rows), []int32{2, -1, 0}) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	// Time zones do not count.
	moments := opened(t, "testdata", "timestamptz")
	builder := array.NewTimestampBuilder(memory.DefaultAllocator, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "Europe/Berlin"})
	builder.Append(2_000_000_000 - 5)
	if rows, err := moments.Lookup(builder.NewArray()); err != nil || !slices.Equal(numbersOf(t, rows), []int32{2}) {
		t.Errorf("%v", err)
	}
}

func TestRowsThatDoNotFit(t *testing.T) {
	table := opened(t, "testdata", "first")
	for _, refused := range []struct {
		into any
		fact string
	}{
		{nil, "a row of table \"t\" needs a pointer to a struct, not <nil>"},
		{struct{ Key int64 }{}, "needs a pointer to a struct"},
		{(*struct{ Key int64 })(nil), "needs a pointer to a struct"},
		{new(int64), "needs a pointer to a struct"},
		{&struct{ Key string }{}, "column \"key\" of table \"t\": Go type string does not hold SQL type int8"},
		{&struct{ Other int64 }{}, "table \"t\" has no column for field Other of Go type"},
	} {
		if isThere, err := table.Get(refused.into, 1); isThere || err == nil || !strings.Contains(err.Error(), refused.fact) {
			t.Errorf("%T: %v", refused.into, err)
		}
	}
	rows, err := table.Lookup([]int64{1, 99})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for column, facts := range map[string]string{
		"other": "table \"t\" has no column \"other\"",
		"name":  "row 2: Go type string cannot hold column \"name\" of table \"t\": it is NULL, which takes a pointer",
	} {
		if err := rows.Scan(column, &names); err == nil || err.Error() != facts || names != nil {
			t.Errorf("%s: %v", column, err)
		}
	}
	if err := rows.Scan("name", names); err == nil || !strings.Contains(err.Error(), "needs a pointer to a slice, not []string") {
		t.Errorf("%v", err)
	}
	if _, err := rows.Column("other"); err == nil {
		t.Error("there is no such column")
	}
}

// A few keys may have more rows than there is memory for.
func TestRowsOfMatchesAreCountedBeforeThereIsRoomForThem(t *testing.T) {
	const rows, asked = 1000, 5000
	file, index := numbersSegment(t, "n", make([]int64, rows)...)
	opened, err := openedBytes(t, file, index)
	if err != nil {
		t.Fatal(err)
	}
	table, err := newTable("t", []*segment{opened, opened})
	if err != nil {
		t.Fatal(err)
	}
	_, wanted, err := table.keysOf([]any{make([]int64, asked)})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	positions, places, err := table.matches(wanted, 2*rows*asked-1)
	runtime.ReadMemStats(&after)
	if err == nil || err.Error() != "a look-up in table \"t\" has more than 2147483647 rows" || positions != nil || places != nil {
		t.Errorf("%v", err)
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 1<<20 {
		t.Errorf("it took %d bytes", taken)
	}
	_, wanted, err = table.keysOf([]any{[]int64{1, 0, 0}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := table.matches(wanted, 4*rows-1); err == nil {
		t.Error("there is no bound")
	}
	positions, places, err = table.matches(wanted, 4*rows)
	if err != nil || len(positions) != 4*rows || len(places) != 4*rows || cap(places) != 4*rows {
		t.Fatalf("%d, %d, %v", len(positions), len(places), err)
	}
	for number, found := range places {
		if found != (place{int32(number / rows % 2), 0, int32(number % rows)}) || positions[number] != int32(1+number/(2*rows)) {
			t.Fatalf("match %d is %v of key %d", number, found, positions[number])
		}
	}
	if positions, found, err := table.Matches([]int64{1}); err != nil || positions == nil || len(positions) != 0 || found.Len() != 0 {
		t.Errorf("%v, %v", positions, err)
	}
}

func TestByteStringsAreUUIDsOfSixteenBytes(t *testing.T) {
	table := opened(t, "testdata", "uuid")
	uuid := slices.Repeat([]byte{2}, 16)
	text := []byte("02020202-0202-0202-0202-020202020202")
	type id [16]byte
	type idBytes []byte
	for _, keys := range []any{[][]byte{uuid, nil}, [][16]byte{[16]byte(uuid), {99}}, []*id{ptr(id(uuid)), nil}, []idBytes{uuid, nil}} {
		if rows, err := table.Lookup(keys); err != nil || !slices.Equal(numbersOf(t, rows), []int32{2, -1}) {
			t.Errorf("%T: %v", keys, err)
		}
	}
	var found struct{ N int32 }
	if isThere, err := table.Get(&found, uuid); err != nil || !isThere || found.N != 2 {
		t.Errorf("%v, %v", isThere, err)
	}
	for _, refused := range [][]byte{text, uuid[:15], slices.Concat(uuid, uuid), {}} {
		wanted := fmt.Sprintf("which is uuid: %d bytes, which are not a uuid", len(refused))
		if _, err := table.Lookup([][]byte{uuid, refused}); err == nil || !strings.HasSuffix(err.Error(), wanted) {
			t.Errorf("%v", err)
		}
		if isThere, err := table.Get(&found, refused); isThere || err == nil || !strings.HasSuffix(err.Error(), wanted) {
			t.Errorf("%v, %v", isThere, err)
		}
	}
	for _, refused := range []any{[][15]byte{{}}, [][17]byte{{}}, [][]int8{{}}, []string{string(uuid)}} {
		if _, err := table.Lookup(refused); err == nil || !strings.Contains(err.Error(), "does not hold SQL type uuid") {
			t.Errorf("%T: %v", refused, err)
		}
	}
	// They are read as arrays alone.
	rows, err := table.Lookup([][]byte{uuid})
	if err != nil {
		t.Fatal(err)
	}
	if err := rows.Scan("k", new([][]byte)); err == nil || !strings.Contains(err.Error(), "Go type []uint8 does not hold SQL type uuid") {
		t.Errorf("%v", err)
	}
	if found := scanned[id](t, rows, "k"); !slices.Equal(found, []id{id(uuid)}) {
		t.Errorf("%v", found)
	}
}

// The columns of tables make the texts of their types when they are asked for.
func TestTypesOfColumnsAreNamedByTheirParts(t *testing.T) {
	number := &Type{Type: "int4", Text: "int4", Name: "n"}
	texts := &Type{Type: "array", Text: "text[]", Name: "ts", Element: typeOf("text")}
	span := &Type{Type: "range", Text: "range(int4)", Name: "r", Element: number}
	for wanted, kind := range map[string]*Type{
		"int4": number, "text[]": texts, "range(int4)": span,
		"(n int4, ts text[], r range(int4))[]": {Type: "array", Element: &Type{Type: "composite", Attributes: []*Type{number, texts, span}}},
	} {
		found := typeOfField(kind.Field("x"))
		if found.text() != wanted {
			t.Errorf("%s is %s", wanted, found.text())
		}
		if _, err := newReader(found, reflect.TypeFor[chan int]()); err == nil || err.Error() != "Go type chan int does not hold SQL type "+wanted {
			t.Errorf("%v", err)
		}
	}
	// Without a copy of the texts within at each depth.
	deep := arrow.Field{Name: strings.Repeat("n", 1<<20), Type: arrow.PrimitiveTypes.Int64}
	for range deepestType {
		deep = arrow.Field{Name: "s", Type: arrow.StructOf(deep)}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	found := typeOfField(deep)
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 1<<20 {
		t.Errorf("it took %d bytes", taken)
	}
	if text := found.text(); len(text) != 1<<20+len(" int8")+2*deepestType+(deepestType-1)*len("s ") {
		t.Errorf("%d bytes", len(text))
	}
}
