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

// Lookup returns the record of a claim, or nil if there is none.
func (c *Client) Lookup(ctx context.Context, globalID string) (*Record, error) {
	if !globalIDForm.MatchString(globalID) {
		return nil, argument("not a global ID: %.40q; expected 32 hex digits", globalID)
	}
	a, err := c.do(ctx, &call{
		endpoint: "lookup", method: "GET", path: "/v1/claims/" + globalID, within: c.claimWithin, first: int(c.first.Load()), genuine: hasGlobalID,
		about: Event{GlobalID: globalID},
	})
	if err != nil {
		return nil, err
	}
	switch {
	case a.status == 404 && a.Code == "not_found":
		return nil, nil
	case a.status >= 300:
		return nil, a.rejected()
	}
	record := &Record{}
	if err := json.Unmarshal(a.text, record); err != nil {
		return nil, err
	}
	return record, nil
}
