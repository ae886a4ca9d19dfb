package oncegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Result is the result of Once and Claim: *Done, *Duplicate, *Mismatch, or (of Claim) *Grant.
type Result interface {
	isResult()
}

// Done says that the work ran here, and its outcome was reported.
type Done struct {
	GlobalID string
	// Result is what the work returned.
	Result any
	// State is succeeded, observed, spooled (a gateway delivers it later), or empty if nothing was recorded (Proceed, or a disabled client).
	State string
	// Degraded is the outage policy that answered instead of the store, of the claim or else of the outcome; caller for Proceed, disabled for a client that
	// claims nothing.
	Degraded string
	// Late is true if the claim had ended before the outcome arrived, so that another attempt may have run. Nil: not known.
	Late *bool
	// WouldBe is, in observe mode, what enforcing would have answered.
	WouldBe string
	// ResultOmitted says why the result was not stored: it is not JSON, has more than 64 KiB, or was refused. The success itself was
	// recorded; duplicates learn in their ResultOmitted that there was one.
	ResultOmitted string
}

// Duplicate says that another attempt is running or has completed the operation.
type Duplicate struct {
	GlobalID string
	// State is in_progress, succeeded or unknown.
	State string
	// Result is the result stored with the success, if there is one.
	Result json.RawMessage
	// ResultOmitted says why there is none although the work had one: too_large, not_serialisable or refused.
	ResultOmitted string
	// RetryAfter says when it is worth asking again, while it is in progress.
	RetryAfter time.Duration
	ClaimedAt  *time.Time
	ExpiresAt  *time.Time
	// ContentsVerified is false for a record of a late outcome that came without its contents.
	ContentsVerified bool
	Degraded         string
	WouldBe          string
}

// Decode stores the result in what `into` points to. Without a result it does nothing; a result that was not stored is a
// *ResultNotStoredError.
func (d *Duplicate) Decode(into any) error {
	if d.ResultOmitted != "" {
		return &ResultNotStoredError{GlobalID: d.GlobalID, Omitted: d.ResultOmitted}
	}
	if len(d.Result) == 0 {
		return nil
	}
	return json.Unmarshal(d.Result, into)
}

// Mismatch says that the operation was claimed with another fingerprint, or with other contents of the same ID.
type Mismatch struct {
	GlobalID string
	// Code is contents_mismatch or fingerprint_mismatch.
	Code string
}

func (*Done) isResult()      {}
func (*Duplicate) isResult() {}
func (*Mismatch) isResult()  {}
func (*Grant) isResult()     {}

// States of a claim.
const (
	InProgress = "in_progress"
	Succeeded  = "succeeded"
	Unknown    = "unknown"
	Observed   = "observed"
	Spooled    = "spooled"
)

// Outcomes of an operation; the third is Unknown.
const (
	// Success means that it is done, and must never run again.
	Success = "success"
	// Failure means that nothing happened: it can be claimed again at once.
	Failure = "failure"
)

// ClaimOption sets a term of one claim.
type ClaimOption func(*terms)

type terms struct {
	fingerprint *any
	lease       time.Duration
	retention   time.Duration
	takeOver    bool
	isCautious  bool
	wait        time.Duration
	releaseOn   func(error) bool
}

// isHarmless reports if work that returned this error had no effect.
func (t *terms) isHarmless(err error) bool {
	return errors.Is(err, ErrNothingHappened) || t.releaseOn != nil && t.releaseOn(err)
}

// Fingerprint sets what else must be equal on a repeat, without being part of the identity. It has the form of contents.
func Fingerprint(fingerprint any) ClaimOption {
	return func(t *terms) { t.fingerprint = &fingerprint }
}

// Lease sets how long to hold the claim while in progress. The default is configured for the operation.
func Lease(lease time.Duration) ClaimOption {
	return func(t *terms) { t.lease = lease }
}

// Retention sets how long a success is kept against repeats; Forever is possible. The default is configured for the operation.
func Retention(retention time.Duration) ClaimOption {
	return func(t *terms) { t.retention = retention }
}

// TakeOver takes over a claim that is unknown. Only after its effect was looked up.
func TakeOver() ClaimOption {
	return func(t *terms) { t.takeOver = true }
}

// UnknownOnLeaseEnd makes the claim unknown if its lease ends without an outcome, also where the term of the operation releases it.
func UnknownOnLeaseEnd() ClaimOption {
	return func(t *terms) { t.isCautious = true }
}

// Wait waits up to this time for an operation that is in progress.
func Wait(wait time.Duration) ClaimOption {
	return func(t *terms) { t.wait = wait }
}

// ReleaseOn names errors of work that had no effect, in addition to ErrNothingHappened: the operation is released, and the error is returned unchanged.
func ReleaseOn(isHarmless func(error) bool) ClaimOption {
	return func(t *terms) { t.releaseOn = isHarmless }
}

// Once runs the work unless the operation is a duplicate, renews the claim while it runs, and reports the outcome. The result is
// *Done, *Duplicate or *Mismatch. Duplicates get what the work returns, as JSON.
//
// Work that returns ErrNothingHappened, alone or wrapped, or an error that ReleaseOn names, is reported as failure: the operation can be claimed again at
// once. After any other error or a panic the effect may have happened: the outcome is unknown. Both errors are returned as they are.
//
// If ctx ends before the claim is answered, a grant that crosses it is released. Reports are detached from ctx, and bounded by
// WithSettleWithin.
func (c *Client) Once(
	ctx context.Context, operation string, contents any, work func(context.Context, *Grant) (any, error), opts ...ClaimOption,
) (Result, error) {
	if work == nil {
		return nil, noWork()
	}
	result, err := c.Claim(ctx, operation, contents, opts...)
	grant, ok := result.(*Grant)
	if err != nil || !ok {
		return result, err
	}
	defer grant.Stop()
	completed := false
	defer func() {
		if !completed {
			_ = grant.GiveUp(ctx)
		}
	}()
	returned, err := func() (returned any, err error) {
		running, end := c.Span(ctx, "oncegate run", operation)
		defer func() { end(err) }()
		return work(running, grant)
	}()
	completed = true
	switch {
	case err != nil && grant.claim.terms.isHarmless(err):
		// The error of the work says more than one of this report. The claim ends with its lease.
		_ = grant.Fail(ctx)
		return nil, err
	case err != nil:
		_ = grant.GiveUp(ctx)
		return nil, err
	case endsLater(reflect.TypeOf(returned)):
		_ = grant.GiveUp(ctx)
		return nil, argument("the work returned a %T: it has not ended. Wait for it in the work, and return its result", returned)
	}
	done, err := grant.Succeed(ctx, returned)
	if err != nil {
		return nil, err
	}
	return done, nil
}

func noWork() error {
	return argument("there is no work: write func(ctx context.Context, grant *oncegate.Grant) (…, error)")
}

// Claim claims the operation. A *Grant is renewed until it is reported or stopped. Once does all of that for you.
func (c *Client) Claim(ctx context.Context, operation string, contents any, opts ...ClaimOption) (Result, error) {
	claim, err := c.newClaim(operation, contents, opts)
	if err != nil {
		return nil, err
	}
	if c.disabled {
		return newGrant(ctx, c, claim, nil), nil
	}
	result, err := c.traced(ctx, claim)
	var none *UnavailableError
	if errors.As(err, &none) {
		causes := slog.Any("causes", none.Causes)
		if !c.proceeds {
			c.event(ctx, claim.about.with("unavailable", slog.LevelWarn, causes))
			c.giveBack(ctx, claim)
			return nil, err
		}
		c.event(ctx, claim.about.with("proceeded", slog.LevelWarn, causes))
		return newGrant(ctx, c, claim, nil), nil
	}
	if err != nil {
		if !claim.abandoned {
			c.giveBack(ctx, claim)
		}
		return nil, err
	}
	return result, nil
}

// traced claims within a span.
func (c *Client) traced(ctx context.Context, claim *claim) (result Result, err error) {
	ctx, end := c.Span(ctx, "oncegate claim", claim.operation)
	defer func() { end(err, endOfClaim(result)...) }()
	return c.detached(ctx, claim)
}

// claim is one try at an operation: all repeats send the same parts.
type claim struct {
	operation string
	// The contents in canonical form.
	contents string
	globalID string
	body     []byte
	terms    terms
	about    Event
	nonce    string
	// uncertain is set if a try may have had an effect although no answer came.
	uncertain bool
	// abandoned is set if its caller has left before the answer.
	abandoned bool
}

// optionNames has the options of members of a claim.
var optionNames = map[string]string{"lease": "Lease", "retention": "Retention"}

func (c *Client) newClaim(operation string, contents any, opts []ClaimOption) (*claim, error) {
	text, err := Canonical(contents)
	if err != nil {
		return nil, err
	}
	claim := &claim{operation: operation, contents: text, globalID: globalID(c.app, operation, text), nonce: newNonce()}
	for _, opt := range opts {
		opt(&claim.terms)
	}
	claim.about = Event{Operation: operation, GlobalID: claim.globalID}
	members := map[string]json.RawMessage{"operation": quote(operation), "contents": json.RawMessage(text), "attempt_nonce": quote(claim.nonce)}
	if claim.terms.fingerprint != nil {
		fingerprint, _, err := canonical(*claim.terms.fingerprint)
		if err != nil {
			return nil, err
		}
		members["fingerprint"] = json.RawMessage(fingerprint)
	}
	if claim.terms.takeOver {
		members["take_over"] = json.RawMessage("true")
	}
	if claim.terms.isCautious {
		members["on_lease_end"] = quote(Unknown)
	}
	for name, length := range map[string]time.Duration{"lease": claim.terms.lease, "retention": claim.terms.retention} {
		if length == 0 {
			continue
		}
		text, err := duration(length)
		if err != nil {
			return nil, argument("%s: %v", optionNames[name], err)
		}
		members[name] = quote(text)
	}
	if claim.terms.wait < 0 {
		return nil, argument("Wait is %s: it must not be negative", claim.terms.wait)
	}
	claim.body, err = marshal(members)
	return claim, err
}

// detached claims in the background, so that no claim remains if the caller leaves.
func (c *Client) detached(ctx context.Context, claim *claim) (Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	background := context.WithoutCancel(ctx)
	if ctx.Done() == nil {
		return c.claimAndWait(background, claim, nil)
	}
	type claimed struct {
		result Result
		err    error
	}
	answered := make(chan claimed, 1)
	go func() {
		result, err := c.claimAndWait(background, claim, ctx.Done())
		answered <- claimed{result, err}
	}()
	select {
	case got := <-answered:
		if ctx.Err() == nil {
			return got.result, got.err
		}
		answered <- got
	case <-ctx.Done():
	}
	claim.abandoned = true
	go func() {
		late := <-answered
		if grant, ok := late.result.(*Grant); ok {
			_ = grant.Fail(background)
		} else if late.err != nil {
			c.giveBack(background, claim)
		}
	}()
	return nil, ctx.Err()
}

// waitMax is the longest wait of one call: proxies on the way may cut off a longer one.
const waitMax = 20 * time.Second

// claimAndWait repeats the claim while it is in progress and there is time to wait.
func (c *Client) claimAndWait(ctx context.Context, claim *claim, stop <-chan struct{}) (Result, error) {
	ends := c.now().Add(claim.terms.wait)
	for left := claim.terms.wait; ; {
		wait := min(left, waitMax)
		result, answer, err := c.tryClaim(ctx, claim, wait, stop)
		duplicate, ok := result.(*Duplicate)
		if err != nil || !ok || duplicate.State != InProgress {
			return result, err
		}
		pause := pauseBetweenWaits(wait, answer)
		if ends.Sub(c.now().Add(pause)) < time.Millisecond {
			c.eventOf(ctx, claim, result)
			return result, nil
		}
		if err := sleep(ctx, stop, pause); err != nil {
			return nil, err
		}
		left = max(time.Millisecond, ends.Sub(c.now()).Truncate(time.Millisecond))
	}
}

// pauseBetweenWaits is short if the gateway shortened the wait. If it did not wait at all, it is the pause that the gateway asks for.
func pauseBetweenWaits(wait time.Duration, answer *answer) time.Duration {
	if answer.WaitedMS > 0 && wait > 0 {
		return min(answer.retryAfter(), pauseMin)
	}
	return answer.retryAfter()
}

// tryClaim makes one claim call with its repeats.
func (c *Client) tryClaim(ctx context.Context, claim *claim, wait time.Duration, stop <-chan struct{}) (Result, *answer, error) {
	return c.sendClaim(ctx, claim, &call{body: withWait(claim.body, wait), within: c.claimWithin, wait: wait, stop: stop})
}

// claimLate claims once after work that ran without a claim, with the nonce of the first try.
func (c *Client) claimLate(ctx context.Context, claim *claim) (Result, error) {
	result, _, err := c.sendClaim(ctx, claim, &call{body: claim.body, within: c.timeout, once: true})
	return result, err
}

func (c *Client) sendClaim(ctx context.Context, claim *claim, r *call) (Result, *answer, error) {
	r.endpoint, r.method, r.path, r.first, r.about = "claim", "POST", "/v1/claims", int(c.first.Load()), claim.about
	r.genuine = func(a *answer) bool { return a.GlobalID != "" && a.Attempt != "" && a.LeaseMS > 0 }
	answer, err := c.do(ctx, r)
	claim.uncertain = err != nil && (claim.uncertain || r.uncertain)
	if err != nil {
		return nil, nil, err
	}
	c.first.Store(int64(answer.at))
	result := c.resultOf(ctx, claim, answer)
	if result == nil {
		return nil, nil, answer.rejected()
	}
	// claimAndWait decides about one that is in progress.
	if duplicate, ok := result.(*Duplicate); !ok || duplicate.State != InProgress {
		c.eventOf(ctx, claim, result)
	}
	if grant, ok := result.(*Grant); ok {
		if err := grant.sameIdentity(ctx); err != nil {
			return nil, nil, err
		}
	}
	if grant, ok := result.(*Grant); ok && !grant.IsLive() {
		grant.Stop()
		_ = grant.Fail(ctx)
		late := Cause{URL: c.servers[answer.at].url, Kind: KindTooLate, Detail: "the grant arrived after its lease had ended, and was released"}
		return nil, nil, &UnavailableError{Causes: []Cause{late}}
	}
	return result, answer, nil
}

// identityDiffers is the code of a grant of another identity than the client's own.
const identityDiffers = "identity_differs"

// sameIdentity releases a grant of another identity than the client's own, before the work: its repeats would be of another operation, or of none.
func (g *Grant) sameIdentity(ctx context.Context) error {
	if g.GlobalID == g.claim.globalID {
		return nil
	}
	_ = g.Fail(ctx)
	return &RejectedError{Status: 201, Code: identityDiffers, Detail: fmt.Sprintf(
		"the gateway granted the identity %s, but this client computes %s; the claim was released, and the work was not run. "+
			"Remove the credential if the gateway has no apps; otherwise use a client and a gateway with the same rules",
		g.GlobalID, g.claim.globalID)}
}

// resultOf returns nil if the answer is an error of the caller.
func (c *Client) resultOf(ctx context.Context, claim *claim, a *answer) Result {
	switch {
	case a.status < 300:
		return newGrant(ctx, c, claim, a)
	case a.status == 409:
		result, omitted := a.Result, omittedFrom(a.Result)
		if omitted != "" {
			result = nil
		}
		return &Duplicate{
			GlobalID: claim.globalID, State: a.State, Result: result, ResultOmitted: omitted, RetryAfter: a.retryAfter(), ClaimedAt: a.ClaimedAt,
			ExpiresAt: a.ExpiresAt, ContentsVerified: a.ContentsVerified == nil || *a.ContentsVerified, Degraded: a.Degraded, WouldBe: a.WouldBe,
		}
	case a.status == 422 && strings.HasSuffix(a.Code, "_mismatch"):
		return &Mismatch{GlobalID: claim.globalID, Code: a.Code}
	}
	return nil
}

func (c *Client) eventOf(ctx context.Context, claim *claim, result Result) {
	switch result := result.(type) {
	case *Grant:
		level := slog.LevelDebug
		if result.Degraded != "" {
			level = slog.LevelWarn
		}
		c.event(ctx, claim.about.with("granted", level, slog.Bool("repeated", result.Repeated), slog.Bool("taken_over", result.TakenOver),
			slog.String("degraded", result.Degraded), slog.String("would_be", result.WouldBe)))
	case *Duplicate:
		c.event(ctx, claim.about.with("duplicate", slog.LevelDebug, slog.String("state", result.State)))
	case *Mismatch:
		c.event(ctx, claim.about.with("mismatch", slog.LevelInfo, slog.String("code", result.Code)))
	}
}

// withWait adds the wait to a body.
func withWait(body []byte, wait time.Duration) []byte {
	if wait < time.Millisecond {
		return body
	}
	// It is whole, and not too long.
	text, _ := duration(wait.Truncate(time.Millisecond))
	added := append([]byte(nil), body[:len(body)-1]...)
	return append(added, `,"wait":"`+text+`"}`...)
}

// duration writes a duration as the gateway reads it, in the largest unit that keeps it whole.
func duration(length time.Duration) (string, error) {
	if length == Forever {
		return "forever", nil
	}
	if length < time.Millisecond || length%time.Millisecond != 0 {
		return "", fmt.Errorf("a duration is whole milliseconds, at least 1: not %s", length)
	}
	number, unit := length.Milliseconds(), "ms"
	for _, larger := range []struct {
		times int64
		unit  string
	}{{1000, "s"}, {60, "m"}, {60, "h"}, {24, "d"}} {
		if number%larger.times != 0 {
			break
		}
		number, unit = number/larger.times, larger.unit
	}
	if number > 999_999_999 {
		return "", fmt.Errorf("a duration is too long: %s", length)
	}
	return strconv.FormatInt(number, 10) + unit, nil
}

func quote(text string) json.RawMessage {
	quoted, err := json.Marshal(text)
	if err != nil {
		return json.RawMessage(`""`)
	}
	return quoted
}

func milliseconds(count int64) time.Duration {
	if count > math.MaxInt64/int64(time.Millisecond) {
		return Forever
	}
	return time.Duration(count) * time.Millisecond
}
