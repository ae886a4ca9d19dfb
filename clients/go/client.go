package oncegate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"
)

// Version of this package, sent as User-Agent.
const Version = "0.1.0"

// Client calls one or more gateways in front of the same store. It is safe for concurrent use, and keeps connections.
type Client struct {
	servers      []*server
	app          string
	headers      http.Header
	timeout      time.Duration
	claimWithin  time.Duration
	settleWithin time.Duration
	proceeds     bool
	disabled     bool
	onEvent      func(context.Context, Event)
	metrics      Metrics
	traceparent  func(context.Context) string
	startSpan    StartSpan
	// The position of the gateway that answered the last claim. So a gateway that is down costs one timeout, not one for each call.
	first *atomic.Int64
	// The grants that are looked for now, at most givenBackMax.
	givenBack chan struct{}

	now    func() time.Time
	jitter func() float64
}

// Option configures a Client.
type Option func(*options)

type options struct {
	client        *Client
	credential    string
	transport     http.RoundTripper
	onUnavailable OnUnavailable
}

// WithCredential sets `<app_key>.<secret>`.
func WithCredential(credential string) Option {
	return func(o *options) { o.credential = credential }
}

// WithTimeout limits one HTTP call, without the time that it asks to wait. Default 2 s; longer than the gateways' deadline.
func WithTimeout(limit time.Duration) Option {
	return func(o *options) { o.client.timeout = limit }
}

// WithClaimWithin limits all tries of one claim call, in addition to its wait. Default 5 s.
func WithClaimWithin(limit time.Duration) Option {
	return func(o *options) { o.client.claimWithin = limit }
}

// WithSettleWithin limits all tries of one report. Default 30 s; Forever is no limit.
func WithSettleWithin(limit time.Duration) Option {
	return func(o *options) { o.client.settleWithin = limit }
}

// OnUnavailable says what a claim does when no gateway answers.
type OnUnavailable string

const (
	// FailClosed returns an *UnavailableError, and runs nothing. It is the default.
	FailClosed OnUnavailable = "fail_closed"
	// Proceed runs the work unprotected; Done.Degraded is "caller".
	Proceed OnUnavailable = "proceed"
)

// WithOnUnavailable sets what a claim does when no gateway answers.
func WithOnUnavailable(policy OnUnavailable) Option {
	return func(o *options) { o.onUnavailable = policy }
}

// WithEnabled(false) runs everything and claims nothing, for tests and development: Done.Degraded is "disabled". So does ONCEGATE_DISABLED=1 in the
// environment.
func WithEnabled(enabled bool) Option {
	return func(o *options) { o.client.disabled = !enabled }
}

// WithEvents replaces the log by a function that receives each event, or by nothing. It must not block.
func WithEvents(receive func(context.Context, Event)) Option {
	if receive == nil {
		receive = func(context.Context, Event) {}
	}
	return func(o *options) { o.client.onEvent = receive }
}

// WithLogger logs events to this logger. The default is slog.Default().
func WithLogger(logger *slog.Logger) Option {
	return WithEvents(func(ctx context.Context, event Event) { event.Log(ctx, logger) })
}

// WithMetrics passes measurements on.
func WithMetrics(metrics Metrics) Option {
	return func(o *options) { o.client.metrics = metrics }
}

// WithTraceparent sets the source of the W3C traceparent that is sent with each call. The default is ContextWithTraceparent.
func WithTraceparent(from func(context.Context) string) Option {
	return func(o *options) { o.client.traceparent = from }
}

// WithTransport replaces the HTTP transport, such as for client certificates. The default keeps separate connections for each
// gateway, and uses no proxy.
func WithTransport(transport http.RoundTripper) Option {
	return func(o *options) { o.transport = transport }
}

// Forever is no limit of a time.
const Forever time.Duration = 1<<63 - 1

var credentialForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}\.[A-Za-z0-9_]+$`)

// DefaultURL is that of a client that is given none, unless the environment has ONCEGATE_URL.
const DefaultURL = "http://127.0.0.1:8080"

// New returns a client of the gateways with these URLs, all before the same store. Without URLs they are those of ONCEGATE_URL, with commas between
// them, else DefaultURL. A wrong URL or option is an *ArgumentError. Nothing is sent yet.
func New(urls []string, opts ...Option) (*Client, error) {
	c := &Client{
		app:          "default",
		headers:      http.Header{"User-Agent": {"oncegate-go/" + Version}},
		timeout:      2 * time.Second,
		claimWithin:  5 * time.Second,
		settleWithin: 30 * time.Second,
		onEvent:      func(ctx context.Context, event Event) { event.Log(ctx, slog.Default()) },
		traceparent:  Traceparent,
		first:        new(atomic.Int64),
		givenBack:    make(chan struct{}, givenBackMax),
		now:          time.Now,
		jitter:       mathrand.Float64,
	}
	if len(urls) == 0 {
		urls = []string{DefaultURL}
		if text := os.Getenv("ONCEGATE_URL"); text != "" {
			urls = strings.Split(text, ",")
		}
	}
	for _, text := range urls {
		server, err := newServer(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, server)
	}
	if err := c.configure(opts); err != nil {
		return nil, err
	}
	if c.disabled {
		c.event(context.Background(), Event{Name: "disabled", Level: slog.LevelWarn})
	}
	return c, nil
}

// With returns a copy with these options changed, of the same gateways and connections.
func (c *Client) With(opts ...Option) (*Client, error) {
	changed := *c
	changed.headers = c.headers.Clone()
	if err := changed.configure(opts); err != nil {
		return nil, err
	}
	return &changed, nil
}

func (c *Client) configure(opts []Option) error {
	o := options{client: c}
	for _, opt := range opts {
		opt(&o)
	}
	switch text := os.Getenv("ONCEGATE_DISABLED"); strings.ToLower(text) {
	case "1", "true", "yes", "on":
		c.disabled = true
	case "", "0", "false", "no", "off":
	default:
		return argument("ONCEGATE_DISABLED is %.40q: write 1, true, yes or on to switch clients off, or 0, false, no or off", text)
	}
	if o.credential != "" {
		if !credentialForm.MatchString(o.credential) {
			return argument("the credential is not <app_key>.<secret>, such as shop.3nC0…")
		}
		c.app = o.credential[:strings.LastIndexByte(o.credential, '.')]
		c.headers.Set("Authorization", "Bearer "+o.credential)
	}
	switch o.onUnavailable {
	case "":
	case FailClosed, Proceed:
		c.proceeds = o.onUnavailable == Proceed
	default:
		return argument("on_unavailable is %q: write FailClosed or Proceed", o.onUnavailable)
	}
	if c.timeout <= 0 || c.claimWithin <= 0 || c.settleWithin <= 0 {
		return argument("WithTimeout, WithClaimWithin and WithSettleWithin must be longer than 0")
	}
	if o.transport != nil {
		servers := make([]*server, len(c.servers))
		for at, old := range c.servers {
			servers[at] = &server{url: old.url, transport: o.transport}
		}
		c.servers = servers
	}
	return nil
}

// GlobalID returns the global ID of an operation of this client's app, computed without a gateway.
func (c *Client) GlobalID(operation string, contents any) (string, error) {
	return GlobalID(c.app, operation, contents)
}

// Enabled reports if the client claims: see WithEnabled.
func (c *Client) Enabled() bool { return !c.disabled }

// Close closes idle connections. The client can still be used.
func (c *Client) Close() {
	for _, server := range c.servers {
		server.closeIdle()
	}
}

// newNonce returns 32 random hex digits: fresh for each try at an operation, and kept for all repeats of its call.
func newNonce() string {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic("oncegate: the system has no random numbers: " + err.Error())
	}
	return hex.EncodeToString(bytes[:])
}
