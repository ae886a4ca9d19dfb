package oncegate_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/internal/testservers"
)

// Locks against a real gateway: ONCEGATE_BIN names it. Each client is one process of a fleet.
func TestLocksOfARealGateway(t *testing.T) {
	url, process := testservers.GatewayAt(t)
	one, two := client(t, url), client(t, url)
	// The gateway is stopped only after these.
	t.Run("at once", func(t *testing.T) {
		for name, rule := range map[string]func(*testing.T, *oncegate.Client, *oncegate.Client){
			"another client is excluded until the release":  anotherClientIsExcluded,
			"a waiter is granted on the release":            aWaiterIsGranted,
			"a lock outlives its lease while it is renewed": aLockOutlivesItsLease,
			"a cancelled wait leaves no place in the queue": aCancelledWaitLeavesNoPlace,
			"readers share, and exclude a writer":           readersShare,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rule(t, one, two)
			})
		}
	})
	t.Run("a hold is lost while no gateway answers", func(t *testing.T) {
		lock := one.Lock("lost", oncegate.LockLease(time.Second))
		hold := acquired(t, lock, 0)
		signal(t, process.Pid, syscall.SIGSTOP)
		t.Cleanup(func() { signal(t, process.Pid, syscall.SIGCONT) })
		select {
		case <-hold.Lost():
		case <-time.After(30 * time.Second):
			t.Fatal("the hold is not lost")
		}
		if hold.IsLive() || hold.LostReason() != "not_renewed" {
			t.Fatal(hold.IsLive(), hold.LostReason())
		}
		// The gateway may have granted it a little later than the client counts.
		time.Sleep(time.Second)
		signal(t, process.Pid, syscall.SIGCONT)
		next := acquired(t, two.Lock("lost"), 30*time.Second)
		if next.Fence <= hold.Fence {
			t.Fatalf("the fence %d came after %d", next.Fence, hold.Fence)
		}
		if err := hold.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		if next.Renew(context.Background()) != nil || !next.IsLive() {
			t.Fatal("the release of a hold that was lost released the next one")
		}
	})
}

func anotherClientIsExcluded(t *testing.T, one, two *oncegate.Client) {
	hold := acquired(t, one.Lock("excluded"), 0)
	if _, err := two.Lock("excluded").Acquire(context.Background(), 0); !oncegate.IsLockHeld(err) {
		t.Fatal(err)
	}
	record := found(t, two.Lock("excluded"))
	if !record.Held() || record.Mode != "exclusive" || len(record.Holders) != 1 || record.Fence == nil || *record.Fence != hold.Fence {
		t.Fatalf("%+v", record)
	}
	released(t, hold)
	if record := found(t, two.Lock("excluded")); record != nil {
		t.Fatalf("%+v", record)
	}
	next := acquired(t, two.Lock("excluded"), 0)
	if next.Fence <= hold.Fence {
		t.Fatalf("the fence %d came after %d", next.Fence, hold.Fence)
	}
}

func aWaiterIsGranted(t *testing.T, one, two *oncegate.Client) {
	hold := acquired(t, one.Lock("waited"), 0)
	waiting := make(chan *oncegate.Hold)
	go func() {
		next, err := two.Lock("waited", oncegate.Fair()).Acquire(context.Background(), time.Minute)
		if err != nil {
			t.Error(err)
		}
		waiting <- next
	}()
	testservers.Until(t, "it waits", func() bool { return found(t, one.Lock("waited")).Waiting == 1 })
	released(t, hold)
	select {
	case next := <-waiting:
		if next == nil || next.Fence <= hold.Fence {
			t.Fatalf("%+v came after %d", next, hold.Fence)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the waiter is not granted")
	}
}

func aLockOutlivesItsLease(t *testing.T, one, two *oncegate.Client) {
	hold := acquired(t, one.Lock("renewed", oncegate.LockLease(4*time.Second)), 0)
	time.Sleep(5 * time.Second)
	if !hold.IsLive() {
		t.Fatal(hold.LostReason())
	}
	if record := found(t, two.Lock("renewed")); len(record.Holders) != 1 || record.Holders[0].LeaseMS > 4000 {
		t.Fatalf("%+v", record)
	}
	if _, err := two.Lock("renewed").Acquire(context.Background(), 0); !oncegate.IsLockHeld(err) {
		t.Fatal(err)
	}
}

func aCancelledWaitLeavesNoPlace(t *testing.T, one, two *oncegate.Client) {
	acquired(t, one.Lock("cancelled"), 0)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := two.Lock("cancelled", oncegate.Fair()).Acquire(ctx, time.Minute)
		ended <- err
	}()
	testservers.Until(t, "it waits", func() bool { return found(t, one.Lock("cancelled")).Waiting == 1 })
	at := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	testservers.Until(t, "it has left", func() bool { return found(t, one.Lock("cancelled")).Waiting == 0 })
	// A place that is not given back ends after ten seconds.
	if took := time.Since(at); took > 8*time.Second {
		t.Fatalf("it left after %s", took)
	}
}

func readersShare(t *testing.T, one, two *oncegate.Client) {
	first, second := acquired(t, one.Lock("read", oncegate.Shared()), 0), acquired(t, two.Lock("read", oncegate.Shared()), 0)
	if record := found(t, one.Lock("read")); record.Mode != "shared" || len(record.Holders) != 2 || first.Fence != second.Fence {
		t.Fatalf("%+v", record)
	}
	released(t, first)
	if _, err := one.Lock("read").Acquire(context.Background(), 0); !oncegate.IsLockHeld(err) {
		t.Fatal(err)
	}
	released(t, second)
	acquired(t, one.Lock("read"), 0)
}

func client(t *testing.T, url string) *oncegate.Client {
	t.Helper()
	client, err := oncegate.New([]string{url}, oncegate.WithEvents(testservers.Quiet))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func acquired(t *testing.T, lock *oncegate.Locker, wait time.Duration) *oncegate.Hold {
	t.Helper()
	hold, err := lock.Acquire(context.Background(), wait)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hold.Release(context.Background()) })
	return hold
}

func released(t *testing.T, hold *oncegate.Hold) {
	t.Helper()
	if err := hold.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func found(t *testing.T, lock *oncegate.Locker) *oncegate.LockRecord {
	t.Helper()
	record, err := lock.Lookup(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return record
}

func signal(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}
