//! What a store keeps of a claim: its key, its states, its record, and when the record's time has ended.

use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::attempt::Attempt;
use super::canonical::Canonical;
use super::global_id::GlobalId;
use super::tenant::{AppKey, Operation};
use super::terms::{LeaseEnd, Retention, Terms};

/// The name of a claim in every store. It holds the app, so no app can reach another's claims.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Whose claim it is.
    pub app: AppKey,
    /// Which operation on which contents.
    pub global_id: GlobalId,
}

/// Where a claim stands. Absent is the fourth state: no record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    /// Its holder is doing the operation; lasts for a lease.
    InProgress,
    /// The operation has been done and must never run again; lasts for a retention.
    Succeeded,
    /// Nobody knows whether it was done.
    Unknown,
}

impl ClaimState {
    /// As answers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Succeeded => "succeeded",
            Self::Unknown => "unknown",
        }
    }
}

/// A SHA-256 digest.
pub type Sha256Digest = [u8; 32];

/// What a SHA-256 digest counts where bytes are counted that are kept.
pub const DIGEST_BYTES: u64 = 32;

/// What a record keeps of the contents, to tell a repeat from an MD5 collision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The canonical text.
    Canonical(Canonical),
    /// The canonical text's SHA-256 and length in bytes, where it is too long to keep.
    Digest(Sha256Digest, u64),
    /// Nothing: a late outcome did not say.
    Unverified,
}

impl Contents {
    /// What to keep of `contents` where at most `bytes_max` bytes are kept as text; 0 keeps only digests.
    pub fn keep(contents: &Canonical, bytes_max: usize) -> Self {
        if contents.as_str().len() <= bytes_max { Self::Canonical(contents.clone()) } else { Self::digest(contents) }
    }

    /// How much of the contents is kept, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        match self {
            Self::Canonical(contents) => contents.as_str().len() as u64,
            Self::Digest(..) => DIGEST_BYTES,
            Self::Unverified => 0,
        }
    }

    fn digest(contents: &Canonical) -> Self {
        Self::Digest(Sha256::digest(contents.as_str()).into(), contents.as_str().len() as u64)
    }

    /// Whether these are the contents of a repeat; nothing is known to differ from unverified contents.
    pub fn matches(&self, other: &Canonical) -> bool {
        match self {
            Self::Canonical(own) => own == other,
            Self::Digest(..) => *self == Self::digest(other),
            Self::Unverified => true,
        }
    }
}

/// The SHA-256 of a fingerprint's canonical form.
pub fn fingerprint_digest(fingerprint: &Canonical) -> Sha256Digest {
    Sha256::digest(fingerprint.as_str()).into()
}

/// What a store keeps of a claim. When it ends is kept by the store, in the store's own time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Who holds the claim, or settled it.
    pub attempt: Attempt,
    /// Where it stands.
    pub state: ClaimState,
    /// The operation; unknown only where a late outcome did not say.
    pub operation: Option<Operation>,
    /// The contents, or what is kept of them.
    pub contents: Contents,
    /// The SHA-256 of the fingerprint. Absent is a value too; on a late record nothing is known.
    pub fingerprint: Option<Sha256Digest>,
    /// The terms resolved at the claim call.
    pub terms: Terms,
    /// The JSON text that came with the success, to be replayed to duplicates.
    pub result: Option<Box<str>>,
    /// Recorded from an outcome that found no claim.
    pub late: bool,
}

/// An unexpired claim as its store tells it at one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveClaim {
    /// What is kept.
    pub record: Record,
    /// How long it lasts from now, by the store's clock; nothing if only somebody's deed ends it.
    pub left: Option<Duration>,
    /// The fencing number of the newest attempt, where the engine promises one.
    pub fence: Option<u64>,
}

impl LiveClaim {
    /// Judges a stored record by how much the store's clock leaves of it: `Some(0)` means that its time has ended.
    ///
    /// This is the only place that says what an ended lease means.
    pub fn judge(record: Record, left: Option<Duration>, fence: Option<u64>) -> Option<Self> {
        if left != Some(Duration::ZERO) {
            return Some(Self { record, left, fence });
        }
        if !record.outlives_lease() {
            return None;
        }
        Some(Self { record: Record { state: ClaimState::Unknown, ..record }, left: None, fence })
    }

    /// Reports whether the claim is unknown because its lease ended, and not because that was reported: only then it has no
    /// end, unless unknown outcomes are kept for ever.
    pub fn is_ended_lease(&self) -> bool {
        let Record { state, terms, .. } = &self.record;
        *state == ClaimState::Unknown && terms.on_lease_end == LeaseEnd::Unknown && self.left.is_none()
    }
}

impl Record {
    /// Whether the claim stays, as `unknown`, when the time it has now is over.
    pub fn outlives_lease(&self) -> bool {
        self.state == ClaimState::InProgress && self.terms.on_lease_end == LeaseEnd::Unknown
    }

    /// How long a record that has just been settled is kept.
    pub fn settled_retention(&self) -> Retention {
        match self.state {
            ClaimState::Unknown => self.terms.unknown_retention,
            ClaimState::Succeeded | ClaimState::InProgress => self.terms.retention,
        }
    }
}
