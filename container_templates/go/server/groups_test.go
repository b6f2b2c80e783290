package server

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

type sum struct{ Sum int64 }

func (s *sum) Step(x int64) { s.Sum += x }

func (s *sum) Merge(other *sum) { s.Sum += other.Sum }

func (s *sum) Finish() int64 { return s.Sum }

func sumOf(t *testing.T, constructor any) *Function {
	return bound(t, Function{Name: "sum", Kind: "aggregate", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")}, constructor)
}

// stepOf is a batch of a step in which each group has its own number as argument, and a state.
func stepOf(function *Function, state []byte, groups ...int64) arrow.RecordBatch {
	states := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	for range groups {
		states.Append(state)
	}
	return batchOf(function.callColumns(), []arrow.Array{int8s(groups...), int8s(groups...), states.NewArray()}, len(groups))
}

// A client may send a batch of an exchange before the last is answered, though it must not.
func TestStepsOfAnExchangeWaitForEachOther(t *testing.T) {
	function := sumOf(t, func() *sum { return &sum{} })
	states := newGroups(function)
	numbers := make([]int64, 1000)
	for i := range numbers {
		numbers[i] = int64(i)
	}
	var running sync.WaitGroup
	for range 8 {
		running.Go(func() {
			if _, err := states.answer(context.Background(), stepOf(function, nil, numbers...), "accumulate"); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	reply, err := states.answer(context.Background(), stepOf(function, nil, 7, 999), "finish")
	if err != nil || textOf(typeOf("int8"), reply.Column(0)) != "56 7992 " {
		t.Errorf("%v, %v", reply, err)
	}
}

func TestExchangesInUseAreNotForgotten(t *testing.T) {
	function := sumOf(t, func() *sum { return &sum{} })
	open := exchanges{groups: map[string]*groups{}}
	states, err := open.begin(function, "long", 0)
	if err != nil {
		t.Fatal(err)
	}
	states.used = time.Now().Add(-2 * exchangeIdle)
	if other, err := open.begin(function, "other", 0); err != nil {
		t.Fatal(err)
	} else {
		open.end(other)
	}
	open.end(states)
	// It has just been in use.
	if again, err := open.begin(function, "long", 1); err != nil || again != states {
		t.Fatalf("it was forgotten: %v", err)
	}
	open.end(states)
	states.used = time.Now().Add(-2 * exchangeIdle)
	if _, err := open.begin(function, "long", 2); err == nil {
		t.Error("it was kept")
	}
}

// damaged panics wherever its code runs besides its methods.
type damaged struct{ sum }

func (d *damaged) Merge(*damaged) {}

func (d *damaged) GobEncode() ([]byte, error) { panic("no encoding") }

func (d *damaged) GobDecode([]byte) error { panic("no decoding") }

type sound struct{ sum }

func (s *sound) Merge(*sound) {}

func (s *sound) GobEncode() ([]byte, error) { return []byte{1}, nil }

func (s *sound) GobDecode([]byte) error { return nil }

func TestPanicsAroundStatesAreTheHandlersErrors(t *testing.T) {
	whole := sumOf(t, func() *sound { return &sound{} })
	reply, err := newGroups(whole).answer(context.Background(), stepOf(whole, nil, 1), "state")
	if err != nil {
		t.Fatal(err)
	}
	state := reply.Column(1).(*array.Binary).Value(0)
	absent := sumOf(t, func() *sum { panic("no state") })
	torn := sumOf(t, func() *damaged { return &damaged{} })
	for _, one := range []struct {
		function      *Function
		step, message string
	}{
		{absent, "accumulate", "no state"}, {absent, "finish", "no state"}, {absent, "state", "no state"}, {absent, "merge", "no state"},
		{torn, "state", "no encoding"}, {torn, "merge", "no decoding"},
	} {
		_, err := newGroups(one.function).answer(context.Background(), stepOf(one.function, state, 1), one.step)
		if failed := (*CallError)(nil); !errors.As(err, &failed) || failed.Kind != "user_code" || failed.Message != one.message || *failed.Row != 0 || failed.Traceback == "" {
			t.Errorf("%s, %s: %v", one.step, one.message, err)
		}
	}
}

// doubtful refuses to step by 13, and to merge a sum of 26.
type doubtful struct{ Sum int64 }

func (d *doubtful) Step(x int64) error {
	if x == 13 {
		return fmt.Errorf("%d is no step", x)
	}
	d.Sum += x
	return nil
}

func (d *doubtful) Merge(_ context.Context, other *doubtful) error {
	if other.Sum == 26 {
		return errors.New("26 is no state")
	}
	d.Sum += other.Sum
	return nil
}

func (d *doubtful) Finish() int64 { return d.Sum }

func TestErrorsOfStepsAndMergesAreTheHandlers(t *testing.T) {
	exchange := func(function *Function) func(step string, state []byte, groups ...int64) (arrow.RecordBatch, error) {
		states := newGroups(function)
		return func(step string, state []byte, groups ...int64) (arrow.RecordBatch, error) {
			return states.answer(context.Background(), stepOf(function, state, groups...), step)
		}
	}
	check := func(reply arrow.RecordBatch, err error, wanted string) {
		t.Helper()
		if err != nil || textOf(typeOf("int8"), reply.Column(0)) != wanted {
			t.Errorf("%v, %v", reply, err)
		}
	}
	refused := func(err error, message string, row int) {
		t.Helper()
		if failed := (*CallError)(nil); !errors.As(err, &failed) || failed.Kind != "user_code" || failed.Message != message || *failed.Row != row || failed.Traceback == "" {
			t.Errorf("%v", err)
		}
	}
	do := exchange(sumOf(t, func() *doubtful { return &doubtful{} }))
	_, err := do("accumulate", nil, 5, 26, 13, 7)
	refused(err, "13 is no step", 2)
	reply, err := do("state", nil, 5, 26)
	if err != nil {
		t.Fatal(err)
	}
	small, large := reply.Column(1).(*array.Binary).Value(0), reply.Column(1).(*array.Binary).Value(1)
	_, err = do("merge", large, 8)
	refused(err, "26 is no state", 0)
	reply, err = do("merge", small, 5, 8)
	check(reply, err, "")
	reply, err = do("finish", nil, 5, 8, 26)
	check(reply, err, "10 5 26 ")
	// Neither returns anything.
	do = exchange(sumOf(t, func() *sum { return &sum{} }))
	reply, err = do("accumulate", nil, 13, 13)
	check(reply, err, "")
	reply, err = do("state", nil, 13)
	if err != nil {
		t.Fatal(err)
	}
	reply, err = do("merge", reply.Column(1).(*array.Binary).Value(0), 13)
	check(reply, err, "")
	reply, err = do("finish", nil, 13)
	check(reply, err, "52 ")
}

type finished struct{}

func (finished) Finish() int64 { return 0 }

type returningStep struct{ finished }

func (r *returningStep) Step(int64) *returningStep { return r }

type namingStep struct{ finished }

func (n *namingStep) Step(int64) *CallError { return nil }

type returningMerge struct{ finished }

func (r *returningMerge) Step(int64) error { return nil }

func (r *returningMerge) Merge(*returningMerge) (*returningMerge, error) { return r, nil }

func TestStepsAndMergesReturnAtMostAnError(t *testing.T) {
	for method, constructor := range map[string]any{
		"Step of Go type *server.returningStep":   func() *returningStep { return nil },
		"Step of Go type *server.namingStep":      func() *namingStep { return nil },
		"Merge of Go type *server.returningMerge": func() *returningMerge { return nil },
	} {
		function := Function{Name: "sum", Kind: "aggregate", Batch: "row", Arguments: []Argument{{"x", typeOf("int8")}}, Returns: typeOf("int8")}
		if err := function.bind(reflect.ValueOf(constructor)); err == nil || err.Error() != "method "+method+" must return nothing, or an error" {
			t.Errorf("%s: %v", method, err)
		}
	}
}
