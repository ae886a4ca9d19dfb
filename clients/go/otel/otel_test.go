package onceotel_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/clients/go/oncegatetest"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
	onceotel "github.com/oncegate/oncegate/clients/go/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	oncegate "github.com/oncegate/oncegate/clients/go"
	api "go.opentelemetry.io/otel/trace"
)

// noting keeps the traceparent of each call.
type noting struct {
	http.RoundTripper
	mu  sync.Mutex
	got []string
}

func (n *noting) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	n.got = append(n.got, r.Header.Get("Traceparent"))
	n.mu.Unlock()
	return n.RoundTripper.RoundTrip(r)
}

func TestSpansAndMetricsOfAMiddleware(t *testing.T) {
	spans, reader := tracetest.NewSpanRecorder(), metric.NewManualReader()
	tracers, meters := trace.NewTracerProvider(trace.WithSpanProcessor(spans)), metric.NewMeterProvider(metric.WithReader(reader))
	gateway := oncegatetest.New(t)
	calls := &noting{RoundTripper: gateway}
	client := gateway.Client(append(onceotel.OptionsFor(tracers, meters), oncegate.WithTransport(calls))...)
	idempotent, err := oncehttp.New(oncehttp.Config{Client: client, Operation: "parcel.ship", SharedKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	handler := idempotent.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if span, ok := api.SpanFromContext(r.Context()).(trace.ReadOnlySpan); !ok || span.Name() != "oncegate run" {
			t.Error("the handler is not within the span of its run")
		}
	}))
	ctx, outer := tracers.Tracer("test").Start(context.Background(), "request")
	for range 2 {
		request := httptest.NewRequest("POST", "/", strings.NewReader("secret")).WithContext(ctx)
		request.Header.Set("Idempotency-Key", "secret-key")
		handler.ServeHTTP(httptest.NewRecorder(), request)
	}
	var names []string
	for _, span := range spans.Ended() {
		line := fmt.Sprint(span.Name(), " ", span.SpanKind())
		for _, attr := range span.Attributes() {
			line += fmt.Sprint(" ", attr.Key, "=", attr.Value.Emit())
		}
		names = append(names, line)
		if span.SpanContext().TraceID() != outer.SpanContext().TraceID() {
			t.Error(span.Name(), "is in another trace")
		}
	}
	wanted := []string{
		"oncegate claim client oncegate.operation=parcel.ship oncegate.state=granted",
		"oncegate run internal oncegate.operation=parcel.ship",
		"oncegate outcome client oncegate.operation=parcel.ship oncegate.state=succeeded",
		"oncegate claim client oncegate.operation=parcel.ship oncegate.state=succeeded oncegate.replayed=true",
	}
	if !slices.Equal(names, wanted) {
		t.Fatalf("%q, not %q", names, wanted)
	}
	for at, span := range []int{0, 2, 3} {
		if ended := spans.Ended()[span].SpanContext(); calls.got[at] != fmt.Sprintf("00-%s-%s-01", ended.TraceID(), ended.SpanID()) {
			t.Error(at, calls.got[at], ended.SpanID())
		}
	}
	var measured metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &measured); err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, m := range measured.ScopeMetrics[0].Metrics {
		text += m.Name + " "
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "oncegate.requests" {
			for _, point := range sum.DataPoints {
				result, _ := point.Attributes.Value("result")
				text += fmt.Sprint(result.AsString(), ":", point.Value, " ")
			}
		}
	}
	for _, part := range []string{"forwarded:1", "replayed:1", "oncegate.client.events", "oncegate.client.duration"} {
		if !strings.Contains(text, part) {
			t.Error(part, "is not in", text)
		}
	}
	if strings.Contains(text+fmt.Sprint(names), "secret") {
		t.Error("a key or a body is in what is exported")
	}
}
