package oncegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
)

type label struct {
	Number  string    `json:"number"`
	Printed time.Time `json:"printed"`
}

func TestADuplicateGetsTheResultWithItsType(t *testing.T) {
	ctx, gateway := context.Background(), oncegatetest.New(t)
	client, contents := gateway.Client(), oncegate.Map{"parcel_id": "P-1"}
	printed := label{"L-7", time.Date(2026, 11, 25, 9, 30, 0, 0, time.UTC)}
	for run := range 2 {
		once, err := oncegate.Once(ctx, client, "label.print", contents, func(context.Context, *oncegate.Grant) (label, error) { return printed, nil })
		if err != nil {
			t.Fatal(err)
		}
		if got, err := once.Value(); err != nil || got != printed || (once.Done == nil) == (run == 0) {
			t.Error(run, got, err)
		}
	}
	once, err := oncegate.Once(ctx, client, "label.print", contents, func(context.Context, *oncegate.Grant) (label, error) { return printed, nil },
		oncegate.Fingerprint(oncegate.Map{"a": 1}))
	var mismatch *oncegate.MismatchError
	if err != nil {
		t.Fatal(err)
	}
	if _, err := once.Value(); !errors.As(err, &mismatch) {
		t.Error(err)
	}
}

func TestASuccessWithoutItsResultSaysSo(t *testing.T) {
	ctx, gateway := context.Background(), oncegatetest.New(t)
	client, long := gateway.Client(), strings.Repeat("x", 70_000)
	for name, test := range map[string]struct {
		result any
		why    string
	}{
		"too long": {long, "too_large"}, "not JSON": {map[string]any{"a": func() {}}, "not_serialisable"}, "null": {nil, ""},
		"a value that looks like the marker": {oncegate.Map{"$oncegate": oncegate.Map{"omitted": "refused"}, "a": 1}, ""},
	} {
		contents := oncegate.Map{"name": name}
		work := func(context.Context, *oncegate.Grant) (any, error) { return test.result, nil }
		result, err := client.Once(ctx, "label.print", contents, work)
		if err != nil || (result.(*oncegate.Done).ResultOmitted != "") != (test.why != "") {
			t.Error(name, result, err)
		}
		once, err := oncegate.Once(ctx, client, "label.print", contents, work)
		if err != nil {
			t.Fatal(name, err)
		}
		var omitted *oncegate.ResultNotStoredError
		if got, err := once.Value(); test.why != "" && (!errors.As(err, &omitted) || omitted.Omitted != test.why || got != nil) || test.why == "" && err != nil {
			t.Error(name, got, err)
		}
		if once.Duplicate.ResultOmitted != test.why || test.why != "" && once.Duplicate.Result != nil || once.Duplicate.State != oncegate.Succeeded {
			t.Error(name, once.Duplicate)
		}
	}
	// Its own words in place of the result.
	if _, err := client.Once(ctx, "label.print", oncegate.Map{"name": "own"}, func(context.Context, *oncegate.Grant) (any, error) { return picture(long), nil }); err != nil {
		t.Fatal(err)
	}
	if claims := gateway.Claims(); string(claims[len(claims)-1].Result) != `"a picture that is too_large"` {
		t.Error(string(claims[len(claims)-1].Result))
	}
}

type picture string

func (picture) Omitted(why string) any { return "a picture that is " + why }

func TestATypeThatCannotBeStoredIsRefusedBeforeTheWork(t *testing.T) {
	ctx, gateway := context.Background(), oncegatetest.New(t)
	client, contents := gateway.Client(), oncegate.Map{"parcel_id": "P-1"}
	refused := map[string]error{}
	refused["channel"] = tryType[chan int](ctx, client, contents)
	refused["function"] = tryType[func() error](ctx, client, contents)
	refused["iterator"] = tryType[iter.Seq[int]](ctx, client, contents)
	refused["within"] = tryType[[]struct{ Updates chan int }](ctx, client, contents)
	refused["complex"] = tryType[complex128](ctx, client, contents)
	var wrong *oncegate.ArgumentError
	for name, err := range refused {
		if !errors.As(err, &wrong) {
			t.Error(name, err)
		}
	}
	if len(gateway.Claims()) != 0 {
		t.Error(gateway.Claims())
	}
	for name, err := range map[string]error{
		"recursive": tryType[*node](ctx, client, contents), "left out": tryType[struct {
			Updates chan int `json:"-"`
		}](ctx, client, contents), "time": tryType[time.Time](ctx, client, contents), "raw": tryType[json.RawMessage](ctx, client, contents),
	} {
		if errors.As(err, &wrong) {
			t.Error(name, err)
		}
	}
}

type node struct{ Next *node }

func tryType[T any](ctx context.Context, client *oncegate.Client, contents any) error {
	_, err := oncegate.Once(ctx, client, "label.print", contents, func(context.Context, *oncegate.Grant) (T, error) {
		var zero T
		return zero, oncegate.ErrNothingHappened
	})
	return err
}

func TestACallWithoutWorkClaimsNothing(t *testing.T) {
	ctx, gateway := context.Background(), oncegatetest.New(t)
	contents := oncegate.Map{"parcel_id": "P-1"}
	_, err := gateway.Client().Once(ctx, "label.print", contents, nil)
	_, typed := oncegate.Once[int](ctx, gateway.Client(), "label.print", contents, nil)
	var wrong *oncegate.ArgumentError
	if !errors.As(err, &wrong) || !errors.As(typed, &wrong) || len(gateway.Claims()) != 0 {
		t.Error(err, typed, gateway.Claims())
	}
}

func TestWorkThatReturnsAChannelHasNotEnded(t *testing.T) {
	gateway := oncegatetest.New(t)
	_, err := gateway.Client().Once(context.Background(), "label.print", oncegate.Map{"parcel_id": "P-1"},
		func(context.Context, *oncegate.Grant) (any, error) { return make(chan int), nil })
	var wrong *oncegate.ArgumentError
	if !errors.As(err, &wrong) || gateway.Claims()[0].State != oncegate.Unknown {
		t.Error(err, gateway.Claims())
	}
}

func TestADeclaredHarmlessErrorReleasesTheOperation(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		claims int
	}{"declared": {io.EOF, 0}, "another": {io.ErrUnexpectedEOF, 1}, "nothing happened": {oncegate.NothingHappened(io.ErrShortWrite), 0}} {
		gateway := oncegatetest.New(t)
		_, err := gateway.Client().Once(context.Background(), "label.print", oncegate.Map{"parcel_id": "P-1"},
			func(context.Context, *oncegate.Grant) (any, error) { return nil, test.err },
			oncegate.ReleaseOn(func(err error) bool { return errors.Is(err, io.EOF) }))
		if err != test.err || len(gateway.Claims()) != test.claims {
			t.Error(name, err, gateway.Claims())
		}
		consumer := oncegate.Consumer[string]{
			Client: oncegatetest.New(t).Client(), Operation: "label.print", Contents: func(id string) (any, error) { return oncegate.Map{"parcel_id": id}, nil },
			Handle:  func(context.Context, string, *oncegate.Grant) (any, error) { return nil, test.err },
			Options: []oncegate.ClaimOption{oncegate.ReleaseOn(func(err error) bool { return errors.Is(err, io.EOF) })},
		}
		decision := consumer.ConsumeOnce(context.Background(), "P-1", 0)
		if isHarmless := test.claims == 0; decision.Failed() != isHarmless || (decision.Action == oncegate.Redeliver) != isHarmless || !errors.Is(decision.Err, test.err) {
			t.Error(name, decision)
		}
	}
}

func TestAClientThatIsOffRunsEverythingAndClaimsNothing(t *testing.T) {
	ctx, gateway := context.Background(), oncegatetest.New(t)
	gateway.SetUnavailable(true)
	var events []string
	client := gateway.Client(oncegate.WithEnabled(false), oncegate.WithEvents(func(_ context.Context, event oncegate.Event) { events = append(events, event.Name) }))
	for range 2 {
		result, err := client.Once(ctx, "parcel.ship", oncegate.Map{"parcel_id": "P-1"}, func(context.Context, *oncegate.Grant) (any, error) { return 7, nil })
		done, ok := result.(*oncegate.Done)
		if err != nil || !ok || done.Degraded != "disabled" || done.Result != 7 || done.State != "" {
			t.Error(result, err)
		}
	}
	claimed, err := client.ClaimBatch(ctx, []oncegate.ClaimItem{{Operation: "parcel.ship", Contents: oncegate.Map{"parcel_id": "P-1"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.SettleBatch(ctx, []oncegate.Outcome{{Grant: claimed[0].Result.(*oncegate.Grant), Outcome: oncegate.Success}}); err != nil {
		t.Error(err)
	}
	if err := client.Lock("stock:42").Do(ctx, 0, func(_ context.Context, hold *oncegate.Hold) error {
		if !hold.IsLive() {
			t.Error("the hold is not live")
		}
		return hold.Renew(ctx)
	}); err != nil {
		t.Error(err)
	}
	if record, err := client.Lookup(ctx, strings.Repeat("0", 32)); record != nil || err != nil {
		t.Error(record, err)
	}
	if strings.Join(events, " ") != "disabled" {
		t.Error(events)
	}
}

func TestAClientFindsItsGatewayInTheEnvironment(t *testing.T) {
	for value, good := range map[string]bool{"": true, "http://a:1, http://b:2": true, "ftp://a": false} {
		t.Setenv("ONCEGATE_URL", value)
		if _, err := oncegate.New(nil); (err == nil) != good {
			t.Error(value, err)
		}
	}
}

func TestAWrongDurationNamesItsOption(t *testing.T) {
	ctx, client := context.Background(), oncegatetest.New(t).Client()
	for name, call := range map[string]func() error{
		"Lease": func() error {
			_, err := client.Claim(ctx, "a", oncegate.Map{"id": 1}, oncegate.Lease(time.Microsecond))
			return err
		},
		"Retention": func() error {
			_, err := client.Claim(ctx, "a", oncegate.Map{"id": 1}, oncegate.Retention(-time.Second))
			return err
		},
		"Wait": func() error {
			_, err := client.Claim(ctx, "a", oncegate.Map{"id": 1}, oncegate.Wait(-1))
			return err
		},
		"LockLease":       func() error { _, err := client.Lock("a", oncegate.LockLease(1)).Acquire(ctx, 0); return err },
		"the wait":        func() error { _, err := client.Lock("a").Acquire(ctx, -1); return err },
		"WithClaimWithin": func() error { _, err := client.With(oncegate.WithClaimWithin(0)); return err },
	} {
		var wrong *oncegate.ArgumentError
		if err := call(); !errors.As(err, &wrong) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAWaitIsSentInWholeMilliseconds(t *testing.T) {
	ctx, gateway := context.Background(), oncegatetest.New(t)
	bodies := &bodies{RoundTripper: gateway}
	client := gateway.Client(oncegate.WithTransport(bodies))
	if _, err := client.Claim(ctx, "a", oncegate.Map{"id": 1}, oncegate.Wait(1500*time.Microsecond)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(bodies.sent, `"wait":"1ms"`) {
		t.Error(bodies.sent)
	}
}

// bodies keeps the body of the last call.
type bodies struct {
	http.RoundTripper
	sent string
}

func (b *bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	b.sent = string(text)
	r.Body = io.NopCloser(strings.NewReader(b.sent))
	return b.RoundTripper.RoundTrip(r)
}
