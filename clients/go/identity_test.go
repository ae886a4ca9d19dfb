package oncegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// otherIdentity is a gateway whose rules give each operation another ID than this client's.
type otherIdentity struct {
	mu       sync.Mutex
	outcomes []string
}

const otherID = "00000000000000000000000000000001"

func (g *otherIdentity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Outcome string
		Items   []json.RawMessage
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	grant := fmt.Sprintf(`"global_id": %q, "attempt": "1-a", "lease_ms": 30000`, otherID)
	switch {
	case strings.HasSuffix(r.URL.Path, "/outcome"):
		g.mu.Lock()
		g.outcomes = append(g.outcomes, r.URL.Path+" "+body.Outcome)
		g.mu.Unlock()
		fmt.Fprintf(w, `{"global_id": %q, "state": "released", "late": false}`, otherID)
	case strings.HasSuffix(r.URL.Path, "/batch"):
		items := slices.Repeat([]string{`{"status": 201, ` + grant + "}"}, len(body.Items))
		fmt.Fprintf(w, `{"items": [%s]}`, strings.Join(items, ","))
	default:
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "{%s}", grant)
	}
}

func TestAGrantOfAnotherIdentityIsReleasedBeforeTheWork(t *testing.T) {
	ctx, contents := context.Background(), Map{"parcel_id": "P-1"}
	work := func(context.Context, *Grant) (any, error) {
		t.Error("the work was run")
		return nil, nil
	}
	for name, call := range map[string]func(*Client) error{
		"claim": func(c *Client) error { _, err := c.Claim(ctx, "parcel.ship", contents); return err },
		"once":  func(c *Client) error { _, err := c.Once(ctx, "parcel.ship", contents, work); return err },
		"cancellable": func(c *Client) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			_, err := c.Once(ctx, "parcel.ship", contents, work)
			return err
		},
		"batch": func(c *Client) error {
			claimed, err := c.ClaimBatch(ctx, []ClaimItem{{Operation: "parcel.ship", Contents: contents}})
			return errors.Join(err, claimed[0].Err)
		},
		"consumer": func(c *Client) error {
			consumer := Consumer[string]{
				Client: c, Operation: "parcel.ship", Contents: func(string) (any, error) { return contents, nil },
				Handle: func(ctx context.Context, _ string, grant *Grant) (any, error) { return work(ctx, grant) },
			}
			decision := consumer.ConsumeOnce(ctx, "", 0)
			if decision.Action != Redeliver {
				t.Errorf("the message is innocent: %s", decision.Action)
			}
			return decision.Err
		},
	} {
		gateway := &otherIdentity{}
		server := httptest.NewServer(gateway)
		client, err := New([]string{server.URL}, WithCredential("shop.c2VjcmV0"))
		if err != nil {
			t.Fatal(err)
		}
		var rejected *RejectedError
		if err := call(client); !errors.As(err, &rejected) || rejected.Code != "identity_differs" || !strings.Contains(rejected.Detail, otherID) {
			t.Errorf("%s: %v", name, err)
		}
		if wanted := []string{"/v1/claims/" + otherID + "/outcome failure"}; !slices.Equal(gateway.outcomes, wanted) {
			t.Errorf("%s: %v, not %v", name, gateway.outcomes, wanted)
		}
		server.Close()
	}
}
