//! What observe mode lets through: what enforcing would have answered instead of a grant, and the nonces that tell it.

use super::attempt::{Attempt, Issuer, Nonce};
use super::claim::{ClaimResponse, Mismatch};
use super::record::ClaimState;

/// How the nonces of attempts begin that hold nothing. No caller may send one, so any gateway can tell them by sight.
const OBSERVED: &str = "observed-";

/// What enforcing would have answered to a claim that was let through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WouldBe {
    /// A duplicate of what is in this state.
    Duplicate(ClaimState),
    /// The same ID with something else in it.
    Mismatch(Mismatch),
}

/// Each with the letter that stands for it in a nonce.
const LETTERS: [(WouldBe, char); 5] = [
    (WouldBe::Duplicate(ClaimState::InProgress), 'p'),
    (WouldBe::Duplicate(ClaimState::Succeeded), 's'),
    (WouldBe::Duplicate(ClaimState::Unknown), 'u'),
    (WouldBe::Mismatch(Mismatch::Contents), 'c'),
    (WouldBe::Mismatch(Mismatch::Fingerprint), 'f'),
];

impl WouldBe {
    /// What enforcing would stop with this answer of the store, if it would.
    pub fn of(answer: &ClaimResponse) -> Option<Self> {
        match answer {
            ClaimResponse::Granted(_) => None,
            ClaimResponse::Duplicate(held) => Some(Self::Duplicate(held.record.state)),
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
    /// The nonce of an attempt that holds nothing, because its claim was let through in observe mode. It tells why, so
    /// that any gateway that gets its outcome can.
    pub fn observed(would_be: WouldBe, bits: u64) -> Self {
        let letter = LETTERS.iter().find(|(known, _)| *known == would_be).map_or('-', |(_, letter)| *letter);
        Self::of_own(format!("{OBSERVED}{letter}-{bits:016x}"))
    }

    /// Whether this is the nonce of an attempt that holds nothing.
    pub fn is_observed(&self) -> bool {
        self.as_str().starts_with(OBSERVED)
    }

    /// What the claim of an attempt that holds nothing would have been; nothing if its nonce does not tell.
    pub fn would_be(&self) -> Option<WouldBe> {
        let letter = self.as_str().strip_prefix(OBSERVED)?.split_once('-')?.0;
        LETTERS.iter().find(|(_, known)| letter.chars().eq([*known])).map(|(would_be, _)| *would_be)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_tells_what_its_claim_would_have_been() {
        for (would_be, _) in LETTERS {
            let nonce = Nonce::observed(would_be, 7);
            assert_eq!((nonce.is_observed(), nonce.would_be()), (true, Some(would_be)));
            assert_eq!(nonce.as_str().parse(), Ok(nonce), "it keeps to the grammar of nonces");
        }
        for (text, observed) in
            [("observed-0123456789abcdef", true), ("observed-x-0123456789", true), ("0123456789abcdef", false)]
        {
            let nonce: Nonce = text.parse().unwrap();
            assert_eq!((nonce.is_observed(), nonce.would_be()), (observed, None), "{text}");
        }
    }
}
