//! The folder of what a gateway must not lose: journal, audit trail and the default disk engine. One process holds all of it,
//! from its start, whatever it needs of it: a policy or an operator may come later.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};

use crate::config::Config;
use crate::domain::clock::Clock;
use crate::folder::{self, FolderLock, LockError};
use crate::resilience::degrade::Keeper;
use crate::resilience::journal::Bounds;

/// The data folder, and the journal in it.
pub(super) struct DataDir {
    path: PathBuf,
    /// Nothing where the folder cannot be used, and nothing has needed it yet.
    lock: Mutex<Option<FolderLock>>,
    pub(super) journal: Arc<Keeper>,
}

impl DataDir {
    /// Locks the folder, and opens the journal where it is needed or an earlier run has left one.
    ///
    /// # Errors
    /// Another gateway holds the folder; or it is needed and cannot be used.
    pub(super) async fn open(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        let (path, limits) = (config.server.data_dir.clone(), &config.limits);
        let bounds = Bounds { bytes: limits.journal_bytes as u64, app_bytes: limits.journal_app_bytes as u64 };
        let journal = Arc::new(Keeper::new(&path, bounds, clock.clone()));
        let data_dir = Self { path, lock: Mutex::default(), journal };
        if data_dir.journal.is_there() {
            data_dir.lock()?;
            data_dir.journal.open().await?;
        } else if !config.answers_for_stores() {
            data_dir.lock_if_usable()?;
        }
        data_dir.make_ready_for(config).await?;
        Ok(data_dir)
    }

    /// Makes ready what a configuration needs of the folder, at the start or at a reload.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) async fn make_ready_for(&self, config: &Config) -> anyhow::Result<()> {
        if config.answers_for_stores() {
            self.lock()?;
            self.journal.open().await?;
        }
        Ok(())
    }

    /// A gateway that needs nothing of the folder runs on a read-only disk, too.
    fn lock_if_usable(&self) -> anyhow::Result<()> {
        match self.try_lock() {
            Err(LockError::Io(error)) => {
                tracing::warn!(
                    data_dir = %self.path.display(), error = %error,
                    "server.data_dir cannot be used: no operator can change anything here, and no policy for outages can be set"
                );
                Ok(())
            }
            locked => self.refused(locked),
        }
    }

    fn lock(&self) -> anyhow::Result<()> {
        self.refused(self.try_lock())
    }

    fn refused(&self, locked: Result<(), LockError>) -> anyhow::Result<()> {
        let path = self.path.display();
        match locked {
            Ok(()) => Ok(()),
            Err(LockError::Held(holder)) => bail!(
                "server.data_dir {path} is held by {holder}: stop that gateway, or give this one a folder of its own \
                 (--data-dir); two gateways never share one"
            ),
            Err(LockError::Io(error)) => Err(error).with_context(|| {
                format!("server.data_dir {path} cannot be used; name a folder that the gateway may write to")
            }),
        }
    }

    fn try_lock(&self) -> Result<(), LockError> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if lock.is_none() {
            *lock = Some(take(&self.path)?);
        }
        Ok(())
    }

    /// Says what waits for a chain that there is no more.
    pub(super) fn tell_of_chains_left(&self) {
        for chain in self.journal.chains_left() {
            tracing::error!(
                chain.name = chain,
                "the journal holds answers for a chain that is not configured; configure it, or use `oncegate spool deliver`"
            );
        }
    }
}

fn take(path: &Path) -> Result<FolderLock, LockError> {
    folder::create(path).map_err(LockError::Io)?;
    FolderLock::take(path)
}
