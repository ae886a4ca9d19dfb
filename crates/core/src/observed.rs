//! Observe mode: the answer that enforcing would have given instead of a grant, and the nonces that carry it.

use super::attempt::{Attempt, Issuer, Nonce};
use super::claim::{ClaimResponse, Mismatch};
use super::record::ClaimState;

/// Prefix of the nonces of attempts without a claim. Callers may not use it, so any gateway recognises them.
const OBSERVED: &str = "observed-";

/// The answer that enforcing would have given to a claim that was let through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WouldBe {
    /// A duplicate of a claim in this state.
    Duplicate(ClaimState),
    /// A mismatch with the live claim.
    Mismatch(Mismatch),
}

/// The letter of each in a nonce.
const LETTERS: [(WouldBe, char); 5] = [
    (WouldBe::Duplicate(ClaimState::InProgress), 'p'),
    (WouldBe::Duplicate(ClaimState::Succeeded), 's'),
    (WouldBe::Duplicate(ClaimState::Unknown), 'u'),
    (WouldBe::Mismatch(Mismatch::Contents), 'c'),
    (WouldBe::Mismatch(Mismatch::Fingerprint), 'f'),
];

impl WouldBe {
    /// Returns how enforcing would stop a claim with this answer, if it would.
    pub fn of(answer: &ClaimResponse) -> Option<Self> {
        match answer {
            ClaimResponse::Granted(_) => None,
            ClaimResponse::Duplicate(live) => Some(Self::Duplicate(live.record.state)),
            ClaimResponse::Mismatch(mismatch) => Some(Self::Mismatch(*mismatch)),
        }
    }
}

impl Issuer {
    /// Issues an attempt that holds nothing, because its claim was let through in observe mode.
    pub fn issue_observed(&self, would_be: WouldBe) -> Attempt {
        self.issue(Some(Nonce::observed(would_be, self.bits())))
    }
}

impl Nonce {
    /// Creates the nonce of an attempt that holds nothing, because its claim was let through in observe mode. It
    /// contains the reason, so every gateway that receives the outcome knows it.
    pub fn observed(would_be: WouldBe, bits: u64) -> Self {
        let letter = LETTERS.iter().find(|(known, _)| *known == would_be).map_or('-', |(_, letter)| *letter);
        Self::trusted(format!("{OBSERVED}{letter}-{bits:016x}"))
    }

    /// Returns whether this is the nonce of an attempt that holds nothing.
    pub fn is_observed(&self) -> bool {
        self.as_str().starts_with(OBSERVED)
    }

    /// Returns the answer that enforcing would have given; nothing if the nonce does not contain it.
    pub fn would_be(&self) -> Option<WouldBe> {
        let letter = self.as_str().strip_prefix(OBSERVED)?.split_once('-')?.0;
        LETTERS.iter().find(|(_, known)| letter.chars().eq([*known])).map(|(would_be, _)| *would_be)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Grant;

    #[test]
    fn only_an_answer_that_stops_the_caller_would_be_something_else() {
        let mismatch = Mismatch::Fingerprint;
        assert_eq!(WouldBe::of(&ClaimResponse::Mismatch(mismatch)), Some(WouldBe::Mismatch(mismatch)));
        let granted = Grant {
            attempt: "1700000000000000-0123456789abcdef".parse().unwrap(),
            fence: None,
            repeated: false,
            taken_over: false,
            lease_left: None,
            lease_ends_at: None,
        };
        assert_eq!(WouldBe::of(&ClaimResponse::Granted(granted)), None);
    }

    #[test]
    fn a_nonce_contains_what_its_claim_would_have_been() {
        for (would_be, _) in LETTERS {
            let nonce = Nonce::observed(would_be, 7);
            assert_eq!((nonce.is_observed(), nonce.would_be()), (true, Some(would_be)));
            assert_eq!(nonce.as_str().parse(), Ok(nonce), "it is a valid nonce");
        }
        for (text, observed) in
            [("observed-0123456789abcdef", true), ("observed-x-0123456789", true), ("0123456789abcdef", false)]
        {
            let nonce: Nonce = text.parse().unwrap();
            assert_eq!((nonce.is_observed(), nonce.would_be()), (observed, None), "{text}");
        }
    }
}
