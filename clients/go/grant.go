package oncegate

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Grant is the right to run one operation, until its lease ends. It is renewed in the background until it is reported or stopped.
type Grant struct {
	GlobalID string
	// Attempt proves that the claim is held: keep it like a secret. It is empty if no gateway answered (Proceed), or the client is disabled.
	Attempt string
	// Fence rises with every attempt at the operation, for the resource to compare. Nil where the store has none.
	Fence *int64
	// Repeated is true if a repeat of the claim call found the claim that it had been granted.
	Repeated  bool
	TakenOver bool
	// Degraded is the outage policy that granted the claim; caller if no gateway answered, disabled for a client that claims nothing.
	Degraded string
	// WouldBe is, in observe mode, what enforcing would have answered. Such a grant holds nothing.
	WouldBe string

	client *Client
	claim  *claim
	// The gateway that granted.
	at    int
	lease *lease
}

func newGrant(ctx context.Context, c *Client, claim *claim, a *answer) *Grant {
	g := &Grant{GlobalID: claim.globalID, Degraded: "caller", client: c, claim: claim}
	if a == nil {
		if c.disabled {
			g.Degraded = "disabled"
		}
		g.lease = newLease(c, time.Time{})
		return g
	}
	g.GlobalID, g.Attempt, g.Fence, g.at = a.GlobalID, a.Attempt, a.Fence, a.at
	g.Repeated, g.TakenOver, g.Degraded, g.WouldBe = a.Repeated, a.TakenOver, a.Degraded, a.WouldBe
	if g.WouldBe != "" {
		// There is nothing to renew or to lose.
		g.lease = newLease(c, time.Time{})
		return g
	}
	g.lease = newLease(c, a.leaseEnds())
	g.lease.keep(ctx, keeper{
		first: a.at, endpoint: "renewal", path: "/v1/claims/" + a.GlobalID + "/renewal", attempt: a.Attempt, about: claim.about, genuine: hasGlobalID,
		event: "lost",
	})
	return g
}

// IsLive reports if the claim is still live by this clock, to check before an effect that cannot be undone. Only the fence closes the gap.
func (g *Grant) IsLive() bool { return g.lease.isLive() }

// Lost is closed when the claim was lost while the work runs: see LostReason. Report the outcome all the same.
func (g *Grant) Lost() <-chan struct{} { return g.lease.lost }

// LostReason is lease_lost, superseded or already_succeeded by the answer to a renewal, not_renewed if none came in time, or empty.
func (g *Grant) LostReason() string { return g.lease.lostReason() }

// Renew renews the claim now, in addition to the renewal in the background. An error does not change the claim.
func (g *Grant) Renew(ctx context.Context) error {
	if g.Attempt == "" || g.WouldBe != "" {
		return nil
	}
	return g.lease.renew(ctx, g.client.timeout)
}

// Stop ends the renewal. A claim that was not reported ends with its lease.
func (g *Grant) Stop() { g.lease.stop() }

// lease is kept by renewal in the background. Without an end there is nothing to keep.
type lease struct {
	client *Client
	keeper keeper
	lost   chan struct{}
	// The renewal ends with this context.
	running context.Context
	stop    context.CancelFunc

	mu     sync.Mutex
	ends   time.Time
	reason string
}

// keeper says how a lease is renewed.
type keeper struct {
	first          int
	endpoint, path string
	attempt        string
	// lease is the one that the caller asked for, where the gateway would otherwise take its default.
	lease   string
	about   Event
	genuine func(*answer) bool
	// The name of the event when it is lost.
	event string
}

func newLease(c *Client, ends time.Time) *lease {
	return &lease{client: c, ends: ends, lost: make(chan struct{}), stop: func() {}}
}

func (l *lease) isLive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason == "" && (l.ends.IsZero() || l.client.now().Before(l.ends))
}

func (l *lease) lostReason() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reason
}

func (l *lease) keep(ctx context.Context, k keeper) {
	l.keeper = k
	l.running, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	// If it has ended already, the caller releases it or calls it lost.
	if left := l.left(); left > 0 {
		go l.run(left)
	}
}

// run renews at a third of the rest. This leaves time to repeat a lost answer.
func (l *lease) run(left time.Duration) {
	for ; ; left = l.left() {
		if left <= 0 {
			l.lose("not_renewed")
			return
		}
		if sleep(l.running, nil, max(left/3, time.Millisecond)) != nil {
			return
		}
		if left = l.left(); left <= 0 {
			continue
		}
		// Without an answer it is repeated for as long as the lease lasts.
		_ = l.renew(l.running, left)
		if l.running.Err() != nil || l.lostReason() != "" {
			return
		}
	}
}

func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends.Sub(l.client.now())
}

func (l *lease) renew(ctx context.Context, within time.Duration) error {
	k := l.keeper
	body := `{"attempt":` + string(quote(k.attempt))
	if k.lease != "" {
		body += `,"lease":"` + k.lease + `"`
	}
	a, err := l.client.do(ctx, &call{
		endpoint: k.endpoint, method: "POST", path: k.path, body: []byte(body + "}"),
		within: within, first: k.first, genuine: k.genuine, about: k.about,
	})
	if err != nil {
		return err
	}
	if a.status >= 300 {
		l.lose(a.Code)
		return a.rejected()
	}
	l.mu.Lock()
	if ends := a.leaseEnds(); ends.After(l.ends) {
		l.ends = ends
	}
	l.mu.Unlock()
	l.client.event(ctx, k.about.with("renewed", slog.LevelDebug))
	return nil
}

// lose ends the lease, unless the outcome was reported before.
func (l *lease) lose(reason string) {
	l.mu.Lock()
	if l.running.Err() != nil || l.reason != "" {
		l.mu.Unlock()
		return
	}
	l.reason = reason
	l.mu.Unlock()
	l.client.event(l.running, l.keeper.about.with(l.keeper.event, slog.LevelWarn, slog.String("code", reason)))
	close(l.lost)
	l.stop()
}
