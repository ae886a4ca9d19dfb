// The life of a claim with the client that openapi-generator generated. Arguments: the gateway's URL and a credential.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"example.com/generated/oncegate"
)

func nonce() string {
	bits := make([]byte, 16)
	_, err := rand.Read(bits)
	check(err == nil, err)
	return hex.EncodeToString(bits)
}

func check(holds bool, what ...any) {
	if !holds {
		panic(fmt.Sprintln(what...))
	}
}

// good returns the success of a call.
func good[T any](answer *T, _ any, err error) *T {
	if failed := new(oncegate.GenericOpenAPIError); errors.As(err, &failed) {
		panic(fmt.Sprint(err, string(failed.Body())))
	}
	check(err == nil, err)
	return answer
}

// problem returns the problem of a call, which must have this code.
func problem[T any](_ *T, _ any, err error) func(code string) oncegate.Problem {
	return func(code string) oncegate.Problem {
		failed := new(oncegate.GenericOpenAPIError)
		check(errors.As(err, &failed), err)
		found, isProblem := failed.Model().(oncegate.Problem)
		check(isProblem && found.Code == code, code, string(failed.Body()))
		return found
	}
}

func main() {
	configuration := oncegate.NewConfiguration()
	configuration.Servers[0].URL = os.Args[1]
	claims := oncegate.NewAPIClient(configuration).ClaimsAPI
	ctx := context.WithValue(context.Background(), oncegate.ContextAccessToken, os.Args[2])

	// An operation from its claim to its duplicate, with an object as contents and as result.
	order := map[string]any{"order_id": "go-" + nonce(), "lines": []any{1.0, 2.5, nil, true}}
	request := *oncegate.NewClaimRequest(order)
	request.SetOperation("order.submit")
	request.SetAttemptNonce(nonce())
	request.SetLease("30s")
	granted := good(claims.Claim(ctx).ClaimRequest(request).Execute())
	check(granted.State == oncegate.IN_PROGRESS && granted.Fence.IsSet() && *granted.Fence.Get() > 0, granted)
	check(granted.Degraded.Get() == nil && granted.LeaseMs > 20_000 && granted.LeaseMs <= 30_000, granted)
	check(good(claims.Claim(ctx).ClaimRequest(request).Execute()).Repeated, "not repeated")

	renewal := *oncegate.NewRenewalRequest(granted.Attempt)
	renewal.SetLease("2m")
	renewed := good(claims.RenewClaim(ctx, granted.GlobalId).RenewalRequest(renewal).Execute())
	check(renewed.LeaseMs > 60_000, renewed)
	other := request
	other.SetAttemptNonce(nonce())
	running := problem(claims.Claim(ctx).ClaimRequest(other).Execute())("duplicate")
	check(*running.State == oncegate.IN_PROGRESS && *running.RetryAfterMs > 0, running)

	success := *oncegate.NewOutcomeRequest(granted.Attempt, "success")
	success.SetResult(map[string]any{"order_number": 90017})
	taken := good(claims.SettleClaim(ctx, granted.GlobalId).OutcomeRequest(success).Execute())
	check(taken.State == "succeeded" && !*taken.Late.Get(), taken)
	done := problem(claims.Claim(ctx).ClaimRequest(request).Execute())("duplicate")
	check(*done.State == oncegate.SUCCEEDED, done)
	check(reflect.DeepEqual(done.Result, map[string]any{"order_number": 90017.0}), done.Result)

	record := good(claims.InspectClaim(ctx, granted.GlobalId).Execute())
	check(reflect.DeepEqual(record.Contents, order) && record.ExpiresAt.Get().After(time.Now()), record)

	// Contents of all other kinds, and all other outcomes.
	for _, other := range []struct {
		contents any
		outcome  string
		state    string
	}{
		{"go-" + nonce(), "failure", "released"},
		{float64(time.Now().UnixNano()%1_000_000_000) + 0.5, "unknown", "unknown"},
		{[]any{"go", nonce()}, "success", "succeeded"},
	} {
		held := good(claims.Claim(ctx).ClaimRequest(*oncegate.NewClaimRequest(other.contents)).Execute())
		report := *oncegate.NewOutcomeRequest(held.Attempt, other.outcome)
		settled := good(claims.SettleClaim(ctx, held.GlobalId).OutcomeRequest(report).Execute())
		check(settled.State == other.state, settled)
		again := *oncegate.NewClaimRequest(other.contents)
		again.SetTakeOver(true)
		again.SetAttemptNonce(nonce())
		if other.state == "succeeded" {
			found := problem(claims.Claim(ctx).ClaimRequest(again).Execute())("duplicate")
			check(found.Result == nil, found)
		} else {
			held = good(claims.Claim(ctx).ClaimRequest(again).Execute())
			check(held.GetTakenOver() == (other.state == "unknown"), held)
		}
	}

	// Batches: items are grants and problems.
	item := *oncegate.NewClaimRequest(map[string]any{"order_id": "go-" + nonce()})
	batch := *oncegate.NewClaimBatchRequest([]oncegate.ClaimRequest{item, item, *oncegate.NewClaimRequest("")})
	items := good(claims.ClaimBatch(ctx).ClaimBatchRequest(batch).Execute()).Items
	check(items[0].Status == 201 && items[1].Status == 409 && items[2].Status == 422, items)
	check(*items[1].Code == "duplicate" && *items[1].State == oncegate.IN_PROGRESS, items[1])
	report := *oncegate.NewOutcomeBatchRequestItem(*items[0].GlobalId, *items[0].Attempt, "success")
	wrong := *oncegate.NewOutcomeBatchRequestItem(*items[0].GlobalId, *items[0].Attempt, "failure")
	reports := *oncegate.NewOutcomeBatchRequest([]oncegate.OutcomeBatchRequestItem{report, wrong})
	outcomes := good(claims.SettleBatch(ctx).OutcomeBatchRequest(reports).Execute()).Items
	check(outcomes[0].Status == 200 && *outcomes[1].Code == "already_succeeded", outcomes)

	// Problems.
	soon := *oncegate.NewClaimRequest(1)
	soon.SetLease("soon")
	problem(claims.Claim(ctx).ClaimRequest(soon).Execute())("invalid_request")
	problem(claims.Claim(ctx).ClaimRequest(*oncegate.NewClaimRequest("")).Execute())("contents_empty")
	changed := request
	changed.SetFingerprint(1)
	problem(claims.Claim(ctx).ClaimRequest(changed).Execute())("fingerprint_mismatch")
	problem(claims.InspectClaim(ctx, "00000000000000000000000000000000").Execute())("not_found")
	stranger := context.WithValue(ctx, oncegate.ContextAccessToken, "nobody.aaaaaaaaaaaaaaaaaaaaaaaa")
	problem(claims.Claim(stranger).ClaimRequest(request).Execute())("unauthenticated")

	computed := good(claims.ComputeGlobalId(ctx).ClaimRequest(request).Execute())
	check(computed.GlobalId == granted.GlobalId, computed)

	// A later version adds fields and codes.
	later := new(oncegate.Problem)
	text, err := json.Marshal(done)
	check(err == nil, err)
	text = append([]byte(`{"field_of_a_later_version": [1], `), text[1:]...)
	check(json.Unmarshal(text, later) == nil && later.Code == "duplicate", string(text))
	fmt.Println("ok")
}
