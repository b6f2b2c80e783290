package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// How many connections there may be, and how long one may wait for its client.

const (
	// A connection whose client asks nothing, sends nothing of a request that it has begun, or takes nothing of an answer, for so long
	// is closed. As long as some bytes of a request come, and the client takes 256 KiB of an answer in that time, both may take any time.
	connectionIdle = 10 * time.Minute
	// The share of the descriptors that this process may have that connections get.
	connectionsShare = 2
	mostConnections  = 4096
	// Connections beyond those that are told that the server is busy; any more are closed at once.
	mostRefused = 64
	// What has to be sent in time.
	chunkBytes = 256 << 10
)

var errBusy = &CallError{Kind: "busy", Message: "the server has no room for another connection"}

// connections counts those of HTTP, of all listeners.
type connections struct {
	most int64
	open atomic.Int64
}

func newConnections() (*connections, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	return &connections{most: int64(min(max(files.Cur/connectionsShare, 1), mostConnections))}, nil
}

// countedListener accepts so many connections, and `refused` more, which know that they are too many.
type countedListener struct {
	net.Listener
	connections *connections
	refused     int64
}

func (l *countedListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		excess := l.connections.open.Add(1) - l.connections.most
		counted := &countedConnection{Conn: accepted, count: &l.connections.open, isExcess: excess > 0}
		if excess <= l.refused {
			return counted, nil
		}
		_ = counted.Close()
	}
}

type countedConnection struct {
	net.Conn
	count    *atomic.Int64
	isExcess bool
	once     sync.Once
}

func (c *countedConnection) Close() error {
	c.once.Do(func() { c.count.Add(-1) })
	return c.Conn.Close()
}

// SyscallConn is asked for whether the client has gone.
func (c *countedConnection) SyscallConn() (syscall.RawConn, error) {
	if inner, ok := c.Conn.(syscall.Conn); ok {
		return inner.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// CloseWrite is what net/http ends a connection with whose client may still be sending.
func (c *countedConnection) CloseWrite() error {
	if inner, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return inner.CloseWrite()
	}
	return errors.ErrUnsupported
}

// timedBody is the body of a request, of which the next bytes must come in time.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	idle    time.Duration
}

// timeBody has the body of a request come in time, also if nobody reads it but net/http, before the next request.
func timeBody(response http.ResponseWriter, asked *http.Request, idle time.Duration) {
	if asked.Body == http.NoBody {
		return
	}
	body := &timedBody{asked.Body, http.NewResponseController(response), idle}
	body.expect()
	asked.Body = body
}

func (b *timedBody) expect() {
	deadline := time.Now().Add(b.idle)
	_ = b.control.SetReadDeadline(deadline)
	// The first read may tell the client to go on.
	_ = b.control.SetWriteDeadline(deadline)
}

func (b *timedBody) Read(into []byte) (int, error) {
	b.expect()
	count, err := b.ReadCloser.Read(into)
	if err == io.EOF {
		// From now on net/http reads to learn whether the client has gone, while the handler takes its time.
		_ = b.control.SetReadDeadline(time.Time{})
		_ = b.control.SetWriteDeadline(time.Time{})
	}
	return count, err
}

// writeInTime sends a body to a client, which must take each part of it in time.
func writeInTime(response http.ResponseWriter, body []byte, idle time.Duration) {
	control := http.NewResponseController(response)
	for chunk := range slices.Chunk(body, chunkBytes) {
		_ = control.SetWriteDeadline(time.Now().Add(idle))
		if _, err := response.Write(chunk); err != nil {
			return
		}
	}
	_ = control.SetWriteDeadline(time.Now().Add(idle))
	if control.Flush() == nil {
		_ = control.SetWriteDeadline(time.Time{})
	}
}
