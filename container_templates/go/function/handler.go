// Package function holds the handler: the functions that databases call.
package function

import (
	"iter"
	"math"
	"strings"

	"transship/udf"
)

// Functions by the names that transship.toml gives them; udf.Functions says which Go types they take.
var Functions = udf.Functions{
	"add_one":    AddOne,
	"hypotenuse": Hypotenuse,
	"words":      Words,
	"longest":    func() *Longest { return &Longest{} },
}

// AddOne takes one row at a time; a pointer takes NULL as nil.
func AddOne(x *int64) *int64 {
	if x == nil {
		return nil
	}
	sum := *x + 1
	return &sum
}

// Hypotenuse takes a whole batch at a time (batch = "columns" in transship.toml).
func Hypotenuse(a, b []float64) []float64 {
	results := make([]float64, len(a))
	for row := range a {
		results[row] = math.Hypot(a[row], b[row])
	}
	return results
}

// Words is a table function: any number of results for each row.
func Words(text string) iter.Seq[string] {
	return strings.FieldsSeq(text)
}

// Longest is an aggregate function: a state per group of rows. Its exported fields travel between containers.
type Longest struct {
	Text *string
}

// Step adds a row.
func (l *Longest) Step(text *string) {
	if text != nil && (l.Text == nil || len(*text) > len(*l.Text)) {
		l.Text = text
	}
}

// Merge adds another group's rows, which lets queries run in parallel.
func (l *Longest) Merge(other *Longest) { l.Step(other.Text) }

// Finish gives the result.
func (l *Longest) Finish() *string { return l.Text }
