package oncehttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// run runs the handler, detached from its caller, and completes the response when its outcome is reported.
func (e *exchange) run(grant *oncegate.Grant) (err error) {
	e.runs.begin()
	defer e.runs.end()
	defer grant.Stop()
	caller := e.r.Context()
	base := context.WithoutCancel(caller)
	if e.config.StopWhenGone {
		base = caller
	}
	granted := &Granted{Grant: grant, key: e.r.Header.Get(keyHeader), gone: caller.Done()}
	running, end := e.client.Span(context.WithValue(base, grantKey{}, granted), "oncegate run", e.config.Operation)
	ctx, cancel := context.WithTimeout(running, e.config.ExchangeMax)
	defer cancel()
	defer context.AfterFunc(ctx, grant.Stop)()
	if grant.Degraded != "" {
		e.w.Header().Set(degradedHeader, grant.Degraded)
	}
	recorded := newRecorder(e.Middleware, e.w, e.r)
	report := &reporter{exchange: e, granted: granted, recorded: recorded}
	returned := false
	defer func() {
		if returned {
			return
		}
		raised := recover()
		end(fmt.Errorf("oncehttp: the handler panicked: %v", raised))
		report.broken(base, raised)
		if raised != nil {
			// Outer layers get it with the frames of the handler, which are still on the stack.
			panic(raised)
		}
	}()
	err = e.next(recorded, forHandler(e.r.WithContext(ctx), e.body))
	returned = true
	end(err)
	report.answered(base, ctx.Err() != nil, err)
	return err
}

// reporter reports what happened.
type reporter struct {
	*exchange
	granted  *Granted
	recorded *recorder
}

// answered reports a handler that has returned, perhaps with an error that was answered.
func (p *reporter) answered(ctx context.Context, wasCut bool, err error) {
	if p.granted.isUnanswered() && p.recorded.status == 0 {
		p.unanswered(ctx, err)
		return
	}
	wasSilent := p.recorded.status == 0
	isComplete := p.recorded.finish()
	outcome, said := p.said(ctx, isComplete)
	switch {
	case said:
	case err != nil && p.isHarmless(err):
		outcome = oncegate.Failure
	case !isComplete, wasCut && (wasSilent || p.config.StopWhenGone):
		// A handler whose context ended may return without a word, which is no 200.
		outcome = oncegate.Unknown
	default:
		outcome = p.rules.outcomeOf(p.recorded.status)
	}
	p.settle(ctx, outcome, isComplete)
	p.recorded.release()
}

// broken reports a handler that has panicked.
func (p *reporter) broken(ctx context.Context, raised any) {
	err, _ := raised.(error)
	p.unanswered(ctx, err)
}

// unanswered reports a handler that has ended with an error, and without a complete response.
func (p *reporter) unanswered(ctx context.Context, err error) {
	outcome, said := oncegate.Unknown, false
	if p.recorded.status != 0 {
		outcome, said = p.said(ctx, false)
	} else if marked := p.granted.mark(); marked != "" {
		outcome, said = p.known(ctx, marked), true
	}
	if err != nil && !said && p.isHarmless(err) {
		outcome = oncegate.Failure
	}
	p.settle(ctx, outcome, false)
	p.recorded.ended = true
}

func (p *reporter) isHarmless(err error) bool {
	return errors.Is(err, oncegate.ErrNothingHappened) || p.config.ReleaseOn != nil && p.config.ReleaseOn(err)
}

// said returns the outcome that the handler has decided itself. A success in the head is one of the whole response: if that broke off, it is unknown.
func (p *reporter) said(ctx context.Context, isComplete bool) (outcome string, said bool) {
	if lines := p.recorded.outcome; len(lines) > 0 {
		outcome = p.known(ctx, strings.TrimSpace(strings.Join(lines, ", ")))
		if outcome == oncegate.Success && !isComplete {
			outcome = oncegate.Unknown
		}
		return outcome, true
	}
	if marked := p.granted.mark(); marked != "" {
		return p.known(ctx, marked), true
	}
	return oncegate.Unknown, false
}

// known returns an outcome. What cannot be understood is unknown: the handler meant to say something.
func (p *reporter) known(ctx context.Context, outcome string) string {
	if isOutcome(outcome) {
		return outcome
	}
	p.emit(ctx, "outcome_invalid", slog.LevelWarn, slog.String("outcome", outcome))
	return oncegate.Unknown
}

// settle reports the outcome. The client emits an event if no gateway takes it in time.
func (p *reporter) settle(ctx context.Context, outcome string, isComplete bool) {
	switch outcome {
	case oncegate.Success:
		if p.recorded.status == 0 {
			// It panicked after it had marked its grant.
			p.recorded.status, p.recorded.head = http.StatusInternalServerError, http.Header{}
		}
		_, _ = p.granted.Succeed(ctx, p.recorded.stored(isComplete, p.config.StorePrivate))
	case oncegate.Failure:
		_ = p.granted.Fail(ctx)
	default:
		_ = p.granted.GiveUp(ctx)
	}
}
