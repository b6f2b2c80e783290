package server

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
	"golang.org/x/sys/unix"

	"transship/udf"
)

// Segments that are written here, and files that are none.

// segmentOf are the bytes of a segment of columns, which are cut into record batches.
func segmentOf(t testing.TB, key string, fields []arrow.Field, columns []arrow.Array, options ...ipc.Option) []byte {
	t.Helper()
	metadata := arrow.NewMetadata([]string{keyMetadata}, []string{key})
	schema := arrow.NewSchema(fields, &metadata)
	var out bytes.Buffer
	options = append(options, ipc.WithSchema(schema))
	writer, err := ipc.NewFileWriter(&out, options...)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	if len(columns) > 0 {
		rows = columns[0].Len()
	}
	for first := 0; first < rows; first += rowsPerBatch {
		batch := array.NewRecordBatch(schema, columns, int64(rows)).NewSlice(int64(first), int64(min(first+rowsPerBatch, rows)))
		if err := writer.Write(batch); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return aligned(out.Bytes())
}

// aligned moves the batches of a file and their buffers to multiples of 64 bytes, which arrow-go does not care for.
func aligned(file []byte) []byte {
	end := len(file) - trailerBytes
	footer := slices.Clone(file[end-int(binary.LittleEndian.Uint32(file[end:])) : end])
	place, blocks := rootOf(footer).vector(3, blockBytes)
	padded := func(bytes []byte) []byte { return append(bytes, make([]byte, -len(bytes)&(alignment-1))...) }
	moved := padded(slices.Clone(file[:headBytes]))
	for number := range blocks {
		block := footer[int(place)+number*blockBytes:]
		start, size := binary.LittleEndian.Uint64(block), uint64(binary.LittleEndian.Uint32(block[8:]))
		head, body := slices.Clone(file[start:start+size]), file[start+size:]
		message := rootOf(head[prefixBytes:])
		batch := message.table(2)
		buffers, count := batch.vector(2, bufferBytes)
		var movedBody []byte
		for i := range count {
			buffer := batch.Bytes[int(buffers)+i*bufferBytes:]
			from, length := binary.LittleEndian.Uint64(buffer), binary.LittleEndian.Uint64(buffer[8:])
			binary.LittleEndian.PutUint64(buffer, uint64(len(movedBody)))
			movedBody = padded(append(movedBody, body[from:from+length]...))
		}
		message.MutateInt64Slot(slot(3), int64(len(movedBody)))
		head = padded(head)
		binary.LittleEndian.PutUint64(block, uint64(len(moved)))
		binary.LittleEndian.PutUint32(block[8:], uint32(len(head)))
		binary.LittleEndian.PutUint64(block[16:], uint64(len(movedBody)))
		moved = slices.Concat(moved, head, movedBody)
	}
	return slices.Concat(moved, footer, file[end:])
}

// indexOf are the bytes of the index of a segment.
func indexOf(t testing.TB, file []byte, seed uint64) []byte {
	t.Helper()
	found, err := decodeSegment(file)
	if err != nil {
		t.Fatal(err)
	}
	made := &segment{schema: found.schema, rows: found.rows}
	if made.key, err = keyOf(found.schema); err != nil {
		t.Fatal(err)
	}
	for _, columns := range found.batches {
		if err := made.add(columns); err != nil {
			t.Fatal(err)
		}
	}
	// The rows of each key, by its first.
	var listed [][]uint32
	slots, entries := []uint64{0}, 0
	insert := func(number int) {
		first := listed[number][0]
		hash := made.keys[first/rowsPerBatch].hash(int(first%rowsPerBatch), seed)
		place := hash & uint64(len(slots)-1)
		for slots[place] != 0 {
			place = (place + 1) & uint64(len(slots)-1)
		}
		slots[place] = hash>>32<<32 | uint64(number+1)
	}
	numbers := map[string]int{}
	for row := range uint32(made.rows) {
		keys, at := made.keys[row/rowsPerBatch], int(row%rowsPerBatch)
		if keys.hasNull(at) {
			continue
		}
		entries++
		var text []byte
		for _, column := range keys.columns {
			bytes := column.bytes(at, new([8]byte))
			text = append(binary.AppendUvarint(text, uint64(len(bytes))), bytes...)
		}
		if number, ok := numbers[string(text)]; ok {
			listed[number] = append(listed[number], row)
			continue
		}
		numbers[string(text)] = len(listed)
		listed = append(listed, []uint32{row})
	}
	for len(slots) < 2*len(listed) {
		slots = make([]uint64, 2*len(slots))
	}
	for number := range listed {
		insert(number)
	}
	out := binary.LittleEndian.AppendUint64(append([]byte(indexMagic), 2, 0, 0, 0, 0, 0, 0, 0), uint64(made.rows))
	for _, number := range []uint64{uint64(len(listed)), uint64(len(slots)), uint64(entries), seed, 0} {
		out = binary.LittleEndian.AppendUint64(out, number)
	}
	for _, slot := range slots {
		out = binary.LittleEndian.AppendUint64(out, slot)
	}
	if entries != len(listed) {
		offset := uint32(0)
		for _, rows := range listed {
			out = binary.LittleEndian.AppendUint32(out, offset)
			offset += uint32(len(rows))
		}
		out = binary.LittleEndian.AppendUint32(out, offset)
	}
	if len(listed) != made.rows {
		for _, row := range slices.Concat(listed...) {
			out = binary.LittleEndian.AppendUint32(out, row)
		}
	}
	return out
}

// memoryFile is the descriptor of a file with these bytes.
func memoryFile(t testing.TB, bytes []byte) int {
	t.Helper()
	descriptor, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(descriptor) })
	if _, err := unix.Write(descriptor, bytes); err != nil {
		t.Fatal(err)
	}
	return descriptor
}

func openedBytes(t testing.TB, file, index []byte) (*segment, error) {
	t.Helper()
	descriptor := -1
	if index != nil {
		descriptor = memoryFile(t, index)
	}
	return openTableSegment(memoryFile(t, file), descriptor)
}

var numberFields = []arrow.Field{
	{Name: "key", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
}

// numbersSegment has keys from `from` to `to`, with the names that they have with this prefix.
func numbersSegment(t testing.TB, prefix string, keys ...int64) (segment, index []byte) {
	t.Helper()
	names := array.NewStringBuilder(memory.DefaultAllocator)
	for _, key := range keys {
		names.Append(fmt.Sprintf("%s%d", prefix, key))
	}
	segment = segmentOf(t, "0", numberFields, []arrow.Array{int8s(keys...), names.NewArray()})
	return segment, indexOf(t, segment, 0x0123456789abcdef)
}

func TestFilesOfHereAreThoseOfRust(t *testing.T) {
	for _, name := range append([]string{"all", "first", "none"}, "bool", "int8", "text", "uuid") {
		segment, err := os.ReadFile("testdata/" + name + ".segment")
		if err != nil {
			t.Fatal(err)
		}
		index, err := os.ReadFile("testdata/" + name + ".index")
		if err != nil {
			t.Fatal(err)
		}
		if made := indexOf(t, segment, binary.LittleEndian.Uint64(index[48:])); !bytes.Equal(made, index) {
			t.Errorf("%s: % x, not % x", name, made, index)
		}
	}
}

func TestSegmentsOfSeveralBatches(t *testing.T) {
	const rows = 2*rowsPerBatch + 100
	keys := make([]int64, rows)
	for row := range keys {
		keys[row] = int64(row % 100_000)
	}
	file, index := numbersSegment(t, "n", keys...)
	opened, err := openedBytes(t, file, index)
	if err != nil || len(opened.batches) != 3 {
		t.Fatal(err)
	}
	table, err := newTable("t", []*segment{opened})
	if err != nil {
		t.Fatal(err)
	}
	asked := []int64{0, 31_171, 31_172, 65_535, 65_536, 99_999, 100_000, -1}
	positions, found, err := table.Matches(asked)
	if err != nil || !slices.Equal(positions, []int32{0, 0, 1, 1, 2, 3, 4, 5}) {
		t.Errorf("%v, %v", positions, err)
	}
	names := scanned[string](t, found, "name")
	for number, position := range positions {
		if names[number] != fmt.Sprintf("n%d", asked[position]) {
			t.Errorf("key %d has name %s", asked[position], names[number])
		}
	}
	if rows, err := table.Lookup(asked[2:]); err != nil || !slices.Equal(scanned[*string](t, rows, "name")[4:], []*string{nil, nil}) {
		t.Errorf("%v", err)
	}
	next := int64(0)
	for batch := range table.Batches() {
		for _, key := range scanned[int64](t, batch, "key") {
			if key != next%100_000 {
				t.Fatalf("key %d, not %d", key, next)
			}
			next++
		}
	}
	if next != rows {
		t.Errorf("%d rows", next)
	}
}

func TestFilesThatAreNoSegment(t *testing.T) {
	own, index := numbersSegment(t, "n", 1, 2, 3)
	_, other := numbersSegment(t, "n", 1, 2, 4)
	_, more := numbersSegment(t, "n", 1, 2, 3, 4)
	keyless := segmentOf(t, "", numberFields[:1], []arrow.Array{int8s(1, 2, 3)})
	dictionary := arrow.Field{Name: "key", Type: dictionaryOf(int8s(7), 0, 0, 0).DataType(), Nullable: true}
	for _, refused := range []struct {
		segment, index []byte
		fact           string
	}{
		{nil, index, "invalid segment of a shared table: It is shorter than an Arrow file."},
		{index, index, "It does not end as an Arrow file does."},
		{own[:len(own)-1], index, "It does not end as an Arrow file does."},
		{append([]byte("x"), own...), index, "invalid segment"},
		{own, own, "invalid index of a shared table: It does not begin as an index does."},
		{own, []byte{}, "It is shorter than its header."},
		{own, index[:len(index)-1], "It has another length than its header says."},
		{own, append(slices.Clone(index), 0), "It has another length than its header says."},
		{own, other, "It is that of another segment."},
		{own, more, "It is that of another segment."},
		{keyless, index, "It is that of another segment."},
		{own, nil, "invalid segment of a shared table: It has a key and no index."},
		{segmentOf(t, "0,0", numberFields, []arrow.Array{int8s(), stringsOf()}), nil, "the key of a shared table has column 0 twice"},
		{segmentOf(t, "2", numberFields, []arrow.Array{int8s(), stringsOf()}), nil, "has column 2, which the table does not have"},
		{segmentOf(t, "-1", numberFields, []arrow.Array{int8s(), stringsOf()}), nil, "has a key that is not a list of numbers"},
		{segmentOf(t, "0", []arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float64}}, nil), nil, "type float64 cannot be a key of a shared table"},
		{segmentOf(t, "0", []arrow.Field{typeOf("numeric").Field("n")}, nil), nil, "type arrowudf.decimal cannot be a key of a shared table"},
		{segmentOf(t, "", []arrow.Field{{Name: "f", Type: arrow.BinaryTypes.LargeString}}, nil), nil, "It has a column of a type that is not supported"},
		{segmentOf(t, "", []arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Uint32}}, nil), nil, "It has a column of a type that is not supported"},
		{segmentOf(t, "", []arrow.Field{dictionary}, nil), nil, "It has a dictionary where none can be."},
		{segmentOf(t, "0", numberFields[:1], []arrow.Array{int8s(1, 2, 3)}, ipc.WithLZ4()), nil, "It is compressed."},
	} {
		if _, err := openedBytes(t, refused.segment, refused.index); err == nil || !strings.Contains(err.Error(), refused.fact) {
			t.Errorf("%q: %v", refused.fact, err)
		}
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	folder, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	large := memoryFile(t, nil)
	if err := unix.Ftruncate(large, mostFileBytes+1); err != nil {
		t.Fatal(err)
	}
	for descriptor, fact := range map[int]string{ends[0]: "It is not a regular file.", int(folder.Fd()): "It is not a regular file.", large: "has at most 536870912 bytes"} {
		if _, err := openTableSegment(descriptor, -1); err == nil || !strings.Contains(err.Error(), fact) {
			t.Errorf("%v", err)
		}
		if _, err := openTableSegment(memoryFile(t, own), descriptor); err == nil || !strings.Contains(err.Error(), fact) {
			t.Errorf("%v", err)
		}
	}
}

func stringsOf(texts ...string) arrow.Array {
	builder := array.NewStringBuilder(memory.DefaultAllocator)
	builder.AppendValues(texts, nil)
	return builder.NewArray()
}

// fileOf is a file of nothing but a footer, whose schema has types within types, each so many times.
func fileOf(depth, children int) []byte {
	footer := flatbuffers.NewBuilder(0)
	footer.StartObject(0)
	list := footer.EndObject()
	footer.StartObject(7)
	footer.PrependByteSlot(2, boolType, 0)
	footer.PrependUOffsetTSlot(3, list, 0)
	field := footer.EndObject()
	for range depth {
		footer.StartVector(4, children, 4)
		for range children {
			footer.PrependUOffsetT(field)
		}
		vector := footer.EndVector(children)
		footer.StartObject(7)
		footer.PrependByteSlot(2, structType, 0)
		footer.PrependUOffsetTSlot(3, list, 0)
		footer.PrependUOffsetTSlot(5, vector, 0)
		field = footer.EndObject()
	}
	footer.StartVector(4, 1, 4)
	footer.PrependUOffsetT(field)
	fields := footer.EndVector(1)
	footer.StartObject(4)
	footer.PrependUOffsetTSlot(1, fields, 0)
	schema := footer.EndObject()
	footer.StartObject(5)
	footer.PrependInt16Slot(0, formatVersion, 0)
	footer.PrependUOffsetTSlot(1, schema, 0)
	footer.Finish(footer.EndObject())
	bytes := append([]byte("ARROW1\x00\x00"), footer.FinishedBytes()...)
	bytes = binary.LittleEndian.AppendUint32(bytes, uint32(len(footer.FinishedBytes())))
	return append(bytes, fileMagic...)
}

func TestSchemasWithoutEndEnd(t *testing.T) {
	for shape, fact := range map[[2]int]string{
		{60, 1}: "<nil>", {70, 1}: "types within types without end", {30, 2}: "a schema that is too large", {2, 1000}: "a schema that is too large",
	} {
		if _, err := decodeSegment(fileOf(shape[0], shape[1])); !strings.Contains(fmt.Sprint(err), fact) {
			t.Errorf("%v: %v", shape, err)
		}
	}
	// A field whose children are the fields of the schema, in which it is.
	file := segmentOf(t, "", []arrow.Field{{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64)}}, nil)
	end := len(file) - trailerBytes
	footer := file[end-int(binary.LittleEndian.Uint32(file[end:])) : end]
	schema := rootOf(footer).table(1)
	fields, _ := schema.vector(1, 4)
	field := schema.tables(1)[0]
	children := field.Pos + flatbuffers.UOffsetT(field.Offset(slot(5)))
	binary.LittleEndian.PutUint32(footer[children:], uint32(fields-4)-uint32(children))
	if _, err := decodeSegment(file); err == nil || !strings.Contains(err.Error(), "types within types without end") {
		t.Errorf("%v", err)
	}
}

// Vectors within each other that overlap: each field of a vector may have the same vector once more.
func TestRoomForFieldsIsTakenOnce(t *testing.T) {
	const fields = 1 << 16
	file := fileOf(1, fields)
	footer := file[headBytes : len(file)-trailerBytes]
	outer := rootOf(footer).table(1).tables(1)[0]
	inner, length := outer.vector(5, flatbuffers.SizeUOffsetT)
	if length != fields {
		t.Fatal(length)
	}
	binary.LittleEndian.PutUint32(footer[inner:], uint32(outer.Pos)-uint32(inner))
	// The vector is half of the footer, and so has as many fields as its bound.
	footer = append(slices.Clone(footer), make([]byte, 4*fields)...)
	file = append(slices.Clone(file[:headBytes]), footer...)
	file = append(binary.LittleEndian.AppendUint32(file, uint32(len(footer))), fileMagic...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := decodeSegment(file)
	runtime.ReadMemStats(&after)
	if !strings.Contains(fmt.Sprint(err), "a schema that is too large") {
		t.Errorf("%v", err)
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 2*mostTimes*uint64(len(footer)) {
		t.Errorf("a footer of %d bytes took %d", len(footer), taken)
	}
}

func TestBatchesHaveRows(t *testing.T) {
	schema := arrow.NewSchema(nil, nil)
	var out bytes.Buffer
	writer, err := ipc.NewFileWriter(&out, ipc.WithSchema(schema))
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Write(array.NewRecordBatch(schema, nil, 5)); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	for rows, fact := range map[int64]string{5: "<nil>", 0: "has 0 rows in batch 1", -5: "has -5 rows in batch 1"} {
		file := aligned(out.Bytes())
		footer := rootOf(file[:len(file)-trailerBytes][len(file)-trailerBytes-int(binary.LittleEndian.Uint32(file[len(file)-trailerBytes:])):])
		place, _ := footer.vector(3, blockBytes)
		start := binary.LittleEndian.Uint64(footer.Bytes[place:])
		batch := rootOf(file[start+prefixBytes:]).table(2)
		if !batch.MutateInt64Slot(slot(0), rows) {
			t.Fatal("the batch does not say how many rows it has")
		}
		if _, err := decodeSegment(file); !strings.Contains(fmt.Sprint(err), fact) {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
}

// Whatever a file has, opening it and looking keys up ends, and is at most an error.
func TestCorruptFiles(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	keys := keysOfTypes()
	for _, name := range []string{"all", "text", "int8", "bool"} {
		segment, err := os.ReadFile("testdata/" + name + ".segment")
		if err != nil {
			t.Fatal(err)
		}
		index, err := os.ReadFile("testdata/" + name + ".index")
		if err != nil {
			t.Fatal(err)
		}
		accepted := 0
		for range 3000 {
			segment, index := slices.Clone(segment), slices.Clone(index)
			for range 1 + random.Intn(4) {
				damaged := segment
				if random.Intn(3) == 0 {
					damaged = index
				}
				place := random.Intn(len(damaged))
				if random.Intn(2) == 0 {
					// The end has the footer.
					place = len(damaged) - 1 - random.Intn(len(damaged)/3)
				}
				switch random.Intn(3) {
				case 0:
					damaged[place] = byte(random.Int())
				case 1:
					damaged[place] = []byte{0, 1, 0x7f, 0x80, 0xff}[random.Intn(5)]
				default:
					binary.LittleEndian.PutUint32(damaged[min(place&^3, len(damaged)-4):], []uint32{0, 1, 0xffffffff, 0x7fffffff, random.Uint32()}[random.Intn(5)])
				}
			}
			if random.Intn(20) == 0 {
				segment = segment[:random.Intn(len(segment))]
			}
			accepted += lookedUp(t, name, keys, segment, index)
		}
		if accepted == 0 {
			t.Errorf("%s: all are refused", name)
		}
	}
}

// lookedUp is 1 if files can be opened, after all of what one does with them.
func lookedUp(t *testing.T, name string, keys map[string]any, file, index []byte) int {
	opened, err := openFiles(file, index)
	if err != nil {
		return 0
	}
	table, err := newTable("t", []*segment{opened})
	if err != nil {
		t.Fatal(err)
	}
	given := []any{keys[name]}
	if name == "all" {
		given = nil
		for _, name := range []string{"uuid", "bytea", "text", "timestamptz", "timestamp", "time", "date", "int8", "int4", "int2", "bool"} {
			given = append(given, keys[name])
		}
	}
	for _, find := range []func() (udf.Rows, error){
		func() (udf.Rows, error) { return table.Lookup(given...) },
		func() (udf.Rows, error) { _, rows, err := table.Matches(given...); return rows, err },
	} {
		if rows, err := find(); err == nil {
			read(rows)
		}
	}
	for batch := range table.Batches() {
		read(batch)
	}
	return 1
}

// read reads all columns of rows that there is a Go type for.
func read(rows udf.Rows) {
	for _, name := range []string{"k", "text", "bytea", "uuid", "n"} {
		_, _ = rows.Scan(name, new([]*string)), rows.Scan(name, new([]*int64))
		_, _ = rows.Scan(name, new([][]byte)), rows.Scan(name, new([]*bool))
	}
	_, _ = rows.Scan("list", new([][]*int32)), rows.Scan("texts", new([][]*string))
	_, _ = rows.Scan("interval", new([]*udf.Interval)), rows.Scan("date", new([]*int32))
}

func openFiles(files ...[]byte) (*segment, error) {
	var descriptors []int
	defer func() { closeDescriptors(descriptors) }()
	for _, bytes := range files {
		descriptor, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		descriptors = append(descriptors, descriptor)
		if _, err := unix.Write(descriptor, bytes); err != nil {
			return nil, err
		}
	}
	return openTableSegment(descriptors[0], descriptors[1])
}
