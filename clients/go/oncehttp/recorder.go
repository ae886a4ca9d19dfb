package oncehttp

import (
	stdcontext "context"
	"net/http"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

type context = stdcontext.Context

type grantKey struct{}

func withGrant(ctx context, grant *oncegate.Grant) context {
	return stdcontext.WithValue(ctx, grantKey{}, grant)
}

// Grant returns the grant that a handler runs under, for its fence, or nil.
func Grant(ctx context) *oncegate.Grant {
	grant, _ := ctx.Value(grantKey{}).(*oncegate.Grant)
	return grant
}

// recorder keeps a response until its outcome is reported. One that is too long to be stored is passed on as it comes.
type recorder struct {
	to     http.ResponseWriter
	header http.Header
	status int
	body   []byte
	// The handler has run, or has written.
	began   bool
	passing bool
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.began, r.status = true, status
	}
}

func (r *recorder) Write(piece []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if !r.passing && len(r.body)+len(piece) > storedBytesMax {
		r.passing = true
		r.sendHeader()
		if _, err := r.to.Write(r.body); err != nil {
			return 0, err
		}
		r.body = nil
	}
	if r.passing {
		return r.to.Write(piece)
	}
	r.body = append(r.body, piece...)
	return len(piece), nil
}

// end returns what to report of the response.
func (r *recorder) end() (any, error) {
	r.WriteHeader(http.StatusOK)
	outcome := r.header.Get(OutcomeHeader)
	if outcome == "" {
		outcome = outcomeOf(r.status)
	}
	switch outcome {
	case "success":
	case "failure":
		return nil, oncegate.ErrNothingHappened
	default:
		return nil, errUnknown
	}
	if r.passing {
		return nil, nil
	}
	stored := response{Status: r.status, Headers: r.header.Clone(), Body: r.body}
	for _, name := range append([]string{OutcomeHeader}, neverStored...) {
		stored.Headers.Del(name)
	}
	return stored, nil
}

func outcomeOf(status int) string {
	switch {
	case status == 307, status == 308, status == 401, status == 407, status == 408, status == 421, status == 425, status == 429:
		return "failure"
	case status < 300, status >= 301 && status <= 303, status >= 400 && status < 500:
		return "success"
	}
	return "unknown"
}

func (r *recorder) send() {
	if r.passing {
		return
	}
	r.sendHeader()
	_, _ = r.to.Write(r.body)
}

func (r *recorder) sendHeader() {
	for name, values := range r.header {
		if name != OutcomeHeader {
			r.to.Header()[name] = values
		}
	}
	r.to.WriteHeader(r.status)
}
