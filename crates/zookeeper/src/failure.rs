//! Failures of requests: whether ZooKeeper certainly did nothing, and how to continue.

use oncegate_core::engine::{Determinate, EngineError};

use super::proto::{UNFIT, code};

/// A request that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    /// The answer to a call that the request may have changed something for.
    pub(super) answer: EngineError,
    /// The member must be left.
    pub(super) leaves: bool,
}

impl Failure {
    /// Returns the failure of a request without an answer.
    pub(super) fn lost(why: impl Into<String>) -> Self {
        Self { answer: EngineError::indeterminate(why), leaves: true }
    }

    /// Returns the failure of a reply that has another form than that of its request.
    pub(super) fn unfit() -> Self {
        Self::lost("ZooKeeper's reply does not fit the request")
    }

    /// Returns the failure of a server that must not be used.
    pub(super) fn refused(why: Determinate) -> Self {
        Self { answer: why.into(), leaves: true }
    }

    /// Returns the failure of a store that must not be used.
    pub(super) fn unfit_store(why: impl Into<String>) -> Self {
        Self { answer: EngineError::incompatible(why), leaves: true }
    }

    /// Returns the failure of this code. Only what ZooKeeper has certainly not done is certain.
    pub(super) fn of_code(code: i32, path: &str) -> Self {
        let certain = |why: Determinate, leaves| Self { answer: why.into(), leaves };
        match code {
            code::NO_AUTH => {
                let why = format!(
                    "ZooKeeper refuses: no rights to {path}; the user of the URL needs all rights (cdrwa) to it and what is below"
                );
                certain(Determinate::Incompatible(why), false)
            }
            code::USER_WANTED => {
                let why = "ZooKeeper wants a user; write zookeeper://USER:PASSWORD@HOST".into();
                certain(Determinate::Incompatible(why), true)
            }
            code::QUOTA_EXCEEDED => {
                let why = format!(
                    "ZooKeeper refuses {path}: a quota of a node above it is used up; raise it (zkCli.sh: setquota)"
                );
                certain(Determinate::Full(why), false)
            }
            code::SESSION_MOVED => certain(Determinate::Unavailable("the session has moved".into()), true),
            code::THROTTLED => certain(Determinate::Unavailable("ZooKeeper has too many requests".into()), false),
            code::SESSION_EXPIRED => Self::lost("the session has expired"),
            code::AUTH_FAILED => Self::lost("ZooKeeper refuses the user of the URL"),
            UNFIT => Self::unfit(),
            code => Self::lost(format!("ZooKeeper fails with code {code}")),
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
    fn only_what_zookeeper_has_certainly_not_done_is_certain() {
        for (code, is_certain, leaves) in [
            (code::NO_AUTH, true, false),
            (code::THROTTLED, true, false),
            (code::QUOTA_EXCEEDED, true, false),
            (code::USER_WANTED, true, true),
            (code::SESSION_MOVED, true, true),
            (code::SESSION_EXPIRED, false, true),
            (code::AUTH_FAILED, false, true),
            // ConnectionLoss, OperationTimeout, SystemError, and codes of later releases.
            (-4, false, true),
            (-7, false, true),
            (-1, false, true),
            (-999, false, true),
        ] {
            let failure = Failure::of_code(code, "/oncegate");
            assert_eq!((!failure.answer.is_uncertain(), failure.leaves), (is_certain, leaves), "{code}");
        }
    }
}
