package oncegate

import (
	"context"
	"errors"
	"time"
)

// Decision says what to do with a message.
type Decision struct {
	Action Action
	// Delay is the least time before a redelivery.
	Delay time.Duration
	// Result is the result of Once, if it had one.
	Result Result
	// Err is the error that led to the decision: log it.
	Err error
}

// Action is what a consumer does with a message.
type Action string

const (
	// Ack says that the message is done, here or before.
	Ack Action = "ack"
	// Redeliver brings the message again later: in progress, no gateway, a quota, nothing happened.
	Redeliver Action = "redeliver"
	// Park keeps the message in a separate queue, for a program or a person who looks up the effect and takes over: its outcome is unknown.
	Park Action = "park"
	// DeadLetter puts a message aside that a repeat cannot correct.
	DeadLetter Action = "dead_letter"
)

// Consumer handles messages of one operation. Brokers' adapters carry its decisions out.
type Consumer[M any] struct {
	Client    *Client
	Operation string
	// Contents derives from a message what makes two messages the same: a payout number, never the ID of the delivery.
	Contents func(M) (any, error)
	// Handle does the work. It returns ErrNothingHappened, alone or wrapped, or an error that the option ReleaseOn names, if it had no effect.
	Handle func(context.Context, M, *Grant) (any, error)
	// Options are the terms of the claims.
	Options []ClaimOption
	// RedeliverAfter is the delay where the gateway names none. Default 5 s.
	RedeliverAfter time.Duration
	// MaxFailures is the number of runs that may end with ErrNothingHappened before a message is poison. Default 3.
	MaxFailures int
	// KeepReport stores the report of an outcome that no gateway accepted, to be passed to Client.Settle later. Without it the message
	// is redelivered.
	KeepReport func(context.Context, string) error
	// OnDecision sees each decision, for logs and metrics.
	OnDecision func(context.Context, M, Decision)
}

// ConsumeOnce handles one message, and returns what to do with it. failures is the number of earlier runs of this message that ended
// with ErrNothingHappened. Acknowledge nothing before it has returned.
func (c *Consumer[M]) ConsumeOnce(ctx context.Context, message M, failures int) Decision {
	var decision Decision
	if contents, err := c.Contents(message); err != nil {
		decision = Decision{Action: DeadLetter, Err: err}
	} else {
		// An error of the work may be, or wrap, an error of this package: it says nothing about this claim.
		var workErr error
		result, err := c.Client.Once(ctx, c.Operation, contents, func(ctx context.Context, grant *Grant) (any, error) {
			var returned any
			returned, workErr = c.Handle(ctx, message, grant)
			return returned, workErr
		}, c.Options...)
		if workErr != nil && !errors.Is(workErr, ErrNothingHappened) && c.terms().isHarmless(workErr) {
			workErr = NothingHappened(workErr)
			err = workErr
		}
		decision = c.decide(ctx, result, err, workErr, failures)
	}
	if c.OnDecision != nil {
		c.OnDecision(ctx, message, decision)
	}
	return decision
}

func (c *Consumer[M]) terms() *terms {
	set := &terms{}
	for _, opt := range c.Options {
		opt(set)
	}
	return set
}

// Failed reports if the decision counts as a failure of its message.
func (d Decision) Failed() bool {
	return errors.Is(d.Err, ErrNothingHappened)
}

func (c *Consumer[M]) decide(ctx context.Context, result Result, err, workErr error, failures int) Decision {
	decision := Decision{Result: result, Err: err, Delay: c.RedeliverAfter}
	if decision.Delay <= 0 {
		decision.Delay = 5 * time.Second
	}
	maxFailures := c.MaxFailures
	if maxFailures <= 0 {
		maxFailures = 3
	}
	var (
		rejected  *RejectedError
		refused   *OutcomeRefusedError
		unsettled *NotSettledError
		contents  *NotCanonicalError
	)
	switch {
	case errors.Is(workErr, ErrNothingHappened):
		decision.Action = Redeliver
		if failures+1 >= maxFailures {
			decision.Action, decision.Delay = DeadLetter, 0
		}
	case workErr != nil:
		decision.Action, decision.Delay = Park, 0
	case err == nil:
		decision.ofResult(result)
	case errors.As(err, &unsettled):
		decision.Action = Redeliver
		if c.KeepReport != nil && c.KeepReport(context.WithoutCancel(ctx), unsettled.Report) == nil {
			decision.Action, decision.Delay = Ack, 0
		}
	case errors.As(err, &refused):
		// The work is done, and only a person can help. The error is in the log.
		decision.Action, decision.Delay = Ack, 0
	case errors.As(err, &contents):
		decision.Action, decision.Delay = DeadLetter, 0
	case errors.As(err, &rejected):
		decision.ofRejection(rejected)
	default:
		// No gateway, or the consumer is being stopped: the work was not started.
		decision.Action = Redeliver
	}
	return decision
}

func (d *Decision) ofResult(result Result) {
	switch result := result.(type) {
	case *Duplicate:
		switch result.State {
		case Succeeded:
			d.Action, d.Delay = Ack, 0
		case InProgress:
			d.Action, d.Delay = Redeliver, result.RetryAfter
		default:
			d.Action, d.Delay = Park, 0
		}
	case *Mismatch:
		d.Action, d.Delay = DeadLetter, 0
	default:
		d.Action, d.Delay = Ack, 0
	}
}

// ofRejection distinguishes mistakes in the message from those of the caller, which say nothing about it.
func (d *Decision) ofRejection(rejected *RejectedError) {
	d.Action = Redeliver
	if rejected.Code == identityDiffers {
		return
	}
	switch rejected.Status {
	case 429:
		if rejected.RetryAfterMS > 0 {
			d.Delay = milliseconds(rejected.RetryAfterMS)
		}
	case 401, 403, 404, 405:
	default:
		d.Action, d.Delay = DeadLetter, 0
	}
}
