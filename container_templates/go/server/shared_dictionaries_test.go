package server

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

func TestColumnsWithDictionariesHaveTheirValues(t *testing.T) {
	table := opened(t, "testdata", "dictionaries")
	if kind := table.Schema().Field(1).Type; !arrow.TypeEqual(kind, arrow.BinaryTypes.String) {
		t.Errorf("look-ups have %s", kind)
	}
	var cities []*string
	var codes [][]byte
	for rows := range table.Batches() {
		column, err := rows.Column("city")
		if err != nil {
			t.Fatal(err)
		}
		encoded := column.(*array.Dictionary)
		if encoded.Dictionary().Len() != 3 || encoded.Len() != 10 || encoded.NullN() != 1 {
			t.Errorf("%v", encoded)
		}
		column.Release()
		// Goroutines may read the same rows.
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				var same []*string
				if err := rows.Scan("city", &same); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		cities, codes = append(cities, scanned[*string](t, rows, "city")...), append(codes, scanned[[]byte](t, rows, "code")...)
	}
	text := func(text string) *string { return &text }
	oslo, lagos, empty := text("Oslo"), text("Lagos"), text("")
	wanted := []*string{oslo, lagos, empty, oslo, lagos, empty, oslo, lagos, nil, oslo}
	if !reflect.DeepEqual(cities, wanted) {
		t.Errorf("%v", cities)
	}
	full, none := []byte{0xff}, []byte{}
	if !reflect.DeepEqual(codes, [][]byte{full, none, full, none, full, none, full, none, nil, none}) {
		t.Errorf("%v", codes)
	}
	rows, err := table.Lookup([]int64{9, 8, 77, 1})
	if err != nil {
		t.Fatal(err)
	}
	if found := scanned[*string](t, rows, "city"); !reflect.DeepEqual(found, []*string{oslo, nil, nil, lagos}) {
		t.Errorf("%v", found)
	}
	_, rows, err = table.Matches([]int64{2, 0})
	if err != nil {
		t.Fatal(err)
	}
	if found := scanned[string](t, rows, "city"); !reflect.DeepEqual(found, []string{"", "Oslo"}) {
		t.Errorf("%v", found)
	}
	var row struct {
		City *string
		Code []byte
	}
	for key, city := range map[int64]*string{0: oslo, 1: lagos, 8: nil} {
		if isThere, err := table.Get(&row, key); err != nil || !isThere || !reflect.DeepEqual(row.City, city) {
			t.Errorf("%d: %v %v", key, row, err)
		}
	}
}

func TestAnIndexThatLeadsNowhereIsAnError(t *testing.T) {
	file, err := os.ReadFile("testdata/dictionaries.segment")
	if err != nil {
		t.Fatal(err)
	}
	// The indexes of the cities.
	place := bytes.Index(file, []byte{0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	for _, wrong := range []byte{3, 0xff} {
		changed := bytes.Clone(file)
		changed[place+3], changed[place] = wrong, wrong
		found, err := decodeSegment(changed)
		if err != nil {
			t.Fatal(err)
		}
		opened := &segment{schema: found.schema, rows: found.rows}
		for _, columns := range found.batches {
			if err := opened.add(columns); err != nil {
				t.Fatal(err)
			}
		}
		table, err := newTable("t", []*segment{opened})
		if err != nil {
			t.Fatal(err)
		}
		for rows := range table.Batches() {
			var cities []*string
			if err := rows.Scan("city", &cities); err == nil || !strings.Contains(err.Error(), "cannot be read") {
				t.Errorf("%v, %v", err, cities)
			}
		}
	}
}

func TestEveryByteOfAFileWithDictionariesMayBeWrong(t *testing.T) {
	file, err := os.ReadFile("testdata/dictionaries.segment")
	if err != nil {
		t.Fatal(err)
	}
	opens := 0
	for place := range file {
		for _, value := range []byte{0, 1, 0x7f, 0x80, 0xff} {
			changed := bytes.Clone(file)
			changed[place] = value
			if _, err := decodeSegment(changed); err == nil {
				opens++
			}
		}
	}
	if opens == 0 || opens == 5*len(file) {
		t.Errorf("%d open", opens)
	}
}
