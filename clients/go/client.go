package oncegate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
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
	onEvent      func(context.Context, Event)
	metrics      Metrics
	traceparent  func(context.Context) string
	// The position of the gateway that answered the last claim: one that is down costs one timeout, not one for each call.
	first atomic.Int64

	now    func() time.Time
	jitter func() float64
}

// Option configures a Client.
type Option func(*options)

type options struct {
	client     *Client
	credential string
	transport  http.RoundTripper
}

// WithCredential sets `<app_key>.<secret>`.
func WithCredential(credential string) Option {
	return func(o *options) { o.credential = credential }
}

// WithTimeout limits one HTTP call, without the time that it asks to wait. Default 2 s; longer than the gateways' deadline.
func WithTimeout(limit time.Duration) Option {
	return func(o *options) { o.client.timeout = limit }
}

// WithClaimWithin limits all tries of one claim call, beside its wait. Default 5 s.
func WithClaimWithin(limit time.Duration) Option {
	return func(o *options) { o.client.claimWithin = limit }
}

// WithSettleWithin limits all tries of one report. Default 30 s; Forever is no limit.
func WithSettleWithin(limit time.Duration) Option {
	return func(o *options) { o.client.settleWithin = limit }
}

// WithProceed runs the work unprotected when no gateway answers, and says so in Done.Degraded ("caller"). The default is to fail
// closed with an *UnavailableError.
func WithProceed() Option {
	return func(o *options) { o.client.proceeds = true }
}

// WithEvents replaces the log by a function that receives each event. It must not block.
func WithEvents(receive func(context.Context, Event)) Option {
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

// New returns a client of the gateways with these URLs. A wrong URL or option is an *ArgumentError. Nothing is sent yet.
func New(urls []string, opts ...Option) (*Client, error) {
	c := &Client{
		app:          "default",
		headers:      http.Header{"User-Agent": {"oncegate-go/" + Version}},
		timeout:      2 * time.Second,
		claimWithin:  5 * time.Second,
		settleWithin: 30 * time.Second,
		onEvent:      func(ctx context.Context, event Event) { event.Log(ctx, slog.Default()) },
		traceparent:  traceparentOf,
		now:          time.Now,
		jitter:       mathrand.Float64,
	}
	o := options{client: c}
	for _, opt := range opts {
		opt(&o)
	}
	if o.credential != "" {
		if !credentialForm.MatchString(o.credential) {
			return nil, argument("the credential is not <app_key>.<secret>, such as shop.3nC0…")
		}
		c.app = o.credential[:strings.LastIndexByte(o.credential, '.')]
		c.headers.Set("Authorization", "Bearer "+o.credential)
	}
	if c.timeout <= 0 || c.claimWithin <= 0 || c.settleWithin <= 0 {
		return nil, argument("timeout, claim_within and settle_within must be longer than 0")
	}
	if len(urls) == 0 {
		return nil, argument("no gateway: give at least one URL, such as http://10.0.0.5:8080")
	}
	for _, text := range urls {
		parsed, err := url.Parse(text)
		if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Hostname() == "" {
			return nil, argument("not the URL of a gateway: %q; expected http://HOST:PORT or https://HOST:PORT", text)
		}
		if parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
			return nil, argument("the URL of a gateway has no user, query or fragment: %q; use WithCredential", parsed.Redacted())
		}
		c.servers = append(c.servers, newServer(text, o.transport))
	}
	return c, nil
}

// GlobalID returns the global ID of an operation of this client's app, computed without a gateway.
func (c *Client) GlobalID(operation string, contents any) (string, error) {
	return GlobalID(c.app, operation, contents)
}

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
