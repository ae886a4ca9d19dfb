package oncegate

import (
	"context"
	"fmt"
	"reflect"
)

// OnceResult is the result of Once with a type: exactly one of Done, Duplicate and Mismatch is set.
type OnceResult[T any] struct {
	// Result is what the work returned, now or at the first time; the zero value if there is none.
	Result    T
	Done      *Done
	Duplicate *Duplicate
	Mismatch  *Mismatch
}

// Value returns the result of the work, of now or of the first time. Otherwise it is a *DuplicateError (in progress, unknown), a *MismatchError, or a
// *ResultNotStoredError.
func (r *OnceResult[T]) Value() (T, error) {
	switch {
	case r.Mismatch != nil:
		return r.Result, &MismatchError{r.Mismatch}
	case r.Duplicate != nil && r.Duplicate.State != Succeeded:
		return r.Result, &DuplicateError{r.Duplicate}
	case r.Duplicate != nil && r.Duplicate.ResultOmitted != "":
		return r.Result, &ResultNotStoredError{GlobalID: r.Duplicate.GlobalID, Omitted: r.Duplicate.ResultOmitted}
	}
	return r.Result, nil
}

// Once is Client.Once for work with a result of one type, which duplicates get back as that type.
//
// A type is an *ArgumentError before anything is sent if JSON does not keep it, or if its values represent unfinished work (channels,
// functions, iterators).
func Once[T any](
	ctx context.Context, c *Client, operation string, contents any, work func(context.Context, *Grant) (T, error), opts ...ClaimOption,
) (*OnceResult[T], error) {
	if err := storable(reflect.TypeFor[T]()); err != nil {
		return nil, err
	}
	if work == nil {
		return nil, noWork()
	}
	once := &OnceResult[T]{}
	result, err := c.Once(ctx, operation, contents, func(ctx context.Context, grant *Grant) (any, error) {
		returned, err := work(ctx, grant)
		once.Result = returned
		return returned, err
	}, opts...)
	if err != nil {
		return nil, err
	}
	switch result := result.(type) {
	case *Done:
		once.Done = result
	case *Duplicate:
		once.Duplicate = result
		if result.State == Succeeded && result.ResultOmitted == "" {
			if err := result.Decode(&once.Result); err != nil {
				return nil, fmt.Errorf("oncegate: the stored result is no %T: %w", once.Result, err)
			}
		}
	case *Mismatch:
		once.Mismatch = result
	}
	return once, nil
}

// storable returns an error if values of this type cannot be stored and read back.
func storable(of reflect.Type) error {
	if endsLater(of) {
		return argument("a result of type %s has not ended when the work returns: wait for it in the work, and return its result", of)
	}
	if part := notJSON(of, map[reflect.Type]bool{}); part != nil {
		return argument("a result of type %s cannot be stored: JSON has no %s", of, part)
	}
	return nil
}

var (
	marshaler     = reflect.TypeFor[interface{ MarshalJSON() ([]byte, error) }]()
	textMarshaler = reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
)

// notJSON returns the part of a type that encoding/json refuses.
func notJSON(of reflect.Type, seen map[reflect.Type]bool) reflect.Type {
	if seen[of] || of.Implements(marshaler) || of.Implements(textMarshaler) {
		return nil
	}
	seen[of] = true
	switch of.Kind() {
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return of
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return notJSON(of.Elem(), seen)
	case reflect.Struct:
		for at := range of.NumField() {
			field := of.Field(at)
			if tag := field.Tag.Get("json"); tag == "-" || !field.IsExported() && !field.Anonymous {
				continue
			}
			if part := notJSON(field.Type, seen); part != nil {
				return part
			}
		}
	}
	return nil
}
