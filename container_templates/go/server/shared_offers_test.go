package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sys/unix"
)

// Clients that keep to the rules of offers, and clients that do not.

// stage is a listener with offers of its own.
type stage struct {
	t       testing.TB
	offers  *offers
	taking  *tableListener
	address string
}

func staged(t testing.TB, most int64, patience time.Duration) *stage {
	t.Helper()
	found := &stage{t: t, offers: newOffers(), address: t.TempDir() + "/tables.sock"}
	listener, err := listenAt("unix", found.address)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	found.taking = newTableListener(found.offers, most)
	found.taking.patience = patience
	go func() { ended <- found.taking.serve(listener) }()
	t.Cleanup(func() {
		_ = listener.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener: %v", err)
		}
		// The end of the listener is the end of the offers.
		if len(found.offers.byName) > 0 || found.offers.listed > 0 {
			t.Errorf("%d offers are left", len(found.offers.byName))
		}
		found.offers.letGo()
	})
	return found
}

// letGo has the segments that were offered lately go at once.
func (o *offers) letGo() {
	o.lock.Lock()
	for files, found := range o.kept {
		found.since = found.since.Add(-segmentKept)
		o.kept[files] = found
	}
	o.lock.Unlock()
	o.sweep()
}

// wait waits until something is so.
func wait(t testing.TB, fact string, isSo func() bool) {
	t.Helper()
	for patience := time.Now().Add(testPatience); !isSo(); time.Sleep(time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatal(fact)
		}
	}
}

// offering is a client that offers tables.
type offering struct {
	t       testing.TB
	socket  *net.UnixConn
	answers *bufio.Reader
}

func (s *stage) connect() *offering {
	s.t.Helper()
	socket, err := net.Dial("unix", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(testPatience))
	return &offering{s.t, socket.(*net.UnixConn), bufio.NewReader(socket)}
}

func (o *offering) send(text string, descriptors ...int) error {
	var control []byte
	if len(descriptors) > 0 {
		control = unix.UnixRights(descriptors...)
	}
	sent, _, err := o.socket.WriteMsgUnix([]byte(text), control, nil)
	if err == nil && sent < len(text) {
		_, err = o.socket.Write([]byte(text[sent:]))
	}
	return err
}

// answer is the next answer, "" if the server has closed the connection.
func (o *offering) answer() string {
	line, _ := o.answers.ReadString('\n')
	return strings.TrimSuffix(line, "\n")
}

func (o *offering) ask(text string, descriptors ...int) string {
	o.t.Helper()
	if err := o.send(text+"\n", descriptors...); err != nil {
		o.t.Fatal(err)
	}
	return o.answer()
}

func lineOf(offer, table string, files ...int) string {
	text, _ := json.Marshal(map[string]any{"offer": offer, "table": table, "files": append([]int{}, files...)})
	return string(text)
}

func offerName(number int) string { return fmt.Sprintf("%032x", number) }

// numbersFiles are the files of a segment with these keys, whose names have a prefix.
func numbersFiles(t testing.TB, prefix string, keys ...int64) []int {
	t.Helper()
	file, index := numbersSegment(t, prefix, keys...)
	return []int{memoryFile(t, file), memoryFile(t, index)}
}

// offer offers a table of one segment.
func (o *offering) offer(name, table, prefix string, keys ...int64) {
	o.t.Helper()
	if answer := o.ask(lineOf(name, table, 2), numbersFiles(o.t, prefix, keys...)...); answer != "{}" {
		o.t.Fatal(answer)
	}
}

// refused sends what is wrong, and checks that the connection ends with an error.
func (s *stage) refused(fact, text string, descriptors ...int) {
	s.t.Helper()
	client := s.connect()
	// The server may have closed the connection before all was sent.
	_ = client.send(text, descriptors...)
	answer := client.answer()
	var told struct{ Error CallError }
	if err := json.Unmarshal([]byte(answer), &told); err != nil || told.Error.Kind != "protocol_violation" || !strings.Contains(told.Error.Message, fact) {
		s.t.Errorf("%.100q: %s", text, answer)
	}
	if more := client.answer(); more != "" {
		s.t.Errorf("%.100q: %s", text, more)
	}
}

func (s *stage) namesOf(offer, table string, keys ...int64) []*string {
	s.t.Helper()
	rows, err := s.offers.find(offer).table(table).Lookup(keys)
	if err != nil {
		s.t.Fatal(err)
	}
	return scanned[*string](s.t, rows, "name")
}

func TestOffersLastAsLongAsTheirConnection(t *testing.T) {
	stage := staged(t, 100, linePatience)
	one, two := stage.connect(), stage.connect()
	first, second := numbersFiles(t, "a", 1, 2), numbersFiles(t, "a", 3)
	none := segmentOf(t, "0", numberFields, nil)
	if answer := one.ask(lineOf(offerName(1), "numbers", 2, 1, 2), first[0], first[1], memoryFile(t, none), second[0], second[1]); answer != "{}" {
		t.Fatal(answer)
	}
	one.offer(offerName(1), "letters", "x", 1)
	one.offer(offerName(2), "numbers", "b", 1)
	two.offer(offerName(3), "numbers", "c")
	for number, wanted := range []string{"a3", "a1", "", "a2"} {
		found := stage.namesOf(offerName(1), "numbers", 3, 1, 4, 2)[number]
		if (found == nil) != (wanted == "") || found != nil && *found != wanted {
			t.Errorf("%v, not %s", found, wanted)
		}
	}
	if found := stage.namesOf(offerName(2), "numbers", 1); *found[0] != "b1" {
		t.Errorf("%v", *found[0])
	}
	if stage.offers.find(offerName(4)) != nil || stage.offers.find("") != nil {
		t.Error("there is no such offer")
	}
	// Others do not add to an offer.
	if answer := two.ask(lineOf(offerName(1), "more", 2), first...); !strings.Contains(answer, "the offer belongs to another connection") {
		t.Error(answer)
	}
	wait(t, "a connection ends after an error", func() bool { return stage.offers.find(offerName(3)) == nil })
	// What a call holds outlives the offer.
	held := stage.offers.find(offerName(1))
	_ = one.socket.Close()
	wait(t, "its offers end with it", func() bool { return stage.offers.find(offerName(2)) == nil })
	if stage.offers.find(offerName(1)) != nil || held.table("numbers").Rows() != 3 {
		t.Error("the offer is there yet, or the table is not")
	}
	// A name may be used again.
	stage.connect().offer(offerName(1), "numbers", "d", 1)
}

func TestLinesThatAreNoOffers(t *testing.T) {
	stage := staged(t, 100, linePatience)
	own := numbersFiles(t, "a", 1)
	line := lineOf(offerName(1), "t", 2)
	for _, refused := range [][2]string{
		{"\n", "the line is no offer of a table"}, {"{}\n", "missing field"}, {"[]\n", "the line is no offer"}, {"null\n", "missing field"},
		{"\x00\n", "the line is no offer"}, {"{\"offer\": \"\xff\"}\n", "not UTF-8"},
		{`{"offer": "x", "table": "t", "files": "AQ=="}` + "\n", "the line is no offer"},
		{`{"offer": "x", "table": "t", "files": [1.5]}` + "\n", "the line is no offer"},
		{lineOf(offerName(1), "t", 300) + "\n", "1 file or 2"}, {lineOf(offerName(1), "t") + "\n", "1 file or 2"},
		{lineOf(offerName(1), "t", 0, 2) + "\n", "1 file or 2"}, {lineOf(offerName(1), "t", -1, 2) + "\n", "1 file or 2"},
		{lineOf("x", "t", 2) + "\n", "32 hexadecimal digits"}, {lineOf(offerName(1)[1:]+"g", "t", 2) + "\n", "32 hexadecimal digits"},
		{lineOf(offerName(1), "t", 1) + "\n", "tells of 1 files and has 2 descriptors"},
		{lineOf(offerName(1), "t", 2, 1) + "\n", "tells of 3 files and has 2 descriptors"},
		{line + "\n{", "before its answer"},
	} {
		stage.refused(refused[1], refused[0], own...)
	}
	stage.refused("2 files and has 0 descriptors", line+"\n")
	// Members that nobody knows are nothing.
	if answer := stage.connect().ask(`{"more": [1, {"x": null}], `+lineOf(offerName(2), "t", 2)[1:], own...); answer != "{}" {
		t.Error(answer)
	}
	// What is wrong with files is told.
	file, _ := numbersSegment(t, "a", 1)
	stage.refused("segment 1 of table \"t\": invalid segment of a shared table: It has a key and no index.", lineOf(offerName(1), "t", 1)+"\n", own[0])
	stage.refused("segment 2 of table \"t\": invalid segment", lineOf(offerName(1), "t", 2, 2)+"\n", own[0], own[1], memoryFile(t, file[:len(file)-1]), own[1])
	keyless := memoryFile(t, segmentOf(t, "", numberFields[:1], nil))
	stage.refused("segment 2 of table \"t\" has other columns than the one before it", lineOf(offerName(1), "t", 2, 1)+"\n", own[0], own[1], keyless)
}

func TestBoundsOfOffers(t *testing.T) {
	stage := staged(t, 1000, linePatience)
	own := numbersFiles(t, "a", 1)
	bare := len(lineOf(offerName(1), "", 2)) + 1
	if answer := stage.connect().ask(lineOf(offerName(1), strings.Repeat("x", mostLineBytes-bare), 2), own...); answer != "{}" {
		t.Error(answer)
	}
	stage.refused("65536 bytes", lineOf(offerName(1), strings.Repeat("x", mostLineBytes-bare+1), 2)+"\n", own...)
	stage.refused("65536 bytes", strings.Repeat(" ", 1<<20))
	keyless := memoryFile(t, segmentOf(t, "", numberFields[:1], []arrow.Array{int8s(1)}))
	most := slices.Repeat([]int{keyless}, mostDescriptors)
	if answer := stage.connect().ask(lineOf(offerName(2), "t", slices.Repeat([]int{1}, mostDescriptors)...), most...); answer != "{}" {
		t.Error(answer)
	}
	for _, count := range []int{mostDescriptors + 1, 253} {
		stage.refused("more than 240 descriptors", lineOf(offerName(3), "t", slices.Repeat([]int{1}, count)...)+"\n", slices.Repeat(most[:1], count)...)
	}
	client := stage.connect()
	for number := range mostTables {
		if answer := client.ask(lineOf(offerName(4), fmt.Sprint(number), 2), own...); answer != "{}" {
			t.Fatal(answer)
		}
	}
	if answer := client.ask(lineOf(offerName(4), "more", 2), own...); !strings.Contains(answer, "an offer has at most 64 tables") {
		t.Error(answer)
	}
	client = stage.connect()
	for number := range mostOffers {
		if answer := client.ask(lineOf(offerName(100+number), "t", 2), own...); answer != "{}" {
			t.Fatal(answer)
		}
	}
	if answer := client.ask(lineOf(offerName(99), "t", 2), own...); !strings.Contains(answer, "a connection has at most 64 offers") {
		t.Error(answer)
	}
	client = stage.connect()
	_ = client.ask(lineOf(offerName(5), "t", 2), own...)
	if answer := client.ask(lineOf(offerName(5), "t", 2), own...); !strings.Contains(answer, `the offer has table \"t\" already`) {
		t.Error(answer)
	}
}

func TestNobodyWaitsForOthersLines(t *testing.T) {
	stage := staged(t, 1000, linePatience)
	own := numbersFiles(t, "a", 1)
	text := lineOf(offerName(1), "t", 2) + "\n"
	var half []*offering
	for range 50 {
		client := stage.connect()
		if err := client.send(text[:20], own...); err != nil {
			t.Fatal(err)
		}
		half = append(half, client)
	}
	late := stage.connect()
	_ = late.send(text[:20])
	stage.connect().offer(offerName(2), "t", "b", 1)
	_ = late.send(text[20:], own...)
	if answer := late.answer(); !strings.Contains(answer, "descriptors come with the first byte of a line") {
		t.Error(answer)
	}
	if _ = half[7].send(text[20:]); half[7].answer() != "{}" {
		t.Error("half a line")
	}
	// The descriptors of lines that are not whole are bounded: the oldest give way.
	var greedy []*offering
	for range 6 {
		client := stage.connect()
		if err := client.send("{", slices.Repeat(own[:1], mostDescriptors)...); err != nil {
			t.Fatal(err)
		}
		greedy = append(greedy, client)
		// Each has come before the next one does.
		name := offerName(1000 + len(greedy))
		stage.connect().offer(name, "t", "c", 1)
	}
	for number, client := range greedy[:2] {
		if answer := client.answer(); answer != "" {
			t.Errorf("%d: %s", number, answer)
		}
	}
	if answer := greedy[5].ask("}"); !strings.Contains(answer, "missing field") {
		t.Error(answer)
	}
}

func TestLinesThatDoNotEnd(t *testing.T) {
	stage := staged(t, 1000, testIdle)
	own := numbersFiles(t, "a", 1)
	silent, half, start := stage.connect(), stage.connect(), time.Now()
	_ = half.send("{", own...)
	if answer := half.answer(); answer != "" || time.Since(start) < testIdle*9/10 {
		t.Errorf("%s after %v", answer, time.Since(start))
	}
	silent.offer(offerName(1), "t", "a", 1)
	// A client that reads nothing is disconnected once its answers have no room.
	unread := stage.connect()
	for number := range mostOffers * mostTables {
		if unread.send(lineOf(offerName(100+number/mostTables), fmt.Sprint(number%mostTables), 2)+"\n", own...) != nil {
			break
		}
	}
	wait(t, "its offers end", func() bool { return stage.offers.find(offerName(100)) == nil })
}

func TestTooManyClientsThatOffer(t *testing.T) {
	stage := staged(t, 2, linePatience)
	busy := `{"error":{"kind":"busy","message":"the server has as many connections for shared tables as it can take"}}`
	first, second := stage.connect(), stage.connect()
	first.offer(offerName(1), "t", "a", 1)
	second.offer(offerName(2), "t", "a", 1)
	own := numbersFiles(t, "a", 1)
	for range 5 {
		third, silent := stage.connect(), stage.connect()
		// Whether it says something or not.
		if answer := silent.answer(); answer != busy {
			t.Error(answer)
		}
		if answer := third.ask(lineOf(offerName(3), "t", 2), own...); answer != busy || third.answer() != "" {
			t.Error(answer)
		}
		_ = silent.socket.Close()
	}
	if stage.offers.find(offerName(3)) != nil {
		t.Error("it was refused")
	}
	wait(t, "those that were refused have gone", func() bool {
		stage.taking.lock.Lock()
		defer stage.taking.lock.Unlock()
		return len(stage.taking.refused) == 0
	})
	// So many stay for their lines, and any more are told and closed.
	var silent []*offering
	for range mostRefused + 20 {
		silent = append(silent, stage.connect())
	}
	start := time.Now()
	for _, client := range silent {
		if answer := client.answer(); answer != busy {
			t.Error(answer)
		}
	}
	for _, client := range silent[mostRefused:] {
		if answer := client.answer(); answer != "" {
			t.Error(answer)
		}
	}
	if time.Since(start) > linePatience/2 {
		t.Errorf("after %v", time.Since(start))
	}
	first.offer(offerName(4), "t", "a", 1)
	_ = second.socket.Close()
	wait(t, "its offers end with it", func() bool { return stage.offers.find(offerName(2)) == nil })
	wait(t, "there is room", func() bool {
		client := stage.connect()
		return client.ask(lineOf(offerName(2), "t", 2), own...) == "{}"
	})
}
