// Package server answers docs/protocol.md for the handler's functions.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"transship/udf"
)

// Patience with calls that run when the server is asked to end.
const stopPatience = 10 * time.Second

// Exchanges of one connection of Flight at a time. Clients have one for each function of a running query; further ones wait.
const mostStreams = 1024

// Main runs the server, or describes the functions, as its argument says.
func Main(offered udf.Functions, arguments []string) error {
	root := os.Getenv("TRANSSHIP_ROOT")
	if root == "" {
		root = "/opt/transship"
	}
	// What the handler prints is a log, not an answer.
	output := os.Stdout
	os.Stdout = os.Stderr
	functions, err := load(root, offered)
	if err != nil {
		return err
	}
	if len(arguments) > 0 && arguments[0] == "describe" {
		return describe(root, functions, output)
	}
	return serve(functions)
}

func describe(root string, functions []*Function, output *os.File) error {
	text, err := os.ReadFile(root + "/manifest.json")
	if err != nil {
		return err
	}
	var manifest map[string]any
	if err := json.Unmarshal(text, &manifest); err != nil {
		return err
	}
	for i, entry := range manifest["functions"].([]any) {
		if functions[i].merges {
			entry.(map[string]any)["merges"] = true
		}
	}
	return json.NewEncoder(output).Encode(manifest)
}

// listenAt listens at an address. Everybody may connect to a unix socket: the engine is another user than this one, and the directory
// around the socket decides who gets here.
func listenAt(network, address string) (net.Listener, error) {
	if network != "unix" {
		return net.Listen(network, address)
	}
	_ = os.Remove(address)
	// Files that the handler makes have the modes that they would have elsewhere.
	defer syscall.Umask(syscall.Umask(0))
	return net.Listen(network, address)
}

func serve(functions []*Function) error {
	byName := map[string]*Function{}
	names := []string{}
	for _, function := range functions {
		byName[function.Name] = function
		names = append(names, function.Name)
	}
	folder := os.Getenv("TRANSSHIP_SOCKET_DIR")
	transports := []string{"flight", "json", "socket"}
	if segmentFolder != "" {
		transports = append(transports, "shm")
	}
	greeting, err := json.Marshal(map[string]any{"protocol": 1, "server": "transship-go/0.2.0", "functions": names, "transports": transports, "keep_alive": true, "constants": true, "row_errors": true, "tables": folder != ""})
	if err != nil {
		return err
	}
	tables := newOffers()
	rpc := grpc.NewServer(grpc.MaxRecvMsgSize(1<<30), grpc.MaxSendMsgSize(1<<30), grpc.InitialWindowSize(16<<20), grpc.InitialConnWindowSize(16<<20),
		// A client may read on whenever its engine wants more rows, but it must be there.
		grpc.MaxConcurrentStreams(mostStreams), grpc.KeepaliveParams(keepalive.ServerParameters{Time: connectionIdle}))
	flight.RegisterFlightServiceServer(rpc, &flightServer{functions: byName, greeting: greeting, tables: tables})
	handler := &restServer{functions: byName, greeting: greeting, exchanges: exchanges{groups: map[string]*groups{}}, tables: tables, idle: connectionIdle}
	rest := handler.server()
	connections, err := newConnections()
	if err != nil {
		return err
	}

	failed := make(chan error, 5)
	isListening := false
	listen := func(network, address string, serve func(net.Listener) error) error {
		listener, err := listenAt(network, address)
		if err != nil {
			return err
		}
		isListening = true
		go func() { failed <- serve(listener) }()
		return nil
	}
	serveHTTP := func(listener net.Listener) error {
		return rest.Serve(&countedListener{listener, connections, mostRefused})
	}
	if folder != "" {
		// Clients read in the greeting that tables.sock is there.
		serveTables := newTableListener(tables, connections.most).serve
		if err := errors.Join(listen("unix", folder+"/tables.sock", serveTables), listen("unix", folder+"/http.sock", serveHTTP), listen("unix", folder+"/flight.sock", rpc.Serve)); err != nil {
			return err
		}
	}
	if port := os.Getenv("TRANSSHIP_HTTP_PORT"); port != "" {
		if err := listen("tcp", ":"+port, serveHTTP); err != nil {
			return err
		}
	}
	if port := os.Getenv("TRANSSHIP_FLIGHT_PORT"); port != "" {
		if err := listen("tcp", ":"+port, rpc.Serve); err != nil {
			return err
		}
	}
	if !isListening {
		return errors.New("set TRANSSHIP_SOCKET_DIR, TRANSSHIP_HTTP_PORT or TRANSSHIP_FLIGHT_PORT")
	}
	fmt.Fprintf(os.Stderr, "transship: ready, %d functions\n", len(functions))

	stopped, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	select {
	case err := <-failed:
		return err
	case <-stopped.Done():
	}
	patience, cancelPatience := context.WithTimeout(context.Background(), stopPatience)
	defer cancelPatience()
	go func() {
		<-patience.Done()
		rpc.Stop()
	}()
	err = rest.Shutdown(patience)
	rpc.GracefulStop()
	return err
}
