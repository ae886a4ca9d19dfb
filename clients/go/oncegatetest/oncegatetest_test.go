package oncegatetest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
)

type object = map[string]any

// ---- The vectors of the clients: the double gives the answers of their scripted gateway.

// seeds are the calls of another caller that lead to an answer.
var seeds = map[string][]string{
	"granted": {}, "duplicate_succeeded": {"claim", "success"}, "in_progress": {"claim"}, "duplicate_unknown": {"claim", "unknown"}, "hold": {},
	"lock_held": {"acquire"},
}

// follows are the answers that come after a first one, without a fault.
var follows = []string{"succeeded", "released", "unknown", "renewed", "hold_released", "hold_renewed"}

func TestTheDoubleAnswersAsTheGatewayOfTheVectors(t *testing.T) {
	var common struct{ Requests, Answers map[string]object }
	readJSON(t, "common.json", &common)
	files, err := filepath.Glob("../../vectors/behaviour/*.json")
	if err != nil {
		t.Fatal(err)
	}
	answered := 0
	for _, file := range files {
		var table struct {
			Cases []struct {
				Name      string
				Exchanges []struct{ Expect, Answer any }
			}
		}
		readJSON(t, filepath.Base(file), &table)
		for _, vector := range table.Cases {
			gateway := oncegatetest.New(t)
			c := &caller{t: t, gateway: gateway, nonce: strings.Repeat("a", 32)}
			for at, exchange := range vector.Exchanges {
				answer, isPlain := used(common.Answers, exchange.Answer)
				request, ok := merged(common.Requests, exchange.Expect)
				name, _ := exchange.Answer.(string)
				if !isPlain || !ok || at > 0 && !slices.Contains(follows, name) {
					break
				}
				if at == 0 {
					seed, known := seeds[name]
					if !known {
						break
					}
					other := &caller{t: t, gateway: gateway, nonce: strings.Repeat("b", 32)}
					for _, step := range seed {
						before, _ := used(common.Requests, step)
						if step == "success" {
							before["body"].(object)["result"] = answer["body"].(object)["result"]
						}
						other.send(before)
					}
				}
				status, got := c.send(request)
				if status != int(answer["status"].(float64)) {
					t.Errorf("%s: exchange %d: %d %v, not %v", vector.Name, at, status, got, answer["status"])
				}
				for _, member := range []string{"code", "state", "global_id", "late", "result", "repeated", "name", "mode", "holds"} {
					if wanted, ok := answer["body"].(object)[member]; ok && member != "" && fmt.Sprint(got[member]) != fmt.Sprint(wanted) {
						t.Errorf("%s: exchange %d: %s is %v, not %v", vector.Name, at, member, got[member], wanted)
					}
				}
				answered++
			}
		}
	}
	if answered < 50 {
		t.Errorf("only %d exchanges", answered)
	}
	t.Logf("%d exchanges", answered)
}

func readJSON(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../vectors/behaviour", name))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(name, err)
	}
}

// merged returns a request by its name, or one that `use` names with another result.
func merged(table map[string]object, value any) (object, bool) {
	other, isObject := value.(object)
	if !isObject {
		return used(table, value)
	}
	request, ok := used(table, other["use"])
	body, _ := other["body"].(object)
	result, hasResult := body["result"]
	if !ok || !hasResult || len(other) > 2 || len(body) > 1 {
		return nil, false
	}
	request["body"].(object)["result"] = result
	return request, true
}

// used returns a request or an answer by its name, and false for others.
func used(table map[string]object, value any) (object, bool) {
	name, _ := value.(string)
	if name == "" {
		return nil, false
	}
	text, _ := json.Marshal(table[name])
	copied := object{}
	_ = json.Unmarshal(text, &copied)
	return copied, len(copied) > 0
}

// caller sends requests with its nonce.
type caller struct {
	t              *testing.T
	gateway        http.RoundTripper
	nonce, attempt string
}

func (c *caller) send(request object) (int, object) {
	c.t.Helper()
	var body io.Reader
	if members, ok := request["body"]; ok {
		text, _ := json.Marshal(members)
		text = bytes.ReplaceAll(text, []byte("1792488615123456-$nonce"), []byte(c.attempt))
		body = bytes.NewReader(bytes.ReplaceAll(text, []byte("$nonce"), []byte(c.nonce)))
	}
	sent, err := http.NewRequest(request["method"].(string), "http://gateway"+request["path"].(string), body)
	if err != nil {
		c.t.Fatal(err)
	}
	if headers, ok := request["headers"].(object); ok {
		sent.Header.Set("Authorization", fmt.Sprint(headers["authorization"]))
	} else {
		sent.Header.Set("Authorization", "Bearer shop.c2VjcmV0")
	}
	response, err := c.gateway.RoundTrip(sent)
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	got := object{}
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		c.t.Fatal(err)
	}
	if attempt, ok := got["attempt"].(string); ok {
		c.attempt = attempt
	}
	return response.StatusCode, got
}

// ---- The same story at the double and at a gateway.

func TestTheDoubleTellsTheStoryOfAGateway(t *testing.T) {
	url := os.Getenv("ONCEGATE_URL")
	if url == "" {
		t.Skip("no gateway: run by scripts/with-gateway")
	}
	real, err := oncegate.New([]string{url}, oncegate.WithCredential(os.Getenv("ONCEGATE_CREDENTIAL")), oncegate.WithEvents(nil))
	if err != nil {
		t.Fatal(err)
	}
	double := oncegatetest.New(t).Client(oncegate.WithCredential("shop.c2VjcmV0"))
	wanted, got := story(t, real), story(t, double)
	for at := range wanted {
		if got[at] != wanted[at] {
			t.Errorf("step %d: %s at the double, %s at the gateway", at, got[at], wanted[at])
		}
	}
	t.Log(strings.Join(wanted, "\n"))
}

func story(t *testing.T, c *oncegate.Client) []string {
	t.Helper()
	ctx := context.Background()
	var lines []string
	say := func(what string, values ...any) { lines = append(lines, what+": "+fmt.Sprint(values...)) }
	contents := oncegate.Map{"parcel_id": fmt.Sprint(time.Now().UnixNano())}
	claim := func(opts ...oncegate.ClaimOption) *oncegate.Grant {
		result, err := c.Claim(ctx, "parcel.ship", contents, opts...)
		switch result := result.(type) {
		case *oncegate.Grant:
			result.Stop()
			say("claim", "granted ", result.TakenOver, result.Repeated)
			return result
		case *oncegate.Duplicate:
			say("claim", result.State, " ", string(result.Result), " ", result.ResultOmitted, result.ExpiresAt == nil)
		case *oncegate.Mismatch:
			say("claim", result.Code)
		default:
			say("claim", err)
		}
		return nil
	}
	done := func(done *oncegate.Done, err error) {
		if err != nil {
			say("outcome", err)
			return
		}
		say("outcome", done.State, *done.Late)
	}
	first := claim(oncegate.Fingerprint(oncegate.Map{"a": 1}))
	claim(oncegate.Fingerprint(oncegate.Map{"a": 1}))
	claim(oncegate.Fingerprint(oncegate.Map{"a": 2}))
	claim()
	say("fail", first.Fail(ctx))
	say("fail again", first.Fail(ctx))
	second := claim()
	done(first.Succeed(ctx, "late"))
	say("give up", second.GiveUp(ctx))
	say("renew", codeOf(second.Renew(ctx)))
	claim()
	third := claim(oncegate.TakeOver())
	done(second.Succeed(ctx, "superseded"))
	say("renew", third.Renew(ctx))
	done(third.Succeed(ctx, oncegate.Map{"shipped": true}))
	done(third.Succeed(ctx, "again"))
	say("fail", third.Fail(ctx))
	say("renew", codeOf(third.Renew(ctx)))
	claim()
	record, err := c.Lookup(ctx, third.GlobalID)
	say("lookup", record.State, record.Operation, string(record.Result), record.HasFingerprint, record.Late, err)
	contents = oncegate.Map{"parcel_id": fmt.Sprint(time.Now().UnixNano())}
	released := claim(oncegate.Retention(oncegate.Forever))
	say("fail", released.Fail(ctx))
	done(released.Succeed(ctx, make(chan int)))
	claim()
	record, err = c.Lookup(ctx, strings.Repeat("0", 32))
	say("lookup", record == nil, err)
	claimed, err := c.ClaimBatch(ctx, []oncegate.ClaimItem{
		{Operation: "parcel.ship", Contents: contents}, {Operation: "parcel.pack", Contents: contents},
	})
	say("batch", claimed[0].Result.(*oncegate.Duplicate).State, claimed[0].Err, claimed[1].Err, err)
	grant := claimed[1].Result.(*oncegate.Grant)
	settled, err := c.SettleBatch(ctx, []oncegate.Outcome{{Grant: grant, Outcome: oncegate.Success, Result: 7}})
	say("batch", settled[0].Settled.State, settled[0].Err, err)
	locks(t, c, say)
	return lines
}

// codeOf returns the code of a refusal: its text is each gateway's own.
func codeOf(err error) string {
	var rejected *oncegate.RejectedError
	if errors.As(err, &rejected) {
		return rejected.Code
	}
	return fmt.Sprint(err)
}

func locks(t *testing.T, c *oncegate.Client, say func(string, ...any)) {
	ctx, name := context.Background(), fmt.Sprintf("stock:%d", time.Now().UnixNano())
	acquire := func(opts ...oncegate.LockOption) *oncegate.Hold {
		hold, err := c.Lock(name, opts...).Acquire(ctx, 0)
		if err != nil {
			var refused *oncegate.LockNotAcquiredError
			if !errors.As(err, &refused) {
				t.Fatal(err)
			}
			say("lock", refused.Code)
			return nil
		}
		say("lock", hold.Mode, hold.Holds)
		return hold
	}
	owner := oncegate.Owner("owner-of-the-stock-42")
	first := acquire(owner)
	acquire()
	again := acquire(owner)
	joined := acquire(owner, oncegate.Shared())
	record, err := c.Lock(name).Lookup(ctx)
	say("lookup", record.Mode, len(record.Holders) > 0, err)
	say("release", joined.Release(ctx), again.Release(ctx), first.Renew(ctx), first.Release(ctx), first.Release(ctx))
	one, two := acquire(oncegate.Shared()), acquire(oncegate.Shared())
	acquire()
	mine := acquire(owner, oncegate.Shared())
	acquire(owner)
	say("release", mine.Release(ctx), one.Release(ctx), two.Release(ctx))
	record, err = c.Lock(name).Lookup(ctx)
	say("lookup", record == nil, err)
}

// ---- What tests of users do.

func TestLeasesAndRetentionsEndByTheClockOfTheTest(t *testing.T) {
	ctx, contents := context.Background(), oncegate.Map{"parcel_id": "P-1"}
	for way, unknown := range map[string]bool{"by default": false, "as the gateway says": true, "as the claim asks": true} {
		gateway := oncegatetest.New(t)
		var opts []oncegate.ClaimOption
		switch way {
		case "as the gateway says":
			gateway = oncegatetest.New(t, oncegatetest.OnLeaseEndUnknown())
		case "as the claim asks":
			opts = append(opts, oncegate.UnknownOnLeaseEnd())
		}
		client := gateway.Client()
		result, err := client.Claim(ctx, "parcel.ship", contents, opts...)
		if err != nil {
			t.Fatal(err)
		}
		result.(*oncegate.Grant).Stop()
		gateway.Advance(time.Minute)
		if claims := gateway.Claims(); unknown != (len(claims) == 1 && claims[0].State == oncegate.Unknown) {
			t.Error(way, claims)
		}
		if _, err := result.(*oncegate.Grant).Succeed(ctx, "done"); err != nil {
			t.Error(err)
		}
		if claims := gateway.Claims(); len(claims) != 1 || claims[0].State != oncegate.Succeeded || string(claims[0].Result) != `"done"` {
			t.Error(claims)
		}
		gateway.Advance(25 * time.Hour)
		if claims := gateway.Claims(); len(claims) != 0 {
			t.Error(claims)
		}
	}
}

func TestOutagesAreThoseOfTheTest(t *testing.T) {
	ctx, gateway := context.Background(), oncegatetest.New(t)
	client := gateway.Client()
	ship := func() error {
		_, err := client.Once(ctx, "parcel.ship", oncegate.Map{"parcel_id": "P-1"}, func(context.Context, *oncegate.Grant) (any, error) { return nil, nil })
		return err
	}
	gateway.SetUnavailable(true)
	var none *oncegate.UnavailableError
	if err := ship(); !errors.As(err, &none) || none.Causes[0].Kind != oncegate.KindRefused {
		t.Error(err)
	}
	gateway.SetUnavailable(false)
	gateway.FailNext(1)
	if err := ship(); err != nil || len(gateway.Claims()) != 1 {
		t.Error(err)
	}
}
