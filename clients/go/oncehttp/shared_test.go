package oncehttp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

func TestRequestsAreCountedUnderTheSameNames(t *testing.T) {
	var shared struct {
		Counted []struct {
			Name, Method, Result string
			Key                  *string
			Required, Observe    bool
			Gateway              *struct {
				Status int
				Body   json.RawMessage
			}
		}
	}
	text, err := os.ReadFile("../../vectors/shared.json")
	if err == nil {
		err = json.Unmarshal(text, &shared)
	}
	if err != nil || len(shared.Counted) == 0 {
		t.Fatal(err)
	}
	var metrics *counts
	// By required and observe.
	sites := map[[2]bool]*site{}
	for _, rules := range [][2]bool{{false, false}, {true, false}, {false, true}} {
		sites[rules] = serve(t, created, func(c *oncehttp.Config) {
			c.Required, c.Observe, c.Methods = rules[0], rules[1], []string{"POST"}
			c.Client, err = c.Client.With(oncegate.WithMetrics(forwarding{&metrics}))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	answer := shared.Counted[0].Gateway
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/outcome") {
			fmt.Fprintf(w, `{"global_id": %q, "state": "released"}`, strings.Split(r.URL.Path, "/")[3])
			return
		}
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
	}))
	defer gateway.Close()
	other := serve(t, created, func(c *oncehttp.Config) {
		c.Client, err = oncegate.New([]string{gateway.URL}, oncegate.WithMetrics(forwarding{&metrics}), oncegate.WithClaimWithin(time.Second))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, vector := range shared.Counted {
		metrics = &counts{}
		site := sites[[2]bool{vector.Required, vector.Observe}]
		if vector.Gateway != nil {
			site, answer = other, vector.Gateway
		}
		method := vector.Method
		if method == "" {
			method = http.MethodPost
		}
		request, err := http.NewRequest(method, site.server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if vector.Key != nil {
			request.Header.Set("Idempotency-Key", *vector.Key)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		expected := ""
		if vector.Result != "" {
			expected = vector.Result + ":1"
		}
		if got := metrics.of("parcel.ship"); got != expected {
			t.Errorf("%s: %q, expected %q", vector.Name, got, expected)
		}
	}
}

// forwarding counts where its owner points to now.
type forwarding struct{ to **counts }

func (f forwarding) Request(endpoint, result string, took time.Duration) {}
func (f forwarding) Event(name, operation string)                        {}
func (f forwarding) Handled(operation, result string)                    { (*f.to).Handled(operation, result) }
