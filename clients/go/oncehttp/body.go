package oncehttp

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
)

// readBody reads the whole body of a request, or returns the refusal. The bytes that it has read come first in r.Body again.
func (m *Middleware) readBody(r *http.Request) ([]byte, *Problem) {
	if r.Body == nil {
		return nil, nil
	}
	limit := m.config.BodyBytes
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	var read bytes.Buffer
	if r.ContentLength > 0 {
		read.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	_, err := io.Copy(&read, io.LimitReader(r.Body, limit+1))
	body := read.Bytes()
	rest := r.Body
	r.Body = &putBack{Reader: io.MultiReader(bytes.NewReader(body), failing{err}, rest), Closer: rest}
	var limited *http.MaxBytesError
	switch {
	case errors.As(err, &limited):
		return nil, tooLarge(limited.Limit)
	case err != nil:
		return nil, problem("invalid_request", "The body ended early; nothing was done. Send the request again with the same key.")
	case int64(len(body)) > limit:
		return nil, tooLarge(limit)
	case isConsumed(r, int64(len(body))):
		return nil, problem("body_not_seen", "A layer outside of oncehttp has read the body, so that repeats could not be compared. "+
			"Put the middleware before what parses forms or reads the body.")
	}
	return body, nil
}

// isConsumed reports if another layer has read of the body before. Layers that decompress it take the encoding or the length away.
func isConsumed(r *http.Request, read int64) bool {
	if declared := r.Header.Get("Content-Length"); declared != "" && r.Header.Get("Content-Encoding") == "" {
		length, err := strconv.ParseInt(declared, 10, 64)
		if err == nil && length == r.ContentLength && read < length {
			return true
		}
	}
	return read == 0 && r.ContentLength != 0 && (r.MultipartForm != nil || len(r.PostForm) > 0)
}

func tooLarge(limit int64) *Problem {
	return problem("body_too_large", "A request with an Idempotency-Key may have a body of "+strconv.FormatInt(limit, 10)+" bytes.")
}

// putBack is a body that was read in part.
type putBack struct {
	io.Reader
	io.Closer
}

// failing returns its error again, if it has one.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// forHandler returns the request for the handler: with an unread body, and without fields that would adapt the response to this caller
// only.
func forHandler(r *http.Request, body []byte) *http.Request {
	r.Body = http.NoBody
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	r.Header = r.Header.Clone()
	for _, name := range []string{"Accept-Encoding", "Range", "If-Range"} {
		r.Header.Del(name)
	}
	return r
}
