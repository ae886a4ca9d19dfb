package oncegate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// resultBytesMax is the default of the gateway's limits.result_bytes: a longer result is not sent.
const resultBytesMax = 64 << 10

// Reasons of Duplicate.ResultOmitted.
const (
	omittedTooLarge        = "too_large"
	omittedNotSerialisable = "not_serialisable"
	omittedRefused         = "refused"
)

// Omitter is a result that says itself what duplicates get in its place if it is not stored, because it is too_large, not_serialisable or refused.
type Omitter interface {
	Omitted(why string) any
}

// marker is the result of a success whose own result was not stored. Every language reads it.
type marker struct {
	Oncegate struct {
		Omitted string `json:"omitted"`
	} `json:"$oncegate"`
}

// encodeOrOmit returns the result as JSON, or what is stored in its place and why.
func encodeOrOmit(result any) (json.RawMessage, string) {
	text, why, detail := encode(result)
	if why == "" {
		return text, ""
	}
	return substitute(result, why), detail
}

// substitute returns what is stored in place of a result.
func substitute(result any, why string) json.RawMessage {
	if omitter, ok := result.(Omitter); ok {
		if text, failed, _ := encode(omitter.Omitted(why)); failed == "" {
			return text
		}
	}
	var omitted marker
	omitted.Oncegate.Omitted = why
	text, _, _ := encode(omitted)
	return text
}

// omittedFrom returns why a result was not stored, if this is its marker.
func omittedFrom(text json.RawMessage) string {
	if !bytes.Contains(text, []byte(`"$oncegate"`)) {
		return ""
	}
	members := map[string]json.RawMessage{}
	var omitted marker
	if json.Unmarshal(text, &members) != nil || len(members) != 1 || json.Unmarshal(text, &omitted) != nil {
		return ""
	}
	return omitted.Oncegate.Omitted
}

// encode returns the result as JSON, or the reason why it cannot be sent. A panic of its methods is one: the work is done.
func encode(result any) (text json.RawMessage, why, detail string) {
	defer func() {
		if raised := recover(); raised != nil {
			text, why, detail = nil, omittedNotSerialisable, fmt.Sprintf("the result is not JSON: %v", raised)
		}
	}()
	if result == nil {
		return nil, "", ""
	}
	text, err := marshal(result)
	if err != nil {
		return nil, omittedNotSerialisable, "the result is not JSON: " + err.Error()
	}
	if len(text) > resultBytesMax {
		return nil, omittedTooLarge, fmt.Sprintf("the result has %d bytes, more than %d", len(text), resultBytesMax)
	}
	return text, "", ""
}

// marshal returns JSON without the escapes for HTML, which make a result longer than the gateway takes.
func marshal(value any) (json.RawMessage, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// endsLater reports if values of a type stand for work that is not done yet: channels, and functions, such as iterators.
func endsLater(of reflect.Type) bool {
	return of != nil && (of.Kind() == reflect.Chan || of.Kind() == reflect.Func)
}

// refusal returns the answer that may be about the result.
func refusal(answer *answer, err error) *RejectedError {
	var rejected *RejectedError
	if err == nil && answer.status == 422 {
		rejected = answer.rejected()
	} else if !errors.As(err, &rejected) {
		return nil
	}
	if rejected.Status == 400 || rejected.Status == 413 || rejected.Status == 422 {
		return rejected
	}
	return nil
}
