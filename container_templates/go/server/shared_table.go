package server

import (
	"encoding/hex"
	"fmt"
	"iter"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"transship/udf"
)

const (
	// Most rows that a look-up gives.
	mostFound = math.MaxInt32
	// Characters of a key that an error shows.
	mostShown = 100
)

// sharedTable is a udf.SharedTable: segments of the same columns. Every method holds it until its end, and with it the maps of the files.
type sharedTable struct {
	name string
	// All columns may be NULL, as they are where a look-up finds no row.
	schema *arrow.Schema
	// The same columns, some of which have dictionaries.
	batchSchema *arrow.Schema
	types       []*Type
	key         []int
	segments    []*segment
	rows        int
	// How Get fills structs, by their types.
	plans sync.Map
}

// place is where a row lies. In no segment: there is none.
type place struct {
	segment, batch, row int32
}

var nowhere = place{segment: -1}

// newTable is the table of these segments, oldest first.
func newTable(name string, segments []*segment) (*sharedTable, error) {
	first := segments[0]
	made := &sharedTable{name: name, key: first.key, segments: segments}
	metadata := first.schema.Metadata()
	for number, other := range segments {
		if !first.schema.Equal(other.schema) || !metadata.Equal(other.schema.Metadata()) {
			return nil, fmt.Errorf("segment %d of table \"%s\" has other columns than the one before it", number+1, name)
		}
		made.rows += other.rows
	}
	fields := slices.Clone(first.schema.Fields())
	for i := range fields {
		fields[i].Nullable = true
	}
	made.batchSchema = arrow.NewSchema(slices.Clone(fields), &metadata)
	for i := range fields {
		fields[i].Type = valuesOf(fields[i].Type)
		made.types = append(made.types, typeOfField(fields[i]))
	}
	made.schema = arrow.NewSchema(fields, &metadata)
	return made, nil
}

func (t *sharedTable) Rows() int { return t.rows }

func (t *sharedTable) Schema() *arrow.Schema { return t.schema }

func (t *sharedTable) Key() []string {
	var names []string
	for _, position := range t.key {
		names = append(names, t.schema.Field(position).Name)
	}
	return names
}

func (t *sharedTable) Batches() iter.Seq[udf.Rows] {
	return func(yield func(udf.Rows) bool) {
		for _, segment := range t.segments {
			for number := range segment.batches {
				if !yield(&tableRows{t.name, t.types, segment.batch(number, t.batchSchema)}) {
					return
				}
			}
		}
	}
}

func (t *sharedTable) Lookup(given ...any) (rows udf.Rows, err error) {
	defer t.guard(&err, given)
	columns, wanted, err := t.keysOf(given)
	if err != nil {
		return nil, err
	}
	places := make([]place, wanted.rows)
	for row := range places {
		if places[row], err = t.find(columns, wanted, row); err != nil {
			return nil, err
		}
	}
	return t.gather(places)
}

func (t *sharedTable) Matches(given ...any) (positions []int32, rows udf.Rows, err error) {
	defer t.guard(&err, given)
	_, wanted, err := t.keysOf(given)
	if err != nil {
		return nil, nil, err
	}
	positions, places, err := t.matches(wanted, mostFound)
	if err != nil {
		return nil, nil, err
	}
	rows, err = t.gather(places)
	return positions, rows, err
}

// matches are where all rows of all keys lie, and the position of each one's key. They are counted before there is room for any: a few keys may
// have more rows than memory holds.
func (t *sharedTable) matches(wanted *keys, most int) (positions []int32, places []place, err error) {
	count := 0
	for row := range wanted.rows {
		for _, segment := range t.segments {
			found := segment.rowsOf(wanted, row)
			if found.count > most-count {
				return nil, nil, t.tooManyFound()
			}
			count += found.count
		}
	}
	positions, places = make([]int32, 0, count), make([]place, 0, count)
	for row := range wanted.rows {
		for number, segment := range t.segments {
			found := segment.rowsOf(wanted, row)
			for match := range found.count {
				positions = append(positions, int32(row))
				places = append(places, placeOf(number, found.at(match)))
			}
		}
	}
	return positions, places, nil
}

func (t *sharedTable) Get(into any, key ...any) (isThere bool, err error) {
	defer t.guard(&err, key)
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() || target.Elem().Kind() != reflect.Struct {
		return false, fmt.Errorf("a row of table \"%s\" needs a pointer to a struct, not %T", t.name, into)
	}
	row := target.Elem()
	row.SetZero()
	plan, err := t.planOf(row.Type())
	if err != nil {
		return false, err
	}
	columns, wanted, err := t.keyOf(key)
	if err != nil {
		return false, err
	}
	found, err := t.find(columns, wanted, 0)
	if err != nil || found == nowhere {
		return false, err
	}
	source := t.segments[found.segment].batches[found.batch]
	for _, field := range plan {
		value, err := field.read(source[field.column], int(found.row))
		if err != nil {
			row.SetZero()
			isNull := source[field.column].IsNull(int(found.row))
			return false, unheld(t.name, t.schema.Field(field.column).Name, isNull, row.Type().Field(field.field).Type)
		}
		row.Field(field.field).Set(value)
	}
	return true, nil
}

// plannedField is a field of a struct, and how it is filled from a column.
type plannedField struct {
	field, column int
	read          reader
}

func (t *sharedTable) planOf(kind reflect.Type) ([]plannedField, error) {
	if known, ok := t.plans.Load(kind); ok {
		return known.([]plannedField), nil
	}
	var plan []plannedField
	for i := range kind.NumField() {
		field := kind.Field(i)
		if !field.IsExported() {
			continue
		}
		column := slices.IndexFunc(t.schema.Fields(), func(column arrow.Field) bool { return isFieldOf(field, column.Name) })
		if column < 0 {
			return nil, fmt.Errorf("table \"%s\" has no column for field %s of Go type %s", t.name, field.Name, kind)
		}
		read, err := readerOf(t.name, t.schema.Field(column), t.types[column], field.Type)
		if err != nil {
			return nil, err
		}
		plan = append(plan, plannedField{i, column, read})
	}
	t.plans.Store(kind, plan)
	return plan, nil
}

// find is where the only row of a key lies.
func (t *sharedTable) find(columns []arrow.Array, wanted *keys, row int) (place, error) {
	found, count := nowhere, 0
	for number, segment := range t.segments {
		rows := segment.rowsOf(wanted, row)
		if rows.count > 0 && count == 0 {
			found = placeOf(number, rows.at(0))
		}
		count += rows.count
	}
	if count > 1 {
		return nowhere, fmt.Errorf("table \"%s\" has %d rows with the key %s\ndetail: It is key %d, counted from 0, of a look-up of one row per key.",
			t.name, count, shown(columns, row), row)
	}
	return found, nil
}

func placeOf(segment int, row uint32) place {
	return place{int32(segment), int32(row / rowsPerBatch), int32(row % rowsPerBatch)}
}

// guard is deferred by what reads the segments. It holds the table and the keys until then, and makes a value that leads nowhere an error.
func (t *sharedTable) guard(err *error, keys []any) {
	if cause := recover(); cause != nil {
		*err = fmt.Errorf("table \"%s\" cannot be read: %v", t.name, cause)
	}
	runtime.KeepAlive(t)
	runtime.KeepAlive(keys)
}

func (t *sharedTable) tooManyFound() error {
	return fmt.Errorf("a look-up in table \"%s\" has more than %d rows", t.name, mostFound)
}

// shown is a key, for an error.
func shown(columns []arrow.Array, row int) string {
	var parts []string
	for _, column := range columns {
		switch column := column.(type) {
		case *array.Binary:
			parts = append(parts, hex.EncodeToString(column.Value(row)))
		case *array.FixedSizeBinary:
			parts = append(parts, hex.EncodeToString(column.Value(row)))
		default:
			parts = append(parts, column.ValueStr(row))
		}
	}
	text := "(" + strings.Join(parts, ", ") + ")"
	if utf8.RuneCountInString(text) > mostShown {
		return string([]rune(text)[:mostShown]) + "..."
	}
	return text
}
