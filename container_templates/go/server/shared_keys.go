package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/zeebo/xxh3"
)

// Keys of rows: which types they may have, how they hash, and when two are equal (docs/protocol.md §10.6).

// Most columns of a key.
const mostKeyColumns = 32

// checkKeyField refuses types whose equality is not that of their bytes, among them those that travel as texts.
func checkKeyField(field arrow.Field) error {
	switch field.Type.ID() {
	case arrow.STRING, arrow.BINARY:
		if extension, ok := field.Metadata.GetValue(extensionKey); ok {
			return fmt.Errorf("type %s cannot be a key of a shared table", extension)
		}
		return nil
	case arrow.BOOL, arrow.INT16, arrow.INT32, arrow.INT64, arrow.DATE32, arrow.TIME64, arrow.TIMESTAMP, arrow.FIXED_SIZE_BINARY:
		return nil
	}
	return fmt.Errorf("type %s cannot be a key of a shared table", field.Type)
}

// bytesOf gives the bytes of a value that is not NULL, those of numbers in the room that is given; nil for a type that is no key's.
func bytesOf(column arrow.Array) func(row int, room *[8]byte) []byte {
	switch column := column.(type) {
	case *array.Boolean:
		return func(row int, room *[8]byte) []byte {
			room[0] = 0
			if column.Value(row) {
				room[0] = 1
			}
			return room[:1]
		}
	case *array.Int16:
		return func(row int, room *[8]byte) []byte {
			binary.LittleEndian.PutUint16(room[:], uint16(column.Value(row)))
			return room[:2]
		}
	case *array.Int32:
		return func(row int, room *[8]byte) []byte {
			binary.LittleEndian.PutUint32(room[:], uint32(column.Value(row)))
			return room[:4]
		}
	case *array.Date32:
		return func(row int, room *[8]byte) []byte {
			binary.LittleEndian.PutUint32(room[:], uint32(column.Value(row)))
			return room[:4]
		}
	case *array.Int64:
		return func(row int, room *[8]byte) []byte {
			binary.LittleEndian.PutUint64(room[:], uint64(column.Value(row)))
			return room[:]
		}
	case *array.Time64:
		return func(row int, room *[8]byte) []byte {
			binary.LittleEndian.PutUint64(room[:], uint64(column.Value(row)))
			return room[:]
		}
	case *array.Timestamp:
		return func(row int, room *[8]byte) []byte {
			binary.LittleEndian.PutUint64(room[:], uint64(column.Value(row)))
			return room[:]
		}
	case *array.String:
		return func(row int, _ *[8]byte) []byte {
			text := column.Value(row)
			return unsafe.Slice(unsafe.StringData(text), len(text))
		}
	case *array.Binary:
		return func(row int, _ *[8]byte) []byte { return column.Value(row) }
	case *array.FixedSizeBinary:
		return func(row int, _ *[8]byte) []byte { return column.Value(row) }
	}
	return nil
}

// keys are those of the rows of a batch, of a segment or to be looked for.
type keys struct {
	columns []keyColumn
	rows    int
}

type keyColumn struct {
	values arrow.Array
	bytes  func(row int, room *[8]byte) []byte
}

func newKeys(columns []arrow.Array) (*keys, error) {
	made := &keys{}
	for i, column := range columns {
		if i == 0 {
			made.rows = column.Len()
		} else if column.Len() != made.rows {
			return nil, errors.New("the key of a shared table has columns of different lengths")
		}
		bytes := bytesOf(column)
		if bytes == nil {
			return nil, fmt.Errorf("type %s cannot be a key of a shared table", column.DataType())
		}
		made.columns = append(made.columns, keyColumn{column, bytes})
	}
	return made, nil
}

// hasNull says whether a part of a row's key is NULL: the key equals nothing then.
func (k *keys) hasNull(row int) bool {
	for _, column := range k.columns {
		if column.values.IsNull(row) {
			return true
		}
	}
	return false
}

// hash is that of a row's key without NULLs, with the seed of an index.
func (k *keys) hash(row int, seed uint64) uint64 {
	var room [8]byte
	if len(k.columns) == 1 {
		return xxh3.HashSeed(k.columns[0].bytes(row, &room), seed)
	}
	var hashes [8 * mostKeyColumns]byte
	for i, column := range k.columns {
		binary.LittleEndian.PutUint64(hashes[8*i:], xxh3.HashSeed(column.bytes(row, &room), seed))
	}
	return xxh3.HashSeed(hashes[:8*len(k.columns)], seed)
}

// equals says whether a row's key and one without NULLs are equal. Both are of the same types.
func (k *keys) equals(row int, other *keys, otherRow int) bool {
	var one, two [8]byte
	for i, column := range k.columns {
		if column.values.IsNull(row) || !bytes.Equal(column.bytes(row, &one), other.columns[i].bytes(otherRow, &two)) {
			return false
		}
	}
	return true
}
