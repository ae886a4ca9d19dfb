package oncehttp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Transport sends requests with an Idempotency-Key to services that honour the key, and repeats requests that may have been lost.
//
//	client := &http.Client{Transport: &oncehttp.Transport{}}
//
// Each call is one operation: it gets a fresh key, unless the request has one, and keeps key and bytes over its tries. A try is repeated after an error of the
// network, after 408, 425, 429, 502, 503 and 504, and after 409 in progress; Retry-After is obeyed. An unknown outcome is never repeated: look
// up the effect. Requests of safe methods pass as they are.
type Transport struct {
	// Base makes the calls. Default: http.DefaultTransport.
	Base http.RoundTripper
	// Within limits all tries of one call until its answer, as the context of the request does. Default 60 s.
	Within time.Duration
	// BodyBytes limits a body that is kept for repeats. One of GetBody is not kept. Default 1 MiB.
	BodyBytes int64
}

const (
	sendWithin = 60 * time.Second
	pauseMin   = 100 * time.Millisecond
	pauseMax   = 5 * time.Second
	// The start of a response that is read to learn its code.
	problemBytesMax = 64 << 10
)

// RoundTrip sends a request until there is a response that no repeat can better.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if slices.Contains(safeMethods, r.Method) || r.Method == "" {
		return base.RoundTrip(r)
	}
	body, err := t.bodies(r)
	if err != nil {
		return nil, err
	}
	key := r.Header[keyHeader]
	if len(key) == 0 {
		if key, err = freshKey(); err != nil {
			return nil, err
		}
	}
	within := t.Within
	if within <= 0 {
		within = sendWithin
	}
	ends := time.Now().Add(within)
	for try := 1; ; try++ {
		ctx, cancel := context.WithCancelCause(r.Context())
		sent := r.Clone(ctx)
		sent.Header[keyHeader] = key
		if sent.Body, err = body(); err != nil {
			cancel(nil)
			return nil, err
		}
		late := time.AfterFunc(time.Until(ends), func() { cancel(errLate) })
		response, err := base.RoundTrip(sent)
		late.Stop()
		if err != nil {
			if errors.Is(context.Cause(ctx), errLate) {
				err = errLate
			}
			cancel(nil)
		} else {
			response.Body = &answered{response.Body, cancel}
		}
		pause, again := pauseAfter(response, err, try)
		if !again || r.Context().Err() != nil || time.Now().Add(pause).After(ends) {
			return response, err
		}
		if response != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, problemBytesMax))
			_ = response.Body.Close()
		}
		if err := wait(r.Context(), pause); err != nil {
			return nil, err
		}
	}
}

// errLate is the error of a service that hangs.
var errLate = fmt.Errorf("oncehttp: the service has not answered within the time of the call: %w", context.DeadlineExceeded)

// answered is the body of a response; its request ends with it.
type answered struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (a *answered) Close() error {
	defer a.cancel(nil)
	return a.ReadCloser.Close()
}

// CloseIdleConnections closes those of Base.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

// bodies returns a function that returns the body of each try. It closes that of the request.
func (t *Transport) bodies(r *http.Request) (func() (io.ReadCloser, error), error) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() (io.ReadCloser, error) { return r.Body, nil }, nil
	}
	defer r.Body.Close()
	if r.GetBody != nil {
		return r.GetBody, nil
	}
	limit := t.BodyBytes
	if limit <= 0 {
		limit = 1 << 20
	}
	kept, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(kept)) > limit {
		return nil, &oncegate.ArgumentError{Detail: fmt.Sprintf(
			"oncehttp: a body of more than %d bytes is not kept for repeats: set GetBody of the request, or a larger BodyBytes", limit)}
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(kept)), nil }, nil
}

func freshKey() ([]string, error) {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	return []string{hex.EncodeToString(random[:])}, nil
}

// pauseAfter reports if a try is repeated, and returns the pause before it.
func pauseAfter(response *http.Response, err error, try int) (time.Duration, bool) {
	// Full jitter: callers that failed together do not come back together.
	pause := time.Duration(mathrand.Float64() * float64(min(pauseMax, pauseMin<<min(try, 10))))
	if err != nil {
		var wrong *oncegate.ArgumentError
		return pause, !errors.As(err, &wrong)
	}
	pause = max(pause, retryAfter(response.Header.Get("Retry-After")))
	switch response.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout:
		return pause, true
	case http.StatusConflict:
		return pause, isInProgress(response)
	}
	return 0, false
}

// retryAfter reads a number of seconds or a date. Anything else asks for nothing.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return max(0, time.Until(at))
}

// isInProgress reports if a response says that the first request is still running. Its body can be read as before.
func isInProgress(response *http.Response) bool {
	start, err := io.ReadAll(io.LimitReader(response.Body, problemBytesMax))
	rest := response.Body
	response.Body = &putBack{Reader: io.MultiReader(bytes.NewReader(start), failing{err}, rest), Closer: rest}
	var said struct {
		State string
		Error struct{ Code string }
	}
	_ = json.Unmarshal(start, &said)
	// The second is that of the proxy's dialect of Stripe.
	return said.State == oncegate.InProgress || said.Error.Code == "idempotency_key_in_use"
}

func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
