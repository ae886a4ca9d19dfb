// Package oncehttp is net/http middleware for the field Idempotency-Key: a request with a key runs once, and its repeats get the stored response.
//
//	idempotent, err := oncehttp.New(oncehttp.Config{Client: client, Operation: "parcel.ship", Principal: accountOf})
//	mux.Handle("POST /parcels", idempotent.Handler(http.HandlerFunc(shipParcel)))
//
// With chi: router.Use(idempotent.Handler). Put it behind the authentication.
package oncehttp

import (
	"context"
	"net/http"
	"sync"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Config defines the identity of requests, and the meaning of their responses. Fields that are zero have the defaults.
type Config struct {
	Client *oncegate.Client
	// Operation names what the handlers do, such as parcel.ship. Services that must not share keys have different names.
	Operation string
	// Principal distinguishes callers, so that no caller gets the response of another with the same key: the verified account of the request, never an
	// address. The empty text refuses the request. It is required, unless SharedKeys is set.
	Principal func(*http.Request) string
	// SharedKeys makes the keys of all callers one set.
	SharedKeys bool
	// Methods makes the protected methods fewer. Default: all but GET, HEAD, OPTIONS, TRACE, CONNECT and QUERY.
	Methods []string
	// When leaves requests out.
	When func(*http.Request) bool
	// Required refuses a request without a key. Otherwise it is passed on unprotected.
	Required bool
	// Fingerprint names the parts that must be equal on a repeat: method, path, query, content-type, if-match, body (all of them by default),
	// or body:json, which compares a body of JSON by its value.
	Fingerprint []string
	// Store and Release name statuses (201) or classes of them (2xx). A response of the first is stored and final; after one of the second nothing has
	// happened, and the key is free again. Default: 2xx, 301 to 303 and 4xx; 307, 308, 401, 403, 405, 407, 408, 413, 421, 425 and 429.
	Store, Release []string
	// On5xx is what other responses of 5xx mean: unknown (default), store or release.
	On5xx string
	// ReleaseOn names errors of handlers that had no effect, in addition to oncegate.ErrNothingHappened: returned ones of gin and echo, and values of panics.
	ReleaseOn func(error) bool
	// Lease, Retention and Wait are the terms of the claims. A caller may ask for another wait with Prefer: wait=10, up to 20 seconds or Wait, which is
	// at most an hour.
	Lease, Retention, Wait time.Duration
	// BodyBytes limits the body of a request with a key. Default 1 MiB.
	BodyBytes int64
	// ResponseBytes limits the body that is stored. A longer response is passed on, and its repeats get 409. So do those whose stored form,
	// with fields and Base64, is longer than a result may be (64 KiB). Default 45 KiB.
	ResponseBytes int
	// StoreWith names fields that are stored although they belong to one caller, such as Set-Cookie; StoreWithout names others that are not.
	StoreWith, StoreWithout []string
	// StorePrivate stores responses with Cache-Control: no-store.
	StorePrivate bool
	// ExchangeMax is the deadline of a handler, and ends the renewal of its claim. Default 5 minutes.
	ExchangeMax time.Duration
	// ClaimWithin and SettleWithin replace those of the client. The end of a response waits for its outcome, SettleWithin at most.
	ClaimWithin, SettleWithin time.Duration
	// StopWhenGone cancels the context of a handler when its caller hangs up, as without the middleware. A run that ends so is unknown.
	StopWhenGone bool
	// Render writes the refusals in the service's own format. Retry-After and other fields are set already.
	Render func(http.ResponseWriter, *http.Request, Problem)
	// OnUnavailable replaces that of the client: oncegate.FailClosed refuses with 503, oncegate.Proceed runs the handler unprotected and sets
	// Oncegate-Degraded: caller.
	OnUnavailable oncegate.OnUnavailable
	// Observe refuses and replays nothing, but counts what enforcing would refuse or replay.
	Observe bool
	// Disabled passes every request on, for tests and development. So does a client that is not enabled.
	Disabled bool
}

// Middleware protects requests with an Idempotency-Key. It is safe for concurrent use.
type Middleware struct {
	config      Config
	client      *oncegate.Client
	methods     map[string]bool
	fingerprint map[string]bool
	rules       *statusRules
	fields      *storedFields
	claim       []oncegate.ClaimOption
	runs        runs
}

// New returns a middleware. Wrong options are an *oncegate.ArgumentError.
func New(config Config) (*Middleware, error) { return newMiddleware(config) }

// Handler returns the next handler, protected.
func (m *Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = m.Serve(w, r, func(w http.ResponseWriter, r *http.Request) error {
			next.ServeHTTP(w, r)
			return nil
		})
	})
}

// Attach ends the waits for other requests when the server shuts down: they get 409, and come again elsewhere. Handlers go on: see Drain.
func (m *Middleware) Attach(server *http.Server) { server.RegisterOnShutdown(m.runs.close) }

// Drain waits until all handlers are reported, with or without a caller, or until ctx ends. Call it after Shutdown of the server. A handler that is killed
// is unknown when its lease ends.
func (m *Middleware) Drain(ctx context.Context) error { return m.runs.drain(ctx) }

// runs counts the handlers that run.
type runs struct {
	mu      sync.Mutex
	running int
	idle    chan struct{}
	closing chan struct{}
	closed  bool
}

func newRuns() runs { return runs{closing: make(chan struct{})} }

func (r *runs) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running++
}

func (r *runs) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running--; r.running == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

func (r *runs) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.closing)
	}
}

func (r *runs) drain(ctx context.Context) error {
	r.close()
	r.mu.Lock()
	if r.running == 0 {
		r.mu.Unlock()
		return nil
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
