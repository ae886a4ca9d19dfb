//! The problems of calls that failed below: of credentials, quotas and stores.

use std::time::Duration;

use oncegate_core::engine::Determinate;
use oncegate_gateway::Failure;
use oncegate_gateway::tenants::AuthError;
use oncegate_gateway::tenants::quota::QuotaName;

use super::{Code, Members, Problem};

/// The end of a sentence about a store, for callers.
pub(super) const TRY_AGAIN: &str = "; try again after Retry-After";

impl From<AuthError> for Problem {
    fn from(refused: AuthError) -> Self {
        let code = match refused {
            AuthError::Unauthenticated => Code::Unauthenticated,
            AuthError::Disabled => Code::AppDisabled,
            AuthError::Loading => {
                return Self::new(Code::Draining, refused.to_string()).retry_soon();
            }
        };
        Self::new(code, refused.to_string())
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        match &failure {
            Failure::NonceInContents | Failure::NonceReserved => Self::invalid(format!("attempt_nonce: {failure}")),
            Failure::RetentionTooLong(_) => Self::invalid(format!("`retention`: {failure}; ask for that or less.")),
            Failure::ChainForgets => Self::invalid(format!(
                "`on_lease_end`: {failure}; leave it out, or ask the operators to set accept_loss = true for the operation."
            )),
            Failure::QuotaExceeded(exceeded) => {
                let advice = match exceeded.quota {
                    QuotaName::RequestsPerSecond => "send fewer in a second",
                    QuotaName::ClaimBytesPerSecond => "send fewer or smaller contents and results",
                    QuotaName::RequestsInFlight => "send fewer at once",
                };
                let detail = format!(
                    "{}; nothing was done. Send the same request again after Retry-After, {advice}, or ask the operators \
                     for more.",
                    sentence(&failure.to_string())
                );
                let members = Members::QuotaExceeded { quota: exceeded.quota };
                Self { members, ..Self::new(Code::QuotaExceeded, detail) }.retry_after(exceeded.wait)
            }
            Failure::TooManyLocks(_) => {
                let detail = format!(
                    "{}; nothing was done. A name counts for ten minutes after its last hold: use fewer names.",
                    sentence(&failure.to_string())
                );
                let members = Members::LockQuota { quota: "lock_names" };
                Self { members, ..Self::new(Code::QuotaExceeded, detail) }.retry_soon()
            }
            Failure::NotItsContents => Self::new(Code::ContentsMismatch, failure.to_string()),
            Failure::Store(certain) => {
                let (code, detail) = match certain {
                    // It names no server, and callers wait for its end.
                    Determinate::Paused(_) => {
                        let detail = format!(
                            "{}. Nothing was changed; outcomes are still taken. Try again after Retry-After.",
                            sentence(&failure.to_string())
                        );
                        return Self::new(Code::StoreUnavailable, detail).retry_soon();
                    }
                    Determinate::Unavailable(_) => (
                        Code::StoreUnavailable,
                        "The store is not available. Nothing was changed; try again after Retry-After.",
                    ),
                    Determinate::Full(_) => (
                        Code::StoreFull,
                        "The store is full. Nothing was changed; outcomes are taken while there is room for them. The operators of the \
                         gateway must make room.",
                    ),
                    Determinate::Incompatible(_) => (
                        Code::StoreIncompatible,
                        "The store cannot be used in its present state. Nothing was changed. The operators of the gateway find the \
                         reason in its log.",
                    ),
                };
                Self { members: Members::Store { reason: certain.reason().into() }, ..Self::new(code, detail) }
                    .retry_soon()
            }
            Failure::OutcomeUnknown(nonce) => {
                let members = match nonce {
                    Some(nonce) => Members::OutcomeUnknown { attempt_nonce: nonce.as_str().to_owned() },
                    None => Members::None,
                };
                let detail = match nonce {
                    Some(_) => {
                        "The store may have taken the claim. Send the same request again with this attempt_nonce, to any \
                         gateway: if it was taken, you get the same attempt and what is left of its lease."
                    }
                    None => "The store may have taken the call. Send the same request again; it has the effect of one.",
                };
                let wait = Duration::from_millis(100);
                Self { members, ..Self::new(Code::OutcomeUnknown, detail) }.retry_after(wait)
            }
        }
    }
}

/// Returns a message with an upper-case first letter.
pub fn sentence(message: &str) -> String {
    let mut letters = message.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_read_the_reason_in_place_of_advice_for_callers() {
        let why = || "refused by 10.0.0.7".into();
        for (certain, reported) in [
            (
                Determinate::Unavailable(why()),
                "The store is not available. Nothing was changed. The reason: refused by 10.0.0.7.",
            ),
            (Determinate::Full(why()), "must make room. The reason: refused by 10.0.0.7."),
            (Determinate::Incompatible(why()), "in its log. The reason: refused by 10.0.0.7."),
        ] {
            let mut problem = Problem::from(Failure::Store(certain));
            let of_callers = problem.detail.clone();
            assert!(!of_callers.contains("10.0.0.7"), "{of_callers}");
            assert_eq!(of_callers.contains(TRY_AGAIN), problem.code == Code::StoreUnavailable, "{of_callers}");
            problem.tell_reason();
            assert!(
                problem.detail.ends_with(reported) && !problem.detail.contains("Retry-After"),
                "{}",
                problem.detail
            );
        }
    }
}
