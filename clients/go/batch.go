package oncegate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// ClaimItem is one claim of a batch.
type ClaimItem struct {
	Operation string
	Contents  any
	Options   []ClaimOption
}

// Claimed is the answer to one item of a batch: a *Grant, *Duplicate or *Mismatch, or an error of this item.
type Claimed struct {
	Result Result
	Err    error
}

// Outcome is one report of a batch.
type Outcome struct {
	Grant *Grant
	// Outcome is Success, Failure or Unknown.
	Outcome string
	// Result goes with a success.
	Result any
}

// SettledItem is the answer to one item of a batch of outcomes.
type SettledItem struct {
	Settled *Settled
	Err     error
}

const batchMax = 1000

// ClaimBatch claims up to 1000 operations in one call. It is not atomic: each item has its own answer. Items that were not done (429,
// 5xx) are sent again with their nonces. Granted claims are renewed until they are reported or stopped.
func (c *Client) ClaimBatch(ctx context.Context, items []ClaimItem) ([]Claimed, error) {
	if len(items) == 0 || len(items) > batchMax {
		return nil, argument("a batch has 1 to %d items, not %d", batchMax, len(items))
	}
	claims := make([]*claim, len(items))
	bodies := make([]json.RawMessage, len(items))
	for at, item := range items {
		claim, err := c.newClaim(item.Operation, item.Contents, item.Options)
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", at, err)
		}
		if claim.terms.wait > 0 {
			return nil, argument("item %d: batches do not wait", at)
		}
		claims[at], bodies[at] = claim, claim.body
	}
	answered := make([]Claimed, len(items))
	if c.disabled {
		for at, claim := range claims {
			answered[at].Result = newGrant(ctx, c, claim, nil)
		}
		return answered, nil
	}
	err := c.batch(ctx, "/v1/claims/batch", c.claimWithin, int(c.first.Load()), bodies, func(at int, a *answer, err error) {
		if err != nil {
			answered[at].Err = err
			return
		}
		result := c.resultOf(ctx, claims[at], a)
		if result == nil {
			answered[at].Err = a.rejected()
			return
		}
		c.eventOf(ctx, claims[at], result)
		if grant, ok := result.(*Grant); ok {
			if err := grant.sameIdentity(ctx); err != nil {
				answered[at].Err = err
				return
			}
			if !grant.IsLive() {
				grant.lease.lose("not_renewed")
			}
		}
		answered[at].Result = result
	})
	if err != nil {
		return nil, err
	}
	return answered, nil
}

// SettleBatch reports up to 1000 outcomes in one call. Items that were not done are sent again. An item that no gateway accepts is a
// *NotSettledError with its report.
func (c *Client) SettleBatch(ctx context.Context, outcomes []Outcome) ([]SettledItem, error) {
	if len(outcomes) == 0 || len(outcomes) > batchMax {
		return nil, argument("a batch has 1 to %d items, not %d", batchMax, len(outcomes))
	}
	reports := make([]report, len(outcomes))
	bodies := make([]json.RawMessage, len(outcomes))
	settled := make([]SettledItem, len(outcomes))
	omitted := make([]string, len(outcomes))
	for at, outcome := range outcomes {
		g := outcome.Grant
		if g != nil && c.disabled {
			settled[at].Settled = &Settled{GlobalID: g.GlobalID}
			continue
		}
		if g == nil || g.Attempt == "" {
			return nil, argument("item %d: a grant of a gateway is needed", at)
		}
		var text json.RawMessage
		if outcome.Outcome == Success {
			text, omitted[at] = encodeOrOmit(outcome.Result)
		}
		reports[at] = report{
			GlobalID: g.GlobalID, Attempt: g.Attempt, Outcome: outcome.Outcome, Operation: g.claim.operation, Contents: json.RawMessage(g.claim.contents),
			Result: text, Gateway: c.servers[g.at].url,
		}
		body := reports[at]
		body.Gateway = ""
		encoded, err := marshal(body)
		if err != nil {
			return nil, err
		}
		bodies[at] = encoded
	}
	if c.disabled {
		return settled, nil
	}
	err := c.batch(context.WithoutCancel(ctx), "/v1/outcomes/batch", c.settleWithin, outcomes[0].Grant.at, bodies, func(at int, a *answer, err error) {
		defer outcomes[at].Grant.Stop()
		switch {
		case err == nil && a.status == 409:
			settled[at].Err = &OutcomeRefusedError{Code: a.Code, Result: outcomes[at].Result}
		case err == nil && a.status < 300:
			settled[at].Settled = &Settled{GlobalID: a.GlobalID, State: a.State, Degraded: a.Degraded, Late: a.Late, ResultOmitted: omitted[at]}
		default:
			if err == nil {
				err = a.rejected()
			}
			kept, _ := marshal(reports[at])
			settled[at].Err = &NotSettledError{Report: string(kept), Result: outcomes[at].Result, Err: err}
		}
	})
	if err != nil {
		return nil, err
	}
	return settled, nil
}

// batch sends the items until each has an answer or time is over, and passes each answer on once.
func (c *Client) batch(ctx context.Context, path string, within time.Duration, first int, bodies []json.RawMessage, answered func(int, *answer, error)) error {
	ends := c.now().Add(within)
	open := make([]int, len(bodies))
	for at := range open {
		open[at] = at
	}
	for round := 1; ; round++ {
		var body bytes.Buffer
		body.WriteString(`{"items":[`)
		for position, at := range open {
			if position > 0 {
				body.WriteByte(',')
			}
			body.Write(bodies[at])
		}
		body.WriteString("]}")
		left := within
		if within != Forever {
			left = max(ends.Sub(c.now()), time.Millisecond)
		}
		a, err := c.do(ctx, &call{
			endpoint: "batch", method: "POST", path: path, body: body.Bytes(), within: left, first: first,
			genuine: func(a *answer) bool { return len(a.Items) == len(open) },
		})
		if err == nil && a.status >= 300 {
			err = a.rejected()
		}
		if err != nil {
			if round == 1 {
				return err
			}
			for _, at := range open {
				answered(at, nil, err)
			}
			return nil
		}
		first = a.at
		var again []int
		var last []*answer
		pause := time.Duration(0)
		for position, text := range a.Items {
			at := open[position]
			item := &answer{sent: a.sent, at: a.at}
			var status struct {
				Status int `json:"status"`
			}
			if json.Unmarshal(text, item) != nil || json.Unmarshal(text, &status) != nil {
				answered(at, nil, &UnavailableError{Causes: []Cause{{URL: c.servers[a.at].url, Kind: KindNotAGateway, Detail: "an item of a batch is no answer"}}})
				continue
			}
			item.status = status.Status
			if item.status == 429 || item.status >= 500 {
				again, last = append(again, at), append(last, item)
				if item.RetryAfterMS != nil {
					pause = max(pause, item.retryAfter())
				}
				continue
			}
			answered(at, item, nil)
		}
		if len(again) == 0 {
			return nil
		}
		pause = max(pause, time.Duration(c.jitter()*float64(min(pauseMax, pauseMin<<min(round, 10)))))
		if within != Forever && c.now().Add(pause).After(ends) || sleep(ctx, nil, pause) != nil {
			for position, at := range again {
				answered(at, nil, c.givenUp(last[position]))
			}
			return nil
		}
		open = again
	}
}

// givenUp returns the error of an item that was not done in time.
func (c *Client) givenUp(a *answer) error {
	if a.status == 429 {
		return a.rejected()
	}
	return &UnavailableError{Causes: []Cause{{
		URL: c.servers[a.at].url, Kind: KindAnswer, Detail: fmt.Sprintf("%d %.100s: %.300s", a.status, a.Code, a.Detail),
		Status: a.status, Code: a.Code, RequestID: a.RequestID,
	}}}
}
