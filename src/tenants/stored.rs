//! Apps as a registry outside the configuration holds them, and what operators can do to them there.

use async_trait::async_trait;

use super::secret::{Secret, SecretDigest};
use crate::domain::clock::Timestamp;
use crate::domain::tenant::AppKey;

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

/// An app as operators are shown it.
#[derive(Clone, Debug)]
pub struct ListedApp {
    /// Its name.
    pub key: AppKey,
    /// The chain that keeps its claims.
    pub chain: String,
    /// Whether it is turned away although its secret is right.
    pub disabled: bool,
    /// Its secrets, the oldest first where that is known.
    pub secrets: Vec<ListedSecret>,
    /// Why its settings are not in force as they stand.
    pub problem: Option<String>,
}

/// A secret as operators are shown it.
#[derive(Clone, Debug)]
pub struct ListedSecret {
    /// What tells it from others: the first digits of its digest.
    pub id: String,
    /// When it was made, where that is known.
    pub created_at: Option<Timestamp>,
    /// When it was last used, to the minute: as far as this process has seen, and the registry if there is one.
    pub last_used_at: Option<Timestamp>,
}

/// What operators can do to apps.
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// All apps, by name.
    async fn list(&self) -> Result<Vec<ListedApp>, CatalogError>;

    /// Adds an app with these settings, which are as in [`StoredApp`]. Its first secret is told here and nowhere else.
    async fn create(&self, key: &AppKey, settings: String, chain: Option<String>) -> Result<Secret, CatalogError>;

    /// Gives an app a new secret, told here and nowhere else, and revokes others.
    async fn rotate(&self, key: &AppKey, revoked: RevokeScope) -> Result<Secret, CatalogError>;

    /// Revokes the secret of this ID; not the last one that an app has.
    async fn revoke(&self, key: &AppKey, secret_id: &str) -> Result<ListedApp, CatalogError>;

    /// Turns an app away, or lets it in again.
    async fn set_disabled(&self, key: &AppKey, disabled: bool) -> Result<ListedApp, CatalogError>;
}

/// Which secrets of an app go when a new one comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RevokeScope {
    /// All but the newest, so that callers have time to move.
    Older,
    /// All.
    All,
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CatalogError {
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
