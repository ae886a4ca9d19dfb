//! Claims: one `SET … NX GET PX` if nothing is stored under the key. Otherwise the stored record decides, and a script
//! takes the claim over. A key that is probably taken is claimed by a transaction that does the same and returns the stored
//! record. Each step looks its server up again.

use std::time::Duration;

use futures_util::future::{join, join_all};
use oncegate_core::claim::{self, ClaimRequest, ClaimResponse, Effect};
use oncegate_core::engine::{BatchClaim, ClaimSink, Determinate, EngineError, millis, value};
use oncegate_core::record::ClaimState;
use oncegate_core::terms::LeaseEnd;
use redis::Value;

use super::Redis;
use super::commands::Commands;
use super::connection::Purpose;
use super::keys::KeyName;
use super::limit::CallTime;
use super::reply::{self, GRACE, Snapshot, checked, unexpected};
use super::route::Sending;
use super::script::SCRIPTS;
use super::topology::Group;
use super::transaction;

/// Maximum number of further tries, after the other claim has ended or changed before it could be read.
const ROUNDS: usize = 3;

/// A claim, prepared for the store.
struct Prepared<'a> {
    /// Position in its batch.
    position: usize,
    request: &'a ClaimRequest,
    key: KeyName,
    /// The value that a grant stores.
    value: String,
    /// Time to live in milliseconds.
    px: u64,
    time: CallTime,
}

/// Effect of a `SET … NX GET`.
enum SetOutcome {
    Granted,
    /// Another value is stored: by an earlier try of this attempt, or by another one.
    Found {
        own: bool,
    },
    /// At its maxmemory, the server refuses the command even where it would only read.
    Full(Determinate),
}

impl Redis {
    pub(super) async fn claim_one(
        &self,
        request: &ClaimRequest,
        deadline: Duration,
    ) -> Result<ClaimResponse, EngineError> {
        self.claim_prepared(&self.prepare(0, request, deadline)).await
    }

    /// Claims, or reads the other claim in the same step. For a waiting caller, it also marks that claim.
    async fn claim_or_read(&self, claim: &Prepared<'_>) -> Result<ClaimResponse, EngineError> {
        let (px, key, time) = (claim.px.to_string(), &claim.key, claim.time.for_grants());
        let command = || transaction::claim(&key.text, &claim.value, &px);
        for _ in 0..ROUNDS {
            let reply = if claim.request.waits {
                self.run(&SCRIPTS.claim_waiting, key, &[&*claim.value, &px], Purpose::Grant, time).await
            } else {
                self.topology.send(Sending { key, purpose: Purpose::Grant, time, command: &command }).await
            };
            match checked(reply?) {
                Ok(Value::Nil) => return Ok(self.granted(claim)),
                Ok(found) => {
                    if let Some(found) = reply::snapshot(found)?
                        && let Some(answer) = self.answer_from(claim, found).await?
                    {
                        return Ok(answer);
                    }
                }
                // The other claim can still be read, but not be marked: polling finds its end.
                Err(full @ Determinate::Full(_)) => return self.claim_found(claim, SetOutcome::Full(full)).await,
                Err(why) => return Err(why.into()),
            }
        }
        Err(changed_hands())
    }

    async fn claim_prepared(&self, prepared: &Prepared<'_>) -> Result<ClaimResponse, EngineError> {
        if prepared.request.waits || self.is_probably_taken(prepared) {
            return Box::pin(self.claim_or_read(prepared)).await;
        }
        match self.set(prepared).await? {
            SetOutcome::Granted => Ok(self.granted(prepared)),
            // Boxed: every claim would take memory for this.
            found => Box::pin(self.claim_found(prepared, found)).await,
        }
    }

    fn is_probably_taken(&self, claim: &Prepared<'_>) -> bool {
        self.seen.has(&claim.request.key.global_id)
    }

    /// Returns the grant of a claim that the store has made.
    fn granted(&self, claim: &Prepared<'_>) -> ClaimResponse {
        self.seen.add(&claim.request.key.global_id);
        claim::granted(claim.request, None, false)
    }

    /// Claims over one connection are sent together. Where answers wait for replicas, each claim is a separate call, so
    /// that the others do not wait. So is one whose key is probably taken.
    pub(super) async fn claim_many(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let claims = claims.iter().enumerate();
        let prepared = claims.map(|(at, claim)| self.prepare(at, claim.request, claim.deadline));
        let is_alone = |claim: &Prepared<'_>| self.acknowledgement.is_some() || self.is_probably_taken(claim);
        let (alone, together): (Vec<_>, Vec<_>) = prepared.partition(is_alone);
        let alone = alone.iter().map(async |claim| sink(claim.position, self.claim_prepared(claim).await));
        let together = async {
            let groups = self.topology.split(together, |claim: &Prepared<'_>| &claim.key).await;
            join_all(groups.into_iter().map(|group| self.claim_group(group, sink))).await
        };
        join(join_all(alone), together).await;
    }

    async fn claim_group(&self, (route, group): Group<Prepared<'_>>, sink: ClaimSink<'_>) {
        let mut commands = Commands::default();
        for claim in &group {
            claim.write_command(&mut commands);
        }
        let sent = async {
            let route = route?;
            let replies = route.primary.send(route.worker, commands, Purpose::Grant, None).await?;
            Ok((route, replies))
        };
        let (route, replies) = match sent.await {
            Ok(sent) => sent,
            Err(failure) => {
                self.topology.has_failed();
                let failure: EngineError = failure;
                return group.iter().for_each(|claim| sink(claim.position, Err(failure.clone())));
            }
        };
        let (mut found, mut moved) = (Vec::new(), Vec::new());
        for (claim, reply) in group.iter().zip(replies) {
            if self.topology.is_to_be_resent(&route, &reply) {
                moved.push(async { sink(claim.position, self.claim_prepared(claim).await) });
                continue;
            }
            match SetOutcome::read(claim.request, reply) {
                Ok(SetOutcome::Granted) => sink(claim.position, Ok(self.granted(claim))),
                Ok(outcome) => found.push(async { sink(claim.position, self.claim_found(claim, outcome).await) }),
                Err(failure) => sink(claim.position, Err(failure)),
            }
        }
        join(join_all(found), join_all(moved)).await;
    }

    /// Continues a claim whose key is taken: reads the stored record, and takes it over or tries again where that is
    /// allowed.
    async fn claim_found(&self, claim: &Prepared<'_>, outcome: SetOutcome) -> Result<ClaimResponse, EngineError> {
        self.seen.add(&claim.request.key.global_id);
        let mut outcome = outcome;
        for round in 1..=ROUNDS {
            let found = self.snapshot(&claim.key, claim.time.without_wait()).await.map_err(|error| {
                match (&outcome, error) {
                    // This attempt holds the claim since an earlier try: that must not be reported as not having happened.
                    (SetOutcome::Found { own: true }, EngineError::Determinate(Determinate::Unavailable(why))) => {
                        EngineError::indeterminate(why)
                    }
                    (_, error) => error,
                }
            })?;
            match (found, outcome) {
                (Some(found), _) => {
                    if let Some(answer) = self.answer_from(claim, found).await? {
                        return Ok(answer);
                    }
                }
                (None, SetOutcome::Full(why)) => return Err(why.into()),
                // It ended between the two commands.
                (None, SetOutcome::Granted | SetOutcome::Found { .. }) => {}
            }
            if round == ROUNDS {
                break;
            }
            outcome = self.set(claim).await?;
            if matches!(outcome, SetOutcome::Granted) {
                return Ok(self.granted(claim));
            }
        }
        Err(changed_hands())
    }

    /// Answers a claim from the existing claim, or takes that one over if the table allows it. `None` if it has changed
    /// since.
    async fn answer_from(&self, claim: &Prepared<'_>, found: Snapshot) -> Result<Option<ClaimResponse>, EngineError> {
        let (effect, answer) = claim::claim(Some(&found.held), claim.request, None);
        let Effect::Put(record, _) = effect else {
            return if claim.time.wait.is_none() || is_given_at_once(&answer) {
                Ok(Some(answer))
            } else {
                self.acknowledged(claim).await
            };
        };
        let value = value::encode_claim(claim.request, &record);
        // A script takes text, and a value that was read as a record is text.
        let arguments = [&*String::from_utf8_lossy(&found.value), &value, &claim.px.to_string()];
        let taken = self.run(&SCRIPTS.take_over, &claim.key, &arguments, Purpose::Grant, claim.time).await?;
        Ok((checked(taken)? == Value::Int(1)).then_some(answer))
    }

    /// Returns the answer from the stored record, once replicas have the record. `None` if it has changed since.
    async fn acknowledged(&self, claim: &Prepared<'_>) -> Result<Option<ClaimResponse>, EngineError> {
        // This attempt may hold the claim since an earlier try.
        let uncertain = |failure| match failure {
            EngineError::Determinate(Determinate::Unavailable(why)) => EngineError::indeterminate(why),
            failure => failure,
        };
        let found = self.snapshot(&claim.key, claim.time).await.map_err(uncertain)?;
        let Some(found) = found else { return Ok(None) };
        let (effect, answer) = claim::claim(Some(&found.held), claim.request, None);
        Ok((!matches!(effect, Effect::Put(..))).then_some(answer))
    }

    async fn set(&self, claim: &Prepared<'_>) -> Result<SetOutcome, EngineError> {
        let (purpose, time) = (Purpose::Grant, claim.time.for_grants());
        let command = || {
            let mut command = Commands::default();
            claim.write_command(&mut command);
            command
        };
        let sending = Sending { key: &claim.key, purpose, time, command: &command };
        SetOutcome::read(claim.request, self.topology.send(sending).await?)
    }

    /// Reads the value of a key, as of one instant.
    pub(super) async fn snapshot(&self, key: &KeyName, time: CallTime) -> Result<Option<Snapshot>, EngineError> {
        let command = || transaction::read(&key.text);
        let reply = match self.topology.send(Sending { key, purpose: Purpose::Other, time, command: &command }).await {
            // A full server queues no command of a transaction.
            Ok(Value::ServerError(error)) if error.code() == "OOM" => {
                self.run::<&str>(&SCRIPTS.read, key, &[], Purpose::Other, time).await
            }
            reply => reply,
        };
        reply.and_then(reply::snapshot).map_err(EngineError::of_read)
    }

    fn prepare<'a>(&self, position: usize, request: &'a ClaimRequest, deadline: Duration) -> Prepared<'a> {
        // A claim that turns `unknown` must still be stored when its lease has ended.
        let grace = if request.terms.on_lease_end == LeaseEnd::Unknown { millis(GRACE) } else { 0 };
        let px = millis(request.terms.lease).saturating_add(grace);
        Prepared {
            position,
            request,
            key: self.keys.claim(&request.key),
            value: value::encode_claim(request, &request.record()),
            px,
            time: self.time(deadline),
        }
    }
}

impl Prepared<'_> {
    fn write_command(&self, commands: &mut Commands) {
        let px = &mut itoa::Buffer::new();
        let words = ["SET", &self.key.text, &self.value, "NX", "GET", "PX", px.format(self.px)];
        commands.push(words.into_iter().map(str::as_bytes));
    }
}

impl SetOutcome {
    fn read(request: &ClaimRequest, reply: Value) -> Result<Self, EngineError> {
        match checked(reply) {
            Ok(Value::Nil) => Ok(Self::Granted),
            Ok(Value::BulkString(found)) => Ok(Self::Found { own: begins_with(&found, &request.attempt.to_string()) }),
            Ok(_) => Err(unexpected()),
            Err(full @ Determinate::Full(_)) => Ok(Self::Full(full)),
            Err(why) => Err(why.into()),
        }
    }
}

fn changed_hands() -> EngineError {
    EngineError::unavailable("the claim changed during every read; try again")
}

/// Returns whether an answer does not wait for replicas: its caller repeats the call anyway, or has to change it.
fn is_given_at_once(answer: &ClaimResponse) -> bool {
    match answer {
        ClaimResponse::Duplicate(held) => held.record.state == ClaimState::InProgress,
        ClaimResponse::Mismatch(_) => true,
        ClaimResponse::Granted(_) => false,
    }
}

/// A value begins with its attempt. So the holder of a claim is known without reading the rest.
fn begins_with(value: &[u8], attempt: &str) -> bool {
    value.strip_prefix(attempt.as_bytes()).is_some_and(|rest| rest.first() == Some(&b' '))
}

#[cfg(test)]
mod tests {
    use oncegate_core::claim::Mismatch;
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_core::record::{LiveClaim, Record};

    use super::*;

    #[test]
    fn what_may_still_change_is_answered_before_replicas_have_it() {
        let request = fresh_claim();
        let duplicate = |state| {
            let record = Record { state, ..request.record() };
            ClaimResponse::Duplicate(LiveClaim { record, left: None, ends_at: None, fence: None })
        };
        for (answer, at_once) in [
            (duplicate(ClaimState::InProgress), true),
            (duplicate(ClaimState::Succeeded), false),
            (duplicate(ClaimState::Unknown), false),
            (ClaimResponse::Mismatch(Mismatch::Contents), true),
            (claim::granted(&request, None, false), false),
        ] {
            assert_eq!(is_given_at_once(&answer), at_once, "{answer:?}");
        }
    }

    #[test]
    fn a_value_begins_with_its_attempt() {
        assert!(begins_with(b"attempt rest", "attempt"));
        for other in ["attempts rest", "attempt", "other rest", ""] {
            assert!(!begins_with(other.as_bytes(), "attempt"), "{other}");
        }
    }
}
