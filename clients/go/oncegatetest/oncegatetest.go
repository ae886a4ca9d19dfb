// Package oncegatetest is a gateway for tests of users: in the memory of the test, without a port, with a clock that the test moves.
//
//	gateway := oncegatetest.New(t)
//	service := newService(gateway.Client())
package oncegatetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Gateway answers the calls of its clients as a gateway with default options and one app does. It is safe for concurrent use.
type Gateway struct {
	t testing.TB

	mu      sync.Mutex
	steps   time.Duration
	claims  map[string]*claim
	order   []string
	locks   map[string]*lock
	fence   int64
	attempt int64
	failing int
	down    bool
	unknown bool
	// Closed and replaced at each change, for calls that wait.
	changed chan struct{}
}

// Option configures a Gateway.
type Option func(*Gateway)

// OnLeaseEndUnknown makes a claim unknown when its lease ends. By default it is released then.
func OnLeaseEndUnknown() Option { return func(g *Gateway) { g.unknown = true } }

// New returns an empty gateway.
func New(t testing.TB, opts ...Option) *Gateway {
	g := &Gateway{t: t, claims: map[string]*claim{}, locks: map[string]*lock{}, changed: make(chan struct{})}
	for _, opt := range opts {
		opt(g)
	}
	return g
}

// Client returns a client of this gateway. Its limits of time are short, so that a test of an outage is; its events are not logged.
func (g *Gateway) Client(opts ...oncegate.Option) *oncegate.Client {
	g.t.Helper()
	defaults := []oncegate.Option{
		oncegate.WithTransport(g), oncegate.WithClaimWithin(200 * time.Millisecond), oncegate.WithSettleWithin(time.Second),
		oncegate.WithEvents(nil),
	}
	client, err := oncegate.New([]string{"http://oncegatetest.invalid"}, append(defaults, opts...)...)
	if err != nil {
		g.t.Fatal(err)
	}
	return client
}

// Advance moves the gateway's clock: leases and retentions end, and the calls that wait for that are answered.
func (g *Gateway) Advance(by time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steps += by
	g.change()
}

// FailNext answers the next calls with 503. Clients repeat them.
func (g *Gateway) FailNext(calls int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failing = calls
}

// SetUnavailable makes the gateway answer nothing, or answer again.
func (g *Gateway) SetUnavailable(unavailable bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = unavailable
}

// Claim is what the gateway has stored of an operation.
type Claim struct {
	GlobalID  string
	Operation string
	// Contents in canonical form.
	Contents json.RawMessage
	// State is in_progress, succeeded or unknown.
	State  string
	Result json.RawMessage
	Fence  int64
}

// Claims returns all claims that are live, in the order of their first claim.
func (g *Gateway) Claims() []Claim {
	g.mu.Lock()
	defer g.mu.Unlock()
	var claims []Claim
	for _, id := range g.order {
		if c := g.live(id); c != nil {
			claims = append(claims, Claim{id, c.operation, c.contents, c.state, c.result, c.fence})
		}
	}
	return claims
}

// RoundTrip answers a call.
func (g *Gateway) RoundTrip(r *http.Request) (*http.Response, error) {
	var text []byte
	if r.Body != nil {
		var err error
		text, err = io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	down, fails := g.down, g.failing > 0
	if fails && !down {
		g.failing--
	}
	g.mu.Unlock()
	switch {
	case down:
		return nil, fmt.Errorf("oncegatetest: the gateway is unavailable: %w", syscall.ECONNREFUSED)
	case fails:
		return respond(r, problem(http.StatusServiceUnavailable, "store_unavailable", "The test lets this call fail.")), nil
	}
	answered, err := g.route(r, text)
	if err != nil {
		return nil, err
	}
	return respond(r, answered), nil
}

// object is the body of an answer; its status is the member `status`.
type object = map[string]any

func (g *Gateway) route(r *http.Request, text []byte) (object, error) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	body := map[string]json.RawMessage{}
	if len(text) > 0 && json.Unmarshal(text, &body) != nil {
		return problem(http.StatusBadRequest, "malformed_json", "The body is not JSON."), nil
	}
	app := "default"
	if secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		app = secret[:max(0, strings.LastIndexByte(secret, '.'))]
	}
	is := func(method string, pattern ...string) bool {
		if r.Method != method || len(parts) != len(pattern) {
			return false
		}
		for at, part := range pattern {
			if part != "*" && part != parts[at] {
				return false
			}
		}
		return true
	}
	switch {
	case is("POST", "claims"):
		return g.waiting(r, body, func() (object, bool) { return g.claim(app, body) })
	case is("POST", "claims", "batch"):
		return g.batch(body, func(item map[string]json.RawMessage) object { answered, _ := g.claim(app, item); return answered }), nil
	case is("POST", "outcomes", "batch"):
		return g.batch(body, func(item map[string]json.RawMessage) object { return g.outcome(textOf(item, "global_id"), item) }), nil
	case is("POST", "claims", "*", "outcome"):
		return g.locked(func() object { return g.outcome(parts[1], body) }), nil
	case is("POST", "claims", "*", "renewal"):
		return g.locked(func() object { return g.renewal(parts[1], body) }), nil
	case is("GET", "claims", "*"):
		return g.locked(func() object { return g.lookup(parts[1]) }), nil
	case is("POST", "locks", "*", "holds"):
		return g.waiting(r, body, func() (object, bool) { return g.acquire(parts[1], body) })
	case is("POST", "locks", "*", "renewal"):
		return g.locked(func() object { return g.renewHold(parts[1], body) }), nil
	case is("POST", "locks", "*", "release"):
		return g.locked(func() object { return g.release(parts[1], body) }), nil
	case is("GET", "locks", "*"):
		return g.locked(func() object { return g.lookupLock(parts[1]) }), nil
	}
	return problem(http.StatusNotFound, "not_found", "There is no such call."), nil
}

func (g *Gateway) locked(call func() object) object {
	g.mu.Lock()
	defer g.mu.Unlock()
	return call()
}

func (g *Gateway) batch(body map[string]json.RawMessage, call func(map[string]json.RawMessage) object) object {
	var items []map[string]json.RawMessage
	if json.Unmarshal(body["items"], &items) != nil {
		return problem(http.StatusBadRequest, "invalid_request", "A batch has items.")
	}
	answers := []object{}
	for _, item := range items {
		answers = append(answers, g.locked(func() object { return call(item) }))
	}
	return object{"status": http.StatusOK, "items": answers}
}

// waiting repeats a call while it says that another is at work, and its wait is not over.
func (g *Gateway) waiting(r *http.Request, body map[string]json.RawMessage, call func() (answered object, mayWait bool)) (object, error) {
	begin, wait := time.Now(), length(body, "wait", 0)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		g.mu.Lock()
		answered, mayWait := call()
		changed := g.changed
		g.mu.Unlock()
		answered["waited_ms"] = time.Since(begin).Milliseconds()
		if !mayWait || time.Since(begin) >= wait {
			return answered, nil
		}
		select {
		case <-changed:
		case <-timer.C:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

func (g *Gateway) now() time.Time { return time.Now().Add(g.steps) }

func (g *Gateway) change() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func respond(r *http.Request, body object) *http.Response {
	status := body["status"].(int)
	kind := "application/json"
	if status >= 400 {
		kind = "application/problem+json"
	}
	// It has texts, numbers and JSON that was read.
	text, _ := json.Marshal(body)
	return &http.Response{
		StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)), Request: r,
	}
}

func problem(status int, code, detail string) object {
	return object{
		"type": "urn:oncegate:problem:" + code, "title": http.StatusText(status), "status": status, "code": code, "detail": detail,
		"request_id": "oncegatetest",
	}
}
