package oncehttp_test

import (
	stdcontext "context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/internal/testservers"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

type context = stdcontext.Context

func TestTheOutcomeIsWhatTheHandlerSaysElseThatOfTheStatus(t *testing.T) {
	errStock := errors.New("out of stock")
	status := func(status int, lines ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for _, line := range lines {
				w.Header().Add("Oncegate-Outcome", line)
			}
			w.WriteHeader(status)
		}
	}
	mark := func(outcome string, next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			oncehttp.Grant(r.Context()).Mark(outcome)
			next(w, r)
		}
	}
	raise := func(err error) http.HandlerFunc { return func(http.ResponseWriter, *http.Request) { panic(err) } }
	harmless := func(c *oncehttp.Config) { c.ReleaseOn = func(err error) bool { return errors.Is(err, errStock) } }
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		state   string
		change  func(*oncehttp.Config)
	}{
		"200": {status(200), "succeeded", nil}, "301": {status(301), "succeeded", nil}, "304": {status(304), "unknown", nil},
		"402": {status(402), "succeeded", nil}, "403": {status(403), "none", nil}, "405": {status(405), "none", nil}, "413": {status(413), "none", nil},
		"500": {status(500), "unknown", nil}, "600": {status(600), "unknown", nil},
		"500 is stored":                {status(500), "succeeded", func(c *oncehttp.Config) { c.On5xx = "store" }},
		"500 releases":                 {status(500), "none", func(c *oncehttp.Config) { c.On5xx = "release" }},
		"an exact status before 5xx":   {status(503), "none", func(c *oncehttp.Config) { c.Release, c.On5xx = []string{"503"}, "store" }},
		"403 is stored if it is named": {status(403), "succeeded", func(c *oncehttp.Config) { c.Store = []string{"2xx", "403"} }},
		"404 is not in a shorter list": {status(404), "unknown", func(c *oncehttp.Config) { c.Store = []string{"2xx"} }},
		"the header":                   {status(500, " success "), "succeeded", nil},
		"the header fails":             {status(200, "failure"), "none", nil},
		"a misspelt header":            {status(200, "sucess"), "unknown", nil},
		"two headers":                  {status(200, "success", "success"), "unknown", nil},
		"the header before the mark":   {mark("failure", status(200, "success")), "succeeded", nil},
		"a mark":                       {mark("failure", status(200)), "none", nil},
		"a mark that is none":          {mark("done", status(200)), "unknown", nil},
		"a panic":                      {raise(errStock), "unknown", nil},
		"a declared panic":             {raise(fmt.Errorf("wrapped: %w", errStock)), "none", harmless},
		"another panic":                {raise(io.ErrUnexpectedEOF), "unknown", harmless},
		"nothing happened":             {raise(oncegate.NothingHappened(errStock)), "none", nil},
		"a panic after a mark":         {mark("success", raise(errStock)), "succeeded", nil},
		"a panic within a response": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "first")
			w.(http.Flusher).Flush()
			panic(io.ErrUnexpectedEOF)
		}, "unknown", harmless},
	} {
		s := serve(t, test.handler, test.change)
		got, err := s.try("k", "x")
		if strings.Contains(name, "panic") != (err != nil) && name != "nothing happened" {
			t.Error(name, err)
		}
		if err == nil && got.Header.Get("Oncegate-Outcome") != "" {
			t.Error(name, got.Header)
		}
		eventually(t, name+" is "+test.state, func() bool { return s.state() == test.state })
	}
}

func TestAPanicReachesOuterLayersAsItWas(t *testing.T) {
	caught := make(chan any, 1)
	s := serve(t, func(http.ResponseWriter, *http.Request) { panic("a value") }, nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				caught <- recover()
				w.WriteHeader(http.StatusInternalServerError)
			}()
			next.ServeHTTP(w, r)
		})
	})
	if got := s.post("k", "x"); got.StatusCode != 500 {
		t.Error(got.StatusCode)
	}
	if value := <-caught; value != "a value" {
		t.Error(value)
	}
	if got := s.post("k", "x"); got.code() != "duplicate unknown" {
		t.Error(got.text)
	}
}

func TestAHandlerOutlivesItsCaller(t *testing.T) {
	started, gone, goOn := make(chan struct{}), make(chan struct{}), make(chan struct{})
	type key struct{}
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(started)
		<-oncehttp.Grant(r.Context()).CallerGone()
		close(gone)
		<-goOn
		if err := r.Context().Err(); err != nil {
			t.Error(err)
		}
		if deadline, ok := r.Context().Deadline(); !ok || time.Until(deadline) > 5*time.Minute {
			t.Error(deadline, ok)
		}
		fmt.Fprint(w, r.Context().Value(key{}))
	}, nil, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := stdcontext.WithTimeout(stdcontext.WithValue(r.Context(), key{}, "kept"), 10*time.Millisecond)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	})
	conn, _ := s.dial("POST /parcels?a=1 HTTP/1.1\nHost: shop\nIdempotency-Key: k\nContent-Length: 1\n\nx")
	<-started
	_ = conn.Close()
	<-gone
	// The server is stopped: Drain waits for the handler.
	drained := make(chan error, 1)
	short, cancel := stdcontext.WithCancel(stdcontext.Background())
	cancel()
	if err := s.idempotent.Drain(short); !errors.Is(err, stdcontext.Canceled) {
		t.Error(err)
	}
	go func() { drained <- s.idempotent.Drain(stdcontext.Background()) }()
	close(goOn)
	if err := <-drained; err != nil || s.state() != "succeeded" {
		t.Error(err, s.state())
	}
	if got := s.post("k", "x"); got.text != "kept" || got.Header.Get("Idempotent-Replayed") != "true" {
		t.Error(got.StatusCode, got.text)
	}
}

func TestAContextThatEndsLeavesTheOutcomeUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*oncehttp.Config)
		hangUp bool
		answer bool
	}{
		"the deadline, and not a word":        {change: func(c *oncehttp.Config) { c.ExchangeMax = 30 * time.Millisecond }},
		"stop_when_gone":                      {change: func(c *oncehttp.Config) { c.StopWhenGone = true }, hangUp: true},
		"stop_when_gone, and a late response": {change: func(c *oncehttp.Config) { c.StopWhenGone = true }, hangUp: true, answer: true},
	} {
		started := make(chan struct{})
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			close(started)
			<-r.Context().Done()
			if test.answer {
				w.WriteHeader(http.StatusOK)
			}
		}, test.change)
		conn, _ := s.dial("POST / HTTP/1.1\nHost: shop\nIdempotency-Key: k\nContent-Length: 1\n\nx")
		<-started
		if test.hangUp {
			_ = conn.Close()
		}
		eventually(t, name, func() bool { return s.state() == "unknown" })
	}
}

func TestAStormOfClicksRunsOnce(t *testing.T) {
	var runs atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		created(w, r)
	}, func(c *oncehttp.Config) { c.Wait = 20 * time.Second })
	var clicks sync.WaitGroup
	for range 40 {
		clicks.Add(1)
		go func() {
			defer clicks.Done()
			if got, err := s.try("k", "one"); err != nil || got.StatusCode != 201 || got.text != "one" {
				t.Error(err, got)
			}
		}()
	}
	clicks.Wait()
	if runs.Load() != 1 {
		t.Error(runs.Load())
	}
}

func TestAShutdownEndsTheWaitsForOthers(t *testing.T) {
	started, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-goOn
	}, nil)
	s.idempotent.Attach(s.server.Config)
	go func() { _, _ = s.try("k", "x") }()
	<-started
	waiting := make(chan *reply, 1)
	go func() {
		got, err := s.try("k", "x", "Prefer", "respond-async, wait=20")
		if err != nil {
			t.Error(err)
		}
		waiting <- got
	}()
	// The second claim of the repeat is its wait.
	time.Sleep(time.Second)
	begin, stopped := time.Now(), make(chan error, 1)
	go func() { stopped <- s.server.Config.Shutdown(stdcontext.Background()) }()
	if got := <-waiting; got.code() != "duplicate in_progress" || got.Header.Get("Retry-After") == "" || time.Since(begin) > 15*time.Second {
		t.Error(time.Since(begin), got.StatusCode, got.text)
	}
	close(goOn)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestAWaitThatEndsWithItsRequestIsNoSuccess(t *testing.T) {
	started, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, func(http.ResponseWriter, *http.Request) {
		close(started)
		<-goOn
	}, func(c *oncehttp.Config) { c.Wait = time.Minute }, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := stdcontext.WithTimeout(r.Context(), 50*time.Millisecond)
			defer cancel()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	})
	first := make(chan struct{})
	go func() {
		_, _ = s.try("k", "x")
		close(first)
	}()
	<-started
	if got := s.post("k", "x"); got.code() != "duplicate in_progress" {
		t.Error(got.StatusCode, got.text)
	}
	close(goOn)
	<-first
}

func TestACallerGetsTheWaitThatItPrefers(t *testing.T) {
	started, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(started)
		<-goOn
		created(w, r)
	}, nil)
	first := make(chan *reply, 1)
	go func() { got, _ := s.try("k", "x"); first <- got }()
	<-started
	if got := s.post("k", "x", "Prefer", "wait=0"); got.code() != "duplicate in_progress" {
		t.Error(got.text)
	}
	time.AfterFunc(time.Second, func() { close(goOn) })
	if got := s.post("k", "x", "Prefer", "wait=30"); got.text != "x" || got.Header.Get("Preference-Applied") != "wait=20" {
		t.Error(got.text, got.Header)
	}
	<-first
}

func TestAMiddlewareThatIsThereTwiceProtectsOnce(t *testing.T) {
	runs := 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		runs++
		created(w, r)
	}, nil)
	other, err := oncehttp.New(oncehttp.Config{Client: s.gateway.Client(), Operation: "other", SharedKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	s.server.Config.Handler = s.idempotent.Handler(other.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		if inner := r.Header.Get("X-Inner"); inner != "" {
			// A separate request, in this process.
			again := r.Clone(r.Context())
			again.Header.Set("Idempotency-Key", inner)
			again.Header.Del("X-Inner")
			other.Handler(http.HandlerFunc(created)).ServeHTTP(w, again)
			return
		}
		created(w, r)
	})))
	s.post("k", "x")
	if got := s.post("k", "x"); got.text != "x" || got.Header.Get("Idempotent-Replayed") != "true" || runs != 1 || len(s.gateway.Claims()) != 1 {
		t.Error(got.text, runs, s.gateway.Claims())
	}
	s.post("k2", "x", "X-Inner", "k3")
	if claims := s.gateway.Claims(); len(claims) != 3 || claims[2].Operation != "other" {
		t.Error(claims)
	}
}

func TestObserveRefusesAndReplaysNothing(t *testing.T) {
	metrics := &counts{}
	runs := 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		runs++
		created(w, r)
	}, func(c *oncehttp.Config) {
		c.Observe, c.Required, c.BodyBytes = true, true, 4
		c.Principal = func(r *http.Request) string { return r.Header.Get("X-User") }
		c.Client, _ = c.Client.With(oncegate.WithMetrics(metrics))
	})
	send := func(key, body string, fields ...string) {
		t.Helper()
		if got := s.post(key, body, fields...); got.StatusCode != 201 || got.text != body || got.Header.Get("Idempotent-Replayed") != "" {
			t.Error(key, got.StatusCode, got.text)
		}
	}
	send("k", "one", "X-User", "a")
	send("k", "one", "X-User", "a")
	send("k", "two", "X-User", "a")
	send("", "one", "X-User", "a")
	send("a b", "one", "X-User", "a")
	send("k", "one")
	send("k", "longer", "X-User", "a")
	s.gateway.SetUnavailable(true)
	send("k", "one", "X-User", "a")
	if got := metrics.of("parcel.ship"); got != "forwarded:1 mismatch:1 no_key:1 refused:3 replayed:1 unavailable:1" || runs != 8 {
		t.Error(got, runs)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestAQuotaIsCountedAsTheProxyCountsIt(t *testing.T) {
	metrics := &counts{}
	client, err := oncegate.New(nil, oncegate.WithMetrics(metrics), oncegate.WithClaimWithin(time.Millisecond), oncegate.WithEvents(testservers.Quiet),
		oncegate.WithTransport(transport(func(*http.Request) (*http.Response, error) {
			answer := httptest.NewRecorder()
			answer.Header().Set("Content-Type", "application/problem+json")
			answer.WriteHeader(http.StatusTooManyRequests)
			_, _ = answer.WriteString(`{"code": "quota_exceeded", "status": 429, "retry_after_ms": 7000}`)
			return answer.Result(), nil
		})))
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, created, func(c *oncehttp.Config) { c.Client = client })
	if got := s.post("k", "x"); got.StatusCode != 429 || got.Header.Get("Retry-After") != "7" || metrics.of("parcel.ship") != "refused:1" {
		t.Error(got.StatusCode, got.text, metrics.of("parcel.ship"))
	}
}

func TestAServiceWritesRefusalsInItsOwnFormat(t *testing.T) {
	s := serve(t, created, func(c *oncehttp.Config) {
		c.Render = func(w http.ResponseWriter, _ *http.Request, p oncehttp.Problem) {
			w.WriteHeader(p.Status)
			fmt.Fprintf(w, "error: %s", p.Code)
		}
	})
	s.gateway.SetUnavailable(true)
	if got := s.post("k", "x"); got.StatusCode != 503 || got.text != "error: store_unavailable" || got.Header.Get("Retry-After") != "1" {
		t.Error(got.StatusCode, got.text, got.Header)
	}
}

func TestAGatewayThatHangsMayHaveTakenTheKey(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := oncegate.New([]string{"http://" + listener.Addr().String()}, oncegate.WithTimeout(100*time.Millisecond),
		oncegate.WithClaimWithin(100*time.Millisecond), oncegate.WithEvents(testservers.Quiet))
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, created, func(c *oncehttp.Config) { c.Client = client })
	const maybe = "may have taken the key"
	if got := s.post("k", "x"); got.code() != "store_unavailable" || !strings.Contains(got.text, maybe) {
		t.Error(got.text)
	}
	// One that is not there has taken nothing.
	listener.Close()
	if got := s.post("k", "x"); got.code() != "store_unavailable" || strings.Contains(got.text, maybe) {
		t.Error(got.text)
	}
}

func TestErrorsOfTheClientHaveAnAnswer(t *testing.T) {
	duplicate := func(state string) error {
		return &oncegate.DuplicateError{Duplicate: &oncegate.Duplicate{State: state}}
	}
	for _, test := range []struct {
		err               error
		status            int
		code, retry, text string
	}{
		{duplicate("in_progress"), 409, "duplicate in_progress", "1", ""},
		{duplicate("unknown"), 409, "duplicate unknown", "", ""},
		{&oncegate.ResultNotStoredError{Omitted: "too_large"}, 409, "response_not_stored succeeded", "", ""},
		{&oncegate.MismatchError{Mismatch: &oncegate.Mismatch{Code: "fingerprint_mismatch"}}, 422, "fingerprint_mismatch", "", ""},
		{&oncegate.NotCanonicalError{Path: "$.a", Detail: "a binary float"}, 422, "contents_not_canonical", "", "$.a"},
		{&oncegate.RejectedError{Status: 429, RetryAfterMS: 2500}, 429, "quota_exceeded", "3", ""},
		{&oncegate.RejectedError{Status: 201, Code: "identity_differs"}, 500, "identity_differs", "", ""},
		{&oncegate.RejectedError{Status: 401}, 503, "store_unavailable", "1", ""},
		{fmt.Errorf("wrapped: %w", &oncegate.UnavailableError{}), 503, "store_unavailable", "1", ""},
	} {
		s := serve(t, nil, nil)
		s.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !oncehttp.WriteError(w, test.err) {
				t.Error("not written:", test.err)
			}
		})
		got := s.post("", "")
		if got.StatusCode != test.status || got.code() != test.code || got.Header.Get("Retry-After") != test.retry || !strings.Contains(got.text, test.text) ||
			got.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(got.text, `"type":"urn:oncegate:problem:`) {
			t.Error(test.err, got.StatusCode, got.Header, got.text)
		}
	}
	for _, own := range []error{io.EOF, &oncegate.NotSettledError{Err: &oncegate.UnavailableError{}}, &oncegate.OutcomeRefusedError{}} {
		if oncehttp.WriteError(nil, own) {
			t.Error("written:", own)
		}
	}
}

func TestAClientThatIsOffProtectsNothing(t *testing.T) {
	t.Setenv("ONCEGATE_DISABLED", "1")
	s := serve(t, created, func(c *oncehttp.Config) { c.Required = true })
	for range 2 {
		if got := s.post("", "x"); got.StatusCode != 201 {
			t.Error(got.StatusCode, got.text)
		}
	}
	if s.state() != "none" {
		t.Error(s.state())
	}
}

func TestACallerThatReadsNothingHoldsNoHandler(t *testing.T) {
	before := oncehttp.SetCallerTimeout(200 * time.Millisecond)
	defer oncehttp.SetCallerTimeout(before)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"e7"`)
		piece := strings.Repeat("x", 1<<20)
		for range 64 {
			if n, err := io.WriteString(w, piece); n != 1<<20 || err != nil {
				t.Error(n, err)
			}
			w.(http.Flusher).Flush()
		}
	}, nil)
	s.dial("POST /parcels?a=1 HTTP/1.1\nHost: shop\nIdempotency-Key: k\nContent-Length: 1\n\nx")
	eventually(t, "the handler ends", func() bool { return s.state() == "succeeded" })
	if got := s.post("k", "x"); got.code() != "response_not_stored succeeded" {
		t.Error(got.text)
	}
}

func TestALayerOutsideMayAnswerBeforeTheHandler(t *testing.T) {
	goOn := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-goOn
		if r.Context().Err() != nil {
			t.Error(r.Context().Err())
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "late")
	}, nil, func(next http.Handler) http.Handler {
		return http.TimeoutHandler(next, 20*time.Millisecond, "too late")
	})
	if got := s.post("k", "x"); got.StatusCode != 503 || got.text != "too late" {
		t.Error(got.StatusCode, got.text)
	}
	close(goOn)
	eventually(t, "it is recorded", func() bool { return s.state() == "succeeded" })
	if got := s.post("k", "x"); got.StatusCode != 201 || got.text != "late" {
		t.Error(got.StatusCode, got.text)
	}
}

func TestHTTP2(t *testing.T) {
	started, goOn := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Error(r.Proto)
		}
		body, _ := io.ReadAll(r.Body)
		if string(body) == "slow" {
			close(started)
			<-goOn
		}
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "first")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
		w.Header().Set("X-Sum", "9")
		w.Header().Set(http.TrailerPrefix+"X-More", "m")
	}, nil)
	secure := httptest.NewUnstartedServer(s.server.Config.Handler)
	secure.EnableHTTP2 = true
	secure.Config.ErrorLog = quiet
	secure.StartTLS()
	t.Cleanup(secure.Close)
	client := secure.Client()
	send := func(ctx context, key, body string) (*http.Response, string, error) {
		request, _ := http.NewRequestWithContext(ctx, "POST", secure.URL, strings.NewReader(body))
		request.Header.Set("Idempotency-Key", key)
		request.Header.Set("TE", "trailers")
		response, err := client.Do(request)
		if err != nil {
			return nil, "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return response, string(text), err
	}
	for at := range 2 {
		response, text, err := send(stdcontext.Background(), "k", "last")
		if err != nil || text != "firstlast" || response.Trailer.Get("X-Sum") != "9" || response.Trailer.Get("X-More") != "m" ||
			(response.Header.Get("Idempotent-Replayed") == "true") != (at == 1) {
			t.Error(at, err, text, response.Header, response.Trailer)
		}
	}
	ctx, cancel := stdcontext.WithCancel(stdcontext.Background())
	go func() {
		<-started
		cancel()
	}()
	if _, _, err := send(ctx, "k2", "slow"); err == nil {
		t.Error("it was not cancelled")
	}
	close(goOn)
	if err := s.idempotent.Drain(stdcontext.Background()); err != nil {
		t.Error(err)
	}
	if response, text, err := send(stdcontext.Background(), "k2", "slow"); err != nil || text != "firstslow" || response.Header.Get("Idempotent-Replayed") != "true" {
		t.Error(err, text)
	}
}

func TestAGatewayThatIsBackAfterAnUnprotectedRunRecordsItsResponse(t *testing.T) {
	var gateway *oncegatetest.Gateway
	runs := 0
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		runs++
		gateway.SetUnavailable(false)
		created(w, r)
	}, func(c *oncehttp.Config) { c.OnUnavailable, c.ClaimWithin = oncegate.Proceed, 100*time.Millisecond })
	gateway = s.gateway
	gateway.SetUnavailable(true)
	first, second := s.post("k", "one"), s.post("k", "one")
	if first.Header.Get("Oncegate-Degraded") != "caller" || first.Header.Get("Idempotent-Replayed") != "" {
		t.Error("first:", first.StatusCode, first.Header)
	}
	if second.Header.Get("Idempotent-Replayed") != "true" || second.text != first.text || runs != 1 {
		t.Error("second:", second.StatusCode, second.Header, runs, "runs")
	}
}
