package oncehttp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

// gateway is a gateway of one process: enough for what the middleware does with its answers.
type gateway struct {
	mu     sync.Mutex
	states map[string]map[string]any
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	id := "2ca8a31a53ad078ffd0c7c8c80158af7"
	if strings.HasSuffix(r.URL.Path, "/outcome") {
		if body["outcome"] == "failure" {
			delete(g.states, id)
		} else {
			g.states[id]["state"] = map[any]string{"success": "succeeded", "unknown": "unknown"}[body["outcome"]]
			g.states[id]["result"] = body["result"]
		}
		fmt.Fprintf(w, `{"global_id": %q, "state": "succeeded", "late": false}`, id)
		return
	}
	fingerprint, _ := json.Marshal(body["fingerprint"])
	known := g.states[id]
	switch {
	case known == nil:
		g.states[id] = map[string]any{"state": "in_progress", "fingerprint": string(fingerprint)}
		w.WriteHeader(201)
		fmt.Fprintf(w, `{"global_id": %q, "attempt": "1-%s", "lease_ms": 30000, "fence": 7}`, id, body["attempt_nonce"])
	case known["fingerprint"] != string(fingerprint):
		w.WriteHeader(422)
		fmt.Fprint(w, `{"code": "fingerprint_mismatch"}`)
	default:
		w.WriteHeader(409)
		_ = json.NewEncoder(w).Encode(map[string]any{"code": "duplicate", "state": known["state"], "result": known["result"], "retry_after_ms": 250})
	}
}

// shop returns a protected handler, and a function that posts to it.
func shop(t *testing.T, handler http.HandlerFunc) func(key, body string) *http.Response {
	t.Helper()
	backend := httptest.NewServer(&gateway{states: map[string]map[string]any{}})
	t.Cleanup(backend.Close)
	client, err := oncegate.New([]string{backend.URL})
	if err != nil {
		t.Fatal(err)
	}
	config := oncehttp.Config{
		Client: client, Operation: "order.submit", Required: true, Principal: func(*http.Request) (string, error) { return "customer-1", nil },
	}
	server := httptest.NewServer(oncehttp.Middleware(config)(handler))
	t.Cleanup(server.Close)
	return func(key, body string) *http.Response {
		t.Helper()
		request, _ := http.NewRequest("POST", server.URL+"/orders", strings.NewReader(body))
		if key != "" {
			request.Header.Set("Idempotency-Key", key)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
}

func text(t *testing.T, response *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestARepeatGetsTheStoredResponse(t *testing.T) {
	runs := 0
	post := shop(t, func(w http.ResponseWriter, r *http.Request) {
		runs++
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "/orders/7")
		w.Header().Set("Set-Cookie", "a=b")
		w.WriteHeader(201)
		fmt.Fprintf(w, "order %s, fence %d", body, *oncehttp.Grant(r.Context()).Fence)
	})
	first := post("k-1", "A-1001")
	if body := text(t, first); first.StatusCode != 201 || body != "order A-1001, fence 7" || first.Header.Get("Set-Cookie") == "" {
		t.Fatal(first.Status, body)
	}
	second := post(`"k-1"`, "A-1001")
	if body := text(t, second); second.StatusCode != 201 || body != "order A-1001, fence 7" || second.Header.Get("Location") != "/orders/7" {
		t.Fatal(second.Status, body)
	}
	if second.Header.Get("Idempotent-Replayed") != "true" || second.Header.Get("Set-Cookie") != "" || runs != 1 {
		t.Fatal(second.Header, runs)
	}
	if other := post("k-1", "A-1002"); other.StatusCode != 422 {
		t.Fatal(other.Status)
	}
	if missing := post("", "A-1001"); missing.StatusCode != 400 {
		t.Fatal(missing.Status)
	}
}

func TestTheStatusDecidesTheOutcome(t *testing.T) {
	for _, test := range []struct {
		status, repeat, runs int
		outcome              string
	}{
		{status: 402, repeat: 402, runs: 1},
		{status: 429, repeat: 429, runs: 2},
		{status: 500, repeat: 409, runs: 1},
		{status: 500, outcome: "failure", repeat: 500, runs: 2},
		{status: 200, outcome: "unknown", repeat: 409, runs: 1},
	} {
		runs := 0
		post := shop(t, func(w http.ResponseWriter, _ *http.Request) {
			runs++
			if test.outcome != "" {
				w.Header().Set(oncehttp.OutcomeHeader, test.outcome)
			}
			w.WriteHeader(test.status)
		})
		first, second := post("k-1", ""), post("k-1", "")
		if first.StatusCode != test.status || second.StatusCode != test.repeat || runs != test.runs || first.Header.Get(oncehttp.OutcomeHeader) != "" {
			t.Errorf("%+v: %s, %s, %d runs", test, first.Status, second.Status, runs)
		}
	}
}

func TestALongResponseIsPassedOnAndNotStored(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	post := shop(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) })
	if body := text(t, post("k-1", "")); body != long {
		t.Fatal(len(body))
	}
	if again := post("k-1", ""); again.StatusCode != 409 || !strings.Contains(text(t, again), "response_not_stored") {
		t.Fatal(again.Status)
	}
}
