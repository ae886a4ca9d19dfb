//! The registry of apps in PostgreSQL: the statements, and nothing else. Reading goes through the simple protocol and
//! changes through transactions, so that both work behind a pooler too.

use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use tokio::time::timeout;

use super::secret::SecretDigest;
use super::stored::{CatalogError, RevokeScope, StoredApp, StoredSecret};
use crate::database::schema::allows;
use crate::database::{self, Address, Refused, connect::failure};
use crate::domain::clock::Timestamp;
use crate::domain::tenant::AppKey;

/// The migration that brought the tables.
const NEEDED: i64 = 2;

/// How long connecting and each statement may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Everything a gateway has to know, and the version that it is of, in one snapshot: a row for every secret, one for an
/// app without any, and at least one for the version.
const READ: &str = "SELECT r.version, a.app, a.settings::text AS settings, a.chain, a.disabled, s.digest, \
     (extract(epoch FROM s.created_at) * 1000000)::bigint AS created_at, \
     (extract(epoch FROM s.last_used_at) * 1000000)::bigint AS last_used_at \
     FROM oncegate_registry r LEFT JOIN oncegate_apps a ON true \
     LEFT JOIN oncegate_app_secrets s ON s.app = a.app AND s.revoked_at IS NULL \
     ORDER BY a.app, s.created_at, s.digest";

/// Where the registry is.
#[derive(Clone, Debug)]
pub struct Database {
    address: Address,
}

/// A connection to it.
pub struct Session(PgConnection);

/// What the registry held at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Another one means that something has changed.
    pub version: i64,
    /// All apps.
    pub apps: Vec<StoredApp>,
}

impl Database {
    /// The registry at this URL. Asks no server.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    pub fn at(url: &str) -> Result<Self, database::InvalidUrl> {
        Ok(Self { address: Address::parse(url)? })
    }

    /// The servers, for messages.
    pub fn name(&self) -> String {
        self.address.name()
    }

    /// Connects.
    ///
    /// # Errors
    /// Why the registry cannot be used, for now or as it is.
    pub async fn open(&self) -> Result<Session, Refused> {
        database::connect(&self.address, NEEDED, PATIENCE).await.map(|(connection, _)| Session(connection))
    }

    /// Adds an app with its first secret. `settings` are as in [`StoredApp`].
    ///
    /// # Errors
    /// Why not; then nothing was added.
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
    ///
    /// # Errors
    /// Why not; then nothing was changed, or it is not known.
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

    /// Revokes a secret, unless it is the last one that the app has.
    ///
    /// # Errors
    /// Why not; then nothing was changed, or it is not known.
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
                let last = "this is the app's last secret, or was revoked meanwhile; rotate first, or disable the app";
                return Ok(Err(CatalogError::Invalid(last.into())));
            }
            change.commit().await.map(Ok)
        };
        bounded(revoking).await?
    }

    /// Turns an app away, or lets it in again.
    ///
    /// # Errors
    /// Why not; then nothing was changed, or it is not known.
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

    /// Everything in the registry, asked over a connection of its own.
    ///
    /// # Errors
    /// Why it cannot be told.
    pub async fn read(&self) -> Result<Snapshot, CatalogError> {
        Ok(self.open().await?.read().await?)
    }
}

impl Session {
    /// The version of what the registry holds.
    ///
    /// # Errors
    /// The database does not answer, or has been migrated for newer gateways than this one.
    pub async fn version(&mut self) -> Result<i64, Refused> {
        let ask = "SELECT version, oldest_build FROM oncegate_registry, oncegate_schema";
        let ask = sqlx::raw_sql(ask).fetch_one(&mut self.0);
        let read = |row: PgRow| Ok((row.try_get("version")?, row.try_get("oldest_build")?));
        let (version, oldest_build) = bounded(async { read(ask.await?) }).await?;
        allows(oldest_build).map(|()| version)
    }

    /// Everything that the registry holds. An app whose row no gateway could have written is left out, and logged.
    pub async fn read(&mut self) -> Result<Snapshot, Refused> {
        let rows = bounded(sqlx::raw_sql(READ).fetch_all(&mut self.0)).await?;
        let mut snapshot = Snapshot { version: 0, apps: Vec::new() };
        for row in &rows {
            snapshot.add(row).map_err(|error| failure(&error))?;
        }
        Ok(snapshot)
    }

    /// Writes down when secrets were last used, where that is later than what stands.
    pub async fn record_uses(&mut self, uses: &[(AppKey, SecretDigest, Timestamp)]) -> Result<(), Refused> {
        let keys: Vec<_> = uses.iter().map(|(key, ..)| key.as_ref()).collect();
        let digests: Vec<_> = uses.iter().map(|(_, digest, _)| digest.bytes().as_slice()).collect();
        let micros = |at: &Timestamp| i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
        let instants: Vec<_> = uses.iter().map(|(.., at)| micros(at)).collect();
        let noting = async {
            let mut change = self.0.begin().await?;
            let note = "UPDATE oncegate_app_secrets s SET last_used_at = u.at FROM \
                 (SELECT app, digest, to_timestamp(at / 1000000.0) AS at FROM unnest($1::text[], $2::bytea[], $3::bigint[]) \
                  AS given (app, digest, at)) u \
                 WHERE s.app = u.app AND s.digest = u.digest AND (s.last_used_at IS NULL OR s.last_used_at < u.at)";
            let note = sqlx::query(note).persistent(false).bind(keys).bind(digests).bind(instants);
            note.execute(&mut *change).await?;
            change.commit().await
        };
        bounded(noting).await
    }
}

impl Snapshot {
    /// Takes in a row of [`READ`].
    fn add(&mut self, row: &PgRow) -> Result<(), sqlx::Error> {
        self.version = row.try_get("version")?;
        let Some(name) = row.try_get::<Option<String>, _>("app")? else { return Ok(()) };
        if self.apps.last().is_none_or(|app| app.key.as_ref() != name) {
            let Ok(key) = name.parse() else {
                tracing::error!("an app of the registry has a name that is no app key; it is left out");
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

/// Lets changes of one app's secrets happen one after the other: each looks at what others have left. False if there is
/// no such app.
async fn lock(change: &mut PgConnection, key: &AppKey) -> Result<bool, sqlx::Error> {
    let lock = sqlx::query("SELECT 1 FROM oncegate_apps WHERE app = $1 FOR UPDATE").persistent(false);
    Ok(lock.bind(key.as_ref()).fetch_optional(change).await?.is_some())
}

async fn insert(change: &mut PgConnection, key: &AppKey, secret: &SecretDigest) -> Result<(), sqlx::Error> {
    let add = sqlx::query("INSERT INTO oncegate_app_secrets (app, digest) VALUES ($1, $2)").persistent(false);
    add.bind(key.as_ref()).bind(secret.bytes().as_slice()).execute(change).await.map(drop)
}

/// The answer of the server, or what it means that there is none.
async fn bounded<T>(asked: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Refused> {
    let late = |_| Err(Refused::Unavailable(format!("no answer within {} s", PATIENCE.as_secs())));
    timeout(PATIENCE, async { asked.await.map_err(|error| failure(&error)) }).await.unwrap_or_else(late)
}

impl From<Refused> for CatalogError {
    fn from(refused: Refused) -> Self {
        Self::Unavailable(refused.to_string())
    }
}
