//! The claims and locks that callers of this gateway wait for, for operators. Calls no store.

use std::time::Duration;

use oncegate_core::caller::Caller;
use oncegate_core::clock::Timestamp;
use oncegate_core::global_id::GlobalId;
use oncegate_core::lock::LockName;
use oncegate_core::record::Realm;
use oncegate_core::tenant::{AppKey, Operation};
use serde::Serialize;

use super::Gateway;

/// Most names of callers of one claim or lock.
const NAMES_MAX: usize = 8;

/// The calls that wait for one claim or lock.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Calls {
    /// Their number.
    pub(super) count: usize,
    /// Names of the first of them that have one.
    pub(super) names: Vec<Caller>,
    /// When the first of them began, by the monotonic clock.
    pub(super) since: Duration,
}

impl Calls {
    /// Returns the calls of this list, each with its begin and its name; `None` if there are none.
    pub(super) fn of<'a>(calls: impl Iterator<Item = (Duration, Option<&'a Caller>)> + Clone) -> Option<Self> {
        let since = calls.clone().map(|(since, _)| since).min()?;
        let names = calls.clone().filter_map(|(_, name)| name).take(NAMES_MAX).cloned().collect();
        Some(Self { count: calls.count(), names, since })
    }
}

/// Claims and locks that callers of this gateway wait for, the longest wait first.
#[derive(Debug, Serialize)]
pub struct Waiting {
    /// Claims in progress.
    pub claims: Vec<WaitedForClaim>,
    /// Locks that others hold.
    pub locks: Vec<WaitedForLock>,
}

/// A claim in progress that callers wait for.
#[derive(Debug, Serialize)]
pub struct WaitedForClaim {
    /// The app.
    pub app: AppKey,
    /// The operation.
    pub operation: Operation,
    /// The realm of the claim.
    pub realm: Realm,
    /// The claim.
    pub global_id: GlobalId,
    /// Number of callers.
    pub callers: usize,
    /// Names of up to eight of them, as they have sent them.
    pub names: Vec<Caller>,
    /// Start of the call of the first of them.
    pub since: Timestamp,
}

/// A lock that callers wait for.
#[derive(Debug, Serialize)]
pub struct WaitedForLock {
    /// The app.
    pub app: AppKey,
    /// The lock.
    pub name: LockName,
    /// Number of callers.
    pub callers: usize,
    /// Names of up to eight of them, as they have sent them.
    pub names: Vec<Caller>,
    /// Start of the call of the first of them.
    pub since: Timestamp,
}

impl Gateway {
    /// Returns what callers of this gateway wait for, of one app or of all.
    pub fn waiting(&self, app: Option<&AppKey>) -> Waiting {
        let is_of = |of: &AppKey| app.is_none_or(|app| app == of);
        let claims = self.waiters.waited_for().into_iter().filter(|(key, ..)| is_of(&key.app));
        let claim = |(key, operation, calls): (oncegate_core::record::Key, _, Calls)| WaitedForClaim {
            app: key.app,
            operation,
            realm: key.realm,
            global_id: key.global_id,
            callers: calls.count,
            names: calls.names,
            since: self.instant(calls.since),
        };
        let locks = self.locks.waited_for().into_iter().filter(|(of, ..)| is_of(of));
        let lock = |(app, name, calls): (_, _, Calls)| WaitedForLock {
            app,
            name,
            callers: calls.count,
            names: calls.names,
            since: self.instant(calls.since),
        };
        let (mut claims, mut locks): (Vec<_>, Vec<_>) = (claims.map(claim).collect(), locks.map(lock).collect());
        claims.sort_by(|one, other| one.since.cmp(&other.since).then_with(|| one.global_id.cmp(&other.global_id)));
        locks.sort_by(|one, other| one.since.cmp(&other.since).then_with(|| one.name.cmp(&other.name)));
        Waiting { claims, locks }
    }

    /// Returns an instant of the monotonic clock as one of the wall clock.
    fn instant(&self, at: Duration) -> Timestamp {
        self.clock.wall().minus(self.since(at))
    }
}
