package oncehttp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// callerTimeout is the time that a caller may take to read a piece, where the server itself has no WriteTimeout.
var callerTimeout = 30 * time.Second

// recorder passes a response on as the handler sends it, and keeps a copy. Its last part waits until the outcome was reported: the end of
// the body, which net/http sends when ServeHTTP returns, or the piece that fills a declared length.
//
// It cannot be bypassed: it has no Hijack and no Unwrap. The header is that of the outer writer, so that outer layers see the handler's
// fields.
type recorder struct {
	to         http.ResponseWriter
	controller *http.ResponseController
	fields     *storedFields
	// The fields that outer layers had set before the handler ran.
	before http.Header
	// Bytes that are kept.
	limit int
	// An answer to HTTP/1.0 may end with its connection, so its last piece waits too.
	delimitedByClose bool
	// The middleware bounds each piece by callerTimeout.
	paced bool

	status int
	// The handler's fields when the head was sent, and how the handler decided.
	head    http.Header
	hasType bool
	outcome []string
	// The declared length; -1 without one.
	length, written int64
	body            []byte
	tooLong         bool
	// What waits for the report.
	held []byte
	// The caller takes nothing more.
	gone     bool
	deadline time.Time
	ended    bool
}

var errEnded = errors.New("oncehttp: the handler has returned, and its response is reported")

func newRecorder(m *Middleware, w http.ResponseWriter, r *http.Request) *recorder {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	return &recorder{
		to: w, controller: http.NewResponseController(w), fields: m.fields, before: w.Header().Clone(), limit: m.config.ResponseBytes,
		delimitedByClose: !r.ProtoAtLeast(1, 1), paced: ok && server.WriteTimeout == 0, length: -1,
	}
}

// Header returns the fields of the response.
func (r *recorder) Header() http.Header { return r.to.Header() }

// WriteHeader sends the head. Those of 1xx are passed on, and not recorded.
func (r *recorder) WriteHeader(status int) {
	if r.status != 0 || r.ended {
		return
	}
	header := r.to.Header()
	r.takeOutcome(header)
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		r.to.WriteHeader(status)
		return
	}
	switch status {
	case http.StatusNoContent, http.StatusNotModified:
		header.Del("Content-Length")
	case http.StatusResetContent:
		header.Set("Content-Length", "0")
	}
	if length, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil && length >= 0 {
		r.length = length
	}
	// Before the writer outside sees the head: outer layers change it.
	r.head = http.Header{}
	for name, lines := range header {
		if !slices.Equal(lines, r.before[name]) {
			r.head[name] = slices.Clone(lines)
		}
	}
	_, r.hasType = header["Content-Type"]
	r.status = status
	r.pace()
	r.to.WriteHeader(status)
}

// takeOutcome removes the header for the middleware, and the one that only a replay has.
func (r *recorder) takeOutcome(header http.Header) {
	for name, lines := range header {
		if strings.EqualFold(name, OutcomeHeader) {
			r.outcome = append(r.outcome, lines...)
			delete(header, name)
		}
	}
	header.Del(replayedHeader)
}

// Write sends a piece of the body.
func (r *recorder) Write(piece []byte) (int, error) {
	if r.ended {
		return 0, errEnded
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if len(piece) == 0 {
		return 0, nil
	}
	if !bodyAllowed(r.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if r.length >= 0 && r.written+int64(len(piece)) > r.length {
		return 0, http.ErrContentLength
	}
	if r.written == 0 {
		r.sniff(piece)
	}
	r.written += int64(len(piece))
	r.keep(piece)
	if r.delimitedByClose || r.written == r.length {
		r.pass(r.held)
		r.held = bytes.Clone(piece)
	} else {
		r.pass(piece)
	}
	return len(piece), nil
}

// WriteString sends a piece of the body.
func (r *recorder) WriteString(piece string) (int, error) { return r.Write([]byte(piece)) }

// ReadFrom sends what the reader has.
func (r *recorder) ReadFrom(source io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{r}, source)
}

// sniff keeps the type that net/http sends for this body.
func (r *recorder) sniff(piece []byte) {
	if !r.hasType && r.head.Get("Content-Encoding") == "" {
		r.head.Set("Content-Type", http.DetectContentType(piece))
	}
}

func (r *recorder) keep(piece []byte) {
	if r.tooLong = r.tooLong || len(r.body)+len(piece) > r.limit; r.tooLong {
		r.body = nil
		return
	}
	r.body = append(r.body, piece...)
}

// pass sends a piece to the caller. Errors of sending are kept from the handler: they do not end the work.
func (r *recorder) pass(piece []byte) {
	if len(piece) == 0 || r.gone {
		return
	}
	r.pace()
	if _, err := r.to.Write(piece); err != nil {
		r.gone = true
	}
}

// pace gives the caller time to read what comes next.
func (r *recorder) pace() {
	if r.paced && time.Until(r.deadline) < callerTimeout/2 {
		r.deadline = time.Now().Add(callerTimeout)
		r.paced = r.controller.SetWriteDeadline(r.deadline) == nil
	}
}

// Flush sends the available bytes, except those that wait for the report.
func (r *recorder) Flush() { _ = r.FlushError() }

// FlushError sends the available bytes, except those that wait for the report.
func (r *recorder) FlushError() error {
	if r.ended {
		return errEnded
	}
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(r.status) || r.written == r.length {
		// The head alone, or the last piece, makes the response complete.
		return nil
	}
	r.pass(r.held)
	r.held = nil
	if r.gone {
		return nil
	}
	r.pace()
	err := r.controller.Flush()
	if errors.Is(err, http.ErrNotSupported) {
		return err
	}
	r.gone = r.gone || err != nil
	return nil
}

// SetReadDeadline is that of the writer outside.
func (r *recorder) SetReadDeadline(at time.Time) error { return r.controller.SetReadDeadline(at) }

// SetWriteDeadline is that of the writer outside. From then on the handler bounds the time of its caller itself.
func (r *recorder) SetWriteDeadline(at time.Time) error {
	r.paced = false
	return r.controller.SetWriteDeadline(at)
}

// EnableFullDuplex is that of the writer outside.
func (r *recorder) EnableFullDuplex() error { return r.controller.EnableFullDuplex() }

// finish takes the head if the handler has sent none, and reports if the response is complete.
func (r *recorder) finish() bool {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.length < 0 || r.written == r.length || !bodyAllowed(r.status)
}

// stored returns the response for repeats.
func (r *recorder) stored(isComplete, storePrivate bool) *storedResponse {
	isPrivate := has(r.head["Cache-Control"], "no-store") && !storePrivate
	return newStoredResponse(r.status, r.fields.of(r.head), r.fields.of(r.trailers()), r.body, isComplete && !r.tooLong && !isPrivate)
}

// trailers returns the fields after the body: those that the head names, and those with http.TrailerPrefix.
func (r *recorder) trailers() http.Header {
	header, trailers := r.to.Header(), http.Header{}
	for _, line := range r.head["Trailer"] {
		for _, name := range strings.Split(line, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if lines := header[name]; len(lines) > 0 && r.head[name] == nil {
				trailers[name] = slices.Clone(lines)
			}
		}
	}
	for name, lines := range header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			trailers[http.CanonicalHeaderKey(name)] = slices.Clone(lines)
		}
	}
	return trailers
}

// release completes the response. Nothing that the handler left running can write from then on.
func (r *recorder) release() {
	r.ended = true
	header := r.to.Header()
	for name := range header {
		if isOwn(strings.ToLower(strings.TrimPrefix(name, http.TrailerPrefix))) && r.status != 0 && name != degradedHeader {
			delete(header, name)
		}
	}
	r.pass(r.held)
	r.held = nil
	if !r.deadline.IsZero() && r.paced {
		_ = r.controller.SetWriteDeadline(time.Time{})
	}
}
