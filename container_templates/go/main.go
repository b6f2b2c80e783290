// Starts the server: server [serve | describe].
package main

import (
	"fmt"
	"os"

	"transship/function"
	"transship/server"
)

func main() {
	if err := server.Main(function.Functions, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "transship:", err)
		os.Exit(1)
	}
}
