package server

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
	"weak"
)

// The tables that clients have offered, by the names of their offers (docs/protocol.md §10.1).
//
// A table is opened when it is offered, so that a malformed file is the error of whoever offers it. Offers of the same files share one map
// of them. A segment stays mapped while an offer or a handler has it, and for segmentKept after it was last offered: clients that offer
// tables again and again, for one query after the other, pay for the map once.

const (
	// Of a line.
	mostDescriptors = 240
	mostTables      = 64
	// Of a connection.
	mostOffers = 64
	// Most segments of all tables of all offers: a bound of the memory that lists of them take.
	mostListed = 1 << 20
	// Most segments that are mapped, each with its index: the system bounds the maps of a process by 65530, and memory takes maps too.
	mostMapped = 1 << 14
	// How long a segment stays mapped after it was last offered, and how many do that only because they were offered lately.
	segmentKept = 10 * time.Second
	mostKept    = 256
	// How often segments are looked at for those whose time is over.
	sweepPause = time.Second
	// How often memory is collected for those that perhaps nobody has, first and at last: a handler may keep a table for long.
	firstPause, longestPause = 5 * time.Second, time.Minute
	// Bytes of an offer's name, in hexadecimal digits.
	offerNameBytes = 16
)

// offers are those of this process.
type offers struct {
	lock   sync.Mutex
	byName map[string]*offer
	// How many segments all tables of all offers have, those of several tables counted for each.
	listed int
	mapped map[segmentFiles]weak.Pointer[segment]
	// Those that were offered lately, and when.
	kept map[segmentFiles]keptSegment
	// Whether a sweep will come, how many segments were left to handlers alone at the last one, when memory was collected last, and the
	// pause until it is again.
	willSweep bool
	loose     int
	collected time.Time
	pause     time.Duration
}

// segmentFiles are the files of a segment, with zeros for an index that there is not.
type segmentFiles struct{ segment, index fileNumber }

type keptSegment struct {
	since   time.Time
	segment *segment
}

// offer has tables by name. Calls use it while others may be added.
type offer struct {
	// The connection that made it.
	owner    any
	segments int
	lock     sync.RWMutex
	tables   map[string]*sharedTable
}

func newOffers() *offers {
	return &offers{
		byName: map[string]*offer{}, mapped: map[segmentFiles]weak.Pointer[segment]{}, kept: map[segmentFiles]keptSegment{},
	}
}

// find is the offer of a name, or nil.
func (o *offers) find(name string) *offer {
	if o == nil {
		return nil
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.byName[name]
}

// table is the table of a name, or nil.
func (o *offer) table(name string) *sharedTable {
	o.lock.RLock()
	defer o.lock.RUnlock()
	return o.tables[name]
}

// offerLine is a line that offers a table.
type offerLine struct {
	Offer, Table *string
	// Of each segment.
	Files []int
}

// add opens the table that a line offers, and adds it to the offer, which belongs to the connection `owner`. The descriptors stay the
// caller's.
func (o *offers) add(owner any, text []byte, descriptors []int) error {
	line, err := readOffer(text)
	if err != nil {
		return err
	}
	files := 0
	for _, count := range line.Files {
		files += count
	}
	if files != len(descriptors) {
		return violation("the line tells of %d files and has %d descriptors", files, len(descriptors))
	}
	if err := o.check(owner, line); err != nil {
		return err
	}
	table, err := o.open(line, descriptors)
	if err != nil {
		return err
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	// Somebody else may have made the offer while the table was opened.
	if err := o.checkLocked(owner, line); err != nil {
		return err
	}
	found, ok := o.byName[*line.Offer]
	if !ok {
		found = &offer{owner: owner, tables: map[string]*sharedTable{}}
		o.byName[*line.Offer] = found
	}
	o.listed += len(table.segments)
	found.segments += len(table.segments)
	for _, segment := range table.segments {
		segment.offered++
	}
	found.lock.Lock()
	defer found.lock.Unlock()
	found.tables[*line.Table] = table
	return nil
}

func readOffer(text []byte) (*offerLine, error) {
	var line offerLine
	if !utf8.Valid(text) {
		return nil, violation("the line is no offer of a table: it is not UTF-8")
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return nil, violation("the line is no offer of a table: %v", err)
	}
	if line.Offer == nil || line.Table == nil || line.Files == nil {
		return nil, violation("the line is no offer of a table: missing field \"offer\", \"table\" or \"files\"")
	}
	if name, err := hex.DecodeString(*line.Offer); err != nil || len(name) != offerNameBytes {
		return nil, violation("the name of the offer is not 32 hexadecimal digits")
	}
	for _, count := range line.Files {
		if count != 1 && count != 2 {
			return nil, violation("each of the table's segments has 1 file or 2")
		}
	}
	if len(line.Files) == 0 {
		return nil, violation("each of the table's segments has 1 file or 2")
	}
	return &line, nil
}

// check refuses a table that the offer cannot take.
func (o *offers) check(owner any, line *offerLine) error {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.checkLocked(owner, line)
}

func (o *offers) checkLocked(owner any, line *offerLine) error {
	found, ok := o.byName[*line.Offer]
	if !ok {
		own := 0
		for _, other := range o.byName {
			if other.owner == owner {
				own++
			}
		}
		if own >= mostOffers {
			return violation("a connection has at most %d offers", mostOffers)
		}
	} else {
		if found.owner != owner {
			return violation("the offer belongs to another connection")
		}
		// Only this connection adds to it.
		if found.table(*line.Table) != nil {
			return violation("the offer has table \"%s\" already", *line.Table)
		}
		if len(found.tables) >= mostTables {
			return violation("an offer has at most %d tables", mostTables)
		}
	}
	if o.listed+len(line.Files) > mostListed {
		return &CallError{Kind: "busy", Message: "the server has as many shared tables as it can take"}
	}
	return nil
}

// forget ends the offers of a connection.
func (o *offers) forget(owner any) {
	o.lock.Lock()
	defer o.lock.Unlock()
	for name, found := range o.byName {
		if found.owner != owner {
			continue
		}
		delete(o.byName, name)
		o.listed -= found.segments
		// A call may have it yet, and opens its tables.
		for _, table := range found.tables {
			for _, segment := range table.segments {
				segment.offered--
			}
		}
	}
	o.sweepLater()
}

func (o *offers) open(line *offerLine, descriptors []int) (*sharedTable, error) {
	var segments []*segment
	for number, count := range line.Files {
		file, index := descriptors[0], -1
		if count == 2 {
			index = descriptors[1]
		}
		descriptors = descriptors[count:]
		opened, err := o.segment(file, index)
		if err != nil {
			return nil, refusal(fmt.Sprintf("segment %d of table \"%s\": %v", number+1, *line.Table, err), err)
		}
		segments = append(segments, opened)
	}
	table, err := newTable(*line.Table, segments)
	if err != nil {
		return nil, refusal(err.Error(), err)
	}
	return table, nil
}

// refusal is why a table is refused.
func refusal(message string, cause error) error {
	var failure *CallError
	if errors.As(cause, &failure) {
		return &CallError{Kind: failure.Kind, Message: message}
	}
	return violation("%s", message)
}

// segment is that of a file and its index, mapped now or before.
func (o *offers) segment(file, index int) (*segment, error) {
	files := segmentFiles{}
	var err error
	if files.segment, err = numberOf(file); err == nil && index >= 0 {
		files.index, err = numberOf(index)
	}
	if err != nil {
		return nil, fmt.Errorf("the descriptor cannot be used: %w", err)
	}
	if found := o.lately(files, nil); found != nil {
		return found, nil
	}
	opened, err := openTableSegment(file, index)
	if err != nil {
		return nil, err
	}
	if found := o.lately(files, opened); found != nil {
		return found, nil
	}
	message := fmt.Sprintf("the server has mapped %d segments of shared tables, and takes no more", mostMapped)
	return nil, &CallError{Kind: "busy", Message: message}
}

// lately is a segment that is mapped already, or else the one that was opened now, if there is room for it.
func (o *offers) lately(files segmentFiles, opened *segment) *segment {
	o.lock.Lock()
	defer o.lock.Unlock()
	// Another goroutine may have been faster.
	if found := o.mapped[files].Value(); found != nil {
		opened = found
	} else if opened == nil {
		return nil
	} else {
		if len(o.mapped) >= mostMapped {
			clear(o.kept)
			runtime.GC()
			o.forgetUnmapped()
		}
		if len(o.mapped) >= mostMapped {
			return nil
		}
		o.mapped[files] = weak.Make(opened)
	}
	o.kept[files] = keptSegment{time.Now(), opened}
	o.sweepLater()
	return opened
}

// forgetUnmapped forgets the segments that nobody has any more; how many are left that only handlers may have.
func (o *offers) forgetUnmapped() int {
	loose := 0
	for files, found := range o.mapped {
		segment := found.Value()
		if segment == nil {
			delete(o.mapped, files)
		} else if _, isKept := o.kept[files]; !isKept && segment.offered == 0 {
			loose++
		}
	}
	return loose
}

// sweepLater has the segments looked at soon.
func (o *offers) sweepLater() {
	if !o.willSweep {
		o.willSweep = true
		time.AfterFunc(sweepPause, o.sweep)
	}
}

// sweep lets go of segments whose time is over. Their maps end when memory is collected, which otherwise may take minutes.
func (o *offers) sweep() {
	o.lock.Lock()
	o.willSweep = false
	now := time.Now()
	for files, found := range o.kept {
		if now.Sub(found.since) >= segmentKept {
			delete(o.kept, files)
		}
	}
	if excess := len(o.kept) - mostKept; excess > 0 {
		files := slices.SortedFunc(maps.Keys(o.kept), func(one, two segmentFiles) int { return o.kept[one].since.Compare(o.kept[two].since) })
		for _, files := range files[:excess] {
			delete(o.kept, files)
		}
	}
	loose := o.forgetUnmapped()
	if loose > o.loose {
		o.pause = firstPause
	}
	o.loose = loose
	willCollect := loose > 0 && now.Sub(o.collected) >= o.pause
	if willCollect {
		o.collected, o.pause = now, min(2*o.pause, longestPause)
	}
	if loose > 0 || len(o.kept) > 0 {
		o.sweepLater()
	}
	o.lock.Unlock()
	if willCollect {
		runtime.GC()
	}
}
