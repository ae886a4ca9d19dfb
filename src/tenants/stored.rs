//! Apps as a registry outside the configuration holds them, and what can be done to them there.

use crate::domain::clock::Timestamp;
use crate::domain::tenant::AppKey;
use crate::tenants::secret::SecretDigest;

/// For the rotation of an app's secret one more than the one in use is enough.
pub const SECRETS_MAX: usize = 2;

/// An app.
#[derive(Clone, Debug)]
pub struct StoredApp {
    /// Its name.
    pub key: AppKey,
    /// What a table `[apps.<app>]` may hold, as JSON, but for the other fields here.
    pub settings: String,
    /// The chain that keeps its claims, if it is not that of the defaults.
    pub chain: Option<String>,
    /// Whether it is turned away although its secret is right.
    pub disabled: bool,
    /// Its secrets that have not been revoked, the oldest first.
    pub secrets: Vec<StoredSecret>,
}

/// A secret of an app.
#[derive(Clone, Debug)]
pub struct StoredSecret {
    /// What is kept of it.
    pub digest: SecretDigest,
    /// When it was made, by the registry's clock.
    pub created_at: Timestamp,
    /// When a gateway last saw it used, to the minute.
    pub last_used_at: Option<Timestamp>,
}

/// Which secrets of an app go when a new one comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revoked {
    /// All but the newest, so that callers have time to move.
    Older,
    /// All.
    All,
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotDone {
    /// There is one of this name.
    #[error("there is an app `{0}` already")]
    Exists(AppKey),
    /// There is none of this name.
    #[error("there is no app `{0}`")]
    Unknown(AppKey),
    /// Its settings are wrong.
    #[error("{0}")]
    Invalid(String),
    /// The apps stand in the configuration, which is changed by whoever writes it.
    #[error("the apps of this gateway stand in its configuration file")]
    InConfiguration,
    /// The registry cannot be used now, or as it is.
    #[error("the registry of apps cannot be used: {0}")]
    Unavailable(String),
}
