package server

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// The bytes of a segment to columns, in place (docs/protocol.md §10.4).
//
// The structure is checked: batches and buffers lie in order and do not overlap, each is aligned and lies within what holds it, and every
// buffer has the bytes that its column needs. The values are not looked at: the client vouches for them (§10.3), and one that leads
// nowhere is a panic in Go, which is an error of whoever looks at it.

const (
	rowsPerBatch    = 65536
	mostBatches     = 64
	mostSegmentRows = mostBatches * rowsPerBatch
	// The footer's length and the magic, at the end of a file, and the magic and its padding, at the start.
	fileMagic    = "ARROW1"
	trailerBytes = 4 + len(fileMagic)
	headBytes    = 8
	// A continuation and a length stand before a message.
	prefixBytes       = 8
	mostMetadataBytes = 64 << 20
	// Of the struct that says where a batch lies, and of those of its columns and buffers.
	blockBytes, nodeBytes, bufferBytes = 24, 16, 16
	// Version 5 of the format.
	formatVersion                 = 4
	dictionaryHeader, batchHeader = 2, 3
)

// decoded is what a segment's bytes hold.
type decoded struct {
	schema *arrow.Schema
	// Of each batch, its columns.
	batches [][]arrow.ArrayData
	rows    int
}

// decodeSegment reads all batches. Their buffers lie in the bytes.
func decodeSegment(file []byte) (found *decoded, err error) {
	defer func() {
		// Places in the file may lead anywhere.
		if cause := recover(); cause != nil {
			err = malformed("segment", fmt.Sprintf("cannot be read: %v", cause))
		}
	}()
	refuse := func(format string, values ...any) (*decoded, error) {
		return nil, malformed("segment", fmt.Sprintf(format, values...))
	}
	if len(file) < trailerBytes {
		return refuse("is shorter than an Arrow file")
	}
	footerEnd := len(file) - trailerBytes
	if string(file[footerEnd+4:]) != fileMagic {
		return refuse("does not end as an Arrow file does")
	}
	size := int64(int32(binary.LittleEndian.Uint32(file[footerEnd:])))
	if size < 0 || size > mostMetadataBytes {
		return refuse("has a footer of more than 64 MiB")
	}
	footerStart := footerEnd - int(size)
	if footerStart < headBytes {
		return refuse("has a footer that is longer than itself")
	}
	footer := rootOf(file[footerStart:footerEnd])
	if footer.GetInt16Slot(slot(0), 0) != formatVersion {
		return refuse("is not of version 5 of the Arrow format")
	}
	found = &decoded{}
	if found.schema, err = readSchema(footer.table(1), int(size)); err != nil {
		return refuse("%v", err)
	}
	place, blocks := footer.vector(3, blockBytes)
	if blocks > mostBatches {
		return nil, fmt.Errorf("a segment of a shared table has at most %d rows", mostSegmentRows)
	}
	// Dictionaries lie behind the batches that need them.
	ofDictionaries, dictionaryCount := footer.vector(2, blockBytes)
	var kinds []arrow.DataType
	for _, field := range found.schema.Fields() {
		if kind, ok := field.Type.(*arrow.DictionaryType); ok {
			kinds = append(kinds, kind.ValueType)
		}
	}
	if dictionaryCount != len(kinds) {
		return refuse("%v", errOtherDictionaries)
	}
	freeFrom := int64(headBytes)
	var messages []message
	for number := range blocks + dictionaryCount {
		block := footer.Bytes[int(place)+number*blockBytes:]
		if number >= blocks {
			block = footer.Bytes[int(ofDictionaries)+(number-blocks)*blockBytes:]
		}
		start, metadata := int64(binary.LittleEndian.Uint64(block)), int64(int32(binary.LittleEndian.Uint32(block[8:])))
		body := int64(binary.LittleEndian.Uint64(block[16:]))
		end := int64(footerStart)
		if start < freeFrom || start > end || metadata < prefixBytes || metadata > mostMetadataBytes || metadata > end-start ||
			body < 0 || body > end-start-metadata || (start+metadata)%alignment != 0 {
			return refuse("has a batch where none can be")
		}
		freeFrom = start + metadata + body
		messages = append(messages, message{file[start : start+metadata], file[start+metadata : freeFrom]})
	}
	var dictionaries []*array.Data
	for number, message := range messages[blocks:] {
		values, err := message.readDictionary(number, kinds[number])
		if err != nil {
			return refuse("%v", err)
		}
		dictionaries = append(dictionaries, values)
	}
	for number, message := range messages[:blocks] {
		columns, rows, err := message.readBatch(found.schema, dictionaries)
		if err != nil {
			return refuse("%v", err)
		}
		if rows < 1 || rows > rowsPerBatch || rows < rowsPerBatch && number+1 < blocks {
			return refuse("has %d rows in batch %d", rows, number+1)
		}
		found.batches = append(found.batches, columns)
		found.rows += int(rows)
	}
	return found, nil
}

// message is that of a batch or a dictionary.
type message struct{ head, body []byte }

// header is the table of a message of a kind.
func (m message) header(kind byte) (part, error) {
	if !bytes.HasPrefix(m.head, []byte{0xff, 0xff, 0xff, 0xff}) {
		return part{}, fmt.Errorf("has a message without a prefix")
	}
	root := rootOf(m.head[prefixBytes:])
	if root.GetInt16Slot(slot(0), 0) != formatVersion || root.GetByteSlot(slot(1), 0) != kind {
		return part{}, fmt.Errorf("has a message that is not a batch")
	}
	return root.table(2), nil
}

// readBatch reads the message of a batch: its columns, and how many rows they have.
func (m message) readBatch(schema *arrow.Schema, dictionaries []*array.Data) ([]arrow.ArrayData, int64, error) {
	batch, err := m.header(batchHeader)
	if err != nil {
		return nil, 0, err
	}
	var kinds []arrow.DataType
	for _, field := range schema.Fields() {
		kinds = append(kinds, field.Type)
	}
	return m.columns(batch, kinds, dictionaries)
}

// readDictionary reads the message of the dictionary of this number, whose values have a type. None of them is NULL: rows are.
func (m message) readDictionary(number int, kind arrow.DataType) (*array.Data, error) {
	dictionary, err := m.header(dictionaryHeader)
	if err != nil {
		return nil, err
	}
	if dictionary.GetInt64Slot(slot(0), 0) != int64(number) || dictionary.GetBoolSlot(slot(2), false) {
		return nil, fmt.Errorf("has a message that is not the dictionary of its column")
	}
	columns, _, err := m.columns(dictionary.table(1), []arrow.DataType{kind}, nil)
	if err != nil {
		return nil, err
	}
	if columns[0].NullN() > 0 {
		return nil, fmt.Errorf("has a dictionary with a NULL")
	}
	return columns[0].(*array.Data), nil
}

// columns reads columns of these types, and how many rows they have.
func (m message) columns(batch part, kinds []arrow.DataType, dictionaries []*array.Data) ([]arrow.ArrayData, int64, error) {
	if batch.has(3) {
		return nil, 0, fmt.Errorf("is compressed")
	}
	rows := batch.GetInt64Slot(slot(0), 0)
	nodes, nodeCount := batch.vector(1, nodeBytes)
	buffers, bufferCount := batch.vector(2, bufferBytes)
	walk := walk{
		nodes:        batch.Bytes[nodes:][:nodeCount*nodeBytes],
		buffers:      batch.Bytes[buffers:][:bufferCount*bufferBytes],
		body:         m.body,
		dictionaries: dictionaries,
	}
	var columns []arrow.ArrayData
	for _, kind := range kinds {
		column, err := walk.column(kind)
		if err != nil {
			return nil, 0, err
		}
		if int64(column.Len()) != rows {
			return nil, 0, fmt.Errorf("has a column of %d values in a batch of %d rows", column.Len(), rows)
		}
		columns = append(columns, column)
	}
	if len(walk.nodes) > 0 || len(walk.buffers) > 0 {
		return nil, 0, fmt.Errorf("has a batch with more columns than its schema")
	}
	return columns, rows, nil
}

// walk goes through the nodes and buffers of a batch, column by column.
type walk struct {
	nodes, buffers []byte
	// The message's body, and the end of the buffers before.
	body     []byte
	freeFrom int64
	// Those of the columns that are left.
	dictionaries []*array.Data
}

// column reads a column and all within it.
func (w *walk) column(kind arrow.DataType) (arrow.ArrayData, error) {
	if len(w.nodes) == 0 {
		return nil, fmt.Errorf("has a batch with fewer columns than its schema")
	}
	values, nulls := int64(binary.LittleEndian.Uint64(w.nodes)), int64(binary.LittleEndian.Uint64(w.nodes[8:]))
	w.nodes = w.nodes[nodeBytes:]
	// No buffer of a file has more bits.
	if values < 0 || values > 8*mostFileBytes || nulls < 0 || nulls > values {
		return nil, fmt.Errorf("has a column with impossible counts")
	}
	least := int64(0)
	if nulls > 0 {
		least = (values + 7) / 8
	}
	validity, err := w.buffer(least, 1)
	if err != nil {
		return nil, err
	}
	if nulls == 0 {
		validity = nil
	}
	buffers := []*memory.Buffer{validity}
	var children []arrow.ArrayData
	child := func(kind arrow.DataType) (arrow.ArrayData, error) {
		part, err := w.column(kind)
		children = append(children, part)
		return part, err
	}
	switch kind := kind.(type) {
	case *arrow.StringType, *arrow.BinaryType:
		offsets, err := w.offsets(values)
		if err != nil {
			return nil, err
		}
		bytes, err := w.buffer(0, 1)
		if err != nil {
			return nil, err
		}
		if err := checkOffsets(offsets, values, int64(bytes.Len())); err != nil {
			return nil, err
		}
		buffers = append(buffers, offsets, bytes)
	case *arrow.DictionaryType:
		indexes, err := w.buffer(4*values, 4)
		if err != nil {
			return nil, err
		}
		dictionary := w.dictionaries[0]
		w.dictionaries = w.dictionaries[1:]
		return array.NewDataWithDictionary(kind, int(values), append(buffers, indexes), int(nulls), 0, dictionary), nil
	case *arrow.ListType:
		offsets, err := w.offsets(values)
		if err != nil {
			return nil, err
		}
		items, err := child(kind.Elem())
		if err != nil {
			return nil, err
		}
		if err := checkOffsets(offsets, values, int64(items.Len())); err != nil {
			return nil, err
		}
		buffers = append(buffers, offsets)
	case *arrow.StructType:
		for _, field := range kind.Fields() {
			part, err := child(field.Type)
			if err != nil {
				return nil, err
			}
			if int64(part.Len()) != values {
				return nil, fmt.Errorf("has a composite value without its parts")
			}
		}
	default:
		fixed, err := w.buffer((values*int64(kind.(arrow.FixedWidthDataType).BitWidth())+7)/8, 1)
		if err != nil {
			return nil, err
		}
		buffers = append(buffers, fixed)
	}
	return array.NewData(kind, int(values), buffers, children, int(nulls), 0), nil
}

// offsets are the next buffer. Where there are no values, there may be none.
func (w *walk) offsets(values int64) (*memory.Buffer, error) {
	if values == 0 {
		return w.buffer(0, 4)
	}
	return w.buffer(4*(values+1), 4)
}

// checkOffsets looks at the first and the last offset; those between are values, at which nobody looks.
func checkOffsets(buffer *memory.Buffer, values, end int64) error {
	if values == 0 {
		return nil
	}
	offsets := arrow.Int32Traits.CastFromBytes(buffer.Bytes())
	if first, last := int64(offsets[0]), int64(offsets[values]); first < 0 || first > last || last > end {
		return fmt.Errorf("has values that lie outside of their column")
	}
	return nil
}

// buffer is the next buffer, of at least so many bytes and a multiple of `unit`.
func (w *walk) buffer(least, unit int64) (*memory.Buffer, error) {
	if len(w.buffers) == 0 {
		return nil, fmt.Errorf("has a batch with fewer buffers than its columns")
	}
	offset, length := int64(binary.LittleEndian.Uint64(w.buffers)), int64(binary.LittleEndian.Uint64(w.buffers[8:]))
	w.buffers = w.buffers[bufferBytes:]
	size := int64(len(w.body))
	if offset < w.freeFrom || offset > size || length < least || length > size-offset || offset%alignment != 0 || length%unit != 0 ||
		length > math.MaxInt32 {
		return nil, fmt.Errorf("has a buffer where none can be")
	}
	w.freeFrom = offset + length
	return memory.NewBufferBytes(w.body[offset:w.freeFrom:w.freeFrom]), nil
}
