package server

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	flatbuffers "github.com/google/flatbuffers/go"
)

// The schema of a segment, of the types of docs/types.md. Arrow's own reader follows a field into its parts without end, and the end of
// the stack ends the program.

const (
	keyMetadata = "transship:key"
	// Types within types.
	deepestType = 64
	// Bytes that the parts of a schema may come to, each as often as it stands somewhere: so many times those of the schema.
	mostTimes          = 4
	leastApparentBytes = 64 << 10
	// What a field takes beside its texts.
	fieldBytes = 32
)

// Numbers of Arrow's Schema.fbs.
const (
	intType, floatType, binaryType, utf8Type, boolType       = 2, 3, 4, 5, 6
	dateType, timeOfDayType, momentType, spanType            = 8, 9, 10, 11
	listType, structType, fixedBytesType                     = 12, 13, 15
	singlePrecision, doublePrecision                         = 1, 2
	dayUnit, millisecondUnit, microsecondUnit, monthDayNanos = 0, 1, 2, 2
)

// slot is the place of a table's field in its list of them.
func slot(number int) flatbuffers.VOffsetT { return flatbuffers.VOffsetT(4 + 2*number) }

// part is a table or a vector in a flatbuffer. Whoever reads one recovers from a panic: places may lead anywhere.
type part struct{ flatbuffers.Table }

func rootOf(bytes []byte) part {
	return part{flatbuffers.Table{Bytes: bytes, Pos: flatbuffers.GetUOffsetT(bytes)}}
}

func (p part) has(number int) bool { return p.Offset(slot(number)) != 0 }

// table is the table in a slot, which must be there.
func (p part) table(number int) part {
	place := flatbuffers.UOffsetT(p.Offset(slot(number)))
	if place == 0 {
		panic("a table is missing")
	}
	return part{flatbuffers.Table{Bytes: p.Bytes, Pos: p.Indirect(p.Pos + place)}}
}

// text is a text in a slot, and not a part of the buffer.
func (p part) text(number int) string {
	place := flatbuffers.UOffsetT(p.Offset(slot(number)))
	if place == 0 {
		return ""
	}
	return string(p.ByteVector(p.Pos + place))
}

// vector is where the items of a vector of structs or tables begin, and their number, which have so many bytes each.
func (p part) vector(number, width int) (flatbuffers.UOffsetT, int) {
	place := flatbuffers.UOffsetT(p.Offset(slot(number)))
	if place == 0 {
		return 0, 0
	}
	start, length := uint64(p.Vector(place)), uint64(p.VectorLen(place))
	if start+length*uint64(width) > uint64(len(p.Bytes)) {
		panic("a vector is longer than what holds it")
	}
	return flatbuffers.UOffsetT(start), int(length)
}

// tables are those of a vector.
func (p part) tables(number int) []part {
	start, length := p.vector(number, flatbuffers.SizeUOffsetT)
	items := make([]part, length)
	for i := range items {
		place := start + flatbuffers.UOffsetT(i*flatbuffers.SizeUOffsetT)
		items[i] = part{flatbuffers.Table{Bytes: p.Bytes, Pos: p.Indirect(place)}}
	}
	return items
}

// schemaReader reads a schema within its bounds.
type schemaReader struct {
	left int
	// How many columns with dictionaries there are so far.
	dictionaries int64
}

var (
	errLargeSchema       = errors.New("has a schema that is too large")
	errOtherDictionaries = errors.New("has other dictionaries than its columns need")
)

func (r *schemaReader) take(bytes int) error {
	if r.left -= bytes; r.left < 0 {
		return errLargeSchema
	}
	return nil
}

// readSchema reads the schema of a footer.
func readSchema(found part, footerBytes int) (*arrow.Schema, error) {
	if found.GetInt16Slot(slot(0), 0) != 0 {
		return nil, errors.New("is not little-endian")
	}
	reader := &schemaReader{left: max(leastApparentBytes, mostTimes*footerBytes)}
	fields, err := reader.fields(found, 1, 0)
	if err != nil {
		return nil, err
	}
	metadata, err := reader.metadata(found, 2)
	if err != nil {
		return nil, err
	}
	return arrow.NewSchema(fields, &metadata), nil
}

// items are the tables of a vector. All of them are taken before there is room for any: vectors within each other may overlap.
func (r *schemaReader) items(parent part, number int) ([]part, error) {
	_, length := parent.vector(number, flatbuffers.SizeUOffsetT)
	if err := r.take(length * fieldBytes); err != nil {
		return nil, err
	}
	return parent.tables(number), nil
}

func (r *schemaReader) fields(parent part, number, depth int) ([]arrow.Field, error) {
	items, err := r.items(parent, number)
	if err != nil {
		return nil, err
	}
	var fields []arrow.Field
	for _, found := range items {
		field, err := r.field(found, depth)
		if err != nil {
			return nil, err
		}
		fields = append(fields, field)
	}
	return fields, nil
}

func (r *schemaReader) metadata(parent part, number int) (arrow.Metadata, error) {
	items, err := r.items(parent, number)
	if err != nil {
		return arrow.Metadata{}, err
	}
	var keys, values []string
	for _, pair := range items {
		key, value := pair.text(0), pair.text(1)
		if err := r.take(len(key) + len(value)); err != nil {
			return arrow.Metadata{}, err
		}
		keys, values = append(keys, key), append(values, value)
	}
	return arrow.NewMetadata(keys, values), nil
}

func (r *schemaReader) field(found part, depth int) (field arrow.Field, err error) {
	if depth > deepestType {
		return field, errors.New("has types within types without end")
	}
	field = arrow.Field{Name: found.text(0), Nullable: found.GetBoolSlot(slot(1), false)}
	if err := r.take(len(field.Name)); err != nil {
		return field, err
	}
	if field.Metadata, err = r.metadata(found, 6); err != nil {
		return field, err
	}
	children, err := r.fields(found, 5, depth+1)
	if err != nil {
		return field, err
	}
	kind := found.GetByteSlot(slot(2), 0)
	field.Type = kindOf(kind, found.table(3), children)
	if field.Type == nil {
		return field, fmt.Errorf("has a column of a type that is not supported: type %d of Arrow's", kind)
	}
	if moment, ok := field.Type.(*arrow.TimestampType); ok {
		err = r.take(len(moment.TimeZone))
	}
	if found.has(4) && err == nil {
		field.Type, err = r.encoded(field, found.table(4), depth)
	}
	return field, err
}

// encoded is the type of a column with a dictionary: of text or byte strings, with indexes of 32 bits. Dictionaries are numbered in the order of
// their columns.
func (r *schemaReader) encoded(field arrow.Field, found part, depth int) (arrow.DataType, error) {
	_, isOther := field.Metadata.GetValue(extensionKey)
	if depth > 0 || isOther || field.Type.ID() != arrow.STRING && field.Type.ID() != arrow.BINARY {
		return nil, errors.New("has a dictionary where none can be")
	}
	if found.has(1) {
		if index := found.table(1); index.GetInt32Slot(slot(0), 0) != 32 || !index.GetBoolSlot(slot(1), false) {
			return nil, errors.New("has a dictionary whose indexes are not of 32 bits")
		}
	}
	if found.GetInt64Slot(slot(0), 0) != r.dictionaries {
		return nil, errOtherDictionaries
	}
	r.dictionaries++
	return &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: field.Type}, nil
}

// valuesOf is the type of a column's values.
func valuesOf(kind arrow.DataType) arrow.DataType {
	if encoded, ok := kind.(*arrow.DictionaryType); ok {
		return encoded.ValueType
	}
	return kind
}

// kindOf is the Arrow type of this number; nil if no segment holds it.
func kindOf(kind byte, found part, children []arrow.Field) arrow.DataType {
	unit := func(missing int16) int16 { return found.GetInt16Slot(slot(0), missing) }
	switch {
	case kind == boolType:
		return arrow.FixedWidthTypes.Boolean
	case kind == intType && found.GetBoolSlot(slot(1), false):
		switch found.GetInt32Slot(slot(0), 0) {
		case 16:
			return arrow.PrimitiveTypes.Int16
		case 32:
			return arrow.PrimitiveTypes.Int32
		case 64:
			return arrow.PrimitiveTypes.Int64
		}
	case kind == floatType && unit(0) == singlePrecision:
		return arrow.PrimitiveTypes.Float32
	case kind == floatType && unit(0) == doublePrecision:
		return arrow.PrimitiveTypes.Float64
	case kind == utf8Type:
		return arrow.BinaryTypes.String
	case kind == binaryType:
		return arrow.BinaryTypes.Binary
	case kind == dateType && unit(millisecondUnit) == dayUnit:
		return arrow.FixedWidthTypes.Date32
	case kind == timeOfDayType && unit(millisecondUnit) == microsecondUnit && found.GetInt32Slot(slot(1), 32) == 64:
		return arrow.FixedWidthTypes.Time64us
	case kind == momentType && unit(0) == microsecondUnit:
		return &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: found.text(1)}
	case kind == spanType && unit(0) == monthDayNanos:
		return arrow.FixedWidthTypes.MonthDayNanoInterval
	case kind == fixedBytesType && found.GetInt32Slot(slot(0), 0) == 16:
		return &arrow.FixedSizeBinaryType{ByteWidth: 16}
	case kind == listType && len(children) == 1:
		return arrow.ListOfField(children[0])
	case kind == structType && len(children) > 0:
		return arrow.StructOf(children...)
	}
	return nil
}

// typeOfField is the type of docs/types.md that a field of a segment carries. What has parts has no Text, which would be that of all parts
// once more, at each depth.
func typeOfField(field arrow.Field) *Type {
	extension, _ := field.Metadata.GetValue(extensionKey)
	switch kind := field.Type.(type) {
	case *arrow.ListType:
		return &Type{Type: "array", Name: field.Name, Element: typeOfField(kind.ElemField())}
	case *arrow.StructType:
		var parts []*Type
		for _, found := range kind.Fields() {
			parts = append(parts, typeOfField(found))
		}
		bounded := &Type{Type: "range", Name: field.Name, Element: parts[0]}
		if extension == extensions["range"] && bounded.isOf(kind) {
			return bounded
		}
		return &Type{Type: "composite", Name: field.Name, Attributes: parts}
	case *arrow.TimestampType:
		if kind.TimeZone != "" {
			return &Type{Type: "timestamptz", Text: "timestamptz", Name: field.Name}
		}
	case *arrow.StringType:
		for name, known := range extensions {
			if known == extension && arrowTypes[name] == nil && name != "range" {
				return &Type{Type: name, Text: name, Name: field.Name}
			}
		}
		return &Type{Type: "text", Text: "text", Name: field.Name}
	}
	for name, known := range arrowTypes {
		if arrow.TypeEqual(known, field.Type) {
			return &Type{Type: name, Text: name, Name: field.Name}
		}
	}
	return nil
}

// keyOf are the positions of the key's columns, and checked.
func keyOf(schema *arrow.Schema) ([]int, error) {
	metadata := schema.Metadata()
	text, _ := metadata.GetValue(keyMetadata)
	if text == "" {
		return nil, nil
	}
	var key []int
	for _, number := range strings.Split(text, ",") {
		position, err := strconv.ParseUint(number, 10, 31)
		if err != nil {
			return nil, malformed("segment", "has a key that is not a list of numbers")
		}
		if position >= uint64(schema.NumFields()) {
			return nil, fmt.Errorf("the key of a shared table has column %d, which the table does not have", position)
		}
		if slices.Contains(key, int(position)) {
			return nil, fmt.Errorf("the key of a shared table has column %d twice", position)
		}
		if key = append(key, int(position)); len(key) > mostKeyColumns {
			return nil, fmt.Errorf("the key of a shared table has more than %d columns", mostKeyColumns)
		}
		if err := checkKeyField(schema.Field(int(position))); err != nil {
			return nil, err
		}
	}
	return key, nil
}
