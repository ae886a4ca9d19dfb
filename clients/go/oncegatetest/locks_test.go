package oncegatetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
)

// lockTerms are the terms of one call of the table.
type lockTerms struct {
	Mode  string
	Limit *int
	Own   bool
}

func (l lockTerms) options(owner string) []oncegate.LockOption {
	var opts []oncegate.LockOption
	if l.Mode == "shared" {
		opts = append(opts, oncegate.Shared())
	}
	if l.Limit != nil {
		opts = append(opts, oncegate.Limit(*l.Limit))
	}
	if l.Own {
		opts = append(opts, oncegate.Owner(owner))
	}
	return opts
}

type lockStep struct {
	lockTerms
	Acquire, Release string
	Held             *struct {
		Mode  string
		Holds int64
		Fence string
	}
	Refused string
	InUse   int `json:"in_use"`
	Lookup  json.RawMessage
}

type lockVectors struct {
	Owner  string
	Tables []struct {
		Name  string
		Steps []lockStep
	}
	WrongLimits []struct {
		lockTerms
		Says string
	} `json:"wrong_limits"`
}

func TestLocksAreThoseOfTheTable(t *testing.T) {
	var vectors lockVectors
	text, err := os.ReadFile("../../vectors/locks.json")
	if err == nil {
		err = json.Unmarshal(text, &vectors)
	}
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string]*oncegate.Client{"double": oncegatetest.New(t).Client()}
	if url := os.Getenv("ONCEGATE_URL"); url != "" {
		real, err := oncegate.New([]string{url}, oncegate.WithCredential(os.Getenv("ONCEGATE_CREDENTIAL")), oncegate.WithEvents(nil))
		if err != nil {
			t.Fatal(err)
		}
		clients["gateway"] = real
	}
	for kind, client := range clients {
		for _, table := range vectors.Tables {
			t.Run(kind+": "+table.Name, func(t *testing.T) {
				runLocks(t, client, vectors.Owner, table.Steps)
			})
		}
		for _, wrong := range vectors.WrongLimits {
			_, err := client.Lock("stock:42", wrong.options("")...).Acquire(context.Background(), 0)
			var argument *oncegate.ArgumentError
			if !errors.As(err, &argument) || !strings.Contains(err.Error(), wrong.Says) {
				t.Errorf("%d: %v", *wrong.Limit, err)
			}
		}
	}
}

func runLocks(t *testing.T, c *oncegate.Client, owner string, steps []lockStep) {
	ctx, name := context.Background(), fmt.Sprintf("table:%d", time.Now().UnixNano())
	holds, fence := map[string]*oncegate.Hold{}, int64(0)
	for at, step := range steps {
		switch {
		case step.Acquire != "":
			hold, err := c.Lock(name, step.options(owner)...).Acquire(ctx, 0)
			if step.Held == nil {
				var refused *oncegate.LockNotAcquiredError
				if !errors.As(err, &refused) || refused.Code != step.Refused || refused.Limit != step.InUse {
					t.Fatalf("step %d: %v", at, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("step %d: %v", at, err)
			}
			isNew := hold.Fence > fence
			if hold.Mode != step.Held.Mode || hold.Holds != step.Held.Holds || isNew != (step.Held.Fence == "new") || hold.Fence < fence {
				t.Fatalf("step %d: %+v after the fence %d", at, hold, fence)
			}
			holds[step.Acquire], fence = hold, hold.Fence
		case step.Release != "":
			if err := holds[step.Release].Release(ctx); err != nil {
				t.Fatal(err)
			}
		default:
			record, err := c.Lock(name).Lookup(ctx)
			got := "null"
			if record != nil {
				text, _ := json.Marshal(map[string]any{"mode": record.Mode, "holders": len(record.Holders), "limit": orNil(record.Limit)})
				got = string(text)
			}
			var wanted any
			_ = json.Unmarshal(step.Lookup, &wanted)
			if text, _ := json.Marshal(wanted); err != nil || got != string(text) {
				t.Fatalf("step %d: %s, not %s: %v", at, got, text, err)
			}
		}
	}
}

func orNil(number int) any {
	if number == 0 {
		return nil
	}
	return number
}
