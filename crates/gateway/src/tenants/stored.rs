//! Apps in a registry outside the configuration, and the changes that operators can make to them.

use async_trait::async_trait;
use oncegate_core::clock::Timestamp;
use oncegate_core::tenant::AppKey;
use serde::Serialize;

use super::secret::{Secret, SecretDigest};

/// App in the registry.
#[derive(Clone, Debug)]
pub struct StoredApp {
    /// App key.
    pub key: AppKey,
    /// The fields of a table `[apps.<app>]` as JSON, without those that are columns here.
    pub settings: String,
    /// Chain of its claims, if it is not the default.
    pub chain: Option<String>,
    /// True if calls with a valid secret are refused.
    pub disabled: bool,
    /// Secrets that are not revoked, oldest first.
    pub secrets: Vec<StoredSecret>,
}

/// Secret of an app in the registry.
#[derive(Clone, Debug)]
pub struct StoredSecret {
    /// Digest of the secret.
    pub digest: SecretDigest,
    /// Creation time, by the registry's clock.
    pub created_at: Timestamp,
    /// Last use seen by any gateway, to the minute.
    pub last_used_at: Option<Timestamp>,
}

/// App as shown to operators.
#[derive(Clone, Debug, Serialize)]
pub struct ListedApp {
    /// App key.
    #[serde(rename = "app")]
    pub key: AppKey,
    /// Chain of its claims.
    pub chain: String,
    /// True if calls with a valid secret are refused.
    pub disabled: bool,
    /// Its secrets, oldest first where that is known.
    pub secrets: Vec<ListedSecret>,
    /// Reason why its current settings are not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Secret as shown to operators.
#[derive(Clone, Debug, Serialize)]
pub struct ListedSecret {
    /// First digits of its digest.
    #[serde(rename = "secret_id")]
    pub id: String,
    /// Creation time, where it is known.
    pub created_at: Option<Timestamp>,
    /// Last use, to the minute: seen by this process, or by the registry if there is one.
    pub last_used_at: Option<Timestamp>,
}

/// Changes that operators can make to apps.
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// Reports whether the apps can be changed here. Otherwise they are changed in the configuration file.
    fn is_changeable(&self) -> bool;

    /// Returns all apps, by name.
    async fn list(&self) -> Result<Vec<ListedApp>, CatalogError>;

    /// Adds an app with these settings (see [`StoredApp`]). Its first secret is returned here and nowhere else.
    async fn create(&self, key: &AppKey, settings: String, chain: Option<String>) -> Result<Secret, CatalogError>;

    /// Gives an app a new secret, which is returned here and nowhere else, and revokes others.
    async fn rotate(&self, key: &AppKey, revoked: RevokeScope) -> Result<Secret, CatalogError>;

    /// Revokes the secret of this ID, unless it is the app's last one.
    async fn revoke(&self, key: &AppKey, secret_id: &str) -> Result<ListedApp, CatalogError>;

    /// Disables or enables an app.
    async fn set_disabled(&self, key: &AppKey, disabled: bool) -> Result<ListedApp, CatalogError>;
}

/// Secrets to revoke when a new one is created.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum RevokeScope {
    /// All except the newest, so that callers have time to switch.
    #[default]
    Older,
    /// All.
    All,
}

/// Reason why a change was not made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CatalogError {
    /// An app of this name exists.
    #[error("there is an app `{0}` already")]
    Exists(AppKey),
    /// No app of this name exists.
    #[error("there is no app `{0}`")]
    Unknown(AppKey),
    /// The settings are invalid.
    #[error("{0}")]
    Invalid(String),
    /// The apps are defined in the configuration file, and changed there.
    #[error("the apps of this gateway are in its configuration file")]
    InConfiguration,
    /// The registry is unavailable or incompatible.
    #[error("the registry of apps cannot be used: {0}")]
    Unavailable(String),
}
