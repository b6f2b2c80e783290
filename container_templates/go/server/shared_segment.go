package server

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// segment is a part of a shared table that never changes: a mapped file and its index (docs/protocol.md §10).
type segment struct {
	file    *mapping
	schema  *arrow.Schema
	key     []int
	rows    int
	batches [][]arrow.Array
	// Of each batch; none without a key.
	keys []*keys
	// nil without a key, and without rows.
	index *index
	// Offers that list it. Guarded by their lock.
	offered int
}

// openTableSegment maps a segment and its index, and checks their structure but not every value. The index is a descriptor, or less than 0.
func openTableSegment(descriptor, indexDescriptor int) (opened *segment, err error) {
	defer func() {
		// Values may lead anywhere.
		if cause := recover(); cause != nil {
			err = malformed("segment", fmt.Sprintf("cannot be read: %v", cause))
		}
	}()
	file, err := mapFile(descriptor, "segment")
	if err != nil {
		return nil, err
	}
	found, err := decodeSegment(file.bytes)
	if err != nil {
		return nil, err
	}
	opened = &segment{file: file, schema: found.schema, rows: found.rows}
	if opened.key, err = keyOf(found.schema); err != nil {
		return nil, err
	}
	for _, columns := range found.batches {
		if err := opened.add(columns); err != nil {
			return nil, err
		}
	}
	if indexDescriptor < 0 {
		if opened.rows > 0 && len(opened.key) > 0 {
			return nil, malformed("segment", "has a key and no index")
		}
		return opened, nil
	}
	indexFile, err := mapFile(indexDescriptor, "index")
	if err != nil {
		return nil, err
	}
	if opened.index, err = openIndex(indexFile); err != nil {
		return nil, err
	}
	if len(opened.key) == 0 || int(opened.index.rows) != opened.rows || !opened.hasOwnIndex() {
		return nil, malformed("index", "is that of another segment")
	}
	return opened, nil
}

func (s *segment) add(columns []arrow.ArrayData) error {
	var arrays, ofKey []arrow.Array
	for _, column := range columns {
		arrays = append(arrays, heldArray(column))
	}
	s.batches = append(s.batches, arrays)
	if len(s.key) == 0 {
		return nil
	}
	for _, position := range s.key {
		ofKey = append(ofKey, arrays[position])
	}
	made, err := newKeys(ofKey)
	s.keys = append(s.keys, made)
	return err
}

// heldArray is an array whose dictionary is made now, and not by goroutines that read it at the same time.
func heldArray(data arrow.ArrayData) arrow.Array {
	made := array.MakeFromData(data)
	if encoded, ok := made.(*array.Dictionary); ok {
		encoded.Dictionary()
	}
	return made
}

// hasOwnIndex says whether the index has some of the rows. That of another segment of as many rows most likely does not.
func (s *segment) hasOwnIndex() bool {
	if s.rows == 0 {
		return true
	}
	for _, row := range []int{0, s.rows / 2, s.rows - 1} {
		batch, place := row/rowsPerBatch, row%rowsPerBatch
		found, isThere := s.rowsOf(s.keys[batch], place), s.keys[batch].hasNull(place)
		for number := 0; number < found.count && !isThere; number++ {
			isThere = int(found.at(number)) == row
		}
		if !isThere {
			return false
		}
	}
	return true
}

// rowsOf are the rows that have the key of a row of `wanted`; none if a part of it is NULL, or there is no index.
func (s *segment) rowsOf(wanted *keys, row int) keyRows {
	if s.index == nil || wanted.hasNull(row) {
		return keyRows{}
	}
	return s.index.find(wanted.hash(row, s.index.seed), func(held uint32) bool {
		return s.keys[held/rowsPerBatch].equals(int(held%rowsPerBatch), wanted, row)
	})
}

// batch is a record batch of the rows where they lie, for a handler. Its buffers hold the segment, and are nobody else's: a handler may
// release them more often than it should.
func (s *segment) batch(number int, schema *arrow.Schema) arrow.RecordBatch {
	held := keeper{s}
	var lent func(data arrow.ArrayData) arrow.ArrayData
	lent = func(data arrow.ArrayData) arrow.ArrayData {
		var buffers []*memory.Buffer
		for _, buffer := range data.Buffers() {
			if buffer != nil {
				buffer = memory.NewBufferWithAllocator(buffer.Bytes(), held)
			}
			buffers = append(buffers, buffer)
		}
		if _, ok := data.DataType().(*arrow.DictionaryType); ok {
			dictionary := lent(data.Dictionary()).(*array.Data)
			return array.NewDataWithDictionary(data.DataType(), data.Len(), buffers, data.NullN(), data.Offset(), dictionary)
		}
		var children []arrow.ArrayData
		for _, child := range data.Children() {
			children = append(children, lent(child))
		}
		return array.NewData(data.DataType(), data.Len(), buffers, children, data.NullN(), data.Offset())
	}
	var columns []arrow.Array
	for _, column := range s.batches[number] {
		columns = append(columns, heldArray(lent(column.Data())))
	}
	return array.NewRecordBatch(schema, columns, int64(min(s.rows-number*rowsPerBatch, rowsPerBatch)))
}
