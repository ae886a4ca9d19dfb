//! The state of this gateway, as `GET /admin/v1/summary` has it. It calls no store.

use serde::Deserialize;

use super::untrusted::Untrusted;
use crate::attention::{Kind, Severity};

/// `GET /admin/v1/summary`.
#[derive(Deserialize)]
pub(super) struct Summary {
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
