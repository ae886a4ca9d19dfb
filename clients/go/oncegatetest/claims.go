package oncegatetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

const (
	defaultLease     = 30 * time.Second
	defaultRetention = 24 * time.Hour
	unknownRetention = 7 * 24 * time.Hour
)

// claim is the record of an operation. Its transitions are those of the gateway.
type claim struct {
	operation             string
	contents, fingerprint json.RawMessage
	nonce, attempt        string
	state                 string
	result                json.RawMessage
	late                  bool
	fence                 int64
	retention             time.Duration
	claimedAt, ends       time.Time
	lease                 time.Duration
	isCautious            bool
}

// live returns the claim of an ID, after what has become of it by now.
func (g *Gateway) live(id string) *claim {
	c := g.claims[id]
	if c == nil || c.ends.IsZero() || g.now().Before(c.ends) {
		return c
	}
	if c.state == oncegate.InProgress && (g.unknown || c.isCautious) {
		// It has no end.
		c.state, c.ends = oncegate.Unknown, time.Time{}
		return c
	}
	delete(g.claims, id)
	return nil
}

func (g *Gateway) claim(app string, body map[string]json.RawMessage) (answered object, mayWait bool) {
	operation, nonce := textOf(body, "operation"), textOf(body, "attempt_nonce")
	contents, err := oncegate.Canonical(oncegate.JSONText(body["contents"]))
	if operation == "" || err != nil {
		return problem(http.StatusBadRequest, "invalid_request", fmt.Sprintf("A claim needs an operation and contents: %v.", err)), false
	}
	id, err := oncegate.GlobalID(app, operation, oncegate.JSONText(contents))
	if err != nil {
		return problem(http.StatusBadRequest, "invalid_request", err.Error()), false
	}
	c := g.live(id)
	if c != nil {
		if c.operation != operation || !bytes.Equal(c.contents, []byte(contents)) {
			return g.mismatch(id, "contents_mismatch"), false
		}
		if !c.late && !bytes.Equal(c.fingerprint, body["fingerprint"]) {
			return g.mismatch(id, "fingerprint_mismatch"), false
		}
		if c.state == oncegate.InProgress && c.nonce == nonce {
			return g.granted(id, c, object{"repeated": true}), false
		}
		isTakenOver := c.state == oncegate.Unknown && string(body["take_over"]) == "true" && c.nonce != nonce
		if !isTakenOver {
			return g.duplicate(id, c), c.state == oncegate.InProgress
		}
	}
	takenOver := c != nil
	g.keepOrder(id)
	g.fence++
	g.attempt++
	lease := length(body, "lease", defaultLease)
	c = &claim{
		operation: operation, contents: json.RawMessage(contents), fingerprint: body["fingerprint"], nonce: nonce,
		attempt: fmt.Sprintf("%d-%s", g.now().UnixMicro()+g.attempt, nonce), state: oncegate.InProgress, fence: g.fence,
		retention: length(body, "retention", defaultRetention), claimedAt: g.now(), ends: g.now().Add(lease), lease: lease,
		isCautious: textOf(body, "on_lease_end") == oncegate.Unknown,
	}
	g.claims[id] = c
	return g.granted(id, c, object{"taken_over": takenOver}), false
}

// keepOrder remembers an operation when it is claimed for the first time.
func (g *Gateway) keepOrder(id string) {
	if !slices.Contains(g.order, id) {
		g.order = append(g.order, id)
	}
}

func (g *Gateway) granted(id string, c *claim, more object) object {
	answered := object{
		"status": http.StatusCreated, "global_id": id, "attempt": c.attempt, "fence": c.fence, "state": c.state, "repeated": false, "taken_over": false,
		"claimed_at": c.claimedAt, "lease_ms": max(1, c.ends.Sub(g.now()).Milliseconds()), "degraded": nil,
	}
	for name, value := range more {
		answered[name] = value
	}
	return answered
}

func (g *Gateway) duplicate(id string, c *claim) object {
	answered := problem(http.StatusConflict, "duplicate", "The operation is "+c.state+".")
	answered["global_id"], answered["state"], answered["claimed_at"], answered["contents_verified"] = id, c.state, c.claimedAt, true
	if !c.ends.IsZero() {
		answered["expires_at"] = c.ends
	}
	if len(c.result) > 0 {
		answered["result"] = c.result
	}
	if c.state == oncegate.InProgress {
		answered["retry_after_ms"] = 250
	}
	return answered
}

func (g *Gateway) mismatch(id, code string) object {
	answered := problem(http.StatusUnprocessableEntity, code, "The operation was claimed with something else.")
	answered["global_id"] = id
	return answered
}

func (g *Gateway) outcome(id string, body map[string]json.RawMessage) object {
	outcome, c := textOf(body, "outcome"), g.live(id)
	refused := func(code string) object {
		answered := problem(http.StatusConflict, code, "The outcome is refused.")
		answered["global_id"] = id
		return answered
	}
	switch {
	case outcome != oncegate.Success && outcome != oncegate.Failure && outcome != oncegate.Unknown:
		return problem(http.StatusBadRequest, "invalid_request", "An outcome is success, failure or unknown.")
	case c == nil:
		return g.lateOutcome(id, outcome, body, refused)
	case c.attempt != textOf(body, "attempt"):
		answered := refused("superseded")
		answered["state"] = c.state
		return answered
	case c.state == oncegate.Succeeded && outcome != oncegate.Success:
		return refused("already_succeeded")
	case outcome == oncegate.Failure:
		delete(g.claims, id)
		g.change()
		return settled(id, "released", false)
	case outcome == oncegate.Unknown && c.state == oncegate.InProgress:
		c.state, c.ends = oncegate.Unknown, g.now().Add(unknownRetention)
	case outcome == oncegate.Success && c.state != oncegate.Succeeded:
		c.state, c.result, c.ends = oncegate.Succeeded, body["result"], g.until(length(body, "retention", c.retention))
	}
	g.change()
	return settled(id, c.state, c.late)
}

// lateOutcome records an outcome whose claim has ended, if its operation and contents came with it.
func (g *Gateway) lateOutcome(id, outcome string, body map[string]json.RawMessage, refused func(string) object) object {
	if outcome == oncegate.Failure {
		return settled(id, "released", true)
	}
	contents, err := oncegate.Canonical(oncegate.JSONText(body["contents"]))
	if err != nil || textOf(body, "operation") == "" {
		return refused("expired")
	}
	g.keepOrder(id)
	attempt := textOf(body, "attempt")
	_, nonce, _ := strings.Cut(attempt, "-")
	c := &claim{
		operation: textOf(body, "operation"), contents: json.RawMessage(contents), nonce: nonce, attempt: attempt, state: oncegate.Unknown, late: true,
		claimedAt: g.now(), ends: g.now().Add(unknownRetention),
	}
	if outcome == oncegate.Success {
		c.state, c.result, c.ends = oncegate.Succeeded, body["result"], g.until(length(body, "retention", defaultRetention))
	}
	g.claims[id] = c
	return settled(id, c.state, true)
}

func settled(id, state string, late bool) object {
	return object{"status": http.StatusOK, "global_id": id, "state": state, "late": late, "degraded": nil}
}

func (g *Gateway) renewal(id string, body map[string]json.RawMessage) object {
	c := g.live(id)
	code := ""
	switch {
	case c == nil || c.state == oncegate.Unknown && c.attempt == textOf(body, "attempt"):
		code = "lease_lost"
	case c.attempt != textOf(body, "attempt"):
		code = "superseded"
	case c.state == oncegate.Succeeded:
		code = "already_succeeded"
	}
	if code != "" {
		return problem(http.StatusConflict, code, "The lease cannot be renewed.")
	}
	if ends := g.now().Add(length(body, "lease", c.lease)); ends.After(c.ends) {
		c.ends = ends
	}
	return object{"status": http.StatusOK, "global_id": id, "lease_ms": c.ends.Sub(g.now()).Milliseconds(), "degraded": nil}
}

func (g *Gateway) lookup(id string) object {
	c := g.live(id)
	if c == nil {
		return problem(http.StatusNotFound, "not_found", "There is no such claim.")
	}
	answered := object{
		"status": http.StatusOK, "global_id": id, "operation": c.operation, "state": c.state, "claimed_at": c.claimedAt, "contents": c.contents,
		"has_fingerprint": len(c.fingerprint) > 0, "late": c.late,
	}
	if len(c.result) > 0 {
		answered["result"] = c.result
	}
	if c.fence > 0 {
		answered["fence"] = c.fence
	}
	if !c.ends.IsZero() {
		answered["expires_at"] = c.ends
	}
	return answered
}

// until returns the end of a retention; the zero time for one that does not end.
func (g *Gateway) until(retention time.Duration) time.Time {
	if retention == oncegate.Forever {
		return time.Time{}
	}
	return g.now().Add(retention)
}

func textOf(body map[string]json.RawMessage, name string) string {
	var text string
	_ = json.Unmarshal(body[name], &text)
	return text
}

// length returns a duration as clients write it.
func length(body map[string]json.RawMessage, name string, otherwise time.Duration) time.Duration {
	text := textOf(body, name)
	if text == "" {
		return otherwise
	}
	if text == "forever" {
		return oncegate.Forever
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if count, err := strconv.Atoi(days); err == nil {
			return time.Duration(count) * 24 * time.Hour
		}
	}
	if read, err := time.ParseDuration(text); err == nil {
		return read
	}
	return otherwise
}
