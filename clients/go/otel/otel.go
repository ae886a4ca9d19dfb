// Package onceotel gives a client the spans and metrics of OpenTelemetry:
//
//	client, err := oncegate.New(urls, onceotel.Options()...)
//
// Spans are "oncegate claim" and "oncegate outcome" (client) and "oncegate run" (internal). Metrics are oncegate.requests, by operation and result, of
// middlewares; oncegate.client.events, by name and operation; oncegate.client.duration in seconds, by call and result.
package onceotel

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/oncegate/oncegate/clients/go"

// Options returns the options of a client that traces and measures with the global providers, and passes the current trace on.
func Options() []oncegate.Option {
	return OptionsFor(otel.GetTracerProvider(), otel.GetMeterProvider())
}

// OptionsFor is Options with these providers.
func OptionsFor(tracers trace.TracerProvider, meters metric.MeterProvider) []oncegate.Option {
	tracer := tracers.Tracer(scope, trace.WithInstrumentationVersion(oncegate.Version))
	return []oncegate.Option{
		oncegate.WithTracer(func(ctx context.Context, name string, attrs ...slog.Attr) (context.Context, oncegate.EndSpan) {
			kind := trace.SpanKindClient
			if name == "oncegate run" {
				kind = trace.SpanKindInternal
			}
			ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes(attrs)...))
			return ctx, func(err error, attrs ...slog.Attr) {
				span.SetAttributes(attributes(attrs)...)
				if err != nil {
					span.SetStatus(codes.Error, fmt.Sprintf("%T", err))
				}
				span.End()
			}
		}),
		oncegate.WithTraceparent(traceparent), oncegate.WithMetrics(newMeasurements(meters)),
	}
}

// attributes never has keys, contents or texts of errors: the client gives none.
func attributes(attrs []slog.Attr) []attribute.KeyValue {
	var out []attribute.KeyValue
	for _, attr := range attrs {
		name := "oncegate." + attr.Key
		if attr.Value.Kind() == slog.KindBool {
			out = append(out, attribute.Bool(name, attr.Value.Bool()))
		} else {
			out = append(out, attribute.String(name, attr.Value.String()))
		}
	}
	return out
}

// traceparent writes the current span as W3C does; without one the trace that a middleware got from its caller is passed on.
func traceparent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return oncegate.Traceparent(ctx)
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
}

type measurements struct {
	requests, events metric.Int64Counter
	duration         metric.Float64Histogram
}

func newMeasurements(meters metric.MeterProvider) *measurements {
	meter := meters.Meter(scope, metric.WithInstrumentationVersion(oncegate.Version))
	m := &measurements{}
	// With an error there is an instrument that measures nothing.
	m.requests, _ = meter.Int64Counter("oncegate.requests", metric.WithDescription("Requests that a middleware has answered"))
	m.events, _ = meter.Int64Counter("oncegate.client.events", metric.WithDescription("Events of the client"))
	m.duration, _ = meter.Float64Histogram("oncegate.client.duration", metric.WithUnit("s"), metric.WithDescription("HTTP calls of the client"))
	return m
}

func (m *measurements) Request(endpoint, result string, elapsed time.Duration) {
	m.duration.Record(context.Background(), elapsed.Seconds(), metric.WithAttributes(attribute.String("call", endpoint), attribute.String("result", result)))
}

func (m *measurements) Event(name, operation string) {
	m.events.Add(context.Background(), 1, metric.WithAttributes(attribute.String("name", name), attribute.String("operation", operation)))
}

func (m *measurements) Handled(operation, result string) {
	m.requests.Add(context.Background(), 1, metric.WithAttributes(attribute.String("operation", operation), attribute.String("result", result)))
}
