package oncegate

import (
	"context"
	"encoding/json"
	"log/slog"
)

// Settled is the answer to a report.
type Settled struct {
	GlobalID string
	// State is succeeded, released, unknown, observed or spooled.
	State         string
	Degraded      string
	Late          *bool
	ResultOmitted string
}

// report is JSON that every language reads. Keep its members.
type report struct {
	GlobalID  string          `json:"global_id,omitempty"`
	Attempt   string          `json:"attempt"`
	Outcome   string          `json:"outcome"`
	Operation string          `json:"operation,omitempty"`
	Contents  json.RawMessage `json:"contents,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Gateway   string          `json:"gateway,omitempty"`
}

// Succeed reports that the work is finished and must never run again, also if the answer is "declined". Duplicates get the result, unless it is nil.
// If it cannot be sent, the success is reported with a marker in its place: see Done.ResultOmitted, and Omitter.
func (g *Grant) Succeed(ctx context.Context, result any) (*Done, error) {
	done := &Done{GlobalID: g.GlobalID, Result: result, Degraded: g.Degraded, WouldBe: g.WouldBe}
	text, omitted := encodeOrOmit(result)
	if omitted != "" {
		g.client.event(ctx, g.claim.about.with("result_omitted", slog.LevelWarn, slog.String("why", omitted)))
	}
	settled, err := g.report(ctx, "success", text, result)
	if err != nil {
		return nil, err
	}
	done.State, done.Late, done.ResultOmitted = settled.State, settled.Late, omitted
	if done.ResultOmitted == "" {
		done.ResultOmitted = settled.ResultOmitted
	}
	if done.Degraded == "" {
		done.Degraded = settled.Degraded
	}
	return done, nil
}

// Fail reports that nothing happened: the operation can be claimed again at once.
func (g *Grant) Fail(ctx context.Context) error {
	_, err := g.report(ctx, "failure", nil, nil)
	return err
}

// GiveUp reports that it is not known if it happened. Repeats are stopped until an operator or a take-over settles it.
func (g *Grant) GiveUp(ctx context.Context) error {
	_, err := g.report(ctx, "unknown", nil, nil)
	return err
}

func (g *Grant) report(ctx context.Context, outcome string, text json.RawMessage, result any) (*Settled, error) {
	ctx = context.WithoutCancel(ctx)
	holder := g
	if g.client.disabled {
		return &Settled{GlobalID: g.GlobalID}, nil
	}
	if g.Attempt == "" {
		// Granted by this caller's own policy. If a gateway answers now, repeats are stopped from here on.
		late, err := g.client.claimLate(ctx, g.claim)
		granted, ok := late.(*Grant)
		if !ok {
			settled := &Settled{GlobalID: g.GlobalID}
			if err == nil {
				done := true
				settled.Late = &done
				if duplicate, ok := late.(*Duplicate); ok && duplicate.State == InProgress {
					g.client.eventOf(ctx, g.claim, late)
				}
			}
			return settled, nil
		}
		holder = granted
	}
	r := report{
		GlobalID: holder.GlobalID, Attempt: holder.Attempt, Outcome: outcome, Operation: g.claim.operation,
		Contents: json.RawMessage(g.claim.contents), Result: text, Gateway: g.client.servers[holder.at].url,
	}
	defer holder.Stop()
	return g.client.settle(ctx, r, result)
}

// Settle repeats a report until it is accepted. It is safe to repeat. A report that is not accepted in time is a *NotSettledError again.
func (c *Client) Settle(ctx context.Context, text string) (*Settled, error) {
	var r report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, argument("not a report: %v", err)
	}
	if !globalIDForm.MatchString(r.GlobalID) || r.Attempt == "" || r.Outcome == "" {
		return nil, argument("not a report: it needs global_id, attempt and outcome")
	}
	if c.disabled {
		return &Settled{GlobalID: r.GlobalID}, nil
	}
	var result any
	if len(r.Result) > 0 {
		result = r.Result
	}
	return c.settle(ctx, r, result)
}

func (c *Client) settle(ctx context.Context, r report, result any) (settled *Settled, err error) {
	ctx, end := c.Span(ctx, "oncegate outcome", r.Operation)
	defer func() {
		if settled != nil {
			end(err, spanAttrs(settled.State, settled.Degraded)...)
		} else {
			end(err)
		}
	}()
	kept, err := marshal(r)
	if err != nil {
		return nil, err
	}
	about := Event{Operation: r.Operation, GlobalID: r.GlobalID}
	outcome := slog.String("outcome", r.Outcome)
	omitted := ""
	answer, err := c.sendReport(ctx, r, about)
	if refused := refusal(answer, err); refused != nil && len(r.Result) > 0 {
		// The operation has succeeded, if its result can be stored or not.
		omitted = refused.Error()
		c.event(ctx, about.with("result_omitted", slog.LevelWarn, slog.String("why", omitted)))
		r.Result = substitute(result, omittedRefused)
		answer, err = c.sendReport(ctx, r, about)
	}
	if err == nil && answer.status == 422 {
		err = answer.rejected()
	}
	if err != nil {
		c.event(ctx, about.with("not_settled", slog.LevelError, outcome))
		return nil, &NotSettledError{Report: string(kept), Result: result, Err: err}
	}
	if answer.status == 409 {
		c.event(ctx, about.with("outcome_refused", slog.LevelError, outcome, slog.String("code", answer.Code)))
		return nil, &OutcomeRefusedError{Code: answer.Code, Result: result}
	}
	settled = &Settled{GlobalID: r.GlobalID, State: answer.State, Degraded: answer.Degraded, Late: answer.Late, ResultOmitted: omitted}
	if answer.status == 202 {
		settled.State = Spooled
	}
	level := slog.LevelDebug
	if settled.Late != nil && *settled.Late {
		level = slog.LevelWarn
	}
	late := slog.Any("late", nil)
	if settled.Late != nil {
		late = slog.Bool("late", *settled.Late)
	}
	c.event(ctx, about.with("reported", level, outcome, slog.String("state", settled.State), late, slog.String("degraded", settled.Degraded)))
	return settled, nil
}

func (c *Client) sendReport(ctx context.Context, r report, about Event) (*answer, error) {
	path, first := "/v1/claims/"+r.GlobalID+"/outcome", 0
	for at, server := range c.servers {
		if server.url == r.Gateway {
			first = at
		}
	}
	r.GlobalID, r.Gateway = "", ""
	body, err := marshal(r)
	if err != nil {
		return nil, err
	}
	return c.do(ctx, &call{
		endpoint: "outcome", method: "POST", path: path, body: body, within: c.settleWithin, first: first, genuine: hasGlobalID, about: about,
	})
}
