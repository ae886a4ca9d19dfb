package oncehttp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

// counts keeps what a client measures.
type counts struct {
	mu      sync.Mutex
	handled map[string]int
}

func (c *counts) Request(string, string, time.Duration) {}
func (c *counts) Event(string, string)                  {}
func (c *counts) Handled(operation, result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.handled == nil {
		c.handled = map[string]int{}
	}
	c.handled[operation+" "+result]++
}

func (c *counts) of(operation string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for name, count := range c.handled {
		if result, ok := strings.CutPrefix(name, operation+" "); ok {
			lines = append(lines, fmt.Sprintf("%s:%d", result, count))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, " ")
}

func TestNothingCompletesAResponseBeforeItsOutcomeIsReported(t *testing.T) {
	for name, test := range map[string]struct {
		version string
		handler http.HandlerFunc
		// Bytes that the caller gets before the report; nil: nothing, not even the head.
		early []string
	}{
		"one piece": {"1.1", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "whole") }, nil},
		"a stream": {"1.1", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "last")
			w.(http.Flusher).Flush()
		}, []string{"first", "last"}},
		"a declared length": {"1.1", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9009")
			_, _ = io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, strings.Repeat("y", 9000)+"last")
			w.(http.Flusher).Flush()
		}, []string{"first"}},
		"a head that is all": {"1.1", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
			w.(http.Flusher).Flush()
		}, nil},
		"a declared length of 0": {"1.1", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "0")
			w.(http.Flusher).Flush()
		}, nil},
		"HTTP/1.0": {"1.0", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 9000))
			_, _ = io.WriteString(w, strings.Repeat("y", 9000)+"last")
		}, []string{"xxxx"}},
	} {
		slow := &slowOutcome{came: make(chan struct{}, 9), goOn: make(chan struct{})}
		s := serve(t, test.handler, func(c *oncehttp.Config) {})
		slow.RoundTripper = s.gateway
		config := oncehttp.Config{Client: s.gateway.Client(), Operation: "parcel.ship", Principal: func(*http.Request) string { return "a" }}
		through(t, &config, slow, oncegate.WithTimeout(time.Minute), oncegate.WithSettleWithin(time.Minute))
		s.idempotent, _ = oncehttp.New(config)
		s.server.Config.Handler = s.idempotent.Handler(test.handler)

		conn, reader := s.dial("POST / HTTP/" + test.version + "\nHost: shop\nIdempotency-Key: k\nContent-Length: 0\n\n")
		var got bytes.Buffer
		read := make(chan struct{})
		var mu sync.Mutex
		go func() {
			defer close(read)
			piece := make([]byte, 4096)
			for {
				n, err := reader.Read(piece)
				mu.Lock()
				got.Write(piece[:n])
				mu.Unlock()
				if err != nil || bytes.HasSuffix(piece[:n], []byte("0\r\n\r\n")) {
					return
				}
			}
		}()
		<-slow.came
		text := func() string {
			mu.Lock()
			defer mu.Unlock()
			return got.String()
		}
		for _, early := range test.early {
			eventually(t, name+": "+early, func() bool { return strings.Contains(text(), early) })
		}
		time.Sleep(20 * time.Millisecond)
		early := text()
		if len(test.early) == 0 && early != "" || strings.HasSuffix(early, "0\r\n\r\n") || len(test.early) == 1 && strings.Contains(early, "last") {
			t.Errorf("%s: came before the report: %q", name, early)
		}
		close(slow.goOn)
		eventually(t, name+": it is complete", func() bool {
			text := text()
			return strings.Contains(text, "HTTP/1.") && strings.Contains(text, "\r\n\r\n") && (len(test.early) == 0 || strings.HasSuffix(text, "last") ||
				strings.HasSuffix(text, "0\r\n\r\n"))
		})
		_ = conn.Close()
		<-read
	}
}

func TestAnOutcomeThatNoGatewayTakesCompletesTheResponseAllTheSame(t *testing.T) {
	var mu sync.Mutex
	var names []string
	s := serve(t, nil, nil)
	config := oncehttp.Config{Operation: "parcel.ship", Principal: func(*http.Request) string { return "a" }, SettleWithin: 300 * time.Millisecond}
	config.Client = s.gateway.Client(oncegate.WithEvents(func(_ context, event oncegate.Event) {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, event.Name)
	}))
	idempotent, err := oncehttp.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s.server.Config.Handler = idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.gateway.SetUnavailable(true)
		_, _ = io.WriteString(w, "done")
	}))
	if got := s.post("k", "x"); got.StatusCode != 200 || got.text != "done" {
		t.Error(got.StatusCode, got.text)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(names, "not_settled") {
		t.Error(names)
	}
}

func TestFieldsOfOuterLayersAreFreshAndThoseOfTheHandlerAreStored(t *testing.T) {
	requests := 0
	outer := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests++
			w.Header().Set("X-Request-Id", fmt.Sprint(requests))
			w.Header().Set("Vary", "Origin")
			w.Header().Set("Cache-Control", "no-store")
			next.ServeHTTP(changing{w}, r)
		})
	}
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("Location", "/parcels/7")
		w.Header().Set("Oncegate-Outcome", " success ")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("X-Late", "1")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "<html>")
	}, nil, outer)
	first, second := s.post("k", "x"), s.post("k", "x")
	for at, got := range []*reply{first, second} {
		if got.StatusCode != 201 || got.Header.Get("X-Request-Id") != fmt.Sprint(at+1) || !slices.Equal(got.Header["Vary"], []string{"Origin", "Accept"}) ||
			got.Header.Get("Location") != "/parcels/7" || got.Header.Get("X-Late") != "" || got.Header.Get("Oncegate-Outcome") != "" ||
			got.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Error(at, got.StatusCode, got.Header)
		}
	}
	// The form of the gateway's proxy: a service can change its language.
	var stored map[string]any
	if err := json.Unmarshal(s.gateway.Claims()[0].Result, &stored); err != nil {
		t.Fatal(err)
	}
	fields := [][2]string{{"content-type", "text/html; charset=utf-8"}, {"location", "/parcels/7"}, {"vary", "Origin"}, {"vary", "Accept"}}
	wanted, _ := json.Marshal(map[string]any{"v": 1, "status": 201, "at": stored["at"], "fields": fields, "body": "PGh0bWw+"})
	if got, _ := json.Marshal(stored); string(got) != string(wanted) {
		t.Errorf("%s, not %s", got, wanted)
	}
}

// changing is the writer of an outer layer that changes the fields as the head passes.
type changing struct{ http.ResponseWriter }

func (c changing) WriteHeader(status int) {
	if lines := c.Header()["Location"]; status >= 200 && len(lines) > 0 {
		lines[0] = "/parcels/7"
		c.Header().Set("X-Outer", "1")
		c.ResponseWriter.WriteHeader(status)
		lines[0] = "/changed"
		return
	}
	c.ResponseWriter.WriteHeader(status)
}

func TestARecordOfTheStoreIsFilteredAsAHandlersResponse(t *testing.T) {
	s := serve(t, created, nil)
	record := `{"v":1,"status":200,"at":100,"body":"Ym9keQ==","fields":[["connection","x-hop"],["x-hop","1"],["transfer-encoding","chunked"],
		["content-length","999"],["upgrade","h2c"],["proxy-authenticate","Basic"],["set-cookie","sid=1"],["oncegate-degraded","local"],["date","x"],
		["idempotent-replayed","false"],["x-kept","\u00e4"],["a b","1"],["x-split","a\r\nb"],["x-wide","\u20ac"],[":oncegate-outcome","success"],
		[":x-end","1"],[":set-cookie","sid=1"]]}`
	s.plant(record)
	_, reader := s.dial("POST /parcels?a=1 HTTP/1.1\nHost: shop\nIdempotency-Key: k\nContent-Length: 1\nTE: trailers\n\nx")
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	var names []string
	for name := range response.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"Age", "Date", "Idempotent-Replayed", "X-Kept"}) || response.Header.Get("X-Kept") != "\xe4" || string(body) != "body" {
		t.Error(names, response.Header, string(body))
	}
	if len(response.Trailer) != 1 || response.Trailer.Get("X-End") != "1" {
		t.Error(response.Trailer)
	}
	for _, tombstone := range []string{
		`{"v":2,"status":200,"at":1,"fields":[],"body":""}`, `{"v":1,"status":200,"at":1,"fields":[],"body":"="}`, `"text"`,
		`{"$oncegate":{"omitted":"refused"}}`, `{"v":1,"status":99,"at":1,"fields":[],"body":""}`,
	} {
		s := serve(t, created, nil)
		s.plant(tombstone)
		if got := s.post("k", "x"); got.StatusCode != 409 || got.code() != "response_not_stored succeeded" {
			t.Error(tombstone, got.StatusCode, got.text)
		}
	}
}

// plant stores a result for the request with the key k and the body x.
func (s *site) plant(record string) {
	s.t.Helper()
	plant := &planting{RoundTripper: s.gateway, result: record}
	client, err := s.gateway.Client().With(oncegate.WithTransport(plant))
	if err != nil {
		s.t.Fatal(err)
	}
	idempotent, err := oncehttp.New(oncehttp.Config{Client: client, Operation: "parcel.ship", Principal: func(*http.Request) string { return "customer-1" }})
	if err != nil {
		s.t.Fatal(err)
	}
	protected := s.server.Config.Handler
	s.server.Config.Handler = idempotent.Handler(http.HandlerFunc(created))
	s.post("k", "x")
	s.server.Config.Handler = protected
}

// planting replaces results on their way to the store.
type planting struct {
	http.RoundTripper
	result string
}

func (p *planting) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/outcome") {
		var body map[string]json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return nil, err
		}
		body["result"] = json.RawMessage(p.result)
		text, _ := json.Marshal(body)
		r.Body = io.NopCloser(bytes.NewReader(text))
	}
	return p.RoundTripper.RoundTrip(r)
}

func TestAReplayHasNoTypeThatTheHandlerDidNotSend(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "plain")
	}, nil)
	for range 2 {
		if got := s.post("k", "x"); got.text != "plain" || got.Header["Content-Type"] != nil {
			t.Error(got.text, got.Header)
		}
	}
}

func TestWhatIsNotStoredLeavesATombstone(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		change  func(*oncehttp.Config)
	}{
		"a long body": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 100_000)) }, nil},
		"ReadFrom": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, strings.NewReader(strings.Repeat("x", 100_000)))
		}, nil},
		"long fields": {func(w http.ResponseWriter, _ *http.Request) {
			for at := range 40 {
				w.Header().Set(fmt.Sprintf("X-Long-%d", at), strings.Repeat("x", 1000))
			}
		}, nil},
		"fields and body are too long together": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Long", strings.Repeat("x", 20_000))
			_, _ = io.WriteString(w, strings.Repeat("x", 40_000))
		}, nil},
		"no-store": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "private, No-Store")
		}, nil},
		"a smaller limit": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "12345") }, func(c *oncehttp.Config) { c.ResponseBytes = 4 }},
		"a gateway that takes less": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 3000)) }, func(c *oncehttp.Config) {
			through(t, c, refusing{})
		}},
	} {
		var gateway http.RoundTripper
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"e7"`)
			test.handler(w, r)
		}, nil)
		gateway = s.gateway
		if test.change != nil {
			config := oncehttp.Config{Client: s.gateway.Client(), Operation: "parcel.ship", Principal: func(*http.Request) string { return "a" }}
			test.change(&config)
			if name == "a gateway that takes less" {
				through(t, &config, refusing{gateway})
			}
			idempotent, err := oncehttp.New(config)
			if err != nil {
				t.Fatal(err)
			}
			s.server.Config.Handler = idempotent.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("ETag", `"e7"`)
				test.handler(w, r)
			}))
		}
		if got := s.post("k", "x"); got.StatusCode != 200 {
			t.Error(name, got.StatusCode, got.text)
		}
		got := s.post("k", "x")
		if got.code() != "response_not_stored succeeded" || got.Header.Get("ETag") != `"e7"` || !strings.Contains(got.text, `"response_status":200`) {
			t.Error(name, got.StatusCode, got.Header, got.text)
		}
	}
}

// refusing is a gateway with a lower limits.result_bytes.
type refusing struct{ http.RoundTripper }

func (r refusing) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.ContentLength > 2000 {
		return &http.Response{
			StatusCode: 413, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"code":"body_too_large"}`)), Request: request,
		}, nil
	}
	return r.RoundTripper.RoundTrip(request)
}

func TestTheWriterOffersNoWayRoundTheRecorder(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(http.Hijacker); ok {
			t.Error("it can be hijacked")
		}
		if _, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
			t.Error("it can be unwrapped")
		}
		controller := http.NewResponseController(w)
		if _, _, err := controller.Hijack(); err == nil {
			t.Error("it was hijacked")
		}
		for name, err := range map[string]error{
			"read deadline": controller.SetReadDeadline(time.Now().Add(time.Minute)), "write deadline": controller.SetWriteDeadline(time.Now().Add(time.Minute)),
			"full duplex": controller.EnableFullDuplex(), "flush": controller.Flush(),
		} {
			if err != nil {
				t.Error(name, err)
			}
		}
		w.Header().Set("Content-Length", "2")
		_, _ = io.WriteString(w, "ok")
	}, nil)
	if got := s.post("k", "x"); got.text != "ok" {
		t.Error(got.text)
	}
}

func TestAResponseThatIsShorterThanDeclaredIsUnknown(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9")
		_, _ = io.WriteString(w, "short")
		if n, err := io.WriteString(w, "too long"); n != 0 || err == nil {
			t.Error(n, err)
		}
	}, nil)
	if _, err := s.try("k", "x"); err == nil {
		t.Error("it is complete")
	}
	eventually(t, "unknown", func() bool { return s.state() == "unknown" })
}
