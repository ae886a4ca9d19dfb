package oncegate

import (
	"context"
	"log/slog"
)

// StartSpan begins a span of a tracing library: "oncegate claim" and "oncegate outcome" around the calls of a gateway, "oncegate run" around the work. The
// span is in the context that it returns. Attributes have operation, state, replayed and degraded, never keys or contents. The module otel has one.
type StartSpan func(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, EndSpan)

// EndSpan ends a span.
type EndSpan func(err error, attrs ...slog.Attr)

// WithTracer begins a span for each claim, outcome and run.
func WithTracer(start StartSpan) Option {
	return func(o *options) { o.client.startSpan = start }
}

// Span begins a span as the client does for its own calls, for what is built on it.
func (c *Client) Span(ctx context.Context, name, operation string) (context.Context, EndSpan) {
	if c.startSpan == nil {
		return ctx, func(error, ...slog.Attr) {}
	}
	return c.startSpan(ctx, name, slog.String("operation", operation))
}

// endOfClaim returns the attributes of a claim's span.
func endOfClaim(result Result) []slog.Attr {
	switch result := result.(type) {
	case *Grant:
		return spanAttrs("granted", result.Degraded)
	case *Duplicate:
		return append(spanAttrs(result.State, result.Degraded), slog.Bool("replayed", result.State == Succeeded))
	case *Mismatch:
		return spanAttrs("mismatch", "")
	}
	return nil
}

func spanAttrs(state, degraded string) []slog.Attr {
	attrs := []slog.Attr{slog.String("state", state)}
	if degraded != "" {
		attrs = append(attrs, slog.String("degraded", degraded))
	}
	return attrs
}
