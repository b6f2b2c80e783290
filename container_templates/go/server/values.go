package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"transship/udf"
)

// errRange is an argument that the handler's type cannot hold.
var errRange = errors.New("out of range")

// reader gives the handler's value of a row of a column.
type reader func(column arrow.Array, row int) (reflect.Value, error)

// writer appends a handler's value to a builder; the error says what the value is instead.
type writer func(builder array.Builder, value reflect.Value) error

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	intervalType = reflect.TypeFor[udf.Interval]()
	rawType      = reflect.TypeFor[json.RawMessage]()
	uuidType     = reflect.TypeFor[[16]byte]()
	bytesType    = reflect.TypeFor[[]byte]()
)

func unsupported(t *Type, target reflect.Type) error {
	return fmt.Errorf("Go type %s does not hold SQL type %s", target, t.text())
}

// isNullable says whether nil is a value of a Go type.
func isNullable(target reflect.Type) bool {
	return target.Kind() == reflect.Pointer || target.Kind() == reflect.Slice
}

// newReader compiles the way from a column of t to values of target.
func newReader(t *Type, target reflect.Type) (reader, error) {
	if target.Kind() == reflect.Pointer {
		read, err := newReader(t, target.Elem())
		if err != nil {
			return nil, err
		}
		null := reflect.Zero(target)
		return func(column arrow.Array, row int) (reflect.Value, error) {
			if column.IsNull(row) {
				return null, nil
			}
			value, err := read(column, row)
			if err != nil {
				return value, err
			}
			pointer := reflect.New(target.Elem())
			pointer.Elem().Set(value)
			return pointer, nil
		}, nil
	}
	read, err := newValueReader(t, target)
	if err != nil {
		return nil, err
	}
	null := reflect.Zero(target)
	return func(column arrow.Array, row int) (reflect.Value, error) {
		if !column.IsNull(row) {
			return read(storage(column), row)
		}
		if isNullable(target) {
			return null, nil
		}
		return null, errRange
	}, nil
}

// storage is a column without its extension type.
func storage(column arrow.Array) arrow.Array {
	if extension, ok := column.(array.ExtensionArray); ok {
		return extension.Storage()
	}
	return column
}

func valueReader[C arrow.Array, V any](target reflect.Type, read func(column C, row int) (V, error)) reader {
	return func(column arrow.Array, row int) (reflect.Value, error) {
		value, err := read(column.(C), row)
		return reflect.ValueOf(value).Convert(target), err
	}
}

func newValueReader(t *Type, target reflect.Type) (reader, error) {
	is := func(kind reflect.Kind) bool { return target.Kind() == kind }
	switch {
	case t.Type == "bool" && is(reflect.Bool):
		return valueReader(target, func(c *array.Boolean, row int) (bool, error) { return c.Value(row), nil }), nil
	case t.Type == "int2" && is(reflect.Int16):
		return valueReader(target, func(c *array.Int16, row int) (int16, error) { return c.Value(row), nil }), nil
	case t.Type == "int4" && is(reflect.Int32):
		return valueReader(target, func(c *array.Int32, row int) (int32, error) { return c.Value(row), nil }), nil
	case t.Type == "int8" && is(reflect.Int64) && target != durationType:
		return valueReader(target, func(c *array.Int64, row int) (int64, error) { return c.Value(row), nil }), nil
	case t.Type == "float4" && is(reflect.Float32):
		return valueReader(target, func(c *array.Float32, row int) (float32, error) { return c.Value(row), nil }), nil
	case t.Type == "float8" && is(reflect.Float64):
		return valueReader(target, func(c *array.Float64, row int) (float64, error) { return c.Value(row), nil }), nil
	case t.Type == "bytea" && target.ConvertibleTo(bytesType) && is(reflect.Slice):
		// A copy: the batch is gone before the handler may be done with it.
		return valueReader(target, func(c *array.Binary, row int) ([]byte, error) { return append([]byte{}, c.Value(row)...), nil }), nil
	case t.Type == "uuid" && target.ConvertibleTo(uuidType) && is(reflect.Array):
		return valueReader(target, func(c *array.FixedSizeBinary, row int) ([16]byte, error) { return [16]byte(c.Value(row)), nil }), nil
	case t.Type == "date" && target == timeType:
		return valueReader(target, func(c *array.Date32, row int) (time.Time, error) {
			days := int64(c.Value(row))
			if days == math.MaxInt32 || days == math.MinInt32 {
				return time.Time{}, errRange
			}
			return time.Unix(days*86400, 0).UTC(), nil
		}), nil
	case (t.Type == "timestamp" || t.Type == "timestamptz") && target == timeType:
		return valueReader(target, func(c *array.Timestamp, row int) (time.Time, error) {
			micros := int64(c.Value(row))
			if micros == math.MaxInt64 || micros == math.MinInt64 {
				return time.Time{}, errRange
			}
			return time.UnixMicro(micros).UTC(), nil
		}), nil
	case t.Type == "time" && target == durationType:
		return valueReader(target, func(c *array.Time64, row int) (time.Duration, error) {
			return time.Duration(c.Value(row)) * time.Microsecond, nil
		}), nil
	case t.Type == "interval" && target == intervalType:
		return valueReader(target, func(c *array.MonthDayNanoInterval, row int) (udf.Interval, error) {
			value := c.Value(row)
			return udf.Interval{Months: value.Months, Days: value.Days, Nanoseconds: value.Nanoseconds}, nil
		}), nil
	case t.IsText() && (is(reflect.String) || t.Type == "json" && target == rawType):
		return valueReader(target, func(c *array.String, row int) (string, error) { return strings.Clone(c.Value(row)), nil }), nil
	case t.Type == "array" && is(reflect.Slice):
		read, err := newReader(t.Element, target.Elem())
		if err != nil {
			return nil, err
		}
		return func(column arrow.Array, row int) (reflect.Value, error) {
			list := column.(*array.List)
			start, end := list.ValueOffsets(row)
			if start < 0 || start > end || end > int64(list.ListValues().Len()) {
				// As where a text does: in a column that nobody has checked.
				panic("a list lies outside of its column")
			}
			slice := reflect.MakeSlice(target, int(end-start), int(end-start))
			for i := range slice.Len() {
				value, err := read(list.ListValues(), int(start)+i)
				if err != nil {
					return slice, err
				}
				slice.Index(i).Set(value)
			}
			return slice, nil
		}, nil
	case (t.Type == "composite" || t.Type == "range") && is(reflect.Struct):
		fields, err := fieldsOf(t, target)
		if err != nil {
			return nil, err
		}
		readers := make([]reader, len(fields))
		for i, part := range t.Parts() {
			if readers[i], err = newReader(part, target.Field(fields[i]).Type); err != nil {
				return nil, err
			}
		}
		return func(column arrow.Array, row int) (reflect.Value, error) {
			value := reflect.New(target).Elem()
			for i, read := range readers {
				part, err := read(column.(*array.Struct).Field(i), row)
				if err != nil {
					return value, err
				}
				value.Field(fields[i]).Set(part)
			}
			return value, nil
		}, nil
	}
	return nil, unsupported(t, target)
}

// newWriter compiles the way from values of source to a column of t.
func newWriter(t *Type, source reflect.Type) (writer, error) {
	if source.Kind() == reflect.Pointer {
		write, err := newWriter(t, source.Elem())
		return func(builder array.Builder, value reflect.Value) error {
			if value.IsNil() {
				builder.AppendNull()
				return nil
			}
			return write(builder, value.Elem())
		}, err
	}
	write, err := newValueWriter(t, source)
	if err != nil || source.Kind() != reflect.Slice {
		return write, err
	}
	return func(builder array.Builder, value reflect.Value) error {
		if value.IsNil() {
			builder.AppendNull()
			return nil
		}
		return write(builder, value)
	}, nil
}

func newValueWriter(t *Type, source reflect.Type) (writer, error) {
	is := func(kind reflect.Kind) bool { return source.Kind() == kind }
	switch {
	case t.Type == "bool" && is(reflect.Bool):
		return func(b array.Builder, v reflect.Value) error { b.(*array.BooleanBuilder).Append(v.Bool()); return nil }, nil
	case t.Type == "int2" && is(reflect.Int16):
		return func(b array.Builder, v reflect.Value) error {
			b.(*array.Int16Builder).Append(int16(v.Int()))
			return nil
		}, nil
	case t.Type == "int4" && is(reflect.Int32):
		return func(b array.Builder, v reflect.Value) error {
			b.(*array.Int32Builder).Append(int32(v.Int()))
			return nil
		}, nil
	case t.Type == "int8" && is(reflect.Int64) && source != durationType:
		return func(b array.Builder, v reflect.Value) error { b.(*array.Int64Builder).Append(v.Int()); return nil }, nil
	case t.Type == "float4" && is(reflect.Float32):
		return func(b array.Builder, v reflect.Value) error {
			b.(*array.Float32Builder).Append(float32(v.Float()))
			return nil
		}, nil
	case t.Type == "float8" && is(reflect.Float64):
		return func(b array.Builder, v reflect.Value) error { b.(*array.Float64Builder).Append(v.Float()); return nil }, nil
	case t.Type == "bytea" && source.ConvertibleTo(bytesType) && is(reflect.Slice):
		return func(b array.Builder, v reflect.Value) error { b.(*array.BinaryBuilder).Append(v.Bytes()); return nil }, nil
	case t.Type == "uuid" && source.ConvertibleTo(bytesType) && is(reflect.Slice):
		// Go would convert more bytes to the first 16 of them.
		return func(b array.Builder, v reflect.Value) error {
			if v.Len() != uuidType.Len() {
				return fmt.Errorf("%d bytes, which are not a uuid", v.Len())
			}
			b.(*array.FixedSizeBinaryBuilder).Append(v.Bytes())
			return nil
		}, nil
	case t.Type == "uuid" && source.ConvertibleTo(uuidType) && is(reflect.Array):
		return func(b array.Builder, v reflect.Value) error {
			bytes := v.Convert(uuidType).Interface().([16]byte)
			b.(*array.FixedSizeBinaryBuilder).Append(bytes[:])
			return nil
		}, nil
	case t.Type == "date" && source == timeType:
		return func(b array.Builder, v reflect.Value) error {
			value := v.Interface().(time.Time)
			_, offset := value.Zone()
			seconds := value.Unix() + int64(offset)
			days := floorDiv(seconds, 86400)
			// The least and the greatest stand for infinity.
			if days <= math.MinInt32 || days >= math.MaxInt32 || seconds != days*86400 || value.Nanosecond() != 0 {
				return fmt.Errorf("%v, which is not a date", value)
			}
			b.(*array.Date32Builder).Append(arrow.Date32(days))
			return nil
		}, nil
	case (t.Type == "timestamp" || t.Type == "timestamptz") && source == timeType:
		isLocal := t.Type == "timestamp"
		return func(b array.Builder, v reflect.Value) error {
			value := v.Interface().(time.Time)
			seconds := value.Unix()
			if isLocal {
				_, offset := value.Zone()
				seconds += int64(offset)
			}
			if value.Nanosecond()%1000 != 0 || seconds >= math.MaxInt64/1_000_000 || seconds <= math.MinInt64/1_000_000 {
				return fmt.Errorf("%v, which is no whole number of microseconds", value)
			}
			b.(*array.TimestampBuilder).Append(arrow.Timestamp(seconds*1_000_000 + int64(value.Nanosecond()/1000)))
			return nil
		}, nil
	case t.Type == "time" && source == durationType:
		return func(b array.Builder, v reflect.Value) error {
			value := v.Interface().(time.Duration)
			if value < 0 || value > 24*time.Hour || value%time.Microsecond != 0 {
				return fmt.Errorf("%v, which is not a time of day in microseconds", value)
			}
			b.(*array.Time64Builder).Append(arrow.Time64(value / time.Microsecond))
			return nil
		}, nil
	case t.Type == "interval" && source == intervalType:
		return func(b array.Builder, v reflect.Value) error {
			value := v.Interface().(udf.Interval)
			interval := arrow.MonthDayNanoInterval{Months: value.Months, Days: value.Days, Nanoseconds: value.Nanoseconds}
			b.(*array.MonthDayNanoIntervalBuilder).Append(interval)
			return nil
		}, nil
	case t.IsText() && (is(reflect.String) || t.Type == "json" && source == rawType):
		return func(b array.Builder, v reflect.Value) error {
			text := v.Convert(reflect.TypeFor[string]()).String()
			if !utf8.ValidString(text) {
				return fmt.Errorf("%q, which is not UTF-8", text)
			}
			b.(*array.StringBuilder).Append(text)
			return nil
		}, nil
	case t.Type == "array" && is(reflect.Slice):
		write, err := newWriter(t.Element, source.Elem())
		return func(b array.Builder, v reflect.Value) error {
			list := b.(*array.ListBuilder)
			list.Append(true)
			for i := range v.Len() {
				if err := write(list.ValueBuilder(), v.Index(i)); err != nil {
					return err
				}
			}
			return nil
		}, err
	case (t.Type == "composite" || t.Type == "range") && is(reflect.Struct):
		fields, err := fieldsOf(t, source)
		if err != nil {
			return nil, err
		}
		writers := make([]writer, len(fields))
		for i, part := range t.Parts() {
			if writers[i], err = newWriter(part, source.Field(fields[i]).Type); err != nil {
				return nil, err
			}
		}
		return func(b array.Builder, v reflect.Value) error {
			record := b.(*array.StructBuilder)
			record.Append(true)
			for i, write := range writers {
				if err := write(record.FieldBuilder(i), v.Field(fields[i])); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}
	return nil, unsupported(t, source)
}

// fieldsOf finds the struct's field for each part of a composite type: by tag, or by name without underscores and case.
func fieldsOf(t *Type, target reflect.Type) ([]int, error) {
	var fields []int
	for _, part := range t.Parts() {
		found := -1
		for i := range target.NumField() {
			if field := target.Field(i); field.IsExported() && isFieldOf(field, part.Name) {
				found = i
			}
		}
		if found < 0 {
			return nil, fmt.Errorf("Go type %s has no exported field for %q of SQL type %s", target, part.Name, t.text())
		}
		fields = append(fields, found)
	}
	return fields, nil
}

// isFieldOf says whether a struct's field is for what has a name in SQL.
func isFieldOf(field reflect.StructField, name string) bool {
	plain := func(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }
	tag := field.Tag.Get("udf")
	return tag == name || tag == "" && plain(field.Name) == plain(name)
}

func floorDiv(a, b int64) int64 {
	quotient := a / b
	if a%b < 0 {
		quotient--
	}
	return quotient
}
