package oncegatetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	exclusive = "exclusive"
	shared    = "shared"
)

// lock is held by some owners: one, or any number in the mode shared.
type lock struct {
	// The mode and its fence, as they were when the holds last changed.
	mode  string
	fence int64
	// Named by all holds, or 0.
	limit int
	holds []*hold
}

type hold struct {
	owner, nonce, attempt, mode string
	claimedAt, ends             time.Time
}

// lock returns a lock without the holds that have ended; nil if it is free.
func (g *Gateway) lock(name string) *lock {
	l := g.locks[name]
	if l == nil {
		return nil
	}
	l.holds = slices.DeleteFunc(l.holds, func(h *hold) bool { return !g.now().Before(h.ends) })
	if len(l.holds) == 0 {
		delete(g.locks, name)
		return nil
	}
	mode := shared
	if slices.ContainsFunc(l.holds, func(h *hold) bool { return h.mode == exclusive }) {
		mode = exclusive
	}
	if mode != l.mode {
		g.fence++
		l.mode, l.fence = mode, g.fence
	}
	return l
}

func (g *Gateway) acquire(name string, body map[string]json.RawMessage) (answered object, mayWait bool) {
	mode, nonce := textOf(body, "mode"), textOf(body, "attempt_nonce")
	owner := textOf(body, "owner")
	if owner == "" {
		owner = nonce
	}
	limit := 0
	_ = json.Unmarshal(body["limit"], &limit)
	l := g.lock(name)
	if l == nil {
		l = &lock{limit: limit}
		g.locks[name] = l
	}
	if at := slices.IndexFunc(l.holds, func(h *hold) bool { return h.nonce == nonce }); at >= 0 {
		return g.heldAnswer(name, l, l.holds[at], true), false
	}
	isOther := func(h *hold) bool { return h.owner != owner && (mode == exclusive || h.mode == exclusive) }
	isBusy := slices.ContainsFunc(l.holds, isOther)
	switch {
	case l.limit > 0 && limit > 0 && limit != l.limit:
		refused := problem(http.StatusConflict, "limit_differs", "The holders share the lock with another limit.")
		refused["limit"] = l.limit
		return refused, false
	case l.limit != limit:
		isBusy = true
	case limit > 0:
		isBusy = len(l.holds) >= limit
	case isBusy && l.count(owner) > 0 && mode == exclusive:
		return problem(http.StatusConflict, "upgrade_refused", "The owner shares the lock with others."), false
	}
	if isBusy {
		refused := problem(http.StatusConflict, "lock_held", "Another owner holds the lock.")
		refused["mode"], refused["holders"], refused["retry_after_ms"] = l.mode, len(l.holds), 50
		return refused, true
	}
	g.attempt++
	h := &hold{owner: owner, nonce: nonce, mode: mode, attempt: fmt.Sprintf("%d-%s", g.now().UnixMicro()+g.attempt, nonce), claimedAt: g.now()}
	h.ends = h.claimedAt.Add(length(body, "lease", defaultLease))
	l.holds = append(l.holds, h)
	g.lock(name)
	return g.heldAnswer(name, l, h, false), false
}

func (g *Gateway) heldAnswer(name string, l *lock, h *hold, repeated bool) object {
	return object{
		"status": http.StatusCreated, "name": name, "mode": h.mode, "attempt": h.attempt, "fence": l.fence, "holds": l.count(h.owner),
		"lease_ms": max(1, h.ends.Sub(g.now()).Milliseconds()), "repeated": repeated,
	}
}

func (l *lock) count(owner string) int {
	count := 0
	for _, h := range l.holds {
		if h.owner == owner {
			count++
		}
	}
	return count
}

func (g *Gateway) renewHold(name string, body map[string]json.RawMessage) object {
	if l := g.lock(name); l != nil {
		for _, h := range l.holds {
			if h.attempt != textOf(body, "attempt") {
				continue
			}
			if ends := g.now().Add(length(body, "lease", defaultLease)); ends.After(h.ends) {
				h.ends = ends
			}
			return object{"status": http.StatusOK, "name": name, "lease_ms": h.ends.Sub(g.now()).Milliseconds()}
		}
	}
	return problem(http.StatusConflict, "not_held", "The lock is not held by this attempt.")
}

func (g *Gateway) release(name string, body map[string]json.RawMessage) object {
	attempt, nonce := textOf(body, "attempt"), textOf(body, "attempt_nonce")
	if l := g.lock(name); l != nil {
		for at, h := range l.holds {
			if h.attempt == attempt || attempt == "" && h.nonce == nonce {
				l.holds = slices.Delete(l.holds, at, at+1)
				g.lock(name)
				g.change()
				return object{"status": http.StatusOK, "name": name, "holds": l.count(h.owner)}
			}
		}
	}
	return problem(http.StatusConflict, "not_held", "The lock is not held by this attempt.")
}

func (g *Gateway) lookupLock(name string) object {
	l := g.lock(name)
	if l == nil {
		return problem(http.StatusNotFound, "not_found", "The lock is free.")
	}
	holders := []object{}
	for _, h := range l.holds {
		_, nonce, _ := strings.Cut(h.attempt, "-")
		holders = append(holders, object{
			"hash": hashOf(nonce), "mode": h.mode, "claimed_at": h.claimedAt, "lease_ms": h.ends.Sub(g.now()).Milliseconds(),
		})
	}
	found := object{"status": http.StatusOK, "name": name, "mode": l.mode, "fence": l.fence, "holders": holders, "waiting": 0}
	if l.limit > 0 {
		found["limit"] = l.limit
	}
	return found
}

// hashOf returns the first 8 hex digits of the SHA-256 of a nonce.
func hashOf(nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return hex.EncodeToString(sum[:4])
}
