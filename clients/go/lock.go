package oncegate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"
)

// Locker acquires one lock. It holds nothing itself, and can be used again and from many goroutines.
type Locker struct {
	client *Client
	name   string
	mode   string
	owner  string
	lease  time.Duration
	fair   bool
	limit  *int
	err    error
}

// LockOption sets a term of a lock.
type LockOption func(*Locker)

// Shared lets others hold the lock that ask for it shared too. The default is exclusive.
func Shared() LockOption {
	return func(l *Locker) { l.mode = "shared" }
}

// Owner names the thread, process or workflow that asks: an owner that holds the lock gets another hold at once. 16 to 64 of
// [A-Za-z0-9_-]. The default is that each hold is its own owner.
func Owner(owner string) LockOption {
	return func(l *Locker) { l.owner = owner }
}

// LockLease sets how long a hold lasts without renewal. The default is the gateway's.
func LockLease(lease time.Duration) LockOption {
	return func(l *Locker) { l.lease = lease }
}

// Fair grants requests in the order in which they first asked.
func Fair() LockOption {
	return func(l *Locker) { l.fair = true }
}

// Limit shares the lock with at most so many holds at once, 2 to 1000, as a semaphore does: for Shared holds only. All that hold it at the
// same time name the same limit, and an owner has no more than others. Another limit in use is a *LockNotAcquiredError.
func Limit(holds int) LockOption {
	return func(l *Locker) { l.limit = &holds }
}

var (
	lockNameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	ownerForm    = regexp.MustCompile(`^[A-Za-z0-9_-]{16,64}$`)
)

// Lock returns a Locker for the lock with this name. A wrong name, owner or limit is an *ArgumentError of Acquire.
func (c *Client) Lock(name string, opts ...LockOption) *Locker {
	l := &Locker{client: c, name: name, mode: "exclusive"}
	for _, opt := range opts {
		opt(l)
	}
	switch {
	case !lockNameForm.MatchString(name):
		l.err = argument("not the name of a lock: %.130q; expected 1 to 128 of A-Z a-z 0-9 . _ : -, beginning with a letter or digit", name)
	case l.owner != "" && !ownerForm.MatchString(l.owner):
		l.err = argument("not an owner: expected 16 to 64 of A-Z a-z 0-9 _ -")
	case l.limit != nil && l.mode != "shared":
		l.err = argument("Limit: only shared holds have a limit; give Shared() with it")
	case l.limit != nil && (*l.limit < 2 || *l.limit > 1000):
		l.err = argument("Limit: a limit is a number of holds from 2 to 1000, such as 4; for one, request the lock in mode exclusive")
	}
	return l
}

// Hold is one acquisition of a lock. It is renewed in the background until it is released.
type Hold struct {
	Name string
	// Mode is exclusive or shared.
	Mode string
	// Attempt proves the hold: keep it like a secret.
	Attempt string
	// Fence rises whenever the lock becomes held or changes its mode, for the resource to compare.
	Fence int64
	// Holds is the number of holds that the owner has.
	Holds int64

	locker *Locker
	at     int
	lease  *lease
}

// Acquire acquires the lock, and waits up to this time for it: 0 tries once, Forever waits until ctx ends. A lock that is held until
// then, or is refused, is a *LockNotAcquiredError. Locks always fail closed: no answer is an *UnavailableError.
func (l *Locker) Acquire(ctx context.Context, wait time.Duration) (*Hold, error) {
	if l.err != nil {
		return nil, l.err
	}
	if wait < 0 {
		return nil, argument("the wait is %s: it must not be negative", wait)
	}
	nonce := newNonce()
	body, err := l.body(nonce)
	if err != nil {
		return nil, err
	}
	if l.client.disabled {
		return &Hold{Name: l.name, Mode: l.mode, Holds: 1, locker: l, lease: newLease(l.client, time.Time{})}, nil
	}
	ends := l.client.now().Add(wait)
	if wait == Forever {
		ends = l.client.now().Add(100 * 365 * 24 * time.Hour)
	}
	// A request whose reply was lost may hold the lock or a place in its queue.
	uncertain := l.fair
	for left := min(wait, waitMax); ; left = max(time.Millisecond, min(ends.Sub(l.client.now()).Truncate(time.Millisecond), waitMax)) {
		r := call{
			endpoint: "lock", method: "POST", path: l.path("holds"), body: withWait(body, left), within: l.client.claimWithin, wait: left,
			first: int(l.client.first.Load()), genuine: func(a *answer) bool { return a.Attempt != "" && a.LeaseMS > 0 }, about: l.about(),
		}
		a, err := l.client.do(ctx, &r)
		uncertain = uncertain || r.uncertain
		if err != nil {
			return nil, l.failed(ctx, err, nonce, r.first, uncertain)
		}
		l.client.first.Store(int64(a.at))
		if a.status < 300 {
			if a.Name != l.name {
				l.withdraw(ctx, nonce, a.at)
				return nil, l.lockDiffers(a.Name)
			}
			return l.held(ctx, a)
		}
		if a.status == 422 {
			return nil, a.rejected()
		}
		pause := pauseBetweenWaits(left, a)
		if l.fair {
			// A ticket lives while its request polls.
			pause = min(pause, time.Second)
		}
		if a.Code == "lock_held" && ends.Sub(l.client.now().Add(pause)) >= time.Millisecond {
			if err := sleep(ctx, nil, pause); err != nil {
				return nil, l.failed(ctx, err, nonce, a.at, uncertain)
			}
			continue
		}
		l.client.event(ctx, l.about().with("lock_held", slog.LevelDebug, slog.String("code", a.Code)))
		if uncertain {
			l.withdraw(ctx, nonce, a.at)
		}
		return nil, &LockNotAcquiredError{Name: l.name, Code: a.Code, RetryAfterMS: a.retryAfter().Milliseconds(), Limit: a.Limit}
	}
}

// Do acquires the lock, runs the work and releases the lock. The work stops when hold.Lost() is closed.
func (l *Locker) Do(ctx context.Context, wait time.Duration, work func(context.Context, *Hold) error) error {
	hold, err := l.Acquire(ctx, wait)
	if err != nil {
		return err
	}
	defer func() { _ = hold.Release(ctx) }()
	return work(ctx, hold)
}

func (l *Locker) about() Event { return Event{Operation: l.name} }

func (l *Locker) path(call string) string { return "/v1/locks/" + l.name + "/" + call }

func (l *Locker) body(nonce string) ([]byte, error) {
	members := map[string]any{"mode": l.mode, "attempt_nonce": nonce}
	if l.owner != "" {
		members["owner"] = l.owner
	}
	if l.fair {
		members["fair"] = true
	}
	if l.limit != nil {
		members["limit"] = *l.limit
	}
	lease, err := l.leaseText()
	if err != nil {
		return nil, err
	}
	if lease != "" {
		members["lease"] = lease
	}
	return marshal(members)
}

func (l *Locker) leaseText() (string, error) {
	if l.lease == 0 {
		return "", nil
	}
	text, err := duration(l.lease)
	if err != nil {
		return "", argument("LockLease: %v", err)
	}
	return text, nil
}

// lockDiffers is the error of a grant of another lock than this one: it would protect nothing that others ask for.
func (l *Locker) lockDiffers(granted string) error {
	return &RejectedError{Status: 201, Code: identityDiffers, Detail: fmt.Sprintf(
		"the gateway granted the lock %.130q for %q; the request was withdrawn, and nothing has run. Is something between client and gateway "+
			"that changes paths?", granted, l.name)}
}

func (l *Locker) held(ctx context.Context, a *answer) (*Hold, error) {
	h := &Hold{Name: l.name, Mode: a.Mode, Attempt: a.Attempt, locker: l, at: a.at}
	if a.Fence != nil {
		h.Fence = *a.Fence
	}
	if a.Holds != nil {
		h.Holds = *a.Holds
	}
	h.lease = newLease(l.client, a.leaseEnds())
	// It was checked when the lock was requested.
	lease, _ := l.leaseText()
	h.lease.keep(ctx, keeper{
		first: a.at, endpoint: "lock", path: l.path("renewal"), attempt: a.Attempt, lease: lease, about: l.about(),
		genuine: func(a *answer) bool { return a.LeaseMS > 0 }, event: "lock_lost",
	})
	l.client.event(ctx, l.about().with("lock_acquired", slog.LevelDebug, slog.Int64("fence", h.Fence)))
	if !h.IsLive() {
		_ = h.Release(ctx)
		late := Cause{URL: l.client.servers[a.at].url, Kind: KindTooLate, Detail: "the hold arrived after its lease had ended, and was released"}
		return nil, &UnavailableError{Causes: []Cause{late}}
	}
	return h, nil
}

// failed withdraws a hold that may have been acquired. A caller that has left does not wait for it.
func (l *Locker) failed(ctx context.Context, err error, nonce string, at int, uncertain bool) error {
	cancelled := ctx.Err() != nil
	if !cancelled && !uncertain {
		return err
	}
	if cancelled {
		go l.withdraw(ctx, nonce, at)
		return ctx.Err()
	}
	l.withdraw(ctx, nonce, at)
	return err
}

func (l *Locker) withdraw(ctx context.Context, nonce string, at int) {
	body := []byte(`{"attempt_nonce":"` + nonce + `"}`)
	_, _ = l.client.do(context.WithoutCancel(ctx), l.release(body, at, l.client.timeout))
}

func (l *Locker) release(body []byte, at int, within time.Duration) *call {
	return &call{
		endpoint: "lock", method: "POST", path: l.path("release"), body: body, within: within, first: at, about: l.about(),
		genuine: func(a *answer) bool { return a.Holds != nil },
	}
}

// IsLive reports if the hold is still live by this clock. Only the fence closes the gap.
func (h *Hold) IsLive() bool { return h.lease.isLive() }

// Lost is closed when the lease could not be kept: stop the work. See LostReason.
func (h *Hold) Lost() <-chan struct{} { return h.lease.lost }

// LostReason is not_held by the answer to a renewal, not_renewed if none came in time, or empty.
func (h *Hold) LostReason() string { return h.lease.lostReason() }

// Renew renews the hold now, in addition to the renewal in the background.
func (h *Hold) Renew(ctx context.Context) error {
	if h.locker.client.disabled {
		return nil
	}
	return h.lease.renew(ctx, h.locker.client.timeout)
}

// Release releases the hold. It is detached from ctx, and repeated within WithSettleWithin. A hold that was lost is no error.
func (h *Hold) Release(ctx context.Context) error {
	c := h.locker.client
	if c.disabled {
		return nil
	}
	body := []byte(`{"attempt":` + string(quote(h.Attempt)) + `}`)
	a, err := c.do(context.WithoutCancel(ctx), h.locker.release(body, h.at, c.settleWithin))
	lost := h.LostReason() != ""
	h.lease.stop()
	if err != nil {
		return err
	}
	switch {
	case a.status < 300:
		c.event(ctx, h.locker.about().with("lock_released", slog.LevelDebug, slog.Int64("fence", h.Fence)))
		return nil
	case a.status == 409:
		if !lost {
			c.event(ctx, h.locker.about().with("lock_lost", slog.LevelWarn, slog.String("code", a.Code)))
		}
		return nil
	}
	return a.rejected()
}

// IsLockHeld reports if the error says that another owner holds the lock.
func IsLockHeld(err error) bool {
	var refused *LockNotAcquiredError
	return errors.As(err, &refused) && refused.Code == "lock_held"
}
