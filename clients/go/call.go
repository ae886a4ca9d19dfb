package oncegate

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"time"
)

const (
	pauseMin = 50 * time.Millisecond
	pauseMax = time.Second
	// A shorter try says nothing about the gateway. So a first round is completed, even if it ends a little late.
	tryMin = 100 * time.Millisecond
)

// call is one call and its repeats. All carry the same body, so the gateway recognises the nonce or the attempt in it.
type call struct {
	// For metrics: claim, outcome, renewal, lookup, batch or lock.
	endpoint     string
	method, path string
	body         []byte
	// within limits all tries.
	within time.Duration
	// wait is the time that the call asks the gateway to wait: it is added to the timeout of one try.
	wait time.Duration
	// first is the position of the gateway to begin with.
	first int
	// stop ends the tries, but not the one in flight.
	stop <-chan struct{}
	// once ends the tries after one round through all gateways.
	once    bool
	genuine func(*answer) bool
	// For events.
	about Event
	// uncertain is set when a try may have had an effect although no answer came.
	uncertain bool
}

var traceparentForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

func hasGlobalID(a *answer) bool { return a.GlobalID != "" }

// do calls one gateway after the other until one has answered: with 2xx, 409, 422 or, on a lookup, 404. Other answers are errors.
func (c *Client) do(ctx context.Context, r *call) (*answer, error) {
	ends := c.now().Add(r.within + r.wait)
	if r.within == Forever {
		ends = time.Time{}
	}
	causes := make([]*Cause, len(c.servers))
	headers := c.headersOf(ctx)
	resent, shortest := false, Forever
	for tries := 1; ; tries++ {
		if stopped(r.stop) {
			return nil, context.Canceled
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		at := (r.first + tries - 1) % len(c.servers)
		// The lease counts from here: the answer may take long.
		sent := c.now()
		timeout := c.timeout + r.wait
		cut := false
		if left := ends.Sub(sent); !ends.IsZero() && left < timeout {
			timeout, cut = min(timeout, max(left, tryMin)), true
		}
		answer, cause := c.servers[at].send(ctx, timeout, r.method, r.path, headers.Clone(), r.body, r.genuine)
		c.measure(r.endpoint, answer, cause, c.now().Sub(sent))
		if err := ctx.Err(); cause != nil && err != nil {
			r.uncertain = true
			return nil, err
		}
		if answer != nil {
			answer.sent, answer.at = sent, at
			switch status := answer.status; {
			case status < 300 || status == 409 || status == 422 || status == 404 && r.endpoint == "lookup":
				return answer, nil
			case status < 500 && status != 429:
				return nil, answer.rejected()
			}
			cause = &Cause{
				URL: c.servers[at].url, Kind: KindAnswer, Detail: fmt.Sprintf("%d %.100s: %.300s", answer.status, answer.Code, answer.Detail),
				Status: answer.status, Code: answer.Code, RequestID: answer.RequestID,
			}
		}
		r.uncertain = r.uncertain || mayHaveActed(cause)
		// A try that was cut short adds no information.
		if cause.Kind != KindTimeout || !cut || causes[at] == nil {
			causes[at] = cause
		}
		c.event(ctx, r.about.with("retry", slog.LevelInfo, slog.Any("cause", *cause)))
		if cause.Kind == KindConnection && !resent {
			// Most likely the gateway had closed a kept connection.
			resent = true
			tries--
			continue
		}
		var pause time.Duration
		refused := answer != nil && answer.status == 429
		if refused {
			pause = answer.retryAfter()
		}
		if answer == nil || answer.RetryAfterMS == nil {
			shortest = 0
		} else {
			shortest = min(shortest, answer.retryAfter())
		}
		if tries%len(c.servers) == 0 {
			// Full jitter: callers that failed together do not come back together.
			limit := min(pauseMax, pauseMin<<min(tries/len(c.servers), 10))
			pause = max(pause, shortest, 1+time.Duration(c.jitter()*float64(limit)))
			shortest = Forever
		}
		if r.once && tries >= len(c.servers) || pause > 0 && !ends.IsZero() && c.now().Add(pause).After(ends) {
			if refused {
				return nil, answer.rejected()
			}
			return nil, unavailable(causes, r)
		}
		if err := sleep(ctx, r.stop, pause); err != nil {
			return nil, err
		}
	}
}

// unavailable returns the error of a call, with its causes in the order of the tries.
func unavailable(causes []*Cause, r *call) *UnavailableError {
	err := &UnavailableError{MayHaveActed: r.uncertain}
	for at := range causes {
		if cause := causes[(r.first+at)%len(causes)]; cause != nil {
			err.Causes = append(err.Causes, *cause)
		}
	}
	return err
}

// mayHaveActed reports if the call may have had an effect. A gateway that answers overloaded or draining has not started it.
func mayHaveActed(cause *Cause) bool {
	switch cause.Kind {
	case KindDNS, KindRefused, KindTLS:
		return false
	case KindAnswer:
		return cause.Status == 500 || cause.Code == "outcome_unknown"
	}
	return true
}

func (c *Client) headersOf(ctx context.Context) http.Header {
	headers := c.headers.Clone()
	headers.Set("Content-Type", "application/json")
	// A value that is not one would make the transport refuse every call.
	if traceparent := c.traceparent(ctx); traceparentForm.MatchString(traceparent) {
		headers.Set("Traceparent", traceparent)
	}
	return headers
}

func stopped(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

func sleep(ctx context.Context, stop <-chan struct{}, pause time.Duration) error {
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-stop:
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}
