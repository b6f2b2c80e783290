package server

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Errors of rows, docs/protocol.md §4.9.

const (
	// Longest error of one row, in characters.
	longestRowError = 4096
	// Once the errors of a batch have so many characters together, each further one has at most fewCharacters: every row may have
	// one, and all of them together must not need more memory than results do.
	mostCharacters = 1 << 20
	fewCharacters  = 256
)

// rowErrors collects the errors of a batch's rows.
type rowErrors struct {
	texts *array.StringBuilder
	left  int
}

// newRowErrors is for a batch whose rows may fail alone: mode is "once" or "again"; nil for an empty mode.
func newRowErrors(mode string) *rowErrors {
	if mode == "" {
		return nil
	}
	return &rowErrors{array.NewStringBuilder(memory.DefaultAllocator), mostCharacters}
}

// checkRowErrors refuses modes that there are not, and functions of other kinds.
func checkRowErrors(mode string, function *Function) error {
	if mode == "" {
		return nil
	}
	if mode != "once" && mode != "again" {
		return violation("errors of rows are reported \"once\" or \"again\", not %q", mode)
	}
	if function.Kind != "scalar" {
		return violation("%s is not a scalar function, and its rows have no errors", function.Name)
	}
	return nil
}

// none notes that the next rows have no errors.
func (e *rowErrors) none(rows int) {
	if e == nil {
		return
	}
	for range rows {
		e.texts.AppendNull()
	}
}

// take notes the error of the next row; false if it is not the row's alone.
func (e *rowErrors) take(err error) bool {
	var failure *CallError
	if e == nil || !errors.As(err, &failure) || failure.Kind != "user_code" {
		return false
	}
	text, most := strings.ToValidUTF8(failure.Message, "\uFFFD"), longestRowError
	if e.left <= 0 {
		most = fewCharacters
	}
	if utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most])
	}
	e.left -= utf8.RuneCountInString(text)
	e.texts.Append(text)
	return true
}

// inPieces calls a function of whole columns: once, or with pieces that have room for the constants. If rows may fail alone, a piece
// that fails is called again in halves, down to single rows, or each row alone if no row may run twice.
func inPieces(ctx context.Context, rows, step int, null func() arrow.Array, failed *rowErrors, mode string, piece func(first, rows int) (arrow.Array, error)) (arrow.Array, error) {
	if mode == "once" {
		step = 1
	}
	var results []arrow.Array
	var run func(first, rows int) error
	run = func(first, rows int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		column, err := piece(first, rows)
		switch {
		case err == nil:
			failed.none(rows)
			results = append(results, column)
			return nil
		case rows > 1 && failed.isOfRow(err):
			if err := run(first, rows/2); err != nil {
				return err
			}
			return run(first+rows/2, rows-rows/2)
		case rows == 1 && failed.take(err):
			results = append(results, null())
			return nil
		}
		return err
	}
	for first := 0; first == 0 || first < rows; first += step {
		if err := run(first, min(step, rows-first)); err != nil {
			return nil, err
		}
	}
	if len(results) == 1 {
		return results[0], nil
	}
	joined, err := array.Concatenate(results, memory.DefaultAllocator)
	// They may hold the map of a shared table while it is copied.
	runtime.KeepAlive(results)
	if err != nil {
		return nil, &CallError{Kind: "bad_result", Message: "Its results differ: " + err.Error() + "."}
	}
	return joined, nil
}

// isOfRow says whether an error may be that of a single row.
func (e *rowErrors) isOfRow(err error) bool {
	var failure *CallError
	return e != nil && errors.As(err, &failure) && failure.Kind == "user_code"
}
