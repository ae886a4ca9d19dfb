//! Folder of a gateway's persistent data: journal, audit trail and the default disk engine. A process locks it from its
//! start, even if it does not need it yet: a policy or an operator may need it later.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, bail};
use oncegate_core::clock::Clock;
use oncegate_folder::{FolderLock, LockError};
use oncegate_outage::OutageJournal;
use oncegate_outage::journal::Bounds;

use crate::config::Config;

/// Data folder and its journal.
pub(super) struct DataDir {
    path: PathBuf,
    /// Empty while the folder is unusable and not needed.
    lock: Mutex<Option<FolderLock>>,
    pub(super) journal: Arc<OutageJournal>,
}

impl DataDir {
    /// Locks the folder, and opens the journal if it is needed or left from an earlier run.
    ///
    /// # Errors
    /// Another gateway has locked the folder, or it is needed and unusable.
    pub(super) async fn open(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        let (path, limits) = (config.server.data_dir.clone(), &config.limits);
        let bounds = Bounds { bytes: limits.journal_bytes as u64, app_bytes: limits.journal_app_bytes as u64 };
        let journal = Arc::new(OutageJournal::new(&path, bounds, clock.clone()));
        let data_dir = Self { path, lock: Mutex::default(), journal };
        if data_dir.journal.exists() {
            data_dir.lock()?;
            data_dir.journal.open().await?;
        } else if !config.answers_for_stores() {
            data_dir.lock_if_usable()?;
        }
        data_dir.make_ready_for(config).await?;
        Ok(data_dir)
    }

    /// Prepares the parts of the folder that a configuration needs, at the start or at a reload.
    pub(super) async fn make_ready_for(&self, config: &Config) -> anyhow::Result<()> {
        if config.answers_for_stores() {
            self.lock()?;
            self.journal.open().await?;
        }
        Ok(())
    }

    /// Locks the folder, or warns: a gateway that does not need it may run on a read-only disk.
    fn lock_if_usable(&self) -> anyhow::Result<()> {
        match self.try_lock() {
            Err(LockError::Io(error)) => {
                tracing::warn!(
                    data_dir = %self.path.display(), error = %error,
                    "server.data_dir cannot be used: operators cannot change anything, and no outage policy can be set"
                );
                Ok(())
            }
            locked => self.require(locked),
        }
    }

    fn lock(&self) -> anyhow::Result<()> {
        self.require(self.try_lock())
    }

    fn require(&self, locked: Result<(), LockError>) -> anyhow::Result<()> {
        let path = self.path.display();
        match locked {
            Ok(()) => Ok(()),
            Err(LockError::Held(holder)) => bail!(
                "server.data_dir {path} is held by {holder}: stop that gateway, or give this one its own folder \
                 (--data-dir); two gateways cannot share one"
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

    /// Logs the chains that have journal entries and are not configured.
    pub(super) fn warn_of_unknown_chains(&self) {
        for chain in self.journal.unconfigured_chains() {
            tracing::error!(
                chain.name = chain,
                "The journal has entries of a chain that is not configured; configure it, or run `oncegate spool deliver`"
            );
        }
    }
}

fn take(path: &Path) -> Result<FolderLock, LockError> {
    oncegate_folder::create(path).map_err(LockError::Io)?;
    FolderLock::take(path)
}
