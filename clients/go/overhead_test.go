package oncegate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// BenchmarkCalls compares Once around an empty function with the same two HTTP calls by hand, by the CPU time of this process:
//
//	scripts/with-gateway go test -run '^$' -bench Calls -benchtime 3s .
func BenchmarkCalls(b *testing.B) {
	url, credential := os.Getenv("ONCEGATE_URL"), os.Getenv("ONCEGATE_CREDENTIAL")
	if url == "" {
		b.Skip("no gateway: run by scripts/with-gateway")
	}
	client, err := oncegate.New([]string{url}, oncegate.WithCredential(credential))
	if err != nil {
		b.Fatal(err)
	}
	var names atomic.Int64
	once := func(name string) error {
		result, err := client.Once(context.Background(), "parcel.ship", oncegate.Map{"parcel_id": name}, func(context.Context, *oncegate.Grant) (any, error) {
			return "done", nil
		})
		if _, ok := result.(*oncegate.Done); !ok && err == nil {
			err = fmt.Errorf("not done: %T", result)
		}
		return err
	}
	hand := &byHand{http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, url: url, credential: credential}
	for _, callers := range []int{1, 64} {
		for name, call := range map[string]func(string) error{"once": once, "by hand": hand.once} {
			b.Run(fmt.Sprintf("%s/%d", name, callers), func(b *testing.B) {
				var next atomic.Int64
				var callersDone sync.WaitGroup
				begin := cpu()
				for range callers {
					callersDone.Add(1)
					go func() {
						defer callersDone.Done()
						for next.Add(1) <= int64(b.N) {
							if err := call(fmt.Sprint(time.Now().UnixNano(), "-", names.Add(1))); err != nil {
								b.Error(err)
								return
							}
						}
					}()
				}
				callersDone.Wait()
				b.ReportMetric(float64((cpu()-begin).Microseconds())/float64(b.N), "cpu-µs/op")
			})
		}
	}
}

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// byHand makes the calls without the client.
type byHand struct {
	http            *http.Client
	url, credential string
}

func (h *byHand) once(name string) error {
	var nonce [16]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return err
	}
	contents := map[string]string{"parcel_id": name}
	var granted struct {
		GlobalID string `json:"global_id"`
		Attempt  string
	}
	claim := map[string]any{"operation": "parcel.ship", "contents": contents, "attempt_nonce": hex.EncodeToString(nonce[:])}
	if err := h.post("/v1/claims", claim, http.StatusCreated, &granted); err != nil {
		return err
	}
	outcome := map[string]any{"attempt": granted.Attempt, "outcome": "success", "operation": "parcel.ship", "contents": contents, "result": "done"}
	return h.post("/v1/claims/"+granted.GlobalID+"/outcome", outcome, http.StatusOK, &struct{}{})
}

func (h *byHand) post(path string, body any, status int, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", h.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+h.credential)
	response, err := h.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != status {
		return fmt.Errorf("%d: %s", response.StatusCode, answer)
	}
	return json.Unmarshal(answer, into)
}
