//! Claims in a store: key, state, record, and whether the record's time has ended.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::attempt::Attempt;
use super::caller::Caller;
use super::canonical::Canonical;
use super::clock::Timestamp;
use super::global_id::GlobalId;
use super::tenant::{AppKey, Operation};
use super::terms::{LeaseEnd, Retention, Terms};

/// Realm of a claim. Claims of different realms are different records, also with the same app and global ID, so no call of the
/// API reaches a record of the proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Realm {
    /// Claims of the API.
    Api,
    /// Records of the Idempotency-Key proxy, which hold responses.
    Proxy,
}

/// Name of a claim within its app.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimId {
    /// The realm.
    pub realm: Realm,
    /// The ID of operation and contents.
    pub global_id: GlobalId,
}

/// The key of a claim in every store. It contains the app, so no app can reach another's claims, and the realm.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The app.
    pub app: AppKey,
    /// The realm.
    pub realm: Realm,
    /// The ID of operation and contents.
    pub global_id: GlobalId,
}

impl Realm {
    /// Prefix of the namespaces of the proxy's records. No app key contains a colon.
    const PROXY: &str = "proxy:";

    /// Returns the realm of an operation's claims. Callers of the API cannot use the proxy's operations.
    pub fn of(operation: &Operation) -> Self {
        if operation.as_ref().starts_with(Operation::PROXY_PREFIX) { Self::Proxy } else { Self::Api }
    }

    /// Returns the text by which stores separate the claims of an app and realm from all others: the app key, for the proxy's
    /// records after `proxy:`.
    pub fn namespace(self, app: &AppKey) -> Cow<'_, str> {
        match self {
            Self::Api => Cow::Borrowed(app.as_ref()),
            Self::Proxy => Cow::Owned([Self::PROXY, app.as_ref()].concat()),
        }
    }

    /// Returns the realm of a namespace, and the key of its app.
    pub fn of_namespace(namespace: &str) -> (Self, &str) {
        namespace.strip_prefix(Self::PROXY).map_or((Self::Api, namespace), |app| (Self::Proxy, app))
    }
}

impl ClaimId {
    /// Returns the name of a claim of the API.
    pub const fn of_api(global_id: GlobalId) -> Self {
        Self { realm: Realm::Api, global_id }
    }

    /// Returns the name of a record of the proxy.
    pub const fn of_proxy(global_id: GlobalId) -> Self {
        Self { realm: Realm::Proxy, global_id }
    }
}

impl Key {
    /// Returns the key of an app's claim.
    pub fn new(app: &AppKey, ClaimId { realm, global_id }: ClaimId) -> Self {
        Self { app: app.clone(), realm, global_id }
    }

    /// Returns the name of the claim within its app.
    pub const fn id(&self) -> ClaimId {
        ClaimId { realm: self.realm, global_id: self.global_id }
    }

    /// Returns the namespace: see [`Realm::namespace`].
    pub fn namespace(&self) -> Cow<'_, str> {
        self.realm.namespace(&self.app)
    }
}

/// State of a claim. Without a record it is absent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    /// The operation runs, until the lease ends.
    InProgress,
    /// The operation has completed, until the retention ends.
    Succeeded,
    /// It is unknown whether the operation has run.
    Unknown,
}

impl ClaimState {
    /// Returns its name in answers.
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

/// Size of a SHA-256 digest in bytes.
pub const DIGEST_BYTES: u64 = 32;

/// The stored contents, to distinguish a repeat from an MD5 collision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Contents {
    /// The canonical text.
    Canonical(Canonical),
    /// The SHA-256 and the length in bytes of a text that is too long to store.
    Digest(Sha256Digest, u64),
    /// Unknown: the late outcome had no contents.
    Unverified,
}

impl Contents {
    /// Returns what is stored of `contents`: the text up to `bytes_max` bytes, else the digest.
    pub fn keep(contents: &Canonical, bytes_max: usize) -> Self {
        if contents.as_str().len() <= bytes_max { Self::Canonical(contents.clone()) } else { Self::digest(contents) }
    }

    /// Returns the stored size in bytes.
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

    /// Returns whether these are the same contents. Unverified contents match all.
    pub fn matches(&self, other: &Canonical) -> bool {
        match self {
            Self::Canonical(own) => own == other,
            Self::Digest(..) => *self == Self::digest(other),
            Self::Unverified => true,
        }
    }
}

/// Returns the SHA-256 of a fingerprint's canonical form.
pub fn fingerprint_digest(fingerprint: &Canonical) -> Sha256Digest {
    Sha256::digest(fingerprint.as_str()).into()
}

/// The record of a claim. Its end is not part of it; the store keeps that, by its own clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The attempt that holds the claim or has settled it.
    pub attempt: Attempt,
    /// The state.
    pub state: ClaimState,
    /// The operation; unknown if a late outcome did not name it.
    pub operation: Option<Operation>,
    /// The name of the caller, if it sent one.
    pub caller: Option<Caller>,
    /// The contents, or their digest.
    pub contents: Contents,
    /// The SHA-256 of the fingerprint. Absent is a value too; on a late record it is unknown.
    pub fingerprint: Option<Sha256Digest>,
    /// The terms resolved at the claim call.
    pub terms: Terms,
    /// The result of the success, as JSON text, for duplicates.
    pub result: Option<Box<str>>,
    /// Recorded from an outcome that found no claim.
    pub late: bool,
    /// Granted by a take-over of an unknown outcome, which a repeated call has to learn as well.
    pub taken_over: bool,
}

/// A claim that has not ended, as of one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveClaim {
    /// The record.
    pub record: Record,
    /// Remaining time by the store's clock; `None` without an end.
    pub left: Option<Duration>,
    /// The end by the store's clock, for display: the same in every answer about the record. `None` without an end, or if a gateway
    /// answers instead of the store. Use `left` to wait: other clocks differ from the store's.
    pub ends_at: Option<Timestamp>,
    /// The fence of the newest attempt, if the engine promises fences.
    pub fence: Option<u64>,
}

impl LiveClaim {
    /// Returns the live claim of a record with this remaining time and end by the store's clock; `left` of `Some(0)` means that its
    /// time has ended. Only this function decides what an ended lease means.
    pub fn of_stored(
        record: Record,
        left: Option<Duration>,
        ends_at: Option<Timestamp>,
        fence: Option<u64>,
    ) -> Option<Self> {
        if left != Some(Duration::ZERO) {
            return Some(Self { record, left, ends_at, fence });
        }
        if !record.outlives_lease() {
            return None;
        }
        Some(Self { record: Record { state: ClaimState::Unknown, ..record }, left: None, ends_at: None, fence })
    }

    /// Reports whether the claim is unknown because its lease ended, and not because that was reported: only then it has no
    /// end, unless the retention of unknown outcomes is unlimited.
    pub fn is_ended_lease(&self) -> bool {
        let Record { state, terms, .. } = &self.record;
        *state == ClaimState::Unknown && terms.on_lease_end == LeaseEnd::Unknown && self.left.is_none()
    }
}

impl Record {
    /// Returns whether the claim becomes `unknown` when its time ends, instead of absent.
    pub fn outlives_lease(&self) -> bool {
        self.state == ClaimState::InProgress && self.terms.on_lease_end == LeaseEnd::Unknown
    }

    /// Returns the retention of a record that was just settled.
    pub fn settled_retention(&self) -> Retention {
        match self.state {
            ClaimState::Unknown => self.terms.unknown_retention,
            ClaimState::Succeeded | ClaimState::InProgress => self.terms.retention,
        }
    }
}
