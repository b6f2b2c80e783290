package server

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// How long an exchange over JSON is kept that nobody asks for.
const exchangeIdle = 10 * time.Minute

// groups are those of one exchange of an aggregate function: states by number. States travel in gob's form.
type groups struct {
	function *Function
	states   map[int64]reflect.Value
	used     time.Time
}

func newGroups(function *Function) *groups {
	return &groups{function: function, states: map[int64]reflect.Value{}, used: time.Now()}
}

func (g *groups) state(number int64) reflect.Value {
	state, ok := g.states[number]
	if !ok {
		state = g.function.target.Call(nil)[0]
		g.states[number] = state
	}
	return state
}

// answer does one step (docs/protocol.md §4).
func (g *groups) answer(ctx context.Context, batch arrow.RecordBatch, step string) (arrow.RecordBatch, error) {
	f := g.function
	columns, err := f.check(batch)
	if err != nil {
		return nil, err
	}
	rows := int(batch.NumRows())
	numbers := columns[0].values.(*array.Int64)
	arrived := columns[len(columns)-1].values.(*array.Binary)
	if numbers.NullN() > 0 {
		return nil, violation("a row has no group")
	}
	results := array.NewBuilder(memory.DefaultAllocator, f.Returns.Arrow())
	states := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	switch step {
	case "accumulate":
		err = f.eachRow(ctx, columns[1:], rows, func(row int, arguments []reflect.Value) error {
			_, err := call(g.state(numbers.Value(row)).MethodByName("Step"), arguments, row)
			return err
		})
	case "merge":
		err = g.each(ctx, rows, func(row int) error { return g.merge(numbers.Value(row), arrived.Value(row), row) })
	case "finish":
		err = g.each(ctx, rows, func(row int) error {
			result, err := call(g.state(numbers.Value(row)).MethodByName("Finish"), nil, row)
			if err != nil {
				return err
			}
			states.AppendNull()
			return f.append(results, result, row)
		})
	case "state":
		err = g.each(ctx, rows, func(row int) error {
			var text bytes.Buffer
			if err := gob.NewEncoder(&text).EncodeValue(g.state(numbers.Value(row))); err != nil {
				return userError(fmt.Sprintf("the state cannot travel: %v", err), row, err.Error())
			}
			results.AppendNull()
			states.Append(text.Bytes())
			return nil
		})
	case "forget":
		for _, number := range numbers.Int64Values() {
			delete(g.states, number)
		}
	default:
		err = violation("there is no step %q", step)
	}
	if err != nil {
		return nil, err
	}
	reply := []arrow.Array{results.NewArray(), states.NewArray()}
	return array.NewRecordBatch(schemaOf(f.replyColumns("")), reply, int64(reply[0].Len())), nil
}

func (g *groups) each(ctx context.Context, rows int, work func(row int) error) error {
	pace := newPace(ctx)
	for row := range rows {
		if err := pace.check(row); err != nil {
			return err
		}
		if err := work(row); err != nil {
			return err
		}
	}
	return nil
}

func (g *groups) merge(number int64, arrived []byte, row int) error {
	if !g.function.merges {
		return &CallError{Kind: "bad_result", Message: fmt.Sprintf("The state of %s has no method Merge, which parallel queries need.", g.function.Name)}
	}
	other := g.function.target.Call(nil)[0]
	if err := gob.NewDecoder(bytes.NewReader(arrived)).DecodeValue(other); err != nil {
		return violation("the state of row %d cannot be read: %v", row, err)
	}
	_, err := call(g.state(number).MethodByName("Merge"), []reflect.Value{other}, row)
	return err
}

// exchanges are those of JSON's clients, by the names that these gave them.
type exchanges struct {
	lock   sync.Mutex
	groups map[string]*groups
}

// find opens the exchange with batch 0; any other batch needs one that is open.
func (e *exchanges) find(function *Function, name string, batch uint64) (*groups, error) {
	e.lock.Lock()
	defer e.lock.Unlock()
	for other, groups := range e.groups {
		if time.Since(groups.used) > exchangeIdle {
			delete(e.groups, other)
		}
	}
	if batch == 0 && name != "" {
		e.groups[name] = newGroups(function)
	}
	found, ok := e.groups[name]
	if !ok || found.function != function {
		return nil, violation("there is no exchange %q of %s", name, function.Name)
	}
	found.used = time.Now()
	return found, nil
}

func (e *exchanges) end(name string) {
	e.lock.Lock()
	defer e.lock.Unlock()
	delete(e.groups, name)
}
