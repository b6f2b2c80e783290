package server

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Columns as they lie in memory, docs/protocol.md §7. The segment of the calls is read, not mapped: the copy is small beside
// what the handler does with the values, and nobody need know whether the handler still looks at them.

const (
	columnsType = "application/vnd.transship.columns"
	// Every buffer of a reply begins at a multiple of this,
	alignment = 64
	// and every buffer of a call at one of this.
	readAlignment   = 8
	maxSegmentBytes = 1 << 30
)

var (
	segmentFolder = os.Getenv("TRANSSHIP_SEGMENT_DIR")
	segmentName   = regexp.MustCompile("^[0-9a-f]{32}$")
)

type columnsHeader struct {
	Batch        uint64  `json:"batch"`
	Rows         *int64  `json:"rows"`
	Exchange     string  `json:"exchange"`
	Step         string  `json:"step"`
	Segment      *string `json:"segment"`
	ReplySegment *string `json:"reply_segment"`
	RowErrors    string  `json:"row_errors"`
	MayEncode    bool    `json:"may_encode"`
	Constants    []int   `json:"constants"`
	// What the client calls these constants, and whether they are those of the connection's last request with constants.
	ConstantsID   string  `json:"constants_id"`
	SameConstants bool    `json:"same_constants"`
	Buffers       []int64 `json:"buffers"`
}

// keptConstants are those that a connection's last request with constants brought (docs/protocol.md §7.11).
type keptConstants struct {
	function  *Function
	id        string
	positions []int
	arrays    []arrow.Array
}

type replyHeader struct {
	Batch   uint64  `json:"batch"`
	Rows    int64   `json:"rows"`
	Micros  int64   `json:"micros"`
	Segment *string `json:"segment,omitempty"`
	Buffers []int64 `json:"buffers"`
	// The columns that are dictionaries, each with its number of values.
	Dictionaries []int `json:"dictionaries,omitempty"`
}

func unreadable(format string, values ...any) error {
	return violation("the request cannot be read: "+format, values...)
}

// readColumns reads a batch of calls, and the name of the segment into which the reply may be written. kept is the connection's.
func readColumns(function *Function, body []byte, kept *keptConstants) (*callBatch, *string, error) {
	if len(body) < 4 || uint64(binary.LittleEndian.Uint32(body)) > uint64(len(body)-4) {
		return nil, nil, unreadable("its header is cut off")
	}
	end := 4 + int(binary.LittleEndian.Uint32(body))
	var header columnsHeader
	if err := json.Unmarshal(body[4:end], &header); err != nil {
		return nil, nil, unreadable("%v", err)
	}
	// A row's number is an int4.
	if header.Rows == nil || *header.Rows < 0 || *header.Rows > math.MaxInt32 {
		return nil, nil, unreadable("it has no number of rows, or too many")
	}
	if len(header.Buffers)%2 != 0 {
		return nil, nil, unreadable("a buffer has an offset but no length")
	}
	if err := checkConstants(header.Constants, function); err != nil {
		return nil, nil, err
	}
	data := body[min((end+readAlignment-1)/readAlignment*readAlignment, len(body)):]
	if header.Segment != nil {
		var err error
		if data, err = readSegment(*header.Segment, header.Buffers); err != nil {
			return nil, nil, err
		}
	}
	reader := columnReader{data, header.Buffers}
	columns := function.callColumns()
	constants, err := reader.constants(function, header, kept)
	if err != nil {
		return nil, nil, err
	}
	var arrays []arrow.Array
	for i, column := range columns {
		if position := slices.Index(header.Constants, i); position >= 0 && header.SameConstants {
			arrays = append(arrays, repeated(constants[position], int(*header.Rows)))
			continue
		}
		rows := *header.Rows
		if slices.Contains(header.Constants, i) {
			rows = 1
		}
		places := reader.places
		found, err := reader.column(column.Type, rows)
		if err != nil {
			return nil, nil, err
		}
		values := array.MakeFromData(found)
		if slices.Contains(header.Constants, i) {
			// The rest of the batch is not kept with it.
			own := columnReader{data: data, places: places[:len(places)-len(reader.places)]}.copied()
			if found, err = own.column(column.Type, 1); err != nil {
				return nil, nil, err
			}
			constants = append(constants, array.MakeFromData(found))
			values = repeated(constants[len(constants)-1], int(*header.Rows))
		}
		arrays = append(arrays, values)
	}
	if len(reader.places) > 0 {
		return nil, nil, unreadable("it has more buffers than columns")
	}
	if len(header.Constants) > 0 && !header.SameConstants {
		*kept = keptConstants{function, header.ConstantsID, header.Constants, constants}
	}
	return &callBatch{
		number: header.Batch, exchange: header.Exchange, step: header.Step,
		batch:  batchOf(columns, arrays, int(*header.Rows)),
		wished: wishes{header.RowErrors, header.MayEncode},
	}, header.ReplySegment, nil
}

// constants are those of the request before, if a request refers to them.
func (r *columnReader) constants(function *Function, header columnsHeader, kept *keptConstants) ([]arrow.Array, error) {
	if !header.SameConstants || len(header.Constants) == 0 {
		return nil, nil
	}
	if kept.function != function || header.ConstantsID == "" || kept.id != header.ConstantsID || !slices.Equal(kept.positions, header.Constants) {
		return nil, unreadable("it refers to constants that were not sent")
	}
	return kept.arrays, nil
}

// copied reads the same buffers, in memory of their own.
func (r columnReader) copied() columnReader {
	var own columnReader
	for i := 0; i < len(r.places); i += 2 {
		offset, length := r.places[i], r.places[i+1]
		own.places = append(own.places, int64(len(own.data)), length)
		own.data = append(own.data, r.data[offset:offset+length]...)
		own.data = append(own.data, make([]byte, -len(own.data)&(readAlignment-1))...)
	}
	return own
}

// writeColumns writes a reply, its data to a segment if one is given.
func writeColumns(function *Function, asked *callBatch, answered *replyParts, segment *string) ([]byte, error) {
	writer := columnWriter{}
	rows := int64(0)
	for i, column := range function.replyColumns(asked.wished.rowErrors) {
		whole, err := joined(answered.parts, i)
		if err != nil {
			return nil, err
		}
		rows = int64(whole.Len())
		if encoded, ok := whole.(*array.Dictionary); ok {
			writer.encoded(i, encoded)
		} else {
			writer.column(column.Type, whole.Data())
		}
	}
	if segment != nil {
		file, err := openSegment(*segment, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		for _, piece := range writer.pieces {
			if _, err := file.WriteAt(piece.bytes, piece.offset); err != nil {
				// There is no memory left for segments: the data goes with the reply.
				segment = nil
				break
			}
		}
	}
	header, err := json.Marshal(replyHeader{asked.number, rows, answered.micros, segment, writer.places, writer.dictionaries})
	if err != nil {
		return nil, err
	}
	body := binary.LittleEndian.AppendUint32(nil, uint32(len(header)))
	body = append(body, header...)
	body = append(body, make([]byte, -len(body)&(readAlignment-1))...)
	// Columns of a shared table hold its map, which the pieces do not.
	defer runtime.KeepAlive(answered)
	if segment == nil {
		start := len(body)
		body = append(body, make([]byte, writer.size)...)
		for _, piece := range writer.pieces {
			copy(body[start+int(piece.offset):], piece.bytes)
		}
	}
	return body, nil
}

// joined is a column of a reply that may have come in parts.
func joined(parts []arrow.RecordBatch, column int) (arrow.Array, error) {
	if len(parts) == 1 {
		return parts[0].Column(column), nil
	}
	var arrays []arrow.Array
	for _, part := range parts {
		arrays = append(arrays, part.Column(column))
	}
	return array.Concatenate(arrays, memory.DefaultAllocator)
}

func openSegment(name string, flags int) (*os.File, error) {
	if segmentFolder == "" || !segmentName.MatchString(name) {
		return nil, violation("there is no segment %q", name)
	}
	file, err := os.OpenFile(segmentFolder+"/"+name, flags|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, violation("segment %s cannot be used: %v", name, err)
	}
	return file, nil
}

func readSegment(name string, places []int64) ([]byte, error) {
	size := int64(0)
	for i := 1; i < len(places); i += 2 {
		offset, length := places[i-1], places[i]
		if offset < 0 || length < 0 || offset > maxSegmentBytes || length > maxSegmentBytes-offset {
			return nil, unreadable("no buffer of %d bytes can be at %d", length, offset)
		}
		size = max(size, offset+length)
	}
	file, err := openSegment(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// A file that is too short must not cost the memory that the header asks for.
	if status, err := file.Stat(); err != nil || status.Size() < size {
		return nil, violation("segment %s has less than %d bytes", name, size)
	}
	data := make([]byte, size)
	if _, err := file.ReadAt(data, 0); err != nil {
		return nil, violation("segment %s cannot be used: %v", name, err)
	}
	return data, nil
}

// columnReader reads columns out of bytes that nobody has checked.
type columnReader struct {
	data []byte
	// Offset and length of each buffer that was not read yet.
	places []int64
}

// buffer is the next buffer, of at least so many bytes.
func (r *columnReader) buffer(least int64) ([]byte, error) {
	if len(r.places) < 2 {
		return nil, unreadable("it has fewer buffers than columns")
	}
	offset, length := r.places[0], r.places[1]
	r.places = r.places[2:]
	size := int64(len(r.data))
	if offset < 0 || length < 0 || offset%readAlignment != 0 || offset > size || length > size-offset {
		return nil, unreadable("no buffer of %d bytes can be at %d", length, offset)
	}
	if length < least {
		return nil, unreadable("a buffer has %d bytes, not %d", length, least)
	}
	return r.data[offset : offset+length], nil
}

func (r *columnReader) column(t *Type, rows int64) (arrow.ArrayData, error) {
	validity, err := r.buffer(0)
	if err != nil {
		return nil, err
	}
	nulls := 0
	var bitmap *memory.Buffer
	if len(validity) > 0 {
		if bitutil.BytesForBits(rows) > int64(len(validity)) {
			return nil, unreadable("a validity buffer has %d bytes for %d rows", len(validity), rows)
		}
		bitmap = memory.NewBufferBytes(validity)
		nulls = int(rows) - bitutil.CountSetBits(validity, 0, int(rows))
	}
	kind := t.Arrow()
	made := func(buffers []*memory.Buffer, children []arrow.ArrayData) (arrow.ArrayData, error) {
		return array.NewData(kind, int(rows), append([]*memory.Buffer{bitmap}, buffers...), children, nulls, 0), nil
	}
	switch {
	case t.Type == "array":
		offsets, end, err := r.offsets(rows)
		if err != nil {
			return nil, err
		}
		elements, err := r.column(t.Element, end)
		if err != nil {
			return nil, err
		}
		return made([]*memory.Buffer{offsets}, []arrow.ArrayData{elements})
	case t.Type == "range" || t.Type == "composite":
		var parts []arrow.ArrayData
		for _, attribute := range t.Parts() {
			part, err := r.column(attribute, rows)
			if err != nil {
				return nil, err
			}
			parts = append(parts, part)
		}
		return made(nil, parts)
	case t.Type == "bytea" || t.IsText():
		offsets, end, err := r.offsets(rows)
		if err != nil {
			return nil, err
		}
		values, err := r.buffer(end)
		if err != nil {
			return nil, err
		}
		if t.IsText() {
			if err := checkText(values[:end], arrow.Int32Traits.CastFromBytes(offsets.Bytes())); err != nil {
				return nil, err
			}
		}
		return made([]*memory.Buffer{offsets, memory.NewBufferBytes(values)}, nil)
	}
	values, err := r.buffer((rows*int64(kind.(arrow.FixedWidthDataType).BitWidth()) + 7) / 8)
	if err != nil {
		return nil, err
	}
	return made([]*memory.Buffer{memory.NewBufferBytes(values)}, nil)
}

// offsets are the next buffer, and what the last of them is.
func (r *columnReader) offsets(rows int64) (*memory.Buffer, int64, error) {
	if rows == 0 {
		_, err := r.buffer(0)
		return memory.NewBufferBytes(make([]byte, 4)), 0, err
	}
	buffer, err := r.buffer(4 * (rows + 1))
	if err != nil {
		return nil, 0, err
	}
	before := int32(0)
	for _, offset := range arrow.Int32Traits.CastFromBytes(buffer[:4*(rows+1)]) {
		if offset < before {
			return nil, 0, unreadable("offsets descend")
		}
		before = offset
	}
	return memory.NewBufferBytes(buffer[:4*(rows+1)]), int64(before), nil
}

// checkText refuses what is not UTF-8, and halves of characters.
func checkText(bytes []byte, offsets []int32) error {
	if !utf8.Valid(bytes[offsets[0]:]) {
		return unreadable("a text is not UTF-8")
	}
	for _, offset := range offsets {
		if int(offset) < len(bytes) && !utf8.RuneStart(bytes[offset]) {
			return unreadable("a text is not UTF-8")
		}
	}
	return nil
}

// columnWriter lays columns out. Results that are arguments are written as well: the handler may have written to them, so that the client's
// own are not what it returned (docs/protocol.md §7.8).
type columnWriter struct {
	// Offset and length of each buffer.
	places []int64
	pieces []piece
	size   int64
	// The number of each column that is a dictionary, and of its values.
	dictionaries []int
}

type piece struct {
	offset int64
	bytes  []byte
}

func (w *columnWriter) add(bytes []byte) {
	if len(bytes) == 0 {
		w.places = append(w.places, 0, 0)
		return
	}
	offset := (w.size + alignment - 1) / alignment * alignment
	w.places = append(w.places, offset, int64(len(bytes)))
	w.pieces = append(w.pieces, piece{offset, bytes})
	w.size = offset + int64(len(bytes))
}

// encoded adds a column of texts as indexes and a dictionary (docs/protocol.md §7.9).
func (w *columnWriter) encoded(number int, column *array.Dictionary) {
	texts := column.Dictionary()
	w.dictionaries = append(w.dictionaries, number, texts.Len())
	w.column(rowType, column.Indices().Data())
	end := w.offsets(texts.Data())
	if end == 0 {
		w.add(nil)
	} else {
		w.add(texts.Data().Buffers()[2].Bytes()[:end])
	}
}

// bits are those of a slice, from the first on.
func bits(buffer *memory.Buffer, offset, count int) []byte {
	if offset == 0 {
		return buffer.Bytes()[:bitutil.BytesForBits(int64(count))]
	}
	copied := make([]byte, bitutil.BytesForBits(int64(count)))
	bitutil.CopyBitmap(buffer.Bytes(), offset, count, copied, 0)
	return copied
}

func (w *columnWriter) column(t *Type, data arrow.ArrayData) {
	buffers, offset, rows := data.Buffers(), data.Offset(), data.Len()
	if rows > 0 && buffers[0] != nil && data.NullN() != 0 {
		w.add(bits(buffers[0], offset, rows))
	} else {
		w.add(nil)
	}
	switch {
	case t.Type == "array":
		end := w.offsets(data)
		w.column(t.Element, array.NewSliceData(data.Children()[0], 0, end))
	case t.Type == "range" || t.Type == "composite":
		for i, part := range t.Parts() {
			w.column(part, array.NewSliceData(data.Children()[i], int64(offset), int64(offset+rows)))
		}
	case t.Type == "bytea" || t.IsText():
		end := w.offsets(data)
		if end == 0 {
			w.add(nil)
		} else {
			w.add(buffers[2].Bytes()[:end])
		}
	case rows == 0:
		w.add(nil)
	case t.Type == "bool":
		w.add(bits(buffers[1], offset, rows))
	default:
		width := t.Arrow().(arrow.FixedWidthDataType).BitWidth() / 8
		w.add(buffers[1].Bytes()[offset*width : (offset+rows)*width])
	}
}

// offsets adds those of an array, which may begin above 0, and gives the last.
func (w *columnWriter) offsets(data arrow.ArrayData) int64 {
	if data.Len() == 0 {
		w.add(nil)
		return 0
	}
	bytes := data.Buffers()[1].Bytes()[4*data.Offset() : 4*(data.Offset()+data.Len()+1)]
	w.add(bytes)
	return int64(int32(binary.LittleEndian.Uint32(bytes[len(bytes)-4:])))
}
