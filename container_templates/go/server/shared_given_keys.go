package server

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Keys that a handler looks for, in the types of the key's columns.

// keysOf are the keys of columns, each of which is an Arrow array or a slice.
func (t *sharedTable) keysOf(given []any) ([]arrow.Array, *keys, error) {
	return t.wanted(given, func(position int, given any) (arrow.Array, error) {
		if column, ok := given.(arrow.Array); ok {
			return t.keyColumn(position, storage(column))
		}
		values := reflect.ValueOf(given)
		if values.Kind() != reflect.Slice {
			return nil, t.unfit(position, fmt.Sprintf("%T is no slice and no arrow.Array", given))
		}
		return t.keyValues(position, values)
	})
}

// keyOf is the key of a row, of a value for each column.
func (t *sharedTable) keyOf(given []any) ([]arrow.Array, *keys, error) {
	return t.wanted(given, func(position int, given any) (arrow.Array, error) {
		if given == nil {
			return array.MakeArrayOfNull(memory.DefaultAllocator, t.schema.Field(position).Type, 1), nil
		}
		value := reflect.ValueOf(given)
		values := reflect.MakeSlice(reflect.SliceOf(value.Type()), 1, 1)
		values.Index(0).Set(value)
		return t.keyValues(position, values)
	})
}

func (t *sharedTable) wanted(given []any, columnOf func(position int, given any) (arrow.Array, error)) ([]arrow.Array, *keys, error) {
	if len(t.key) == 0 {
		return nil, nil, fmt.Errorf("table \"%s\" has no key", t.name)
	}
	if len(given) != len(t.key) {
		count := fmt.Sprintf("%d columns", len(t.key))
		if len(t.key) == 1 {
			count = "1 column"
		}
		return nil, nil, fmt.Errorf("the key of table \"%s\" has %s (%s), not %d", t.name, count, strings.Join(t.Key(), ", "), len(given))
	}
	var columns []arrow.Array
	for i, position := range t.key {
		column, err := columnOf(position, given[i])
		if err != nil {
			return nil, nil, err
		}
		columns = append(columns, column)
	}
	made, err := newKeys(columns)
	if err != nil {
		return nil, nil, fmt.Errorf("could not look for keys in table \"%s\": %w", t.name, err)
	}
	if made.rows > mostFound {
		return nil, nil, t.tooManyFound()
	}
	return columns, made, nil
}

// keyColumn is an Arrow column of the key's type. Texts and byte strings may have large offsets or be views, and time zones do not count.
func (t *sharedTable) keyColumn(position int, column arrow.Array) (arrow.Array, error) {
	field := t.schema.Field(position)
	wanted, found := field.Type, column.DataType()
	_, isMoment := wanted.(*arrow.TimestampType)
	moment, wasMoment := found.(*arrow.TimestampType)
	switch {
	case arrow.TypeEqual(wanted, found), isMoment && wasMoment && moment.Unit == arrow.Microsecond:
		return column, nil
	case ownKind(found).ID() == wanted.ID() && (wanted.ID() == arrow.STRING || wanted.ID() == arrow.BINARY):
		recast, err := recast(column, wanted)
		if err != nil {
			return nil, fmt.Errorf("could not look for keys in table \"%s\": %w", t.name, err)
		}
		return recast, nil
	}
	return nil, fmt.Errorf("key column \"%s\" of table \"%s\" has type %s, and the keys have %s", field.Name, t.name, wanted, found)
}

// keyValues is a column of a slice of Go values.
func (t *sharedTable) keyValues(position int, values reflect.Value) (arrow.Array, error) {
	kind := t.types[position]
	write, err := newWriter(kind, values.Type().Elem())
	if err != nil {
		if write = newIntegerWriter(kind, values.Type().Elem()); write == nil {
			return nil, t.unfit(position, err.Error())
		}
	}
	builder := array.NewBuilder(memory.DefaultAllocator, t.schema.Field(position).Type)
	builder.Reserve(values.Len())
	room := int64(mostFound)
	for row := range values.Len() {
		if room -= textBytes(values.Index(row)); room < 0 {
			return nil, t.unfit(position, fmt.Sprintf("they have more than %d bytes", mostFound))
		}
		if err := write(builder, values.Index(row)); err != nil {
			return nil, t.unfit(position, err.Error())
		}
	}
	return builder.NewArray(), nil
}

func (t *sharedTable) unfit(position int, fact string) error {
	return fmt.Errorf("the keys do not fit column \"%s\" of table \"%s\", which is %s: %s", t.schema.Field(position).Name, t.name, t.types[position].text(), fact)
}

// textBytes is how long a text or a byte string is; 0 of other values.
func textBytes(value reflect.Value) int64 {
	for value.Kind() == reflect.Pointer && !value.IsNil() {
		value = value.Elem()
	}
	if value.Kind() == reflect.String || value.Kind() == reflect.Slice {
		return int64(value.Len())
	}
	return 0
}

// newIntegerWriter appends integers of another type than the column's; nil if one of them is no integer.
func newIntegerWriter(t *Type, source reflect.Type) writer {
	if source.Kind() == reflect.Pointer {
		write := newIntegerWriter(t, source.Elem())
		if write == nil {
			return nil
		}
		return func(builder array.Builder, value reflect.Value) error {
			if value.IsNil() {
				builder.AppendNull()
				return nil
			}
			return write(builder, value.Elem())
		}
	}
	wanted := map[string]reflect.Type{"int2": reflect.TypeFor[int16](), "int4": reflect.TypeFor[int32](), "int8": reflect.TypeFor[int64]()}[t.Type]
	if wanted == nil || source == durationType || !source.ConvertibleTo(wanted) || !(reflect.Zero(source).CanInt() || reflect.Zero(source).CanUint()) {
		return nil
	}
	write, err := newWriter(t, wanted)
	if err != nil {
		return nil
	}
	return func(builder array.Builder, value reflect.Value) error {
		// An integer that is too large wraps, and is another one then.
		narrow := value.Convert(wanted)
		if !narrow.Convert(source).Equal(value) || value.CanUint() && narrow.Int() < 0 {
			return fmt.Errorf("%v is out of its range", value)
		}
		return write(builder, narrow)
	}
}
