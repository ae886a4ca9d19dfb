package oncehttp_test

import (
	"encoding/json"
	"net/http"
	"os"
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
	for _, vector := range shared.Counted {
		metrics = &counts{}
		method := vector.Method
		if method == "" {
			method = http.MethodPost
		}
		request, err := http.NewRequest(method, sites[[2]bool{vector.Required, vector.Observe}].server.URL, nil)
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
