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
	// Held by a step: a client may send another one before the last is answered.
	lock   sync.Mutex
	states map[int64]reflect.Value
	// Steps that run or wait, and when the last one ended. Of exchanges.
	steps int
	used  time.Time
}

func newGroups(function *Function) *groups {
	return &groups{function: function, states: map[int64]reflect.Value{}, used: time.Now()}
}

func (g *groups) state(ctx context.Context, number int64, row int) (reflect.Value, error) {
	state, ok := g.states[number]
	if ok {
		return state, nil
	}
	state, err := call(ctx, g.function.target, nil, row)
	if err == nil {
		g.states[number] = state
	}
	return state, err
}

// call calls a method of a group's state.
func (g *groups) call(ctx context.Context, number int64, method string, arguments []reflect.Value, row int) (reflect.Value, error) {
	state, err := g.state(ctx, number, row)
	if err != nil {
		return state, err
	}
	return call(ctx, state.MethodByName(method), arguments, row)
}

// answer does one step (docs/protocol.md §4).
func (g *groups) answer(ctx context.Context, batch arrow.RecordBatch, step string) (arrow.RecordBatch, error) {
	g.lock.Lock()
	defer g.lock.Unlock()
	f := g.function
	columns, err := f.check(batch)
	if err != nil {
		return nil, err
	}
	if f.takesContext {
		var cancel context.CancelFunc
		ctx, cancel = watched(ctx)
		defer cancel()
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
			_, err := g.call(ctx, numbers.Value(row), "Step", arguments, row)
			return err
		})
	case "merge":
		err = g.each(ctx, rows, func(row int) error { return g.merge(ctx, numbers.Value(row), arrived.Value(row), row) })
	case "finish":
		err = g.each(ctx, rows, func(row int) error {
			result, err := g.call(ctx, numbers.Value(row), "Finish", nil, row)
			if err != nil {
				return err
			}
			states.AppendNull()
			return f.append(results, result, row)
		})
	case "state":
		err = g.each(ctx, rows, func(row int) error {
			state, err := g.state(ctx, numbers.Value(row), row)
			if err != nil {
				return err
			}
			text, err := encoded(state, row)
			if err != nil {
				return err
			}
			results.AppendNull()
			states.Append(text)
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

func (g *groups) merge(ctx context.Context, number int64, arrived []byte, row int) error {
	if !g.function.merges {
		return &CallError{Kind: "bad_result", Message: fmt.Sprintf("The state of %s has no method Merge, which parallel queries need.", g.function.Name)}
	}
	other, err := call(ctx, g.function.target, nil, row)
	if err != nil {
		return err
	}
	if err := decode(arrived, other, row); err != nil {
		return err
	}
	_, err = g.call(ctx, number, "Merge", []reflect.Value{other}, row)
	return err
}

// encoded is a state in gob's form. Its type may have a GobEncode of its own, whose panic is the handler's error.
func encoded(state reflect.Value, row int) (text []byte, err error) {
	defer recoverInto(&err, row)
	var buffer bytes.Buffer
	if err := gob.NewEncoder(&buffer).EncodeValue(state); err != nil {
		return nil, userError(fmt.Sprintf("the state cannot travel: %v", err), row, err.Error())
	}
	return buffer.Bytes(), nil
}

// decode reads a state in gob's form, perhaps with a GobDecode of its type.
func decode(text []byte, into reflect.Value, row int) (err error) {
	defer recoverInto(&err, row)
	if err := gob.NewDecoder(bytes.NewReader(text)).DecodeValue(into); err != nil {
		return violation("the state of row %d cannot be read: %v", row, err)
	}
	return nil
}

// exchanges are those of JSON's clients, by the names that these gave them.
type exchanges struct {
	lock   sync.Mutex
	groups map[string]*groups
}

// begin opens the exchange with batch 0; any other batch needs one that is open. It is not forgotten until the step has ended, which may
// take any time.
func (e *exchanges) begin(function *Function, name string, batch uint64) (*groups, error) {
	e.lock.Lock()
	defer e.lock.Unlock()
	for other, groups := range e.groups {
		if groups.steps == 0 && time.Since(groups.used) > exchangeIdle {
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
	found.steps++
	return found, nil
}

// end notes the end of a step.
func (e *exchanges) end(groups *groups) {
	e.lock.Lock()
	defer e.lock.Unlock()
	groups.steps--
	groups.used = time.Now()
}

func (e *exchanges) forget(name string) {
	e.lock.Lock()
	defer e.lock.Unlock()
	delete(e.groups, name)
}
