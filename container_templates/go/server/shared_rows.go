package server

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"transship/udf"
)

// tableRows are the udf.Rows of a look-up, in memory of their own, or of a batch.
type tableRows struct {
	table  string
	types  []*Type
	record arrow.RecordBatch
}

func (r *tableRows) Len() int { return int(r.record.NumRows()) }

func (r *tableRows) Record() arrow.RecordBatch { return r.record }

func (r *tableRows) Column(name string) (arrow.Array, error) {
	number, err := r.number(name)
	if err != nil {
		return nil, err
	}
	return r.record.Column(number), nil
}

func (r *tableRows) number(name string) (int, error) {
	for number, field := range r.record.Schema().Fields() {
		if field.Name == name {
			return number, nil
		}
	}
	return 0, fmt.Errorf("table \"%s\" has no column \"%s\"", r.table, name)
}

func (r *tableRows) Scan(name string, into any) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("table \"%s\" cannot be read: %v", r.table, cause)
		}
		// The batch may hold the map of its file.
		runtime.KeepAlive(r)
	}()
	number, err := r.number(name)
	if err != nil {
		return err
	}
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() || target.Elem().Kind() != reflect.Slice {
		return fmt.Errorf("column \"%s\" of table \"%s\" needs a pointer to a slice, not %T", name, r.table, into)
	}
	kind := target.Elem().Type()
	read, err := readerOf(r.table, r.record.Schema().Field(number), r.types[number], kind.Elem())
	if err != nil {
		return err
	}
	column := r.record.Column(number)
	values := reflect.MakeSlice(kind, column.Len(), column.Len())
	for row := range column.Len() {
		value, err := read(column, row)
		if err != nil {
			return fmt.Errorf("row %d: %w", row+1, unheld(r.table, name, column.IsNull(row), kind.Elem()))
		}
		values.Index(row).Set(value)
	}
	target.Elem().Set(values)
	return nil
}

func readerOf(table string, field arrow.Field, kind *Type, target reflect.Type) (reader, error) {
	read, err := newReader(kind, target)
	if err != nil {
		return nil, fmt.Errorf("column \"%s\" of table \"%s\": %w", field.Name, table, err)
	}
	return func(column arrow.Array, row int) (reflect.Value, error) {
		column, row = valueOf(column, row)
		return read(column, row)
	}, nil
}

// valueOf is where the value of a row lies: in the column, or in its dictionary.
func valueOf(column arrow.Array, row int) (arrow.Array, int) {
	encoded, ok := column.(*array.Dictionary)
	if !ok || encoded.IsNull(row) {
		return column, row
	}
	return encoded.Dictionary(), encoded.GetValueIndex(row)
}

// unheld is the error of a value that a Go type does not hold.
func unheld(table, column string, isNull bool, target reflect.Type) error {
	fact := ""
	if isNull {
		fact = ": it is NULL, which takes a pointer"
	}
	return fmt.Errorf("Go type %s cannot hold column \"%s\" of table \"%s\"%s", target, column, table, fact)
}

var errLargeRows = errors.New("its values have more than 2147483647 bytes")

// gather copies rows, with one of NULLs for each that is nowhere.
func (t *sharedTable) gather(places []place) (udf.Rows, error) {
	columns := make([]arrow.Array, t.schema.NumFields())
	for position, field := range t.schema.Fields() {
		builder := array.NewBuilder(memory.DefaultAllocator, field.Type)
		builder.Reserve(len(places))
		room := math.MaxInt32
		for _, place := range places {
			if place == nowhere {
				builder.AppendNull()
				continue
			}
			if err := copyValue(builder, t.segments[place.segment].batches[place.batch][position], int(place.row), &room); err != nil {
				return nil, fmt.Errorf("the rows of a look-up in table \"%s\" are too large\ndetail: Column \"%s\": %w.", t.name, field.Name, err)
			}
		}
		columns[position] = builder.NewArray()
	}
	return &tableRows{t.name, t.types, array.NewRecordBatch(t.schema, columns, int64(len(places)))}, nil
}

// copyValue appends a value of an array of the builder's type. `room` is left for bytes and elements of the column.
func copyValue(builder array.Builder, from arrow.Array, row int, room *int) error {
	if from.IsNull(row) {
		builder.AppendNull()
		return nil
	}
	from, row = valueOf(from, row)
	switch builder := builder.(type) {
	case *array.BooleanBuilder:
		builder.Append(from.(*array.Boolean).Value(row))
	case *array.Int16Builder:
		builder.Append(from.(*array.Int16).Value(row))
	case *array.Int32Builder:
		builder.Append(from.(*array.Int32).Value(row))
	case *array.Int64Builder:
		builder.Append(from.(*array.Int64).Value(row))
	case *array.Float32Builder:
		builder.Append(from.(*array.Float32).Value(row))
	case *array.Float64Builder:
		builder.Append(from.(*array.Float64).Value(row))
	case *array.Date32Builder:
		builder.Append(from.(*array.Date32).Value(row))
	case *array.Time64Builder:
		builder.Append(from.(*array.Time64).Value(row))
	case *array.TimestampBuilder:
		builder.Append(from.(*array.Timestamp).Value(row))
	case *array.MonthDayNanoIntervalBuilder:
		builder.Append(from.(*array.MonthDayNanoInterval).Value(row))
	case *array.FixedSizeBinaryBuilder:
		builder.Append(from.(*array.FixedSizeBinary).Value(row))
	case *array.StringBuilder:
		text := from.(*array.String).Value(row)
		if *room -= len(text); *room < 0 {
			return errLargeRows
		}
		builder.Append(text)
	case *array.BinaryBuilder:
		bytes := from.(*array.Binary).Value(row)
		if *room -= len(bytes); *room < 0 {
			return errLargeRows
		}
		builder.Append(bytes)
	case *array.ListBuilder:
		list := from.(*array.List)
		start, end := list.ValueOffsets(row)
		if start < 0 || start > end || end > int64(list.ListValues().Len()) {
			return errors.New("a list lies outside of its column")
		}
		if *room -= int(end - start); *room < 0 {
			return errLargeRows
		}
		builder.Append(true)
		for item := start; item < end; item++ {
			if err := copyValue(builder.ValueBuilder(), list.ListValues(), int(item), room); err != nil {
				return err
			}
		}
	case *array.StructBuilder:
		builder.Append(true)
		for i := range builder.NumField() {
			if err := copyValue(builder.FieldBuilder(i), from.(*array.Struct).Field(i), row, room); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("type %s is not supported", from.DataType())
	}
	return nil
}
