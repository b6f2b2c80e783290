package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Takes offers of tables on a Unix socket (docs/protocol.md §10.1).
//
// Whoever breaks a rule gets an error and is disconnected, and so is whoever does not read answers. The end of a connection is the end of
// its offers.

const (
	// Most bytes of a line, with its end, and those that are read at a time.
	mostLineBytes  = 64 << 10
	lineChunkBytes = 4 << 10
	// Most descriptors that lines have which are not whole yet. The connection that has waited longest gives way.
	mostWaitingDescriptors = 4 * mostDescriptors
	linePatience           = 10 * time.Second
	// Between two attempts to accept a connection that failed, for example because too many files are open.
	acceptPause = 100 * time.Millisecond
)

// tableListener has connections, of which those beyond `most` are told that there are too many; some of these stay until their first line
// has come: a client could not send it, and not read why.
type tableListener struct {
	offers *offers
	most   int64
	// With a line that has begun, and with a client that reads no answers.
	patience time.Duration

	lock          sync.Mutex
	open, refused map[*tableConnection]bool
}

func newTableListener(offers *offers, most int64) *tableListener {
	return &tableListener{offers: offers, most: most, patience: linePatience, open: map[*tableConnection]bool{}, refused: map[*tableConnection]bool{}}
}

// serve takes offers until the listener is closed. Then it closes all connections.
func (l *tableListener) serve(listener net.Listener) error {
	var all sync.WaitGroup
	defer all.Wait()
	defer l.closeAll()
	for {
		accepted, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		if connection := l.begin(accepted.(*net.UnixConn)); connection != nil {
			all.Go(connection.run)
		}
	}
}

// begin is a connection that goes on; nil if it is told that there are too many, and closed.
func (l *tableListener) begin(socket *net.UnixConn) *tableConnection {
	connection := &tableConnection{listener: l, socket: socket}
	l.lock.Lock()
	connection.isRefused = int64(len(l.open)) >= l.most
	isClosed := connection.isRefused && len(l.refused) >= mostRefused
	switch {
	case isClosed:
	case connection.isRefused:
		l.refused[connection] = true
	default:
		l.open[connection] = true
	}
	l.lock.Unlock()
	if connection.isRefused {
		connection.tell(&CallError{Kind: "busy", Message: "the server has as many connections for shared tables as it can take"})
	}
	if isClosed {
		_ = socket.Close()
		return nil
	}
	return connection
}

func (l *tableListener) closeAll() {
	l.lock.Lock()
	defer l.lock.Unlock()
	for connection := range l.open {
		_ = connection.socket.Close()
	}
	for connection := range l.refused {
		_ = connection.socket.Close()
	}
}

// giveWay closes connections whose lines are not whole while these have too many descriptors, beginning with the oldest line.
func (l *tableListener) giveWay() {
	for {
		count := 0
		var oldest *tableConnection
		for connection := range l.open {
			count += len(connection.descriptors)
			if len(connection.descriptors) > 0 && (oldest == nil || connection.since.Before(oldest.since)) {
				oldest = connection
			}
		}
		if count <= mostWaitingDescriptors {
			return
		}
		closeDescriptors(oldest.descriptors)
		oldest.descriptors = nil
		_ = oldest.socket.Close()
	}
}

// tableConnection is a client, and the line that it is sending.
type tableConnection struct {
	listener *tableListener
	socket   *net.UnixConn
	line     []byte
	// Whether it was one too many, and was told so.
	isRefused bool

	// Guarded by the listener's lock: those that came with the line's first byte, and when the line began.
	descriptors []int
	since       time.Time
}

func (c *tableConnection) run() {
	defer c.end()
	if c.isRefused {
		c.discardLine()
		return
	}
	room, control := make([]byte, lineChunkBytes), make([]byte, unix.CmsgSpace(4*mostDescriptors))
	for {
		count, controlBytes, flags, _, err := c.socket.ReadMsgUnix(room, control)
		descriptors := descriptorsOf(control[:max(controlBytes, 0)])
		if err != nil || count == 0 {
			closeDescriptors(descriptors)
			return
		}
		isWhole, err := c.take(room[:count], flags, descriptors)
		if err == nil && !isWhole {
			continue
		}
		if err == nil {
			err = c.add()
		}
		if !c.tell(err) || err != nil {
			return
		}
	}
}

func (c *tableConnection) end() {
	_ = c.socket.Close()
	c.listener.lock.Lock()
	delete(c.listener.open, c)
	delete(c.listener.refused, c)
	closeDescriptors(c.descriptors)
	c.descriptors = nil
	c.listener.lock.Unlock()
	c.listener.offers.forget(c)
}

// discardLine reads until a line ends. Descriptors that come with it are the system's to close.
func (c *tableConnection) discardLine() {
	_ = c.socket.SetReadDeadline(time.Now().Add(c.listener.patience))
	room := make([]byte, lineChunkBytes)
	for {
		count, err := c.socket.Read(room)
		if err != nil {
			return
		}
		if bytes.IndexByte(room[:count], '\n') >= 0 {
			return
		}
	}
}

// take takes a part of a line, and the descriptors, which are closed if they are not kept; true if the line is whole.
func (c *tableConnection) take(part []byte, flags int, descriptors []int) (bool, error) {
	keeps := false
	defer func() {
		if !keeps {
			closeDescriptors(descriptors)
		}
	}()
	if len(descriptors) > mostDescriptors || flags&unix.MSG_CTRUNC != 0 {
		return false, violation("the line has more than %d descriptors, or more than the server can have", mostDescriptors)
	}
	if len(descriptors) > 0 && len(c.line) > 0 {
		return false, violation("descriptors come with the first byte of a line")
	}
	if len(c.line) == 0 {
		now := time.Now()
		_ = c.socket.SetReadDeadline(now.Add(c.listener.patience))
		c.listener.lock.Lock()
		c.descriptors, c.since = descriptors, now
		keeps = true
		c.listener.giveWay()
		c.listener.lock.Unlock()
	}
	end := bytes.IndexByte(part, '\n')
	isWhole := end >= 0
	if !isWhole {
		end = len(part)
	}
	if len(c.line)+end >= mostLineBytes {
		return false, violation("a line has at most %d bytes", mostLineBytes)
	}
	c.line = append(c.line, part[:end]...)
	if end+1 < len(part) {
		return false, violation("a line does not follow another before its answer")
	}
	return isWhole, nil
}

// add adds the table of a whole line to its offer.
func (c *tableConnection) add() (err error) {
	_ = c.socket.SetReadDeadline(time.Time{})
	c.listener.lock.Lock()
	line, descriptors := c.line, c.descriptors
	c.line, c.descriptors = nil, nil
	c.listener.lock.Unlock()
	defer closeDescriptors(descriptors)
	defer func() {
		if cause := recover(); cause != nil {
			err = violation("the files cannot be read: %v", cause)
		}
	}()
	return c.listener.offers.add(c, line, descriptors)
}

// tell answers a line; false if the client does not take the answer: it has not read those before.
func (c *tableConnection) tell(err error) bool {
	answer := []byte("{}\n")
	if err != nil {
		var failure *CallError
		if !errors.As(err, &failure) {
			failure = violation("%v", err)
		}
		text, _ := json.Marshal(map[string]*CallError{"error": failure})
		answer = append(text, '\n')
	}
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.listener.patience))
	_, err = c.socket.Write(answer)
	return err == nil
}

// descriptorsOf are those that came with a message.
func descriptorsOf(control []byte) []int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		fmt.Fprintln(os.Stderr, "transship: what comes with a message cannot be read:", err)
	}
	var found []int
	for _, message := range messages {
		if message.Header.Level == unix.SOL_SOCKET && message.Header.Type == unix.SCM_RIGHTS {
			descriptors, _ := unix.ParseUnixRights(&message)
			found = append(found, descriptors...)
		}
	}
	return found
}

func closeDescriptors(descriptors []int) {
	for _, descriptor := range descriptors {
		_ = unix.Close(descriptor)
	}
}
