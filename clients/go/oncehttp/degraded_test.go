package oncehttp_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/clients/go/oncegatetest"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

// degraded is a gateway that answers claims by an outage policy.
type degraded struct {
	http.RoundTripper
	policy any
}

func (d *degraded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(r)
	if err != nil || r.URL.Path != "/v1/claims" {
		return response, err
	}
	defer response.Body.Close()
	answer := map[string]any{}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	answer["degraded"] = d.policy
	text, err := json.Marshal(answer)
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	return response, err
}

func TestAResponseUnderAClaimOfAnOutagePolicySaysSo(t *testing.T) {
	handlers := map[string]http.HandlerFunc{
		"whole": created,
		"stream": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "do")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "ne")
		},
		"none": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	}
	for kind, handler := range handlers {
		for _, policy := range []string{"local", "fail_open"} {
			gateway := oncegatetest.New(t)
			answering := &degraded{RoundTripper: gateway}
			s := serve(t, handler, func(c *oncehttp.Config) { through(t, c, answering) })
			steps := []struct {
				policy           any
				wanted, replayed string
			}{{policy, policy, ""}, {policy, policy, "true"}, {nil, "", "true"}}
			for at, step := range steps {
				answering.policy = step.policy
				header := s.post("k", "x").Header
				if header.Get("Oncegate-Degraded") != step.wanted || header.Get("Idempotent-Replayed") != step.replayed {
					t.Errorf("%s by %s, request %d: %v", kind, policy, at, header)
				}
			}
			if claims := gateway.Claims(); len(claims) != 1 || strings.Contains(strings.ToLower(string(claims[0].Result)), "degraded") {
				t.Errorf("%s by %s: stored %v", kind, policy, claims)
			}
		}
	}
}
