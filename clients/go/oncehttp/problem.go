package oncehttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Problem is a refusal: a problem document (RFC 9457) with a code.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	// State of the first request: in_progress, unknown or succeeded.
	State string `json:"state,omitempty"`
	// ResponseStatus is that of a response that was not stored.
	ResponseStatus int `json:"response_status,omitempty"`
	// RetryAfter says when it is worth asking again, and is sent as Retry-After.
	RetryAfter time.Duration `json:"-"`

	// Fields of a response that was not stored.
	header http.Header
	// The name of the refusal in metrics.
	result string
}

// codes has the status, the title and the result in metrics of each code.
var codes = map[string]struct {
	status        int
	title, result string
}{
	"idempotency_key_invalid": {http.StatusBadRequest, "Idempotency key missing or invalid", "refused"},
	"principal_missing":       {http.StatusBadRequest, "Principal missing", "refused"},
	"ambiguous_target":        {http.StatusBadRequest, "Ambiguous target", "refused"},
	"invalid_request":         {http.StatusBadRequest, "Invalid request", "refused"},
	"duplicate":               {http.StatusConflict, "Duplicate", ""},
	"response_not_stored":     {http.StatusConflict, "Response not stored", "not_stored"},
	"body_too_large":          {http.StatusRequestEntityTooLarge, "Body too large", "refused"},
	"contents_not_canonical":  {http.StatusUnprocessableEntity, "Contents not canonical", "refused"},
	"fingerprint_mismatch":    {http.StatusUnprocessableEntity, "Fingerprint mismatch", "mismatch"},
	"quota_exceeded":          {http.StatusTooManyRequests, "Quota exceeded", "refused"},
	"body_not_seen":           {http.StatusInternalServerError, "Body not seen", "refused"},
	"identity_differs":        {http.StatusInternalServerError, "Identity differs", "unavailable"},
	"not_supported":           {http.StatusNotImplemented, "Not supported", "refused"},
	"store_unavailable":       {http.StatusServiceUnavailable, "Store unavailable", "unavailable"},
}

func problem(code, detail string) *Problem {
	known := codes[code]
	return &Problem{
		Type: "urn:oncegate:problem:" + code, Title: known.title, Status: known.status, Detail: detail, Code: code, result: known.result,
	}
}

// WriteError answers an error of this package's client in the form of the middleware, outside of it too, and reports if it has: other errors, and those
// about an outcome that was not accepted (*NotSettledError, *OutcomeRefusedError), are the service's own to answer.
func WriteError(w http.ResponseWriter, err error) bool {
	p := problemOf(err)
	if p == nil {
		return false
	}
	p.writeHeader(w)
	p.write(w)
	return true
}

// problemOf returns the answer to an error, or nil if it is none of the client's about its call.
func problemOf(err error) *Problem {
	var (
		duplicate *oncegate.DuplicateError
		omitted   *oncegate.ResultNotStoredError
		mismatch  *oncegate.MismatchError
		rejected  *oncegate.RejectedError
		contents  *oncegate.NotCanonicalError
		none      *oncegate.UnavailableError
		unsettled *oncegate.NotSettledError
	)
	switch {
	case errors.As(err, &unsettled):
		return nil
	case errors.As(err, &duplicate):
		return ofDuplicate(duplicate.Duplicate)
	case errors.As(err, &omitted):
		p := problem("response_not_stored", "The operation has succeeded before, but its result was not stored.")
		p.State = oncegate.Succeeded
		return p
	case errors.As(err, &mismatch):
		return problem("fingerprint_mismatch", "This key was used with another request; send a fresh key for each operation.")
	case errors.As(err, &rejected):
		return ofRejection(rejected)
	case errors.As(err, &contents):
		return problem("contents_not_canonical", "At "+contents.Path+": "+contents.Detail+".")
	case errors.As(err, &none) && none.MayHaveActed:
		p := unavailable()
		p.Detail = "Nothing was done, but a gateway may have taken the key. Send the request again after Retry-After with the same key: if it was taken, " +
			"the answer is 409 until the claim ends or is settled."
		return p
	case errors.As(err, &none):
		return unavailable()
	}
	return nil
}

func ofDuplicate(duplicate *oncegate.Duplicate) *Problem {
	switch duplicate.State {
	case oncegate.InProgress:
		p := problem("duplicate", "The first request with this key is still running.")
		p.State, p.RetryAfter, p.result = oncegate.InProgress, max(duplicate.RetryAfter, time.Second), "in_progress"
		return p
	case oncegate.Succeeded:
		return ofNotStored(nil, nil)
	}
	p := problem("duplicate", "The first request with this key was started, and its outcome is not known. It is not run again: look up its effect, "+
		"or send a fresh key if a second effect does no harm.")
	p.State, p.result = oncegate.Unknown, "unknown"
	return p
}

// ofNotStored answers a repeat of a response that was not stored, with its tombstone.
func ofNotStored(stored *storedResponse, fields *storedFields) *Problem {
	p := problem("response_not_stored", "The first request with this key is done, but its response was not stored. `response_status` is its status; "+
		"`Location` and `ETag` are its own.")
	p.State = oncegate.Succeeded
	if stored != nil {
		p.ResponseStatus, p.header = stored.Status, stored.tombstone().header(fields, false)
	}
	return p
}

func ofRejection(rejected *oncegate.RejectedError) *Problem {
	switch {
	case rejected.Status == http.StatusTooManyRequests:
		p := problem("quota_exceeded", "Too many requests: send it again after Retry-After with the same key.")
		p.RetryAfter = max(time.Duration(rejected.RetryAfterMS)*time.Millisecond, time.Second)
		return p
	case rejected.Code == "identity_differs":
		return problem(rejected.Code, "The service and its gateway compute different identities; nothing was done.")
	}
	return unavailable()
}

func unavailable() *Problem {
	p := problem("store_unavailable", "Nothing was done; send the request again after Retry-After with the same key.")
	p.RetryAfter = time.Second
	return p
}

// writeHeader sets the fields that a refusal has in any format.
func (p *Problem) writeHeader(w http.ResponseWriter) {
	header := w.Header()
	for name, lines := range p.header {
		header[name] = lines
	}
	header.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
}

func (p *Problem) write(w http.ResponseWriter) {
	// It has texts and numbers only.
	text, _ := json.Marshal(p)
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Del("Content-Length")
	w.WriteHeader(p.Status)
	_, _ = w.Write(text)
}
