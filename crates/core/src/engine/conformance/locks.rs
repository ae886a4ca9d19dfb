//! Rules of locks: the table of transitions over the shared records of an engine, on its clock.

use std::time::Duration;

use futures_util::future::join_all;

use super::super::{ChangePurpose, ChangeResponse, RecordChange, RecordName, SharedRecord};
use super::records::fresh_lock;
use super::requests::{DEADLINE, app, attempt};
use super::subject::{Pace, Subject, TooLate};
use crate::attempt::{Attempt, Entropy as _, Nonce, SystemEntropy};
use crate::clock::Timestamp;
use crate::lock::LockMode::{Exclusive, Shared};
use crate::lock::{
    AcquireRequest, AcquireResponse, HEAD_GRACE, LockGrant, LockMode, LockName, LockRecord, LockState, Permits,
    RenewLockResponse, ShortHash, TICKET_LEASE, UnlockResponse,
};
use crate::operator::LockListRequest;

/// A lease that is longer than any test.
const LONG: Duration = Duration::from_hours(1);

/// An exclusive hold excludes every other owner.
pub async fn an_exclusive_hold_excludes_every_other_owner(on: &Subject) {
    let lock = Lock::new(on);
    lock.granted("a", Exclusive).await;
    for mode in [Exclusive, Shared] {
        assert_eq!(lock.acquire("b", mode).await, HELD);
    }
    assert_eq!(lock.released("a").await, 0);
    lock.granted("b", Exclusive).await;
}

/// Shared holds exclude exclusive ones, until the last of them ends.
pub async fn shared_holds_exclude_exclusive_ones_only(on: &Subject) {
    let lock = Lock::new(on);
    let (first, second) = (lock.granted("a", Shared).await, lock.granted("b", Shared).await);
    assert_eq!(first.fence, second.fence, "holds that join share the fence");
    assert_eq!(lock.acquire("c", Exclusive).await, HELD);
    lock.released("a").await;
    assert_eq!(lock.acquire("c", Exclusive).await, HELD, "another one still shares it");
    lock.released("b").await;
    lock.granted("c", Exclusive).await;
}

/// Of many concurrent requests, one is granted.
pub async fn of_many_racing_requests_for_a_lock_exactly_one_is_granted(on: &Subject) {
    let lock = Lock::new(on);
    let names: Vec<_> = (0..20).map(|racer| format!("racer-{racer}")).collect();
    let answers = join_all(names.iter().map(|name| lock.acquire(name, Exclusive))).await;
    assert_eq!(answers.iter().filter(|answer| **answer != HELD).count(), 1, "{answers:?}");
}

/// An owner that holds the lock gets it again. A repeated request is the same hold, and a repeated release ends none of another nonce.
pub async fn the_holds_of_an_owner_are_a_set_of_nonces(on: &Subject) {
    let lock = Lock::new(on);
    let first = lock.granted("a.1", Exclusive).await;
    let again = lock.granted("a.1", Exclusive).await;
    assert_eq!(again, LockGrant { repeated: true, ..first.clone() });
    let second = lock.granted("a.2", Exclusive).await;
    assert_eq!((second.holds, second.fence), (2, first.fence));
    assert_eq!(lock.released("a.1").await, 1);
    assert_eq!(lock.release("a.1").await, UnlockResponse::NotHeld);
    assert_eq!(lock.acquire("b", Exclusive).await, HELD, "the second hold is left");
    assert_eq!(lock.released("a.2").await, 0);
    lock.granted("b", Exclusive).await;
}

/// A sole sharer is upgraded, with a new fence. One of several is refused.
pub async fn a_sole_sharer_of_a_lock_is_upgraded_and_one_of_several_is_refused(on: &Subject) {
    let lock = Lock::new(on);
    let shared = lock.granted("a.1", Shared).await;
    lock.granted("b", Shared).await;
    assert_eq!(lock.acquire("a.2", Exclusive).await, AcquireResponse::UpgradeRefused);
    lock.released("b").await;
    assert!(lock.granted("a.2", Exclusive).await.fence > shared.fence);
    assert_eq!(lock.acquire("b", Shared).await, HELD);
}

/// As many holds as the limit says are granted, all with the same limit.
pub async fn a_lock_with_a_limit_has_as_many_holds_and_no_more(on: &Subject) {
    let lock = Lock::new(on);
    let names: Vec<_> = (0..8).map(|racer| format!("racer-{racer}")).collect();
    let answers = join_all(names.iter().map(|name| lock.permit(name, 3))).await;
    assert_eq!(answers.iter().filter(|answer| **answer != HELD).count(), 3, "{answers:?}");
    let three = Permits::try_from(3).expect("a limit");
    assert_eq!(lock.permit("other", 4).await, AcquireResponse::LimitDiffers(three));
    assert_eq!(lock.acquire("other", Shared).await, HELD);
    let holder = names.iter().zip(&answers).find(|(_, answer)| **answer != HELD).expect("three are granted").0;
    lock.released(holder).await;
    assert!(matches!(lock.permit("late", 3).await, AcquireResponse::Granted(_)));
    assert_eq!(lock.permit("later", 3).await, HELD);
}

/// An exclusive owner gets a shared hold, and others share the lock once the exclusive one has ended, with a new fence.
pub async fn a_downgrade_of_a_lock_lets_others_share_it(on: &Subject) {
    let lock = Lock::new(on);
    let exclusive = lock.granted("a.1", Exclusive).await;
    lock.granted("a.2", Shared).await;
    assert_eq!(lock.acquire("b", Shared).await, HELD);
    assert_eq!(lock.released("a.1").await, 1);
    assert!(lock.granted("b", Shared).await.fence > exclusive.fence);
}

/// A withdrawal ends the hold and the ticket of a nonce. From then on the nonce is refused for a while, even one that was never used.
pub async fn a_withdrawn_nonce_of_a_lock_is_refused(on: &Subject) {
    let lock = Lock::new(on);
    lock.granted("a", Exclusive).await;
    assert_eq!(lock.fair("b").await, Err(1));
    for (name, was_known) in [("a", true), ("b", true), ("c", false), ("c", true)] {
        let answer = lock.withdraw(name).await;
        assert_eq!(answer != UnlockResponse::NotHeld, was_known, "{name}: {answer:?}");
    }
    let refused = on.in_time(async |pace| {
        let started = pace.now();
        let names = ["a", "b", "c"].map(|name| format!("{name}{}", started.as_nanos()));
        for name in &names {
            lock.withdraw(name).await;
        }
        let answers = join_all(names.iter().map(|name| lock.acquire(name, Exclusive))).await;
        pace.within(started, TICKET_LEASE)?;
        Ok(answers)
    });
    assert_eq!(refused.await, vec![AcquireResponse::Withdrawn; 3]);
    if on.exact_time {
        (on.pass)(TICKET_LEASE).await;
        lock.granted("a", Exclusive).await;
    }
}

/// Fair requests are granted in the order in which they first asked, and no other request goes before them.
pub async fn fair_requests_for_a_lock_are_granted_in_order_and_none_barges(on: &Subject) {
    let rule = async |pace: &Pace| {
        let lock = Lock::new(on);
        lock.granted("a", Exclusive).await;
        assert_eq!((lock.fair("b").await, lock.fair("c").await), (Err(1), Err(2)));
        assert_eq!(lock.fair("c").await, Err(2), "the nonce is the ticket");
        for (holder, next, last) in [("a", "b", Some("c")), ("b", "c", None)] {
            let started = pace.now();
            lock.released(holder).await;
            let barging = (lock.acquire("x", Exclusive).await, lock.acquire("x", Shared).await);
            let second = if let Some(last) = last { Some(lock.fair(last).await) } else { None };
            pace.within(started, HEAD_GRACE)?;
            assert_eq!((barging, second), ((HELD, HELD), last.map(|_| Err(2))));
            lock.fair(next).await.expect("it is the first");
        }
        Ok(())
    };
    on.in_time(rule).await;
}

/// Re-entry and the upgrade of a sole sharer go before the queue, and a queued exclusive request blocks new shared ones.
pub async fn a_queued_exclusive_request_blocks_new_owners_and_not_those_that_hold_the_lock(on: &Subject) {
    let lock = Lock::new(on);
    lock.granted("a.1", Shared).await;
    let rule = async |pace: &Pace| {
        let started = pace.now();
        let queued = lock.fair("w").await;
        let blocked = lock.acquire("b", Shared).await;
        pace.within(started, TICKET_LEASE)?;
        assert_eq!((queued, blocked), (Err(1), HELD));
        Ok::<_, TooLate>(())
    };
    on.in_time(rule).await;
    lock.granted("a.2", Shared).await;
    lock.granted("a.3", Exclusive).await;
}

/// Heads of the queue that could go and do not ask lose their places after a second, together.
pub async fn dead_heads_of_the_queue_of_a_lock_lose_their_places(on: &Subject) {
    let rule = async |pace: &Pace| {
        let lock = Lock::new(on);
        let started = pace.now();
        lock.granted("a", Exclusive).await;
        assert_eq!((lock.fair("dead").await, lock.fair("dead2").await, lock.fair("c").await), (Err(1), Err(2), Err(3)));
        lock.released("a").await;
        (on.pass)(HEAD_GRACE + on.tick.min(HEAD_GRACE)).await;
        // The place of `c` has lasted since it first asked.
        let next = lock.fair("c").await;
        pace.within(started, TICKET_LEASE)?;
        next.expect("their places are lost");
        Ok(())
    };
    on.in_time(rule).await;
}

/// A hold whose lease has ended is absent, and the next one has a higher fence.
pub async fn a_lock_whose_lease_has_ended_is_granted_again_with_a_higher_fence(on: &Subject) {
    let lock = Lock::new(on);
    let first = lock.grant(&AcquireRequest { lease: on.ticks(1), ..request("a", Exclusive) }).await;
    (on.pass)(on.ticks(2)).await;
    assert_eq!(lock.renew("a", LONG).await, RenewLockResponse::NotHeld);
    assert!(lock.granted("b", Exclusive).await.fence > first.fence);
    assert_eq!(lock.release("a").await, UnlockResponse::NotHeld);
    assert_eq!(lock.acquire("c", Exclusive).await, HELD, "the next one keeps it");
}

/// Fences rise strictly over releases.
pub async fn fences_of_a_lock_rise_over_releases(on: &Subject) {
    let (lock, mut last) = (Lock::new(on), 0);
    for round in 0..5 {
        let name = format!("a{round}");
        let grant = lock.granted(&name, if round % 2 == 0 { Exclusive } else { Shared }).await;
        assert!(grant.fence > last, "{} after {last}", grant.fence);
        last = grant.fence;
        lock.released(&name).await;
    }
}

/// A renewal extends the lease of a hold, and never shortens it.
pub async fn a_renewal_of_a_hold_extends_and_never_shortens_it(on: &Subject) {
    let lock = Lock::new(on);
    let granted = lock.grant(&AcquireRequest { lease: LONG, ..request("a", Exclusive) }).await;
    assert_eq!(lock.renew("a", on.tick).await, RenewLockResponse::Renewed(granted.ends_at));
    let RenewLockResponse::Renewed(ends_at) = lock.renew("a", LONG * 2).await else { panic!("it is held") };
    assert!(ends_at >= granted.ends_at.plus(LONG), "{ends_at:?}");
}

/// A change that was decided before a lock was released and held again is refused, although the lock looks the same.
pub async fn a_change_decided_on_an_older_state_of_a_lock_is_refused(on: &Subject) {
    let lock = Lock::new(on);
    let view = on.engine.get_record(&lock.name, DEADLINE).await.expect("the engine answers");
    let mut stale = LockState::at(LockRecord::default(), view.now);
    stale.acquire(&request("stale", Exclusive));
    let stale = lock.change(view.record, stale).expect("a grant is a change");
    lock.granted("a", Exclusive).await;
    lock.released("a").await;
    let answer = on.engine.change_record(&stale, DEADLINE).await.expect("the engine answers");
    assert!(matches!(answer, ChangeResponse::Refused { .. }), "{answer:?}");
    lock.granted("b", Exclusive).await;
}

/// A list of locks has those of the app, ordered by name, in pages.
pub async fn a_list_of_locks_is_ordered_by_name_and_paged(on: &Subject) {
    if !on.engine.capabilities().lists {
        return;
    }
    let (app_name, other) = (format!("app-{}", attempt().timestamp().as_micros()), fresh_lock("conformance-other"));
    let names: [LockName; 4] = ["B", "a", "a.1", "b"].map(|name| name.parse().expect("a name"));
    for name in names.iter().rev() {
        Lock { on, name: RecordName::Lock(app(&app_name), name.clone()) }.granted("holder", Exclusive).await;
    }
    Lock { on, name: other }.granted("holder", Exclusive).await;
    let page = async |after: Option<&LockName>, limit| {
        let request = LockListRequest { app: app(&app_name), after: after.cloned(), limit };
        let page = on.engine.list_records(&request).await.expect("the engine lists");
        page.records.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 10).await, names, "by bytes, of this app only");
    assert_eq!(page(None, 3).await, names[..3]);
    assert_eq!(page(Some(&names[2]), 3).await, names[3..]);
}

const HELD: AcquireResponse = AcquireResponse::Held { position: None };

/// A lock that no other test uses.
struct Lock<'a> {
    on: &'a Subject,
    name: RecordName,
}

impl<'a> Lock<'a> {
    fn new(on: &'a Subject) -> Self {
        Self { on, name: fresh_lock("conformance") }
    }

    /// Changes the lock as a gateway does: read, decide, and compare and set, again if another one was faster.
    async fn apply<Answer>(&self, transition: impl Fn(&mut LockState) -> Answer) -> Answer {
        let engine = &self.on.engine;
        for _ in 0..1000 {
            let view = engine.get_record(&self.name, DEADLINE).await.expect("the engine answers");
            let record = view.record.as_ref().map(|stored| LockRecord::decode(stored.value()).expect("a lock"));
            let mut state = LockState::at(record.unwrap_or_default(), view.now);
            let answer = transition(&mut state);
            let Some(change) = self.change(view.record, state) else { return answer };
            if let ChangeResponse::Stored(_) =
                engine.change_record(&change, DEADLINE).await.expect("the engine answers")
            {
                return answer;
            }
        }
        panic!("others change the lock before every try")
    }

    fn change(&self, expected: Option<SharedRecord>, state: LockState) -> Option<RecordChange> {
        let from = state.now();
        let change = state.into_change()?;
        let new = SharedRecord::versioned(SystemEntropy.bits(), &change.record.encode()).expect("a short record");
        Some(RecordChange {
            name: self.name.clone(),
            expected,
            new,
            lasts: Some(change.lasts),
            from,
            before: change.before,
            purpose: ChangePurpose::Grant,
            lease_max: Duration::ZERO,
            notifies: change.notifies,
        })
    }

    async fn acquire(&self, name: &str, mode: LockMode) -> AcquireResponse {
        self.apply(|state| state.acquire(&request(name, mode))).await
    }

    /// Requests one of so many holds.
    async fn permit(&self, name: &str, limit: u64) -> AcquireResponse {
        let request = AcquireRequest { limit: Permits::try_from(limit).ok(), ..request(name, Shared) };
        self.apply(|state| state.acquire(&request)).await
    }

    async fn granted(&self, name: &str, mode: LockMode) -> LockGrant {
        self.grant(&request(name, mode)).await
    }

    async fn grant(&self, request: &AcquireRequest) -> LockGrant {
        match self.apply(|state| state.acquire(request)).await {
            AcquireResponse::Granted(grant) => grant,
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    /// Requests an exclusive hold in order. Returns the position if it is not granted.
    async fn fair(&self, name: &str) -> Result<LockGrant, usize> {
        let request = AcquireRequest { fair: true, ..request(name, Exclusive) };
        match self.apply(|state| state.acquire(&request)).await {
            AcquireResponse::Granted(grant) => Ok(grant),
            AcquireResponse::Held { position: Some(position) } => Err(position),
            other => panic!("expected a grant or a place, got {other:?}"),
        }
    }

    async fn release(&self, name: &str) -> UnlockResponse {
        self.apply(|state| state.release(&attempt_of(name))).await
    }

    /// Releases a hold. Returns how many its owner still has.
    async fn released(&self, name: &str) -> usize {
        match self.release(name).await {
            UnlockResponse::Done { holds, .. } => holds,
            other => panic!("expected a release, got {other:?}"),
        }
    }

    async fn withdraw(&self, name: &str) -> UnlockResponse {
        self.apply(|state| state.withdraw(ShortHash::of_nonce(&nonce(name)))).await
    }

    async fn renew(&self, name: &str, lease: Duration) -> RenewLockResponse {
        self.apply(|state| state.renew(&attempt_of(name), lease)).await
    }
}

fn nonce(name: &str) -> Nonce {
    format!("{:-<16}", name.replace('.', "_")).parse().expect("a nonce")
}

fn attempt_of(name: &str) -> Attempt {
    Attempt::new(Timestamp::from_micros(1_700_000_000_000_000), nonce(name))
}

/// Returns a request by the owner that the name has before its dot.
fn request(name: &str, mode: LockMode) -> AcquireRequest {
    let owner = ShortHash::of_owner(&nonce(name.split('.').next().unwrap_or(name)));
    AcquireRequest { attempt: attempt_of(name), owner, mode, limit: None, caller: None, lease: LONG, fair: false }
}
