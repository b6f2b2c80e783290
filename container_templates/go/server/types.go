package server

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Type is a type of docs/types.md, as functions.json describes it.
type Type struct {
	Type       string
	Text       string
	Name       string
	Element    *Type
	Attributes []*Type
}

// Argument is a function's argument.
type Argument struct {
	Name string
	Type *Type
}

const extensionKey = "ARROW:extension:name"

var arrowTypes = map[string]arrow.DataType{
	"bool": arrow.FixedWidthTypes.Boolean, "int2": arrow.PrimitiveTypes.Int16, "int4": arrow.PrimitiveTypes.Int32,
	"int8": arrow.PrimitiveTypes.Int64, "float4": arrow.PrimitiveTypes.Float32, "float8": arrow.PrimitiveTypes.Float64,
	"bytea": arrow.BinaryTypes.Binary, "date": arrow.FixedWidthTypes.Date32,
	"timestamp":   &arrow.TimestampType{Unit: arrow.Microsecond},
	"timestamptz": &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"},
	"time":        arrow.FixedWidthTypes.Time64us, "interval": arrow.FixedWidthTypes.MonthDayNanoInterval,
	"uuid": &arrow.FixedSizeBinaryType{ByteWidth: 16},
}

var extensions = map[string]string{
	"numeric": "arrowudf.decimal", "json": "arrowudf.json", "uuid": "arrow.uuid", "timetz": "transship.timetz",
	"inet": "transship.inet", "cidr": "transship.cidr", "macaddr": "transship.macaddr",
	"datetime2": "transship.datetime2", "range": "transship.range",
}

// text is Text, or made of its parts' where it has none, as the columns of shared tables.
func (t *Type) text() string {
	if t.Text != "" {
		return t.Text
	}
	var out strings.Builder
	t.appendText(&out)
	return out.String()
}

func (t *Type) appendText(out *strings.Builder) {
	switch {
	case t.Text != "":
		out.WriteString(t.Text)
	case t.Type == "array":
		t.Element.appendText(out)
		out.WriteString("[]")
	case t.Type == "range":
		out.WriteString("range(")
		t.Element.appendText(out)
		out.WriteString(")")
	default:
		separator := "("
		for _, part := range t.Attributes {
			out.WriteString(separator + part.Name + " ")
			part.appendText(out)
			separator = ", "
		}
		out.WriteString(")")
	}
}

// IsText says whether values travel as text.
func (t *Type) IsText() bool {
	_, ok := arrowTypes[t.Type]
	return !ok && t.Element == nil && t.Attributes == nil
}

// Parts are the attributes of a composite type or a range.
func (t *Type) Parts() []*Type {
	if t.Type != "range" {
		return t.Attributes
	}
	lower, upper := *t.Element, *t.Element
	lower.Name, upper.Name = "lower", "upper"
	flag := func(name string) *Type { return &Type{Type: "bool", Text: "bool", Name: name} }
	return []*Type{&lower, &upper, flag("lower_inc"), flag("upper_inc"), flag("empty")}
}

// Arrow is the type's Arrow type.
func (t *Type) Arrow() arrow.DataType {
	if found, ok := arrowTypes[t.Type]; ok {
		return found
	}
	switch t.Type {
	case "array":
		return arrow.ListOfField(t.Element.Field("item"))
	case "range", "composite":
		var fields []arrow.Field
		for _, part := range t.Parts() {
			fields = append(fields, part.Field(part.Name))
		}
		return arrow.StructOf(fields...)
	}
	return arrow.BinaryTypes.String
}

// Field is a nullable Arrow field of the type.
func (t *Type) Field(name string) arrow.Field {
	field := arrow.Field{Name: name, Type: t.Arrow(), Nullable: true}
	if extension, ok := extensions[t.Type]; ok {
		field.Metadata = arrow.NewMetadata([]string{extensionKey}, []string{extension})
	}
	return field
}

// isOf says whether an Arrow type is the type's, whatever its fields are called and whether they take NULL.
func (t *Type) isOf(found arrow.DataType) bool {
	if extension, ok := found.(arrow.ExtensionType); ok {
		found = extension.StorageType()
	}
	switch t.Type {
	case "array":
		list, ok := found.(*arrow.ListType)
		return ok && t.Element.isOf(list.Elem())
	case "range", "composite":
		parts := t.Parts()
		record, ok := found.(*arrow.StructType)
		if !ok || record.NumFields() != len(parts) {
			return false
		}
		for i, part := range parts {
			if record.Field(i).Name != part.Name || !part.isOf(record.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return arrow.TypeEqual(t.Arrow(), found)
}

// CallError is a call that failed (docs/protocol.md §5).
type CallError struct {
	Kind      string `json:"kind"`
	Message   string `json:"message"`
	Row       *int   `json:"row,omitempty"`
	Traceback string `json:"traceback,omitempty"`
}

func (e *CallError) Error() string { return e.Message }

func violation(format string, values ...any) *CallError {
	return &CallError{Kind: "protocol_violation", Message: fmt.Sprintf(format, values...)}
}

func unknownFunction(name string) *CallError {
	return &CallError{Kind: "function_not_found", Message: fmt.Sprintf("there is no function %q", name)}
}
