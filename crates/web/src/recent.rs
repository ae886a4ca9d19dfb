//! Recent calls: repeats, mismatches, refusals, late and superseded outcomes, answers of outage policies. A plain grant
//! or success is never recorded, so most calls do not reach this module. `keys` has the requests of the proxy.

mod kept;
pub mod keys;
mod operations;
mod today;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::attempt::AttemptHash;
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::{AppKey, Operation};
use serde::Serialize;

use self::kept::{Entry, Newest};
use self::keys::{KeyedRequest, WantedKeys};
use self::operations::Operations;
pub use self::today::Repeats;
use self::today::Today;
use super::problem::{Code, Members, Problem};
use super::request_id::RequestId;

/// Time between two rounds that store waiting events.
const ROUND: Duration = Duration::from_millis(250);

/// Kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A repeat of a live claim. Detail: the state of the claim.
    Duplicate,
    /// A repeat had other contents, or another fingerprint. Detail: the code of the answer.
    Mismatch,
    /// A call was refused: by a quota, a limit, or because of its store. Detail: the code of the answer.
    Refused,
    /// An outcome came after its claim had ended. Detail: the state that was recorded.
    Late,
    /// An outcome or a renewal of an attempt that does not hold the claim. Detail: the code of the answer.
    Superseded,
    /// An outage policy answered in place of a store. Detail: the policy.
    Degraded,
    /// In observe mode, a call was let through that would have been stopped. Detail: the code that enforcing answers.
    Observed,
    /// In observe mode, an attempt that was let through has succeeded. Detail: the state of the claim that it repeated.
    RanTwice,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Duplicate,
        Self::Mismatch,
        Self::Refused,
        Self::Late,
        Self::Superseded,
        Self::Degraded,
        Self::Observed,
        Self::RanTwice,
    ];

    /// Returns its name in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Mismatch => "mismatch",
            Self::Refused => "refused",
            Self::Late => "late",
            Self::Superseded => "superseded",
            Self::Degraded => "degraded",
            Self::Observed => "observed",
            Self::RanTwice => "ran_twice",
        }
    }
}

/// Facts about a call that operators want to know, from its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Noted {
    /// Its kind.
    pub kind: Kind,
    /// More about it, by kind.
    pub detail: &'static str,
    /// The operation, where the answer has it.
    pub operation: Option<Operation>,
    /// The claim, where the answer has it.
    pub global_id: Option<GlobalId>,
    /// The attempt that holds the claim.
    pub attempt_hash: Option<AttemptHash>,
}

impl Noted {
    /// Returns an event of a claim.
    pub fn of(kind: Kind, detail: &'static str, global_id: GlobalId) -> Self {
        Self { kind, detail, operation: None, global_id: Some(global_id), attempt_hash: None }
    }

    /// Returns it with the operation and the claim of its call, where it has none yet.
    #[must_use]
    pub fn of_call(self, operation: Option<Operation>, global_id: Option<GlobalId>) -> Self {
        Self { operation: self.operation.or(operation), global_id: self.global_id.or(global_id), ..self }
    }

    /// Returns the facts in a problem. Errors of the caller have none.
    pub fn of_problem(problem: &Problem) -> Option<Self> {
        let (kind, detail) = match (problem.degraded, problem.code) {
            (Some(policy), _) => (Kind::Degraded, policy.name()),
            (None, Code::Duplicate) => (Kind::Duplicate, ""),
            (None, code @ (Code::ContentsMismatch | Code::FingerprintMismatch)) => (Kind::Mismatch, code.name()),
            (None, code @ (Code::Superseded | Code::AlreadySucceeded | Code::LeaseLost | Code::Expired)) => {
                (Kind::Superseded, code.name())
            }
            (
                None,
                code @ (Code::QuotaExceeded
                | Code::StoreUnavailable
                | Code::StoreFull
                | Code::StoreIncompatible
                | Code::OutcomeUnknown
                | Code::Draining
                | Code::Overloaded),
            ) => (Kind::Refused, code.name()),
            _ => return None,
        };
        let noted = Self { kind, detail, operation: None, global_id: None, attempt_hash: None };
        Some(match &problem.members {
            Members::Duplicate(found) => Self {
                detail: if kind == Kind::Duplicate { found.state.name() } else { detail },
                operation: found.operation.clone(),
                global_id: Some(found.global_id),
                attempt_hash: Some(found.attempt_hash),
                ..noted
            },
            _ => noted,
        })
    }
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Event {
    /// Its number in this process, which rises.
    pub id: u64,
    /// Time at which the call was answered.
    pub at: Timestamp,
    /// Its kind.
    pub kind: Kind,
    /// More about it, by kind.
    pub detail: &'static str,
    /// The app of the caller.
    pub app: AppKey,
    /// The operation, where the call or an earlier event of the claim names it.
    pub operation: Option<Operation>,
    /// The claim, where the call names it.
    pub global_id: Option<GlobalId>,
    /// The attempt that holds the claim.
    pub attempt_hash: Option<AttemptHash>,
    /// The ID of the request.
    pub request_id: String,
}

/// Filter of an operator.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Of this kind.
    pub kind: Option<Kind>,
    /// Of this app.
    pub app: Option<AppKey>,
    /// Of this operation.
    pub operation: Option<Operation>,
    /// Of this claim.
    pub global_id: Option<GlobalId>,
    /// Older than the one with this number.
    pub before: Option<u64>,
}

impl Wanted {
    fn has(&self, event: &Event) -> bool {
        self.kind.is_none_or(|kind| kind == event.kind)
            && self.app.as_ref().is_none_or(|app| *app == event.app)
            && self.operation.as_ref().is_none_or(|operation| Some(operation) == event.operation.as_ref())
            && self.global_id.is_none_or(|id| Some(id) == event.global_id)
            && self.before.is_none_or(|before| event.id < before)
    }
}

/// The events of this process, the newest of them.
pub struct Recent {
    events: Newest<Event>,
    requests: Newest<KeyedRequest>,
    today: Mutex<Today>,
    operations: Mutex<Operations>,
    clock: Arc<dyn Clock>,
}

impl Entry for Event {
    fn app(&self) -> &AppKey {
        &self.app
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn numbered(self, id: u64) -> Self {
        Self { id, ..self }
    }
}

impl Recent {
    /// Returns the list without an event.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let today = Mutex::new(Today::begin(clock.wall()));
        let operations = Mutex::new(Operations::new());
        Self { events: Newest::new(), requests: Newest::new(), today, operations, clock }
    }

    /// Notes an event. Never waits.
    pub fn note(&self, app: &AppKey, request_id: &RequestId, noted: Noted) {
        let Noted { kind, detail, operation, global_id, attempt_hash } = noted;
        let (app, request_id) = (app.clone(), request_id.as_str().to_owned());
        let event =
            Event { id: 0, at: self.clock.wall(), kind, detail, app, operation, global_id, attempt_hash, request_id };
        self.events.note(event);
    }

    /// Notes a request of the proxy. Never waits.
    pub fn note_request(&self, request: KeyedRequest) {
        self.requests.note(KeyedRequest { at: self.clock.wall(), ..request });
    }

    /// Returns the number of events that were lost, since too many came at once.
    pub fn lost(&self) -> u64 {
        self.events.lost()
    }

    /// Returns the number of requests of the proxy that were lost likewise.
    pub fn lost_requests(&self) -> u64 {
        self.requests.lost()
    }

    fn lost_of_both(&self) -> u64 {
        self.lost() + self.lost_requests()
    }

    /// Returns how many operations have met a repeat today.
    pub fn today(&self) -> Repeats {
        self.keep();
        self.today.lock().unwrap_or_else(PoisonError::into_inner).repeats(self.clock.wall(), self.lost_of_both())
    }

    /// Returns up to `limit` events, the newest first.
    pub fn find(&self, wanted: &Wanted, limit: usize) -> Vec<Event> {
        self.keep();
        self.events.find(wanted.app.as_ref(), |event| wanted.has(event), limit)
    }

    /// Returns up to `limit` requests of the proxy, the newest first.
    pub fn find_requests(&self, wanted: &WantedKeys, limit: usize) -> Vec<KeyedRequest> {
        self.keep();
        self.requests.find(wanted.app.as_ref(), |request| wanted.has(request), limit)
    }

    /// Keeps what waits, again and again.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(ROUND).await;
            self.keep();
        }
    }

    fn keep(&self) {
        let mut today = self.today.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = self.lost_of_both();
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        self.events.keep(|event| {
            operations.complete(event);
            today.add(event, lost);
        });
        self.requests.keep(|request| today.add_request(request, lost));
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::SystemEntropy;
    use oncegate_core::clock::ManualClock;

    use super::kept::{KEPT_MAX, QUEUED_MAX};
    use super::*;

    fn recent() -> Recent {
        Recent::new(Arc::new(ManualClock::at(Timestamp::from_micros(7))))
    }

    fn note(recent: &Recent, app: &str, id: u8) {
        let noted = Noted::of(Kind::Duplicate, "succeeded", GlobalId::from_bytes([id; 16]));
        recent.note(&app.parse().unwrap(), &RequestId::random(&SystemEntropy), noted);
    }

    #[test]
    fn the_newest_come_first_and_filters_apply() {
        let recent = recent();
        for (app, id) in [("shop", 1), ("bank", 2), ("shop", 3)] {
            note(&recent, app, id);
        }
        let ids = |wanted: Wanted, limit| recent.find(&wanted, limit).iter().map(|event| event.id).collect::<Vec<_>>();
        assert_eq!(ids(Wanted::default(), 9), [3, 2, 1]);
        assert_eq!(ids(Wanted::default(), 2), [3, 2]);
        assert_eq!(ids(Wanted { app: Some("shop".parse().unwrap()), ..Wanted::default() }, 9), [3, 1]);
        assert_eq!(ids(Wanted { before: Some(3), ..Wanted::default() }, 1), [2]);
        assert_eq!(ids(Wanted { kind: Some(Kind::Late), ..Wanted::default() }, 9), [] as [u64; 0]);
        let one = Wanted { global_id: Some(GlobalId::from_bytes([2; 16])), ..Wanted::default() };
        assert_eq!(recent.find(&one, 9)[0].app.to_string(), "bank");
    }

    #[test]
    fn an_event_without_its_operation_has_that_of_its_claim() {
        let (recent, operation) = (recent(), "order.submit".parse::<Operation>().unwrap());
        let note = |app: &str, id: u8, kind, operation: Option<&Operation>| {
            let noted = Noted::of(kind, "", GlobalId::from_bytes([id; 16]));
            let noted = Noted { operation: operation.cloned(), ..noted };
            recent.note(&app.parse().unwrap(), &RequestId::random(&SystemEntropy), noted);
        };
        note("shop", 1, Kind::RanTwice, None);
        note("shop", 1, Kind::Observed, Some(&operation));
        for (app, id) in [("shop", 1), ("shop", 2), ("bank", 1)] {
            note(app, id, Kind::RanTwice, None);
        }
        let wanted = Wanted { operation: Some(operation), ..Wanted::default() };
        let found: Vec<_> = recent.find(&wanted, 9).iter().map(|event| event.id).collect();
        assert_eq!(found, [3, 2], "of the same claim of the same app, once it is known");
    }

    #[test]
    fn the_app_that_has_the_most_gives_way_and_a_flood_is_counted() {
        let recent = recent();
        note(&recent, "quiet", 1);
        for _ in 0..=KEPT_MAX / 1000 {
            for _ in 0..1000 {
                note(&recent, "loud", 2);
            }
            recent.keep();
        }
        assert_eq!(recent.events.count(), KEPT_MAX);
        let quiet = Wanted { app: Some("quiet".parse().unwrap()), ..Wanted::default() };
        assert_eq!(recent.find(&quiet, 9).len(), 1, "it is the oldest, and stays");
        assert_eq!(recent.lost(), 0);
        for _ in 0..QUEUED_MAX + 5 {
            note(&recent, "loud", 2);
        }
        assert_eq!(recent.lost(), 5);
    }
}
