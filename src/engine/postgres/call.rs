//! A call in a lane's queue: what is asked, what the first statement needs to know of it, and what is to be done and told
//! once it is known what stands.

use std::time::Duration;

use tokio::sync::oneshot;

use super::routes::Place;
use super::row::{Change, Question, letter, micros};
use crate::domain::attempt::Attempt;
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, Effect, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use crate::domain::operator::{self, ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim, Record, State};
use crate::engine::{EngineError, Metadata, value};

/// What is asked of one key.
pub(super) enum Ask {
    Claim(Box<ClaimRequest>),
    Settle(Box<OutcomeRequest>),
    Renew(RenewalRequest),
    Read(Key),
    Release(ReleaseRequest),
}

/// The answer to an [`Ask`], of the same kind.
#[derive(Debug)]
pub(super) enum Told {
    Claimed(ClaimResponse),
    Settled(OutcomeResponse),
    Renewed(RenewalResponse),
    Read(Option<LiveClaim>),
    Released(ReleaseResponse),
}

/// Where an answer goes. Its caller may have gone away.
pub(super) type Reply<Answer> = oneshot::Sender<Result<Answer, EngineError>>;

/// An ask, and who waits for its answer.
pub(super) struct Call {
    pub(super) ask: Ask,
    reply: Reply<Told>,
    /// Given back when it has been answered or given up: calls on its key come here until then.
    _place: Place,
    /// Nothing stood there for an outcome to settle: what is to be recorded instead.
    late: Option<Record>,
    /// How often it was begun anew, because what it was judged by had changed.
    pub(super) rounds: usize,
}

/// Something else that a lane's connection can do.
pub(super) enum Job {
    Call(Box<Call>),
    Probe(Reply<()>),
    List(ListRequest, Reply<Vec<ListedClaim>>),
    Metadata(String, Reply<Option<Metadata>>),
    /// The name, what is expected, and the new one.
    SwapNote(String, Option<Metadata>, Metadata, Reply<bool>),
}

/// What stands under a key, as it was found.
pub(super) struct Found {
    pub(super) held: LiveClaim,
    /// By what it is recognised when it is to be changed.
    pub(super) was: super::row::Was,
}

/// What becomes of a call, now that it is known what stands.
pub(super) enum Verdict {
    /// This answer.
    Tell(Told),
    /// This answer, if the change can be made.
    Change(Box<Change>, Told),
    /// It is to be begun anew.
    Again,
}

/// How long a released record is kept.
const TOMBSTONE: Duration = Duration::from_mins(1);

impl Call {
    pub(super) fn new(ask: Ask, reply: Reply<Told>, place: Place) -> Self {
        Self { ask, reply, _place: place, late: None, rounds: 0 }
    }

    pub(super) fn key(&self) -> &Key {
        match &self.ask {
            Ask::Claim(ask) => &ask.key,
            Ask::Settle(ask) => &ask.key,
            Ask::Renew(ask) => &ask.key,
            Ask::Read(key) => key,
            Ask::Release(ask) => &ask.key,
        }
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// About how many bytes it brings into a statement.
    pub(super) fn bytes(&self) -> usize {
        let own = match &self.ask {
            Ask::Claim(ask) => ask.contents.as_str().len().min(ask.contents_stored_bytes),
            Ask::Settle(ask) => match &ask.outcome {
                Outcome::Success { result: Some(result), .. } => result.len(),
                _ => 0,
            },
            _ => 0,
        };
        own + 256
    }

    pub(super) fn tell(self, answer: Result<Told, EngineError>) {
        // An error means that the caller has gone.
        let _ = self.reply.send(answer);
    }

    /// What the first statement is to do for it.
    pub(super) fn question(&self) -> Question {
        let read = || Question::read(self.key());
        if let Some(late) = &self.late {
            let lasts = late.settled_retention().duration();
            return Question::put(self.key(), late, lasts, lasts.map(|lasts| lasts + TOMBSTONE));
        }
        match &self.ask {
            Ask::Claim(ask) => {
                let record = ask.record();
                Question::put(&ask.key, &record, Some(ask.terms.lease), Some(sweep_after(&record)))
            }
            Ask::Settle(ask) => match &ask.outcome {
                Outcome::Success { result, retention } => {
                    Question::success(&ask.key, &ask.attempt, result.as_deref(), *retention)
                }
                Outcome::Failure => Question::failure(&ask.key, &ask.attempt),
                Outcome::Unknown => read(),
            },
            Ask::Renew(_) | Ask::Read(_) | Ask::Release(_) => read(),
        }
    }

    /// Whether the first statement may change something for it.
    pub(super) fn writes(&self) -> bool {
        self.late.is_some()
            || match &self.ask {
                Ask::Claim(_) => true,
                Ask::Settle(ask) => ask.outcome != Outcome::Unknown,
                Ask::Renew(_) | Ask::Read(_) | Ask::Release(_) => false,
            }
    }

    /// The answer, where the first statement has done all there is to do. `retention` is what a success got.
    pub(super) fn done(&self, fence: u64, retention: Option<Duration>) -> Told {
        match (&self.ask, &self.late) {
            (Ask::Claim(ask), _) => Told::Claimed(claim::granted(ask, Some(fence), false)),
            (Ask::Settle(ask), Some(_)) => Told::Settled(claim::settle(None, ask).1),
            (Ask::Settle(ask), None) if ask.outcome == Outcome::Failure => {
                Told::Settled(OutcomeResponse::Done { state: None, left: None, late: Some(false) })
            }
            // What is in progress was not recorded late.
            (Ask::Settle(_), None) => Told::Settled(OutcomeResponse::Done {
                state: Some(State::Succeeded),
                left: retention,
                late: Some(false),
            }),
            // These change nothing in the first statement.
            (Ask::Renew(_) | Ask::Read(_) | Ask::Release(_), _) => Told::Read(None),
        }
    }

    /// What is to become of it, by what stands.
    pub(super) fn judge(&mut self, found: Option<&Found>) -> Verdict {
        let (effect, told) = transition(&self.ask, found.map(|found| &found.held));
        self.late = None;
        match (effect, found) {
            (Effect::Keep, _) => Verdict::Tell(told),
            (effect, Some(found)) => Verdict::Change(Box::new(change(&effect, found)), told),
            // Nothing stands: it can be put there by the next first statement, if that still finds nothing.
            (Effect::Put(record, _), None) if matches!(self.ask, Ask::Settle(_)) => {
                self.late = Some(record);
                Verdict::Again
            }
            (_, None) => Verdict::Again,
        }
    }
}

/// The table's word on what is asked.
fn transition(ask: &Ask, held: Option<&LiveClaim>) -> (Effect, Told) {
    match ask {
        Ask::Claim(ask) => {
            let (effect, told) = claim::claim(held, ask, None);
            (effect, Told::Claimed(told))
        }
        Ask::Settle(ask) => {
            let (effect, told) = claim::settle(held, ask);
            (effect, Told::Settled(told))
        }
        Ask::Renew(ask) => {
            let (effect, told) = claim::renew(held, ask);
            (effect, Told::Renewed(told))
        }
        Ask::Read(_) => (Effect::Keep, Told::Read(held.cloned())),
        Ask::Release(ask) => {
            let (effect, told) = operator::release(held, ask);
            (effect, Told::Released(told))
        }
    }
}

/// An effect on a record that stands, as the second statement takes it.
fn change(effect: &Effect, found: &Found) -> Change {
    let was = found.was.clone();
    match effect {
        Effect::Put(record, lasts) => {
            let fresh = record.state == State::InProgress;
            Change {
                was,
                state: letter(record),
                fresh,
                value: Some(value::encode(record).into_bytes()),
                lasts_us: lasts.map(micros),
                retention_us: record.terms.retention.duration().map(micros),
                sweep_us: fresh.then(|| micros(sweep_after(record))),
            }
        }
        Effect::Extend(lasts) => Change {
            state: was.state,
            was,
            fresh: false,
            value: None,
            lasts_us: Some(micros(*lasts)),
            retention_us: None,
            sweep_us: None,
        },
        Effect::Delete | Effect::Keep => Change {
            was,
            state: super::row::RELEASED,
            fresh: false,
            value: Some(Vec::new()),
            lasts_us: Some(0),
            retention_us: None,
            sweep_us: Some(micros(TOMBSTONE)),
        },
    }
}

/// When to look whether a claim's row can go: when a success reported at the last moment has ended, and then a minute. One
/// that would last for ever is looked at once its lease is over, and then not again if it did.
fn sweep_after(record: &Record) -> Duration {
    let kept = record.terms.retention.duration().unwrap_or_default();
    record.terms.lease.saturating_add(kept).saturating_add(TOMBSTONE)
}

impl Told {
    /// The answer with the fence that a new attempt has got.
    pub(super) fn with_fence(mut self, fence: u64) -> Self {
        if let Self::Claimed(ClaimResponse::Granted(grant)) = &mut self {
            grant.fence = Some(fence);
        }
        self
    }
}

/// A claim that another call has just found standing also answers those that waited behind that call, if it changes nothing
/// for them.
pub(super) fn shared_answer(waiting: &Call, found: &LiveClaim) -> Option<Told> {
    let Ask::Claim(ask) = &waiting.ask else { return None };
    match claim::claim(Some(found), ask, None) {
        (Effect::Keep, told) => Some(Told::Claimed(told)),
        _ => None,
    }
}

/// How a settled or claimed value begins: the attempt, and the layout's version.
pub(super) fn head(attempt: &Attempt) -> Vec<u8> {
    format!("{attempt} 1").into_bytes()
}
