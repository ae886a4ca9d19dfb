package oncehttp_test

import (
	stdcontext "context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
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

// service gives one answer after another to the tries of a call; the last answer stays. It keeps the requests.
type service struct {
	mu      sync.Mutex
	answers []string
	got     []string
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.got = append(s.got, r.Header.Get("Idempotency-Key")+" "+string(body))
	answer := s.answers[min(len(s.got), len(s.answers))-1]
	s.mu.Unlock()
	if answer == "hang up" {
		panic(http.ErrAbortHandler)
	}
	status, text, _ := strings.Cut(answer, " ")
	if status, after, ok := strings.Cut(status, "/"); ok {
		w.Header().Set("Retry-After", after)
		answer = status
	}
	var code int
	_, _ = fmt.Sscan(answer, &code)
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

func TestATryIsRepeatedWithItsKeyWhereARepeatCanHelp(t *testing.T) {
	unknown, running := `{"code":"duplicate","state":"unknown"}`, `{"code":"duplicate","state":"in_progress"}`
	for _, test := range []struct {
		answers []string
		tries   int
		status  int
	}{
		{[]string{"201"}, 1, 201},
		{[]string{"hang up", "201"}, 2, 201},
		{[]string{"502", "504", "201"}, 3, 201},
		{[]string{"503/0", "429/0", "425/0", "409/0 " + running, "201"}, 5, 201},
		{[]string{"500", "201"}, 1, 500},
		{[]string{"409/0 " + unknown, "201"}, 1, 409},
		{[]string{"hang up", "409 " + unknown, "201"}, 2, 409},
		{[]string{"409/0 sold out", "201"}, 1, 409},
		{[]string{"429/0", `409/0 {"error":{"code":"idempotency_key_in_use"}}`, "201"}, 3, 201},
		{[]string{"503/3600", "201"}, 1, 503},
	} {
		s := &service{answers: test.answers}
		server := httptest.NewUnstartedServer(s)
		server.Config.ErrorLog = quiet
		server.Start()
		client := &http.Client{Transport: &oncehttp.Transport{}}
		// A body that can be read once.
		response, err := client.Post(server.URL, "text/plain", struct{ io.Reader }{strings.NewReader("bytes")})
		if err != nil {
			t.Fatal(test.answers, err)
		}
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != test.status || len(s.got) != test.tries {
			t.Error(test.answers, response.StatusCode, s.got)
		}
		if test.status == 409 && !strings.Contains(strings.Join(test.answers, " "), string(text)) {
			t.Error(test.answers, string(text))
		}
		for _, got := range s.got {
			if got != s.got[0] || len(got) < 32 || !strings.HasSuffix(got, " bytes") {
				t.Error(test.answers, s.got)
			}
		}
		if key := response.Request.Header.Get("Idempotency-Key"); !strings.HasPrefix(s.got[0], key+" ") {
			t.Error(key, s.got)
		}
		server.Close()
	}
}

func TestAnswersAreRepeatedAsInEveryLanguage(t *testing.T) {
	text, err := os.ReadFile("../../vectors/shared.json")
	if err != nil {
		t.Fatal(err)
	}
	var shared struct {
		Sending struct {
			WithinS int `json:"within_s"`
			Answers []struct {
				Status     int
				RetryAfter *string `json:"retry_after"`
				Body       string
				Repeated   bool
			}
		}
	}
	if err := json.Unmarshal(text, &shared); err != nil {
		t.Fatal(err)
	}
	if within := time.Duration(shared.Sending.WithinS) * time.Second; oncehttp.SendWithin != within {
		t.Error(oncehttp.SendWithin, within)
	}
	for _, answer := range shared.Sending.Answers {
		tries := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if tries++; tries > 1 {
				return
			}
			if answer.RetryAfter != nil {
				w.Header().Set("Retry-After", *answer.RetryAfter)
			}
			w.WriteHeader(answer.Status)
			_, _ = io.WriteString(w, answer.Body)
		}))
		client := &http.Client{Transport: &oncehttp.Transport{}}
		response, err := client.Post(server.URL, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(answer, err)
		}
		body, _ := io.ReadAll(response.Body)
		if repeated := tries == 2; repeated != answer.Repeated || !repeated && string(body) != answer.Body {
			t.Errorf("%+v: %d tries, %s", answer, tries, body)
		}
		server.Close()
	}
}

func TestEachCallHasAKeyOfItsOwnUnlessItBringsOne(t *testing.T) {
	s := &service{answers: []string{"201"}}
	server := httptest.NewServer(s)
	defer server.Close()
	client := &http.Client{Transport: &oncehttp.Transport{}}
	send := func(method, key string) {
		request, _ := http.NewRequest(method, server.URL, strings.NewReader("x"))
		if key != "" {
			request.Header.Set("Idempotency-Key", key)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if request.Header.Get("Idempotency-Key") != key {
			t.Error("the request was changed")
		}
	}
	send("POST", "")
	send("PUT", "")
	send("PATCH", "mine")
	send("GET", "")
	if s.got[0] == s.got[1] || s.got[2] != "mine x" || s.got[3] != " x" {
		t.Error(s.got)
	}
}

func TestACallEndsWithItsContextOrItsTime(t *testing.T) {
	s := &service{answers: []string{"503/1"}}
	server := httptest.NewServer(s)
	defer server.Close()
	ctx, cancel := stdcontext.WithCancel(stdcontext.Background())
	request, _ := http.NewRequestWithContext(ctx, "POST", server.URL, strings.NewReader("x"))
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := (&oncehttp.Transport{}).RoundTrip(request); !errors.Is(err, stdcontext.Canceled) {
		t.Error(err)
	}
	request, _ = http.NewRequest("POST", server.URL, strings.NewReader("x"))
	response, err := (&oncehttp.Transport{Within: 100 * time.Millisecond}).RoundTrip(request)
	if err != nil || response.StatusCode != 503 {
		t.Error(response, err)
	}
	var wrong *oncegate.ArgumentError
	request, _ = http.NewRequest("POST", server.URL, struct{ io.Reader }{strings.NewReader("long")})
	if _, err := (&oncehttp.Transport{BodyBytes: 3}).RoundTrip(request); !errors.As(err, &wrong) {
		t.Error(err)
	}
}

// losing loses the response of the first tries.
type losing struct{ left int }

func (l *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && l.left > 0 {
		l.left--
		_ = response.Body.Close()
		return nil, errors.New("the response was lost")
	}
	return response, err
}

func TestAServiceThatHangsEndsWithTheTimeOfTheCall(t *testing.T) {
	var calls atomic.Int32
	late := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A server that has not read the body does not see that its caller goes.
		_, _ = io.ReadAll(r.Body)
		if calls.Add(1) == 1 {
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "first,")
		w.(http.Flusher).Flush()
		<-late
		_, _ = io.WriteString(w, "last")
	}))
	defer server.Close()
	client := &http.Client{Transport: &oncehttp.Transport{Within: 200 * time.Millisecond}}
	_, err := client.Post(server.URL, "text/plain", strings.NewReader("x"))
	if !errors.Is(err, stdcontext.DeadlineExceeded) {
		t.Error(err)
	}
	// The time is that of the answer, not of its body.
	response, err := client.Post(server.URL, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(400*time.Millisecond, func() { close(late) })
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "first,last" {
		t.Error(string(body), err)
	}
	_ = response.Body.Close()
}

func TestALostResponseIsReplayedByTheMiddlewareAndTheProxy(t *testing.T) {
	runs := 0
	ship := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "run ", runs)
	})
	idempotent, err := oncehttp.New(oncehttp.Config{Client: oncegatetest.New(t).Client(), Operation: "parcel.ship", SharedKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	middleware, upstream := httptest.NewServer(idempotent.Handler(ship)), httptest.NewServer(ship)
	t.Cleanup(middleware.Close)
	t.Cleanup(upstream.Close)
	urls := []string{middleware.URL}
	if os.Getenv("ONCEGATE_BIN") != "" {
		urls = append(urls, testservers.Proxy(t, upstream.URL))
	}
	for _, url := range urls {
		runs = 0
		client := &http.Client{Transport: &oncehttp.Transport{Base: &losing{2}}}
		request, _ := http.NewRequest("POST", url+"/parcels", strings.NewReader("P-1001"))
		request.Header.Set("Authorization", "Bearer alice")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != 201 || string(text) != "run 1" || response.Header.Get("Idempotent-Replayed") != "true" || runs != 1 {
			t.Error(url, response.StatusCode, string(text), runs)
		}
	}
}
