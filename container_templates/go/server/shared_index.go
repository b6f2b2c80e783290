package server

import (
	"encoding/binary"
	"fmt"
)

// The index over the keys of a segment's rows (docs/protocol.md §10.5), read in place.

const (
	indexMagic       = "TSHPIDX1"
	indexVersion     = 2
	indexHeaderBytes = 64
)

// index is an index whose header was checked. If the rest is corrupt, a look-up misses; it never fails.
type index struct {
	file *mapping
	seed uint64
	// Of the segment.
	rows     uint32
	distinct uint32
	// 8 bytes each; their number is a power of two.
	slots []byte
	// Where each key's rows begin, and the rows, 4 bytes each. No offsets if every key has one row, and no rows if each row has a key of
	// its own.
	offsets, listed []byte
}

// openIndex opens an index. Look-ups alone look at what is behind the header.
func openIndex(file *mapping) (*index, error) {
	bytes := file.bytes
	if len(bytes) < indexHeaderBytes {
		return nil, malformed("index", "is shorter than its header")
	}
	if string(bytes[:8]) != indexMagic {
		return nil, malformed("index", "does not begin as an index does")
	}
	if version := binary.LittleEndian.Uint32(bytes[8:]); version != indexVersion {
		return nil, malformed("index", fmt.Sprintf("has version %d, and not %d", version, indexVersion))
	}
	number := func(place int) uint64 { return binary.LittleEndian.Uint64(bytes[place:]) }
	rows, distinct, slots, entries, seed := number(16), number(24), number(32), number(40), number(48)
	isPossible := distinct <= entries && entries <= rows && rows <= mostSegmentRows &&
		slots > 0 && slots&(slots-1) == 0 && slots/2 >= distinct && slots <= uint64(len(bytes))
	if !isPossible {
		return nil, malformed("index", "has a header with impossible numbers")
	}
	offsets, listed := distinct+1, entries
	if entries == distinct {
		offsets = 0
	}
	if distinct == rows {
		listed = 0
	}
	offsetsStart := indexHeaderBytes + 8*slots
	rowsStart := offsetsStart + 4*offsets
	if uint64(len(bytes)) != rowsStart+4*listed {
		return nil, malformed("index", "has another length than its header says")
	}
	return &index{
		file: file, seed: seed, rows: uint32(rows), distinct: uint32(distinct),
		slots: bytes[indexHeaderBytes:offsetsStart], offsets: bytes[offsetsStart:rowsStart], listed: bytes[rowsStart:],
	}, nil
}

// keyRows are the rows of a key, ascending: one, or those of a list with 4 bytes each.
type keyRows struct {
	listed []byte
	one    uint32
	count  int
}

func (r keyRows) at(number int) uint32 {
	if r.listed == nil {
		return r.one
	}
	return binary.LittleEndian.Uint32(r.listed[4*number:])
}

// find gives the rows of the key with a hash; isEqual says whether a row of the segment has the key. All of them are rows of the segment.
func (i *index) find(hash uint64, isEqual func(row uint32) bool) keyRows {
	slots := uint64(len(i.slots) / 8)
	place := hash & (slots - 1)
	// An index that is corrupt may have no empty slot.
	for range slots {
		slot := binary.LittleEndian.Uint64(i.slots[8*place:])
		if slot == 0 {
			break
		}
		if slot>>32 == hash>>32 {
			if rows := i.rowsOf(uint32(slot)); rows.count > 0 && isEqual(rows.at(0)) && i.has(rows) {
				return rows
			}
		}
		place = (place + 1) & (slots - 1)
	}
	return keyRows{}
}

// has says whether all rows are rows of the segment.
func (i *index) has(rows keyRows) bool {
	for number := range rows.count {
		if rows.at(number) >= i.rows {
			return false
		}
	}
	return true
}

// rowsOf are the rows of the key of this number + 1, the first of which the segment has; none if there are no such rows.
func (i *index) rowsOf(number uint32) keyRows {
	if number == 0 || number > i.distinct {
		return keyRows{}
	}
	key := number - 1
	if len(i.listed) == 0 {
		return keyRows{one: key, count: 1}
	}
	start, end := uint64(key), uint64(key)+1
	if len(i.offsets) > 0 {
		start = uint64(binary.LittleEndian.Uint32(i.offsets[4*uint64(key):]))
		end = uint64(binary.LittleEndian.Uint32(i.offsets[4*uint64(key)+4:]))
	}
	if start >= end || 4*end > uint64(len(i.listed)) {
		return keyRows{}
	}
	rows := keyRows{listed: i.listed[4*start : 4*end], count: int(end - start)}
	if rows.at(0) >= i.rows {
		return keyRows{}
	}
	return rows
}
