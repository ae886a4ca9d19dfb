//! Calls as a connection works on them. A call is generic over its request and used through a trait object, so that
//! each answer keeps the type of its request.

use futures_util::future::BoxFuture;
use oncegate_core::claim::{Effect, NamesEnd};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_core::record::{Key, LiveClaim};
use oncegate_driver::Reply;

use super::arguments::{Change, FirstStep};
use super::locks::LockCall;
use super::routes::Route;
use super::row::{Found, Written};
use super::session::Session;

/// A call in the queue of a connection.
pub(super) enum QueuedCall {
    /// On one key: shares its statements with calls on other keys.
    Keyed(Box<dyn KeyedCall>),
    /// On one lock: shares its statement with calls on other locks.
    Lock(Box<LockCall>),
    /// A separate statement.
    Single(Box<dyn SingleCall>),
}

impl oncegate_driver::Call for QueuedCall {
    fn refuse(self, why: &Determinate) {
        match self {
            Self::Keyed(call) => call.fail(why.clone().into()),
            Self::Lock(call) => call.fail(why.clone().into()),
            Self::Single(call) => call.refuse(why),
        }
    }
}

/// A request on one key.
pub(super) trait Request: Send + 'static {
    /// The answer to it.
    type Response: NamesEnd + Send + 'static;

    /// True if the result of an earlier call on the same key may answer it. Not for requests that must not overtake
    /// another request of their caller.
    const SHARES_FINDINGS: bool = false;

    fn key(&self) -> &Key;

    /// Returns about how many bytes it adds to a statement, beyond its key.
    fn bytes(&self) -> usize {
        0
    }

    /// Returns the work of the first statement for it.
    fn first_step(&self) -> FirstStep {
        FirstStep::read(self.key())
    }

    /// Returns whether its first step may change something.
    fn may_write(&self) -> bool {
        false
    }

    /// Returns the answer where the first step has written all there is to write; `None` if it never writes.
    fn written(&self, _: Written) -> Option<Self::Response> {
        None
    }

    /// Applies the table of transitions to the claim that was found.
    fn transition(&self, found: Option<&LiveClaim>) -> (Effect, Self::Response);

    /// Prepares for another first step, because this effect could not be applied.
    fn begin_again(&mut self, _: Effect) {}

    /// Completes the answer of a transition with the fence of the row.
    fn with_fence(answer: Self::Response, _: u64) -> Self::Response {
        answer
    }
}

/// A call on one key, with a request of any kind.
pub(super) trait KeyedCall: Send {
    fn key(&self) -> &Key;

    /// Returns whether its caller has stopped waiting.
    fn is_abandoned(&self) -> bool;

    /// Returns about how many bytes it adds to a statement.
    fn bytes(&self) -> usize;

    /// Returns the work of the first statement for it.
    fn first_step(&self) -> FirstStep;

    /// Returns whether its first step may change something.
    fn may_write(&self) -> bool;

    /// Answers it: the first statement has written all there is to write.
    fn written(self: Box<Self>, written: Written);

    /// Decides it from the found record.
    fn decide(self: Box<Self>, found: Option<&Found>) -> Decision;

    /// Answers it from the record that another call has found, if it needs no write; returns it otherwise.
    fn answer_by(self: Box<Self>, found: &LiveClaim) -> Option<Box<dyn KeyedCall>>;

    fn fail(self: Box<Self>, why: EngineError);
}

/// Next step of a call, after its record was read.
pub(super) enum Decision {
    /// Answered.
    Answered,
    /// Needs this change.
    Change(Box<Change>, Box<dyn DecidedCall>),
    /// Begins again.
    Again(Box<dyn KeyedCall>),
}

/// A call whose answer depends on a change.
pub(super) trait DecidedCall: Send {
    fn key(&self) -> &Key;

    /// Answers it: the change was made, and the row has this fence and this end.
    fn confirm(self: Box<Self>, fence: u64, ends_at: Option<Timestamp>);

    /// Returns the call: the change was not made.
    fn revert(self: Box<Self>) -> Box<dyn KeyedCall>;
}

/// A request, and where its answer goes.
pub(super) struct Pending<R: Request> {
    request: R,
    reply: Reply<R::Response>,
    /// Given back when the call is answered or dropped: until then, other calls on its key take the same connection.
    _route: Route,
}

impl<R: Request> Pending<R> {
    pub(super) fn new(request: R, reply: Reply<R::Response>, route: Route) -> Self {
        Self { request, reply, _route: route }
    }
}

impl<R: Request> KeyedCall for Pending<R> {
    fn key(&self) -> &Key {
        self.request.key()
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_abandoned()
    }

    fn bytes(&self) -> usize {
        256 + self.request.bytes()
    }

    fn first_step(&self) -> FirstStep {
        self.request.first_step()
    }

    fn may_write(&self) -> bool {
        self.request.may_write()
    }

    fn written(self: Box<Self>, written: Written) {
        let unexpected = || EngineError::indeterminate("the PostgreSQL server wrote a row for a call that only reads");
        let answer = self.request.written(written).map(|answer| answer.with_end(written.ends_at));
        self.reply.send(answer.ok_or_else(unexpected));
    }

    fn decide(mut self: Box<Self>, found: Option<&Found>) -> Decision {
        let (effect, answer) = self.request.transition(found.map(|found| &found.held));
        match (effect, found) {
            (Effect::Keep, _) => {
                self.reply.send(Ok(answer));
                Decision::Answered
            }
            (effect, Some(found)) => {
                Decision::Change(Box::new(Change::of(&effect, found)), Box::new(Decided { call: self, answer }))
            }
            // The claim that was found has ended: the next first step finds the key free.
            (effect, None) => {
                self.request.begin_again(effect);
                Decision::Again(self)
            }
        }
    }

    fn answer_by(self: Box<Self>, found: &LiveClaim) -> Option<Box<dyn KeyedCall>> {
        if !R::SHARES_FINDINGS {
            return Some(self);
        }
        match self.request.transition(Some(found)) {
            (Effect::Keep, answer) => {
                self.reply.send(Ok(answer));
                None
            }
            _ => Some(self),
        }
    }

    fn fail(self: Box<Self>, why: EngineError) {
        self.reply.send(Err(why));
    }
}

struct Decided<R: Request> {
    call: Box<Pending<R>>,
    answer: R::Response,
}

impl<R: Request> DecidedCall for Decided<R> {
    fn key(&self) -> &Key {
        self.call.key()
    }

    fn confirm(self: Box<Self>, fence: u64, ends_at: Option<Timestamp>) {
        self.call.reply.send(Ok(R::with_fence(self.answer, fence).with_end(ends_at)));
    }

    fn revert(mut self: Box<Self>) -> Box<dyn KeyedCall> {
        self.call.request.begin_again(Effect::Keep);
        self.call
    }
}

/// A request that is a separate statement.
pub(super) trait Statement: Send + 'static {
    /// The answer to it.
    type Response: Send + 'static;

    /// True if the connection is still good after the server has refused the statement as incompatible: for example, a
    /// table of a later schema may be missing.
    const SURVIVES_REFUSAL: bool = true;

    fn run(self, session: &mut Session) -> impl Future<Output = Result<Self::Response, EngineError>> + Send;
}

/// A call with a separate statement, for any request.
pub(super) trait SingleCall: Send {
    /// Runs and answers it. An error says why the connection must not be used again.
    fn run(self: Box<Self>, session: &mut Session) -> BoxFuture<'_, Result<(), String>>;

    fn refuse(self: Box<Self>, why: &Determinate);
}

/// A statement, and where its answer goes.
pub(super) struct Single<S: Statement> {
    pub(super) statement: S,
    pub(super) reply: Reply<S::Response>,
}

impl<S: Statement> SingleCall for Single<S> {
    fn run(self: Box<Self>, session: &mut Session) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let answer = self.statement.run(session).await;
            let reason = reason_to_reconnect(&answer, S::SURVIVES_REFUSAL);
            self.reply.send(answer);
            reason.map_or(Ok(()), Err)
        })
    }

    fn refuse(self: Box<Self>, why: &Determinate) {
        self.reply.refuse(why);
    }
}

/// Returns why the connection must not be used again after this answer, if it must not.
fn reason_to_reconnect<Response>(answer: &Result<Response, EngineError>, survives_refusal: bool) -> Option<String> {
    match answer {
        Ok(_) => None,
        Err(EngineError::Determinate(Determinate::Incompatible(_))) if survives_refusal => None,
        Err(failure) => Some(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use oncegate_core::claim::{ClaimRequest, ClaimResponse};
    use oncegate_core::engine::conformance::fresh_claim;
    use oncegate_driver::{Call as _, Readiness};

    use super::super::routes::Routes;
    use super::*;

    type Answered<R> = Option<Result<<R as Request>::Response, EngineError>>;

    /// A call, and where its answer arrives.
    fn pending<R: Request>(request: R) -> (Box<Pending<R>>, impl Future<Output = Answered<R>>) {
        let route = Routes::new(std::iter::once(Arc::<Readiness>::default())).take(request.key());
        let (reply, answer) = Reply::new();
        (Box::new(Pending::new(request, reply, route)), answer.map(Result::ok))
    }

    fn found(claim: &ClaimRequest) -> LiveClaim {
        LiveClaim { record: claim.record(), left: Some(claim.terms.lease), ends_at: None, fence: Some(3) }
    }

    #[test]
    fn a_call_counts_its_bytes() {
        let claim = fresh_claim();
        let contents = claim.contents.as_str().len();
        let (call, answer) = pending(claim);
        assert_eq!((call.bytes(), call.may_write()), (256 + contents, true));
        assert!(!call.is_abandoned());
        drop(answer);
        assert!(call.is_abandoned());
        let (call, _answer) = pending(fresh_claim().key);
        assert_eq!((call.bytes(), call.may_write()), (256, false));
    }

    #[test]
    fn a_call_that_waits_is_answered_by_what_another_one_found_if_it_has_nothing_to_write() {
        let holder = fresh_claim();
        let other = ClaimRequest { attempt: fresh_claim().attempt, ..holder.clone() };
        let (call, answer) = pending(other.clone());
        assert!(call.answer_by(&found(&holder)).is_none());
        assert!(matches!(answer.now_or_never(), Some(Some(Ok(ClaimResponse::Duplicate(_))))));
        // A lookup must not be answered from an earlier read.
        let (call, answer) = pending(holder.key.clone());
        assert!(call.answer_by(&found(&holder)).is_some());
        assert!(matches!(answer.now_or_never(), Some(None)), "given back, and dropped here");
    }

    #[test]
    fn a_call_that_only_reads_has_no_row_that_was_written() {
        let (call, answer) = pending(fresh_claim().key);
        let written = |fence| Written { fence, retention: None, ends_at: Some(Timestamp::from_micros(9)) };
        call.written(written(1));
        assert!(matches!(answer.now_or_never(), Some(Some(Err(why))) if why.is_uncertain()));
        let (call, answer) = pending(fresh_claim());
        call.written(written(7));
        let Some(Some(Ok(ClaimResponse::Granted(grant)))) = answer.now_or_never() else { panic!("a grant") };
        assert_eq!((grant.fence, grant.lease_ends_at), (Some(7), Some(Timestamp::from_micros(9))));
    }

    #[test]
    fn a_call_that_is_not_sent_is_refused_with_the_reason() {
        let (call, answer) = pending(fresh_claim());
        QueuedCall::Keyed(call).refuse(&Determinate::Unavailable("down".into()));
        assert!(matches!(answer.now_or_never(), Some(Some(Err(why))) if !why.is_uncertain()));
    }

    #[test]
    fn a_connection_survives_the_refusal_of_a_statement_and_no_other_failure() {
        let refused = || Err(EngineError::incompatible("a table is missing"));
        for (answer, survives_refusal, is_replaced) in [
            (Ok(()), true, false),
            (Ok(()), false, false),
            (refused(), true, false),
            (refused(), false, true),
            (Err(EngineError::unavailable("down")), true, true),
            (Err(EngineError::indeterminate("lost")), true, true),
        ] {
            let reason = reason_to_reconnect(&answer, survives_refusal);
            assert_eq!(reason.is_some(), is_replaced, "{answer:?} {survives_refusal}");
        }
    }
}
