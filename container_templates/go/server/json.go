package server

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// Largest integer that a reader with double precision keeps exactly.
const maxSafeInteger = 1 << 53

var errForm = errors.New("it has another form")

func appendInt(text []byte, value int64) []byte { return strconv.AppendInt(text, value, 10) }

// appendExact writes an integer as a string where a reader with double precision would not keep it.
func appendExact(text []byte, value int64) []byte {
	if value >= -maxSafeInteger && value <= maxSafeInteger {
		return appendInt(text, value)
	}
	return append(appendInt(append(text, '"'), value), '"')
}

func appendString(text []byte, value string) []byte {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
	return append(text, bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))...)
}

func appendFloat(text []byte, value float64, bits int) []byte {
	switch {
	case math.IsNaN(value):
		return append(text, `"NaN"`...)
	case math.IsInf(value, 1):
		return append(text, `"Infinity"`...)
	case math.IsInf(value, -1):
		return append(text, `"-Infinity"`...)
	case value == 0 && math.Signbit(value):
		return append(text, "-0.0"...)
	}
	return strconv.AppendFloat(text, value, 'g', -1, bits)
}

// encodeJSON writes a row of a column in the JSON form of docs/types.md.
func encodeJSON(text []byte, t *Type, column arrow.Array, row int) []byte {
	if column.IsNull(row) {
		return append(text, "null"...)
	}
	switch column := storage(column).(type) {
	case *array.Boolean:
		return strconv.AppendBool(text, column.Value(row))
	case *array.Int16:
		return appendInt(text, int64(column.Value(row)))
	case *array.Int32:
		return appendInt(text, int64(column.Value(row)))
	case *array.Int64:
		return appendExact(text, column.Value(row))
	case *array.Float32:
		return appendFloat(text, float64(column.Value(row)), 32)
	case *array.Float64:
		return appendFloat(text, column.Value(row), 64)
	case *array.String:
		return appendString(text, column.Value(row))
	case *array.Binary:
		text = append(text, '"')
		text = base64.StdEncoding.AppendEncode(text, column.Value(row))
		return append(text, '"')
	case *array.Date32:
		switch days := column.Value(row); days {
		case math.MaxInt32:
			return append(text, `"infinity"`...)
		case math.MinInt32:
			return append(text, `"-infinity"`...)
		default:
			return appendString(text, formatDate(time.Unix(int64(days)*86400, 0).UTC()))
		}
	case *array.Timestamp:
		switch micros := column.Value(row); micros {
		case math.MaxInt64:
			return append(text, `"infinity"`...)
		case math.MinInt64:
			return append(text, `"-infinity"`...)
		default:
			value := time.UnixMicro(int64(micros)).UTC()
			zone := ""
			if t.Type == "timestamptz" {
				zone = "Z"
			}
			return appendString(text, formatDate(value)+value.Format("T15:04:05.000000")+zone)
		}
	case *array.Time64:
		micros := int64(column.Value(row))
		seconds := micros / 1_000_000
		return fmt.Appendf(text, `"%02d:%02d:%02d.%06d"`, seconds/3600, seconds/60%60, seconds%60, micros%1_000_000)
	case *array.FixedSizeBinary:
		digits := hex.EncodeToString(column.Value(row))
		return fmt.Appendf(text, `"%s-%s-%s-%s-%s"`, digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
	case *array.MonthDayNanoInterval:
		value := column.Value(row)
		text = fmt.Appendf(text, `{"months":%d,"days":%d,"microseconds":`, value.Months, value.Days)
		text = appendExact(text, value.Nanoseconds/1000)
		if rest := value.Nanoseconds % 1000; rest != 0 {
			text = fmt.Appendf(text, `,"nanoseconds":%d`, rest)
		}
		return append(text, '}')
	case *array.List:
		start, end := column.ValueOffsets(row)
		text = append(text, '[')
		for i := start; i < end; i++ {
			if i > start {
				text = append(text, ',')
			}
			text = encodeJSON(text, t.Element, column.ListValues(), int(i))
		}
		return append(text, ']')
	case *array.Struct:
		text = append(text, '{')
		for i, part := range t.Parts() {
			if i > 0 {
				text = append(text, ',')
			}
			text = append(appendString(text, part.Name), ':')
			text = encodeJSON(text, part, column.Field(i), row)
		}
		return append(text, '}')
	}
	panic(fmt.Sprintf("there is no type %s", column.DataType()))
}

func formatDate(value time.Time) string {
	year := ""
	switch {
	case value.Year() > 9999:
		year = fmt.Sprintf("+%d", value.Year())
	case value.Year() < 0:
		year = fmt.Sprintf("-%04d", -value.Year())
	default:
		year = fmt.Sprintf("%04d", value.Year())
	}
	return year + value.Format("-01-02")
}

// appendJSON reads a JSON value into a builder of the type's column.
func appendJSON(builder array.Builder, t *Type, raw json.RawMessage) error {
	if string(raw) == "null" {
		builder.AppendNull()
		return nil
	}
	text := string(raw)
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
	}
	isString := raw[0] == '"'
	switch builder := builder.(type) {
	case *array.BooleanBuilder:
		value, err := strconv.ParseBool(string(raw))
		builder.Append(value)
		return err
	case *array.Int16Builder:
		value, err := parseInteger(text, 16)
		builder.Append(int16(value))
		return err
	case *array.Int32Builder:
		value, err := parseInteger(text, 32)
		builder.Append(int32(value))
		return err
	case *array.Int64Builder:
		value, err := parseInteger(text, 64)
		builder.Append(value)
		return err
	case *array.Float32Builder:
		value, err := strconv.ParseFloat(text, 32)
		builder.Append(float32(value))
		return err
	case *array.Float64Builder:
		value, err := strconv.ParseFloat(text, 64)
		builder.Append(value)
		return err
	case *array.StringBuilder:
		isNumber := t.Type == "numeric" && (raw[0] == '-' || unicode.IsDigit(rune(raw[0])))
		if !isString && !isNumber {
			return errForm
		}
		if isNumber {
			digits, err := digitsOf(text)
			builder.Append(digits)
			return err
		}
		builder.Append(text)
		return nil
	case *array.BinaryBuilder:
		compact := strings.Map(func(r rune) rune {
			if unicode.IsSpace(r) {
				return -1
			}
			return r
		}, text)
		value, err := base64.StdEncoding.DecodeString(compact)
		builder.Append(value)
		return errors.Join(err, unless(isString))
	case *array.Date32Builder:
		switch text {
		case "infinity":
			builder.Append(math.MaxInt32)
		case "-infinity":
			builder.Append(math.MinInt32)
		default:
			value, rest, err := parseDate(text)
			days := value.Unix() / 86400
			builder.Append(arrow.Date32(days))
			// The least and the greatest stand for infinity.
			return errors.Join(err, unless(rest == "" && days > math.MinInt32 && days < math.MaxInt32))
		}
		return nil
	case *array.TimestampBuilder:
		value, err := parseTimestamp(text, t.Type == "timestamptz")
		builder.Append(arrow.Timestamp(value))
		return err
	case *array.Time64Builder:
		value, rest, err := parseClock(text)
		builder.Append(arrow.Time64(value))
		return errors.Join(err, unless(rest == "" && value <= 86_400_000_000))
	case *array.FixedSizeBinaryBuilder:
		value, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(value) != 16 || len(text) != 36 {
			return errForm
		}
		builder.Append(value)
		return nil
	case *array.MonthDayNanoIntervalBuilder:
		value, err := parseInterval(raw)
		builder.Append(value)
		return err
	case *array.ListBuilder:
		var values []json.RawMessage
		if err := json.Unmarshal(raw, &values); err != nil {
			return err
		}
		builder.Append(true)
		for _, value := range values {
			if err := appendJSON(builder.ValueBuilder(), t.Element, value); err != nil {
				return err
			}
		}
		return nil
	case *array.StructBuilder:
		var values map[string]json.RawMessage
		if err := json.Unmarshal(raw, &values); err != nil {
			return err
		}
		builder.Append(true)
		for i, part := range t.Parts() {
			value, ok := values[part.Name]
			if !ok {
				value = json.RawMessage("null")
			}
			if err := appendJSON(builder.FieldBuilder(i), part, value); err != nil {
				return err
			}
		}
		return nil
	}
	return errForm
}

func unless(isRight bool) error {
	if isRight {
		return nil
	}
	return errForm
}

// integer is a number of a JSON object, which may be a string.
type integer int64

func (i *integer) UnmarshalJSON(raw []byte) error {
	text := string(raw)
	switch {
	case text == "null":
		return nil
	case raw[0] == '"':
		if err := json.Unmarshal(raw, &text); err != nil {
			return err
		}
	}
	value, err := parseInteger(text, 64)
	*i = integer(value)
	return err
}

func parseInterval(raw json.RawMessage) (arrow.MonthDayNanoInterval, error) {
	var value struct {
		Months       integer `json:"months"`
		Days         integer `json:"days"`
		Microseconds integer `json:"microseconds"`
		Nanoseconds  integer `json:"nanoseconds"`
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return arrow.MonthDayNanoInterval{}, err
	}
	whole := value.Microseconds * 1000
	nanoseconds := whole + value.Nanoseconds
	months, days := int32(value.Months), int32(value.Days)
	if whole/1000 != value.Microseconds || (nanoseconds < whole) != (value.Nanoseconds < 0) || integer(months) != value.Months || integer(days) != value.Days {
		return arrow.MonthDayNanoInterval{}, errForm
	}
	return arrow.MonthDayNanoInterval{Months: months, Days: days, Nanoseconds: int64(nanoseconds)}, nil
}

// parseInteger also takes floats without fraction.
func parseInteger(text string, bits int) (int64, error) {
	value, err := strconv.ParseInt(text, 10, bits)
	if err == nil {
		return value, nil
	}
	// A number with a point or an exponent.
	digits, digitsErr := digitsOf(text)
	whole, fraction, _ := strings.Cut(digits, ".")
	if digitsErr != nil || strings.Trim(fraction, "0") != "" {
		return 0, err
	}
	return strconv.ParseInt(whole, 10, bits)
}

// Digits before and behind the point that a decimal of PostgreSQL has at most.
const maxWholeDigits, maxFractionDigits = 131_072, 16_383

// digitsOf gives a number's digits without an exponent, as docs/types.md has them; an error if numeric has no room for them.
func digitsOf(number string) (string, error) {
	mantissa, power, hasPower := strings.Cut(strings.ToLower(number), "e")
	unsigned := strings.TrimPrefix(mantissa, "-")
	sign := mantissa[:len(mantissa)-len(unsigned)]
	whole, fraction, _ := strings.Cut(unsigned, ".")
	digits := whole + fraction
	if whole == "" || strings.Trim(digits, "0123456789") != "" {
		return "", errForm
	}
	if !hasPower {
		return number, nil
	}
	exponent, err := strconv.Atoi(power)
	if strings.Trim(digits, "0") == "" && !errors.Is(err, strconv.ErrSyntax) {
		return sign + "0", nil
	}
	if err != nil || exponent > maxWholeDigits || exponent < -maxFractionDigits-len(digits) {
		return "", errForm
	}
	point := len(whole) + exponent
	if point > maxWholeDigits || len(digits)-point > maxFractionDigits {
		return "", errForm
	}
	if point <= 0 {
		return sign + "0." + strings.Repeat("0", -point) + digits, nil
	}
	digits += strings.Repeat("0", max(0, point-len(digits)))
	left := strings.TrimLeft(digits[:point-1], "0") + digits[point-1:point]
	if point == len(digits) {
		return sign + left, nil
	}
	return sign + left + "." + digits[point:], nil
}

// parseDate reads a date of any year from the front of a text.
func parseDate(text string) (time.Time, string, error) {
	sign, digits := 1, text
	if text != "" && (text[0] == '+' || text[0] == '-') {
		if text[0] == '-' {
			sign = -1
		}
		digits = text[1:]
	}
	end := strings.IndexByte(digits, '-')
	if end < 4 || len(digits) < end+6 {
		return time.Time{}, "", errForm
	}
	year, err := strconv.Atoi(digits[:end])
	// Month and day are checked in a leap year, then in theirs.
	day, dayErr := time.Parse("2006-01-02", "2000"+digits[end:end+6])
	value := time.Date(sign*year, day.Month(), day.Day(), 0, 0, 0, 0, time.UTC)
	if err != nil || dayErr != nil || year > 9_999_999 || value.Day() != day.Day() {
		return time.Time{}, "", errForm
	}
	return value, digits[end+6:], nil
}

// parseClock reads microseconds of a day from the front of a text.
func parseClock(text string) (int64, string, error) {
	var hours, minutes, seconds int64
	if len(text) < 8 {
		return 0, "", errForm
	}
	if _, err := fmt.Sscanf(text[:8], "%02d:%02d:%02d", &hours, &minutes, &seconds); err != nil || hours > 24 || minutes > 59 || seconds > 59 {
		return 0, "", errForm
	}
	micros, rest := (hours*3600+minutes*60+seconds)*1_000_000, text[8:]
	if !strings.HasPrefix(rest, ".") {
		return micros, rest, nil
	}
	digits := strings.IndexFunc(rest[1:], func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(rest) - 1
	}
	fraction, err := strconv.ParseInt((rest[1:1+digits] + "000000")[:6], 10, 64)
	if err != nil || strings.Trim(rest[1+min(digits, 6):1+digits], "0") != "" {
		return 0, "", errForm
	}
	return micros + fraction, rest[1+digits:], nil
}

func parseTimestamp(text string, hasZone bool) (int64, error) {
	switch text {
	case "infinity":
		return math.MaxInt64, nil
	case "-infinity":
		return math.MinInt64, nil
	}
	day, rest, err := parseDate(text)
	if err != nil || !strings.HasPrefix(rest, "T") {
		return 0, errForm
	}
	clock, zone, err := parseClock(rest[1:])
	if err != nil || clock >= 86_400_000_000 || hasZone == (zone == "") {
		return 0, errForm
	}
	offset := int64(0)
	if zone != "" && zone != "Z" {
		at, err := time.Parse("Z07:00", zone)
		if err != nil {
			return 0, errForm
		}
		_, seconds := at.Zone()
		offset = int64(seconds)
	}
	seconds := day.Unix() - offset
	// A day less than there is room for, so that the clock's time has room, too.
	if most := int64(math.MaxInt64/1_000_000 - 86_400); seconds > most || seconds < -most {
		return 0, errForm
	}
	return seconds*1_000_000 + clock, nil
}
