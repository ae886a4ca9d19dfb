package oncegate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	// giveBackWithin is the longest time to look for a lost grant and to report it; less if WithSettleWithin is.
	giveBackWithin = 30 * time.Second
	// givenBackMax is how many one client looks for at once. Those above it wait for the end of their leases: a gateway that comes back has
	// enough to do.
	givenBackMax = 64
)

// giveBack looks in the background for the grant of a claim call that ended without an answer, and gives it back. Its lease ends in any case.
func (c *Client) giveBack(ctx context.Context, claim *claim) {
	if !claim.uncertain {
		return
	}
	select {
	case c.givenBack <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-c.givenBack }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(c.settleWithin, giveBackWithin))
		defer cancel()
		attempt, err := c.findGrant(ctx, claim)
		if err != nil || attempt == "" {
			return
		}
		r := report{GlobalID: claim.globalID, Attempt: attempt, Outcome: Failure, Operation: claim.operation, Contents: json.RawMessage(claim.contents)}
		// An event says how it ended.
		_, _ = c.settle(ctx, r, nil)
	}()
}

// findGrant returns the attempt with the nonce of the call if it holds the claim. It makes no further claim: that one would take the key if it was
// free.
func (c *Client) findGrant(ctx context.Context, claim *claim) (string, error) {
	if err := sleep(ctx, nil, time.Duration(c.jitter()*float64(pauseMin))); err != nil {
		return "", err
	}
	record, err := c.look(ctx, claim)
	if err == nil && record == nil {
		// The call may still be on its way.
		if err := sleep(ctx, nil, c.timeout); err != nil {
			return "", err
		}
		record, err = c.look(ctx, claim)
	}
	if err != nil || record == nil || record.State != InProgress && record.State != Unknown {
		return "", err
	}
	attempt := fmt.Sprintf("%d-%s", record.Timestamp, claim.nonce)
	hash := sha256.Sum256([]byte(attempt))
	if record.AttemptHash != hex.EncodeToString(hash[:4]) {
		return "", nil
	}
	return attempt, nil
}

func (c *Client) look(ctx context.Context, claim *claim) (*Record, error) {
	return find[Record](ctx, c, &call{
		endpoint: "lookup", method: http.MethodGet, path: "/v1/claims/" + claim.globalID, within: giveBackWithin, first: int(c.first.Load()),
		genuine: hasGlobalID, about: claim.about,
	})
}
