package oncehttp

import (
	"context"
	"sync"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Granted is the grant that a handler runs under, with its fence.
type Granted struct {
	*oncegate.Grant

	key  string
	gone <-chan struct{}

	mu         sync.Mutex
	marked     string
	unanswered bool
}

type grantKey struct{}

// Grant returns the grant that a handler runs under; nil if its request is not protected. The methods Mark and CallerGone can be called on nil.
func Grant(ctx context.Context) *Granted {
	granted, _ := ctx.Value(grantKey{}).(*Granted)
	return granted
}

// Mark sets the outcome, independent of the response: oncegate.Success, oncegate.Failure (nothing), or oncegate.Unknown. The last call counts.
func (g *Granted) Mark(outcome string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.marked = outcome
}

// CallerGone returns a channel that is closed when the caller hangs up. The handler continues, since a repeat gets its response.
func (g *Granted) CallerGone() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.gone
}

// Unanswered marks a handler that returned an error without a response, for adapters of frameworks. Without a mark or a declared harmless error its
// outcome is unknown.
func (g *Granted) Unanswered() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unanswered = true
}

func (g *Granted) isUnanswered() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.unanswered
}

func (g *Granted) mark() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.marked
}
