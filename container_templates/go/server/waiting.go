package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Functions that wait, such as for a web service: they take a context.Context, which ends when the client has gone, and may have
// several calls of a batch under way at a time.

// Time between two looks at whether the client of a function that waits has gone.
const watchInterval = 20 * time.Millisecond

// goexit is the error of a function that ends its goroutine instead of returning.
const goexit = "It has called runtime.Goexit."

var contextType = reflect.TypeFor[context.Context]()

// readConcurrency reads how many calls of each function may be under way at a time.
func readConcurrency(root string, functions []*Function) error {
	text, err := os.ReadFile(root + "/manifest.json")
	if err != nil {
		return err
	}
	var manifest struct {
		Functions []struct {
			Name        string
			Concurrency *int
		}
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		return fmt.Errorf("manifest.json: %w", err)
	}
	byName := map[string]int{}
	for _, entry := range manifest.Functions {
		if entry.Concurrency != nil {
			byName[entry.Name] = *entry.Concurrency
		}
	}
	for _, function := range functions {
		function.concurrency = max(byName[function.Name], 1)
		if function.concurrency > 1 && !function.isWaiting() {
			return fmt.Errorf("function %q: with concurrency, its first argument must be a context.Context, and it must be called row by row", function.Name)
		}
	}
	return nil
}

// isWaiting says whether several calls of a batch may be under way at a time.
func (f *Function) isWaiting() bool { return f.takesContext && f.Kind == "scalar" && f.Batch == "row" }

// inputsOf are the types that a Go function takes, without the first `skipped` and a context.Context behind them.
func inputsOf(signature reflect.Type, skipped int) []reflect.Type {
	inputs := slices.Collect(signature.Ins())[skipped:]
	if len(inputs) > 0 && inputs[0] == contextType {
		return inputs[1:]
	}
	return inputs
}

// withContext are the arguments of a Go function that may take a context.Context first.
func withContext(ctx context.Context, target reflect.Value, arguments []reflect.Value) []reflect.Value {
	if signature := target.Type(); signature.NumIn() == 0 || signature.In(0) != contextType {
		return arguments
	}
	return append([]reflect.Value{reflect.ValueOf(ctx)}, arguments...)
}

// outcome is what a call gave.
type outcome struct {
	value reflect.Value
	err   error
}

// callWaiting calls a function for each row, several at a time. Results are in the order of the rows, and so is the first error.
func (f *Function) callWaiting(ctx context.Context, columns []argument, rows int, failed *rowErrors) (arrow.Array, error) {
	builder := array.NewBuilder(memory.DefaultAllocator, f.Returns.Arrow())
	var underWay []chan outcome
	next := 0
	for row := range rows {
		for ; next < rows && len(underWay) < f.concurrency; next++ {
			underWay = append(underWay, f.begin(ctx, columns, next))
		}
		var done outcome
		select {
		case done = <-underWay[0]:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		underWay = underWay[1:]
		switch {
		case done.err == nil:
			failed.none(1)
			if err := f.append(builder, done.value, row); err != nil {
				return nil, err
			}
		case failed.take(done.err):
			builder.AppendNull()
		default:
			return nil, done.err
		}
	}
	return builder.NewArray(), nil
}

// begin starts the call of a row.
func (f *Function) begin(ctx context.Context, columns []argument, row int) chan outcome {
	result := make(chan outcome, 1)
	arguments := make([]reflect.Value, len(f.readers))
	if err := f.arguments(columns, row, arguments); err != nil {
		result <- outcome{err: err}
		return result
	}
	go func() {
		// What is told if the function ends its goroutine.
		done := outcome{err: userError(goexit, row, "")}
		defer func() { result <- done }()
		value, err := call(ctx, f.target, arguments, row)
		done = outcome{value, err}
	}()
	return result
}

// watched is a context that ends soon after the client has gone. net/http only says so when it is asked while further requests of
// the client lie unread.
func watched(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(watchInterval)
		defer ticker.Stop()
		for {
			select {
			case <-inner.Done():
				return
			case <-ticker.C:
				if err := ctx.Err(); err != nil {
					cancel(err)
					return
				}
			}
		}
	}()
	return inner, func() { cancel(errors.New("the batch has ended")) }
}
