package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

const (
	testIdle = 250 * time.Millisecond
	// For what should have happened.
	testPatience = 10 * time.Second
)

// listening is a server with functions that take long and answer much, and the states of its connections.
func listening(t *testing.T, most int64) (string, chan http.ConnState) {
	t.Helper()
	arguments := []Argument{{"x", typeOf("int8")}}
	sleep := func(ctx context.Context, milliseconds int64) (int64, error) {
		select {
		case <-time.After(time.Duration(milliseconds) * time.Millisecond):
			return milliseconds, nil
		case <-ctx.Done():
			return 0, errors.New("the client has gone")
		}
	}
	handler := &restServer{idle: testIdle, functions: map[string]*Function{
		"sleep": bound(t, Function{Name: "sleep", Kind: "scalar", Batch: "row", Arguments: arguments, Returns: typeOf("int8")}, sleep),
		"text": bound(t, Function{Name: "text", Kind: "scalar", Batch: "row", Arguments: arguments, Returns: typeOf("text")}, func(size int64) string {
			return strings.Repeat("x", int(size))
		}),
	}}
	states := make(chan http.ConnState, 1000)
	rest := handler.server()
	rest.ConnState = func(_ net.Conn, state http.ConnState) { states <- state }
	listener, err := net.Listen("unix", t.TempDir()+"/http.sock")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = rest.Serve(&countedListener{listener, &connections{most: most}, 1}) }()
	t.Cleanup(func() { _ = rest.Close() })
	return listener.Addr().String(), states
}

func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	client, err := net.Dial("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func headOf(function string, body string) string {
	return fmt.Sprintf("POST /v1/functions/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", function, len(body))
}

func jsonCall(value int) string { return fmt.Sprintf(`{"rows": 1, "columns": [[%d]]}`, value) }

func ask(t *testing.T, client net.Conn, function string, value int) {
	t.Helper()
	if _, err := io.WriteString(client, headOf(function, jsonCall(value))+jsonCall(value)); err != nil {
		t.Fatal(err)
	}
}

// answered is the status of an answer and its length.
func answered(t *testing.T, reader *bufio.Reader) (int, int64) {
	t.Helper()
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	size, err := io.Copy(io.Discard, answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, size
}

// waitForState waits until a connection is in a state.
func waitForState(t *testing.T, states chan http.ConnState, wanted http.ConnState) {
	t.Helper()
	patience := time.After(testPatience)
	for {
		select {
		case state := <-states:
			if state == wanted {
				return
			}
		case <-patience:
			t.Fatalf("no connection is %v", wanted)
		}
	}
}

func TestBodiesThatDoNotCome(t *testing.T) {
	address, states := listening(t, 100)
	for _, begun := range []string{
		headOf("sleep", jsonCall(1)) + `{"rows"`,
		"POST /v1/functions/sleep HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
		// These are answered before their bodies are there.
		"GET /v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"DELETE /v1/exchanges/e HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
	} {
		if _, err := io.WriteString(connect(t, address), begun); err != nil {
			t.Fatal(err)
		}
		waitForState(t, states, http.StateClosed)
	}
}

func TestBodiesThatComeSlowly(t *testing.T) {
	address, _ := listening(t, 100)
	client, start := connect(t, address), time.Now()
	for _, part := range append([]string{headOf("sleep", jsonCall(1))}, strings.Split(jsonCall(1), "")...) {
		if _, err := io.WriteString(client, part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(testIdle / 10)
	}
	if code, _ := answered(t, bufio.NewReader(client)); code != http.StatusOK || time.Since(start) < 2*testIdle {
		t.Errorf("status %d after %v", code, time.Since(start))
	}
}

func TestCallsThatTakeLong(t *testing.T) {
	address, _ := listening(t, 100)
	client := connect(t, address)
	reader := bufio.NewReader(client)
	for range 2 {
		ask(t, client, "sleep", int(3*testIdle/time.Millisecond))
		if code, _ := answered(t, reader); code != http.StatusOK {
			t.Errorf("status %d", code)
		}
	}
}

func TestAnswersThatNobodyReads(t *testing.T) {
	address, states := listening(t, 100)
	ask(t, connect(t, address), "text", 32<<20)
	waitForState(t, states, http.StateClosed)
}

func TestAnswersThatAreReadSlowly(t *testing.T) {
	address, _ := listening(t, 100)
	client, start := connect(t, address), time.Now()
	const size = 8 << 20
	ask(t, client, "text", size)
	reader := bufio.NewReaderSize(pausing{client}, 1<<20)
	if code, read := answered(t, reader); code != http.StatusOK || read < size || time.Since(start) < 2*testIdle {
		t.Errorf("status %d and %d bytes after %v", code, read, time.Since(start))
	}
	// The connection is as good as before.
	ask(t, client, "sleep", int(2*testIdle/time.Millisecond))
	if code, _ := answered(t, reader); code != http.StatusOK {
		t.Errorf("status %d", code)
	}
}

// pausing reads now and then.
type pausing struct{ net.Conn }

func (p pausing) Read(into []byte) (int, error) {
	time.Sleep(testIdle / 25)
	return p.Conn.Read(into[:min(len(into), 128<<10)])
}

func TestTooManyConnections(t *testing.T) {
	address, _ := listening(t, 2)
	var clients []net.Conn
	for range 4 {
		clients = append(clients, connect(t, address))
	}
	// Whether the server is there, it says on any connection; and whoever sends a call that is larger than what the socket holds reads the
	// refusal as well.
	large := strings.Repeat(" ", 4<<20)
	sent := []string{headOf("sleep", jsonCall(1)) + jsonCall(1), "GET /v1 HTTP/1.1\r\nHost: x\r\n\r\n", headOf("sleep", large) + large}
	for number, wanted := range [][]int{{http.StatusOK}, {http.StatusOK}, {0, http.StatusOK, http.StatusServiceUnavailable}} {
		answers := bufio.NewReader(clients[number])
		for which, code := range wanted {
			if code == 0 {
				continue
			}
			if _, err := io.WriteString(clients[number], sent[which]); err != nil {
				t.Fatal(err)
			}
			if found, _ := answered(t, answers); found != code {
				t.Errorf("connection %d: status %d", number, found)
			}
		}
	}
	_ = clients[3].SetDeadline(time.Now().Add(testPatience))
	if count, err := clients[3].Read(make([]byte, 1)); count != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("connection 3: %d bytes, %v", count, err)
	}
	// Those that end make room.
	_ = clients[0].Close()
	patience := time.Now().Add(testPatience)
	for code := 0; code != http.StatusOK; {
		if time.Now().After(patience) {
			t.Fatalf("status %d", code)
		}
		client := connect(t, address)
		if _, err := io.WriteString(client, headOf("sleep", jsonCall(1))+jsonCall(1)); err != nil {
			continue
		}
		if answer, err := http.ReadResponse(bufio.NewReader(client), nil); err == nil {
			code = answer.StatusCode
		}
		_ = client.Close()
	}
}
