//! Failures of requests: whether etcd certainly did nothing, and how to continue.

use oncegate_coordination::members;
use oncegate_core::engine::{Determinate, EngineError};
use tonic::{Code, Status};

/// A request that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    /// The answer to a call that the request may have changed something for.
    pub(super) answer: EngineError,
    /// Next step.
    pub(super) remedy: Remedy,
}

/// Next step after a failed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remedy {
    /// Send its calls one by one: one of them may be the cause.
    OneByOne,
    /// Authenticate, and send it again: the token is not known any more.
    Authenticate,
    /// Answer its calls.
    Answer,
    /// Answer its calls, and leave the member.
    Leave,
}

impl Failure {
    /// Returns the failure of a request without an answer.
    pub(super) fn lost(why: impl Into<String>) -> Self {
        Self { answer: EngineError::indeterminate(why), remedy: Remedy::Leave }
    }

    /// Returns the failure of a reply that has another form than that of its request.
    pub(super) fn unfit_reply() -> Self {
        Self::lost("etcd's reply does not fit the request")
    }

    /// Returns the failure of a store that must not be used.
    pub(super) fn unfit(why: impl Into<String>) -> Self {
        Self { answer: EngineError::incompatible(why), remedy: Remedy::Leave }
    }

    /// Returns the failure of a member that must not be used.
    pub(super) fn refused(why: Determinate) -> Self {
        Self::certain(why, Remedy::Leave)
    }

    /// Returns the failure of a transaction that was sent before the member had raised its alarm. The first one that does not fit is
    /// executed, and answered as if it were not.
    pub(super) fn of_full_store(self) -> Self {
        match self.answer {
            EngineError::Determinate(Determinate::Full(why)) => {
                Self { answer: EngineError::indeterminate(why), ..self }
            }
            answer => Self { answer, ..self },
        }
    }

    fn certain(why: Determinate, remedy: Remedy) -> Self {
        Self { answer: why.into(), remedy }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        // It comes to callers and into the log.
        let text = members::text(status.message());
        let says = |part: &str| text.contains(part);
        let why = format!("etcd refuses: {text}");
        match status.code() {
            Code::Unauthenticated => Self::certain(Determinate::Incompatible(why), Remedy::Authenticate),
            Code::InvalidArgument if says("auth store is old") => {
                Self::certain(Determinate::Incompatible(why), Remedy::Authenticate)
            }
            Code::InvalidArgument if says("user name is empty") => {
                let why = "etcd wants a user; write etcd://USER:PASSWORD@HOST".into();
                Self::certain(Determinate::Incompatible(why), Remedy::Leave)
            }
            Code::InvalidArgument => Self::certain(Determinate::Incompatible(why), Remedy::OneByOne),
            Code::PermissionDenied => Self::certain(Determinate::Incompatible(why), Remedy::Answer),
            Code::ResourceExhausted if says("space exceeded") => {
                let why = "etcd has no space left; compact and defragment it, and disarm its alarm".into();
                Self::certain(Determinate::Full(why), Remedy::Answer)
            }
            Code::ResourceExhausted if says("too many requests") => {
                Self::certain(Determinate::Unavailable(why), Remedy::Answer)
            }
            // The server has not taken it.
            Code::ResourceExhausted if says("received message larger") => {
                Self::certain(Determinate::Incompatible(why), Remedy::OneByOne)
            }
            Code::Unavailable if says("no leader") => Self::certain(Determinate::Unavailable(why), Remedy::Leave),
            code => Self::lost(if text.is_empty() { format!("{code}") } else { format!("{code}: {text}") }),
        }
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> Self {
        failure.answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_etcd_has_certainly_not_done_is_certain() {
        for (code, text, is_certain, remedy) in [
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", true, Remedy::OneByOne),
            (Code::InvalidArgument, "etcdserver: request is too large", true, Remedy::OneByOne),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old", true, Remedy::Authenticate),
            (Code::InvalidArgument, "etcdserver: user name is empty", true, Remedy::Leave),
            (Code::Unauthenticated, "etcdserver: invalid auth token", true, Remedy::Authenticate),
            (Code::PermissionDenied, "etcdserver: permission denied", true, Remedy::Answer),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", true, Remedy::Answer),
            (Code::ResourceExhausted, "etcdserver: too many requests", true, Remedy::Answer),
            (Code::Unavailable, "etcdserver: no leader", true, Remedy::Leave),
            (Code::Unavailable, "etcdserver: leader changed", false, Remedy::Leave),
            (Code::Unavailable, "etcdserver: request timed out", false, Remedy::Leave),
            (Code::Unavailable, "etcdserver: server stopped", false, Remedy::Leave),
            (Code::DeadlineExceeded, "", false, Remedy::Leave),
            (Code::Unknown, "transport error", false, Remedy::Leave),
        ] {
            let failure = Failure::from(Status::new(code, text));
            assert_eq!((!failure.answer.is_uncertain(), failure.remedy), (is_certain, remedy), "{code:?} {text}");
        }
        let full = Failure::from(Status::resource_exhausted("etcdserver: mvcc: database space exceeded"));
        assert!(matches!(full.answer, EngineError::Determinate(Determinate::Full(_))));
        assert!(full.of_full_store().answer.is_uncertain(), "without an alarm before it");
        let garbage = Failure::from(Status::internal("\u{1b}[31m\n".repeat(1000)));
        assert!(garbage.answer.reason().len() < 200 && !garbage.answer.reason().contains('\n'), "{garbage:?}");
        let old = Failure::from(Status::unavailable("etcdserver: no leader"));
        assert_eq!(old.clone().of_full_store(), old);
    }
}
