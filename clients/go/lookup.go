package oncegate

import (
	"context"
	"encoding/json"
	"regexp"
	"time"
)

// Record is what is stored of a claim. It is for people and reports: another attempt may claim right after the lookup.
type Record struct {
	GlobalID         string          `json:"global_id"`
	Operation        string          `json:"operation"`
	State            string          `json:"state"`
	Timestamp        int64           `json:"timestamp"`
	AttemptHash      string          `json:"attempt_hash"`
	ClaimedAt        time.Time       `json:"claimed_at"`
	ExpiresAt        *time.Time      `json:"expires_at"`
	Fence            *int64          `json:"fence"`
	Late             bool            `json:"late"`
	Contents         json.RawMessage `json:"contents"`
	ContentsSHA256   string          `json:"contents_sha256"`
	ContentsBytes    int64           `json:"contents_bytes"`
	ContentsVerified *bool           `json:"contents_verified"`
	HasFingerprint   bool            `json:"has_fingerprint"`
	Result           json.RawMessage `json:"result"`
	Retention        string          `json:"retention"`
	OnLeaseEnd       string          `json:"on_lease_end"`
	Degraded         string          `json:"degraded"`
}

var globalIDForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// LockRecord is what is stored of a lock. It is for people and reports: the lock may change right after the lookup.
type LockRecord struct {
	Name string `json:"name"`
	// Mode is exclusive or shared, or empty if the lock is free and requests queue for it.
	Mode string `json:"mode"`
	// Limit is how many holds may be at once, or 0 if the holders have named none.
	Limit int `json:"limit"`
	// Fence is nil if the lock is free.
	Fence   *int64       `json:"fence"`
	Holders []LockHolder `json:"holders"`
	// Waiting is the number of requests in the queue.
	Waiting int64 `json:"waiting"`
}

// LockHolder is one hold, without its attempt.
type LockHolder struct {
	// Hash is the first 8 hex digits of the SHA-256 of the hold's nonce.
	Hash      string    `json:"hash"`
	Mode      string    `json:"mode"`
	ClaimedAt time.Time `json:"claimed_at"`
	// LeaseMS is what is left of the lease.
	LeaseMS int64 `json:"lease_ms"`
}

// Held reports if the lock was held.
func (r *LockRecord) Held() bool { return r.Mode != "" }

// Lookup returns the record of a claim, or nil if there is none.
func (c *Client) Lookup(ctx context.Context, globalID string) (*Record, error) {
	if !globalIDForm.MatchString(globalID) {
		return nil, argument("not a global ID: %.40q; expected 32 hex digits", globalID)
	}
	return lookup[Record](ctx, c, "/v1/claims/"+globalID, hasGlobalID, Event{GlobalID: globalID})
}

// Lookup returns the holders of the lock and the length of its queue, or nil if it is free and no request queues. It acquires nothing.
func (l *Locker) Lookup(ctx context.Context) (*LockRecord, error) {
	if l.err != nil {
		return nil, l.err
	}
	return lookup[LockRecord](ctx, l.client, "/v1/locks/"+l.name, func(a *answer) bool { return a.Waiting != nil }, l.about())
}

func lookup[R any](ctx context.Context, c *Client, path string, genuine func(*answer) bool, about Event) (*R, error) {
	if c.disabled {
		return nil, nil
	}
	return find[R](ctx, c, &call{
		endpoint: "lookup", method: "GET", path: path, within: c.claimWithin, first: int(c.first.Load()), genuine: genuine, about: about,
	})
}

func find[R any](ctx context.Context, c *Client, r *call) (*R, error) {
	a, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	switch {
	case a.status == 404 && a.Code == "not_found":
		return nil, nil
	case a.status >= 300:
		return nil, a.rejected()
	}
	record := new(R)
	if err := json.Unmarshal(a.text, record); err != nil {
		return nil, err
	}
	return record, nil
}
