package server

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// Binding: whether a function of the handler takes and returns what transship.toml says, and how its values are read and written.

func (f *Function) bind(target reflect.Value) error {
	f.target = target
	if target.Kind() != reflect.Func {
		return errors.New("it is not a Go function")
	}
	if f.Arguments == nil || f.Returns == nil {
		return errors.New("transship.toml must give its arguments and result")
	}
	signature := target.Type()
	inputs := inputsOf(signature, 0)
	f.takesContext = len(inputs) < signature.NumIn()
	switch {
	case f.Kind == "aggregate" && f.Batch == "row":
		return f.bindAggregate(signature)
	case f.Kind == "map" && (f.Batch == "row" || f.Batch == "arrow"):
		return f.bindMap(signature)
	case f.Kind == "scalar" && f.Batch == "arrow":
		if len(inputs) != 1 || inputs[0] != recordType || signature.NumOut() == 0 || signature.Out(0) != arrayType {
			return errors.New("it must be a func(arrow.RecordBatch) arrow.Array, which may also return an error")
		}
		return checkError(signature)
	case f.Kind == "scalar" && (f.Batch == "row" || f.Batch == "columns"), f.Kind == "table" && f.Batch == "row":
		return f.bindRows(signature)
	}
	return fmt.Errorf("there are no %s functions with batch = %q in Go", f.Kind, f.Batch)
}

// checkError wants one result, or one and an error.
func checkError(signature reflect.Type) error {
	if signature.NumOut() == 1 || signature.NumOut() == 2 && signature.Out(1) == errorType {
		return nil
	}
	return errors.New("it must return one result, or a result and an error")
}

func (f *Function) bindRows(signature reflect.Type) error {
	if err := checkError(signature); err != nil {
		return err
	}
	if err := f.bindArguments(inputsOf(signature, 0), signature.IsVariadic()); err != nil {
		return err
	}
	result := signature.Out(0)
	switch {
	case f.Batch == "columns" && result.Kind() != reflect.Slice:
		return errors.New("it must return a slice")
	case f.Batch == "columns" || f.Kind == "table" && result.Kind() == reflect.Slice:
		result = result.Elem()
	case f.Kind == "table" && result.CanSeq() && result.Kind() == reflect.Func:
		result = result.In(0).In(0)
	case f.Kind == "table":
		return errors.New("it must return an iter.Seq or a slice")
	}
	var err error
	f.write, err = newWriter(f.Returns, result)
	return err
}

// bindArguments finds out how the arguments of these types are read.
func (f *Function) bindArguments(inputs []reflect.Type, isVariadic bool) error {
	if len(inputs) != len(f.Arguments) || isVariadic {
		// Without arguments only the number of rows says how many results are wanted.
		if !(f.Batch == "columns" && len(f.Arguments) == 0 && len(inputs) == 1 && inputs[0].Kind() == reflect.Int) {
			return fmt.Errorf("it takes %d arguments, transship.toml says %d", len(inputs), len(f.Arguments))
		}
	}
	for i, argument := range f.Arguments {
		target := inputs[i]
		if f.Batch == "columns" {
			if target.Kind() != reflect.Slice {
				return fmt.Errorf("its argument %d must be a slice", i+1)
			}
			target = target.Elem()
		}
		read, err := newReader(argument.Type, target)
		if err != nil {
			return err
		}
		f.readers = append(f.readers, read)
	}
	return nil
}

func (f *Function) bindAggregate(signature reflect.Type) error {
	if len(inputsOf(signature, 0)) != 0 || signature.NumOut() != 1 || signature.Out(0).Kind() != reflect.Pointer {
		return errors.New("an aggregate function's value is a func() that returns a pointer")
	}
	state := signature.Out(0)
	step, hasStep := state.MethodByName("Step")
	finish, hasFinish := state.MethodByName("Finish")
	if !hasStep || !hasFinish {
		return fmt.Errorf("Go type %s needs the methods Step and Finish", state)
	}
	if err := f.bindArguments(inputsOf(step.Type, 1), step.Type.IsVariadic()); err != nil {
		return err
	}
	if err := checkError(finish.Type); err != nil {
		return err
	}
	if len(inputsOf(finish.Type, 1)) != 0 {
		return fmt.Errorf("method Finish of Go type %s takes no arguments", state)
	}
	merge, hasMerge := state.MethodByName("Merge")
	if hasMerge && !slices.Equal(inputsOf(merge.Type, 1), []reflect.Type{state}) {
		return fmt.Errorf("method Merge of Go type %s must take another one", state)
	}
	f.merges = hasMerge
	for _, method := range []reflect.Method{step, merge} {
		if method.Type != nil && method.Type.NumOut() > 0 && (method.Type.NumOut() > 1 || method.Type.Out(0) != errorType) {
			return fmt.Errorf("method %s of Go type %s must return nothing, or an error", method.Name, state)
		}
	}
	for _, method := range []reflect.Method{step, finish, merge} {
		f.takesContext = f.takesContext || method.Type != nil && method.Type.NumIn() > 1 && method.Type.In(1) == contextType
	}
	var err error
	f.write, err = newWriter(f.Returns, finish.Type.Out(0))
	return err
}
