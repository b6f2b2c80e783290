package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// What is left of offers, and what is not.

// openFilesNow is how many descriptors this process has, and how many maps of segments once memory was collected.
func openFilesNow(t testing.TB) (int, int) {
	t.Helper()
	runtime.GC()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries), mapsNow(t)
}

func mapsNow(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:segment")
}

func TestNeitherDescriptorsNorMapsAreLeft(t *testing.T) {
	const most = 50
	stage := staged(t, most, linePatience)
	own := numbersFiles(t, "a", 1)
	many := slices.Repeat(own[:1], 253)
	wait(t, "the maps of others end", func() bool { _, maps := openFilesNow(t); return maps == 0 })
	before, _ := openFilesNow(t)
	var clients []*offering
	for number := range most + 20 {
		client := stage.connect()
		_ = client.send(lineOf(offerName(number), "t", 2)+"\n", own...)
		clients = append(clients, client)
	}
	taken := 0
	for _, client := range clients {
		if client.answer() == "{}" {
			taken++
		}
	}
	// All of them have one map.
	if _, maps := openFilesNow(t); taken != most || maps != 2 {
		t.Errorf("%d were taken, %d maps", taken, maps)
	}
	for _, client := range clients {
		_ = client.socket.Close()
	}
	isAsBefore := func() bool { descriptors, _ := openFilesNow(t); return descriptors == before }
	wait(t, "all have gone", isAsBefore)
	damaged := memoryFile(t, []byte("ARROW1"))
	before++
	for number := range 100 {
		for _, sent := range []struct {
			text  string
			files []int
		}{{"{", own}, {"{}\n", own}, {"{", many}, {"", nil}, {lineOf(offerName(1<<20), "t", 1) + "\n", []int{damaged}}, {strings.Repeat(" ", 70_000), own}, {"\n\n", own}} {
			client := stage.connect()
			_ = client.send(sent.text, sent.files...)
			if number%2 == 0 && sent.text != "{" && sent.text != "" {
				_ = client.answer()
			}
			_ = client.socket.Close()
		}
		late := stage.connect()
		_, _ = late.send("{\"a", own...), late.send("b", own...)
		_ = late.socket.Close()
	}
	wait(t, "nothing is left of them", isAsBefore)
	// The maps of those that were offered lately go as well, without anybody else who collects memory.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	stage.offers.letGo()
	wait(t, "nothing is mapped", func() bool { return mapsNow(t) == 0 })
}

// What a handler has of a table keeps the map of it, whatever else has gone.
func TestMapsLastAsLongAsAnythingOfThem(t *testing.T) {
	wait(t, "the maps of others end", func() bool { _, maps := openFilesNow(t); return maps == 0 })
	mapsOf := func() int { _, maps := openFilesNow(t); return maps }
	file, index := numbersSegment(t, "name ", 1, 2, 3)
	open := func() *sharedTable {
		found, err := openFiles(file, index)
		if err != nil {
			t.Fatal(err)
		}
		table, err := newTable("t", []*segment{found})
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	table := open()
	rows, err := table.Lookup([]int64{2})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	column := func() (column interface{ ValueStr(int) string }) {
		for batch := range table.Batches() {
			names = scanned[string](t, batch, "name")
			// More often than it should.
			for range 5 {
				batch.Record().Release()
			}
		}
		for batch := range table.Batches() {
			found, err := batch.Column("name")
			if err != nil {
				t.Fatal(err)
			}
			column = found
		}
		return column
	}()
	if rows, err := table.Lookup([]int64{3}); err != nil || *scanned[*string](t, rows, "name")[0] != "name 3" {
		t.Errorf("%v", err)
	}
	runtime.KeepAlive(table)
	table = nil
	for range 10 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if maps := mapsOf(); maps != 2 || column.ValueStr(2) != "name 3" {
		t.Errorf("%d maps", maps)
	}
	runtime.KeepAlive(column)
	column = nil
	wait(t, "the maps end", func() bool { return mapsOf() == 0 })
	// Copies are left.
	if !slices.Equal(names, []string{"name 1", "name 2", "name 3"}) || *scanned[*string](t, rows, "name")[0] != "name 2" {
		t.Errorf("%v", names)
	}
}
