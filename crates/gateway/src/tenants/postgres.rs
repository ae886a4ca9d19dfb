//! SQL of the registry of apps in PostgreSQL. Reads use the simple protocol and changes use transactions, so that both
//! work behind a connection pooler.

use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::tenant::AppKey;
use oncegate_database::schema::check_build;
use oncegate_database::{self as database, Address, DatabaseError};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use tokio::time::timeout;

use super::secret::SecretDigest;
use super::stored::{CatalogError, RevokeScope, StoredApp, StoredSecret};

/// Migration that created the tables.
const NEEDED: i64 = 2;

/// Timeout of connecting and of each statement.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the version and all apps in one snapshot: a row per secret, one for an app without secrets, and at least one
/// for the version.
const READ: &str = "SELECT r.version, a.app, a.settings::text AS settings, a.chain, a.disabled, s.digest, \
     (extract(epoch FROM s.created_at) * 1000000)::bigint AS created_at, \
     (extract(epoch FROM s.last_used_at) * 1000000)::bigint AS last_used_at \
     FROM oncegate_registry r LEFT JOIN oncegate_apps a ON true \
     LEFT JOIN oncegate_app_secrets s ON s.app = a.app AND s.revoked_at IS NULL \
     ORDER BY a.app, s.created_at, s.digest";

/// Address of the registry.
#[derive(Clone, Debug)]
pub struct Database {
    address: Address,
}

/// Connection to the registry.
pub struct Session(PgConnection);

/// Content of the registry at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Increases with every change.
    pub version: i64,
    /// All apps.
    pub apps: Vec<StoredApp>,
}

/// After the error of a change, nothing was changed, or the effect is unknown. No error repeats the URL.
impl Database {
    /// Parses the URL of a registry; does not connect.
    pub fn at(url: &str) -> Result<Self, database::InvalidUrl> {
        Ok(Self { address: Address::parse(url)? })
    }

    /// Returns the servers' names, for messages.
    pub fn name(&self) -> String {
        self.address.name()
    }

    /// Connects.
    pub async fn open(&self) -> Result<Session, DatabaseError> {
        database::connect(&self.address, NEEDED, TIMEOUT).await.map(|(connection, _)| Session(connection))
    }

    /// Adds an app with its first secret. `settings` are as in [`StoredApp`].
    pub async fn create(
        &self,
        key: &AppKey,
        settings: &str,
        chain: Option<&str>,
        secret: &SecretDigest,
    ) -> Result<(), CatalogError> {
        let mut session = self.open().await?;
        let adding = async {
            let mut change = session.0.begin().await?;
            let add =
                "INSERT INTO oncegate_apps (app, settings, chain) VALUES ($1, $2::jsonb, $3) ON CONFLICT DO NOTHING";
            let add = sqlx::query(add).persistent(false).bind(key.as_ref()).bind(settings).bind(chain);
            if add.execute(&mut *change).await?.rows_affected() == 0 {
                return Ok(Err(CatalogError::Exists(key.clone())));
            }
            insert(&mut change, key, secret).await?;
            change.commit().await.map(Ok)
        };
        bounded(adding).await?
    }

    /// Gives an app a new secret and revokes others.
    pub async fn rotate(&self, key: &AppKey, secret: &SecretDigest, revoked: RevokeScope) -> Result<(), CatalogError> {
        let mut session = self.open().await?;
        let rotating = async {
            let mut change = session.0.begin().await?;
            if !lock(&mut change, key).await? {
                return Ok(Err(CatalogError::Unknown(key.clone())));
            }
            let revoke = "UPDATE oncegate_app_secrets SET revoked_at = clock_timestamp() \
                 WHERE app = $1 AND revoked_at IS NULL AND ($2 OR digest IS DISTINCT FROM \
                 (SELECT digest FROM oncegate_app_secrets WHERE app = $1 AND revoked_at IS NULL \
                  ORDER BY created_at DESC, digest DESC LIMIT 1))";
            let revoke = sqlx::query(revoke).persistent(false).bind(key.as_ref()).bind(revoked == RevokeScope::All);
            revoke.execute(&mut *change).await?;
            insert(&mut change, key, secret).await?;
            change.commit().await.map(Ok)
        };
        bounded(rotating).await?
    }

    /// Revokes a secret, unless it is the app's last one.
    pub async fn revoke(&self, key: &AppKey, secret: &SecretDigest) -> Result<(), CatalogError> {
        let mut session = self.open().await?;
        let revoking = async {
            let mut change = session.0.begin().await?;
            lock(&mut change, key).await?;
            let revoke = "UPDATE oncegate_app_secrets SET revoked_at = clock_timestamp() \
                 WHERE app = $1 AND digest = $2 AND revoked_at IS NULL AND EXISTS (SELECT FROM oncegate_app_secrets \
                 WHERE app = $1 AND digest <> $2 AND revoked_at IS NULL)";
            let revoke = sqlx::query(revoke).persistent(false).bind(key.as_ref()).bind(secret.bytes().as_slice());
            if revoke.execute(&mut *change).await?.rows_affected() == 0 {
                let last = "this is the app's last secret, or was just revoked; rotate first, or disable the app";
                return Ok(Err(CatalogError::Invalid(last.into())));
            }
            change.commit().await.map(Ok)
        };
        bounded(revoking).await?
    }

    /// Disables or enables an app.
    pub async fn set_disabled(&self, key: &AppKey, disabled: bool) -> Result<(), CatalogError> {
        let mut session = self.open().await?;
        let setting = async {
            let mut change = session.0.begin().await?;
            let set = "UPDATE oncegate_apps SET disabled = $2 WHERE app = $1";
            let set = sqlx::query(set).persistent(false).bind(key.as_ref()).bind(disabled);
            if set.execute(&mut *change).await?.rows_affected() == 0 {
                return Ok(Err(CatalogError::Unknown(key.clone())));
            }
            change.commit().await.map(Ok)
        };
        bounded(setting).await?
    }

    /// Reads everything over a new connection.
    pub async fn read(&self) -> Result<Snapshot, CatalogError> {
        Ok(self.open().await?.read().await?)
    }
}

impl Session {
    /// Reads the registry's version.
    ///
    /// # Errors
    /// The database does not answer, or was migrated for newer gateways.
    pub async fn version(&mut self) -> Result<i64, DatabaseError> {
        let query = "SELECT version, oldest_build FROM oncegate_registry, oncegate_schema";
        let row = sqlx::raw_sql(query).fetch_one(&mut self.0);
        let read = |row: PgRow| Ok((row.try_get("version")?, row.try_get("oldest_build")?));
        let (version, oldest_build) = bounded(async { read(row.await?) }).await?;
        check_build(oldest_build).map(|()| version)
    }

    /// Reads all apps. A row that no gateway can have written is logged and left out.
    pub async fn read(&mut self) -> Result<Snapshot, DatabaseError> {
        let rows = bounded(sqlx::raw_sql(READ).fetch_all(&mut self.0)).await?;
        let mut snapshot = Snapshot { version: 0, apps: Vec::new() };
        for row in &rows {
            snapshot.add(row)?;
        }
        Ok(snapshot)
    }

    /// Stores last uses that are later than the stored ones.
    pub async fn record_uses(&mut self, uses: &[(AppKey, SecretDigest, Timestamp)]) -> Result<(), DatabaseError> {
        let keys: Vec<_> = uses.iter().map(|(key, ..)| key.as_ref()).collect();
        let digests: Vec<_> = uses.iter().map(|(_, digest, _)| digest.bytes().as_slice()).collect();
        let micros = |at: &Timestamp| i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        let instants: Vec<_> = uses.iter().map(|(.., at)| micros(at)).collect();
        let recording = async {
            let mut change = self.0.begin().await?;
            let record = "UPDATE oncegate_app_secrets s SET last_used_at = u.at FROM \
                 (SELECT app, digest, to_timestamp(at / 1000000.0) AS at FROM unnest($1::text[], $2::bytea[], $3::bigint[]) \
                  AS given (app, digest, at)) u \
                 WHERE s.app = u.app AND s.digest = u.digest AND (s.last_used_at IS NULL OR s.last_used_at < u.at)";
            let record = sqlx::query(record).persistent(false).bind(keys).bind(digests).bind(instants);
            record.execute(&mut *change).await?;
            change.commit().await
        };
        bounded(recording).await
    }
}

impl Snapshot {
    /// Adds a row of [`READ`].
    fn add(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        self.version = row.try_get("version")?;
        let Some(name) = row.try_get::<Option<String>, _>("app")? else { return Ok(()) };
        if self.apps.last().is_none_or(|app| app.key.as_ref() != name) {
            let Ok(key) = name.parse() else {
                tracing::error!("App of the registry left out: its name is not a valid app key");
                return Ok(());
            };
            let (settings, chain) = (row.try_get("settings")?, row.try_get("chain")?);
            let disabled = row.try_get("disabled")?;
            self.apps.push(StoredApp { key, settings, chain, disabled, secrets: Vec::new() });
        }
        let digest: Option<Vec<u8>> = row.try_get("digest")?;
        let digest = digest.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok()).map(SecretDigest::of_bytes);
        if let Some((app, digest)) = self.apps.last_mut().zip(digest) {
            let created_at = instant(row.try_get("created_at")?).unwrap_or_default();
            let last_used_at = instant(row.try_get("last_used_at")?);
            app.secrets.push(StoredSecret { digest, created_at, last_used_at });
        }
        Ok(())
    }
}

fn instant(micros: Option<i64>) -> Option<Timestamp> {
    micros.and_then(|micros| u64::try_from(micros).ok()).map(Timestamp::from_micros)
}

/// Locks an app, so that changes of its secrets happen one after the other. Returns false if there is no such app.
async fn lock(change: &mut PgConnection, key: &AppKey) -> Result<bool, sqlx::Error> {
    let lock = sqlx::query("SELECT 1 FROM oncegate_apps WHERE app = $1 FOR UPDATE").persistent(false);
    Ok(lock.bind(key.as_ref()).fetch_optional(change).await?.is_some())
}

async fn insert(change: &mut PgConnection, key: &AppKey, secret: &SecretDigest) -> Result<(), sqlx::Error> {
    let add = sqlx::query("INSERT INTO oncegate_app_secrets (app, digest) VALUES ($1, $2)").persistent(false);
    add.bind(key.as_ref()).bind(secret.bytes().as_slice()).execute(change).await.map(drop)
}

/// Applies the timeout and converts the error.
async fn bounded<T>(statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, DatabaseError> {
    let late = |_| Err(DatabaseError::Unavailable(format!("no answer within {} s", TIMEOUT.as_secs())));
    timeout(TIMEOUT, async { Ok(statement.await?) }).await.unwrap_or_else(late)
}

impl From<DatabaseError> for CatalogError {
    fn from(refused: DatabaseError) -> Self {
        Self::Unavailable(refused.to_string())
    }
}
