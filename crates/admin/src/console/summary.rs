//! The state of this gateway, as `GET /admin/v1/summary` has it. It calls no store.

use oncegate_core::clock::Timestamp;
use serde::Deserialize;

use super::untrusted::Untrusted;
use crate::attention::{Kind, Severity};

const MICROS_OF_MINUTE: u128 = 60_000_000;

/// `GET /admin/v1/summary`.
#[derive(Deserialize)]
pub(super) struct Summary {
    pub(super) open: bool,
    pub(super) engines: Vec<Engine>,
    pub(super) chains: Vec<Chain>,
    pub(super) spool: Journal,
    pub(super) attention: Vec<Thing>,
    pub(super) today: Today,
}

/// The repeats of today.
#[derive(Deserialize)]
pub(super) struct Today {
    pub(super) since: String,
    pub(super) repeated_operations: u64,
    pub(super) repeat_answers: u64,
    pub(super) mismatch_answers: u64,
    pub(super) observed_answers: u64,
    pub(super) ran_twice_operations: u64,
    pub(super) at_least: bool,
}

/// An engine, as this gateway has last seen it.
#[derive(Deserialize)]
pub(super) struct Engine {
    pub(super) name: Untrusted,
    /// `None` before the first check.
    pub(super) up: Option<bool>,
    pub(super) since: Option<String>,
    pub(super) detail: Option<Untrusted>,
    refusal: Option<Refusal>,
    pub(super) chains: Vec<Untrusted>,
}

/// The last refusal of a store that answers.
#[derive(Deserialize)]
struct Refusal {
    reason: Untrusted,
}

impl Engine {
    /// Returns why it does not answer, or refuses calls.
    pub(super) fn trouble(&self) -> Option<&Untrusted> {
        let reason = self.refusal.as_ref().map(|refusal| &refusal.reason);
        self.detail.as_ref().filter(|_| self.up == Some(false)).or(reason)
    }
}

/// A chain.
#[derive(Deserialize)]
pub(super) struct Chain {
    pub(super) name: Untrusted,
    pub(super) active: Untrusted,
    pub(super) epoch: u64,
}

/// The outage journal, of all apps.
#[derive(Deserialize)]
pub(super) struct Journal {
    pub(super) entries: usize,
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    pub(super) oldest_at: Option<String>,
    pub(super) takes: bool,
}

impl Journal {
    /// Returns the minutes until it is full, if its bytes go on growing as they have since its oldest entry.
    pub(super) fn minutes_until_full(&self, now: Timestamp) -> Option<u64> {
        let oldest: jiff::Timestamp = self.oldest_at.as_ref()?.parse().ok()?;
        let oldest = Timestamp::from_micros(u64::try_from(oldest.as_microsecond()).ok()?);
        let (grown, left) = (u128::from(self.bytes), u128::from(self.bytes_max.saturating_sub(self.bytes)));
        let micros = now.since(oldest).as_micros().checked_mul(left)?.checked_div(grown)?;
        u64::try_from(micros / MICROS_OF_MINUTE).ok()
    }
}

/// Something that needs a person.
#[derive(Deserialize)]
pub(super) struct Thing {
    pub(super) kind: Kind,
    pub(super) severity: Severity,
    pub(super) since: Option<String>,
    pub(super) app: Option<Untrusted>,
    pub(super) subject: Option<Untrusted>,
    pub(super) count: usize,
    pub(super) text: String,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_journal_is_full_when_its_growth_has_taken_the_rest() {
        let noon = Timestamp::from_micros(1_700_000_000_000_000);
        let journal =
            |bytes, bytes_max| Journal { entries: 1, bytes, bytes_max, oldest_at: Some(noon.to_string()), takes: true };
        let after = |minutes| noon.plus(Duration::from_mins(minutes));
        assert_eq!(journal(100, 400).minutes_until_full(after(10)), Some(30));
        assert_eq!(journal(400, 400).minutes_until_full(after(10)), Some(0));
        assert_eq!(journal(0, 400).minutes_until_full(after(10)), None, "nothing has been written");
        assert_eq!(Journal { oldest_at: None, ..journal(100, 400) }.minutes_until_full(noon), None);
    }
}
