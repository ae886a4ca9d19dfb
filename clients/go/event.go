package oncegate

import (
	"context"
	"log/slog"
	"strconv"
	"time"
)

// Event says what happened in a call. It never holds contents, attempts or secrets. clients/README.md of the repository lists all.
type Event struct {
	Name string
	// Operation is the operation, or the name of the lock.
	Operation string
	GlobalID  string
	Fields    []slog.Attr
	Level     slog.Level
}

// Log writes the event to a logger.
func (e Event) Log(ctx context.Context, logger *slog.Logger) {
	if !logger.Enabled(ctx, e.Level) {
		return
	}
	attrs := append([]slog.Attr{slog.String("operation", e.Operation)}, e.Fields...)
	if e.GlobalID != "" {
		attrs = append(attrs, slog.String("global_id", e.GlobalID))
	}
	logger.LogAttrs(ctx, e.Level, "oncegate: "+e.Name, attrs...)
}

func (e Event) with(name string, level slog.Level, fields ...slog.Attr) Event {
	e.Name, e.Level, e.Fields = name, level, fields
	return e
}

// Metrics receives measurements, to be passed on to a metrics library. Its methods must not block.
type Metrics interface {
	// Request is called after each HTTP call. The endpoint is claim, outcome, renewal, lookup, batch or lock; the result is the HTTP
	// status, or the kind of the cause if no gateway answered.
	Request(endpoint, result string, elapsed time.Duration)
	// Event is called with the name of each event and its operation, or the name of the lock.
	Event(name, operation string)
	// Handled is called for each request that a middleware has answered: forwarded, unprotected (without a key), replayed, in_progress, unknown,
	// not_stored, mismatch, no_key, refused or unavailable.
	Handled(operation, result string)
}

// Emit passes an event on as the client does with its own, for what is built on it.
func (c *Client) Emit(ctx context.Context, event Event) { c.event(ctx, event) }

// Handled counts the answer of a middleware, for what is built on the client.
func (c *Client) Handled(operation, result string) {
	if c.metrics != nil {
		c.metrics.Handled(operation, result)
	}
}

func (c *Client) event(ctx context.Context, event Event) {
	c.onEvent(ctx, event)
	if c.metrics != nil {
		c.metrics.Event(event.Name, event.Operation)
	}
}

func (c *Client) measure(endpoint string, answer *answer, cause *Cause, elapsed time.Duration) {
	if c.metrics == nil {
		return
	}
	if cause != nil {
		c.metrics.Request(endpoint, cause.Kind, elapsed)
	} else {
		c.metrics.Request(endpoint, strconv.Itoa(answer.status), elapsed)
	}
}

type traceparentKey struct{}

// ContextWithTraceparent returns a context whose calls carry this W3C traceparent.
func ContextWithTraceparent(ctx context.Context, traceparent string) context.Context {
	return context.WithValue(ctx, traceparentKey{}, traceparent)
}

// Traceparent returns the one of ContextWithTraceparent, or none.
func Traceparent(ctx context.Context) string {
	traceparent, _ := ctx.Value(traceparentKey{}).(string)
	return traceparent
}
