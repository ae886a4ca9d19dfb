//! State that all sessions of an engine share: the servers, the folders that exist, and the clock's last reading.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashSet;
use oncegate_coordination::State;
use oncegate_coordination::gate::Gate;
use oncegate_coordination::members::with_listed;
use oncegate_coordination::options::Options;
use oncegate_coordination::url::Address;
use oncegate_core::clock::Timestamp;

use super::keys::Keys;
use super::members;
use super::url::Url;

/// Most folders that are known to be there. After that they are created again, without an effect.
const FOLDERS_MAX: usize = 20_000;

/// The clock's node `clock5` is written when the clock comes to the next of these.
pub(super) const FIVE_US: u64 = 5_000_000;

/// State that all sessions of an engine share.
pub(super) struct Store {
    pub(super) url: Url,
    pub(super) keys: Keys,
    pub(super) state: Arc<State>,
    /// Held while this gateway advances the clock, or wants that it does not.
    pub(super) ticking: tokio::sync::Mutex<()>,
    known: Mutex<Known>,
}

/// Observed state of the servers.
#[derive(Default)]
pub(super) struct Known {
    /// Members, those of the URL first.
    pub(super) members: Vec<Address>,
    pub(super) clock: Option<ClockSeen>,
    folders: HashSet<String>,
}

/// The nodes of the clock as they were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ClockSeen {
    pub(super) clock: Timestamp,
    /// The version of the clock.
    pub(super) version: i32,
    /// The version of `clock5`, and until when it has that: the clock is before this instant.
    pub(super) five_version: i32,
    pub(super) five_end: Timestamp,
    pub(super) seen_at: Duration,
}

/// Returns the start of the period of five seconds around an instant.
pub(super) fn five_of(clock: Timestamp) -> Timestamp {
    Timestamp::from_micros(clock.as_micros() / FIVE_US * FIVE_US)
}

impl Store {
    pub(super) fn new(url: Url, options: Options) -> Self {
        let (members, address) = (url.common.members.clone(), url.common.addresses());
        Self {
            keys: Keys::new(&url.root),
            state: Arc::new(State::new("zookeeper", address, options, Gate::new("ZooKeeper", "heap"))),
            ticking: tokio::sync::Mutex::default(),
            known: Mutex::new(Known { members, ..Known::default() }),
            url,
        }
    }

    /// Adds the members of the configuration that the servers share to those of the URL, if it names addresses for clients.
    pub(super) fn learn(&self, configuration: &[u8]) {
        if !self.url.common.are_members_fixed {
            self.known().members = with_listed(&self.url.common.members, members::listed(configuration));
        }
    }

    /// Returns the members.
    pub(super) fn members(&self) -> Vec<Address> {
        self.known().members.clone()
    }

    /// Forgets the nodes that were seen.
    pub(super) fn forget_nodes(&self) {
        let mut known = self.known();
        *known = Known { members: std::mem::take(&mut known.members), ..Known::default() };
    }

    /// Returns whether a folder is known to be there.
    pub(super) fn has_folder(&self, path: &str) -> bool {
        self.known().folders.contains(path)
    }

    /// Records that a folder is there.
    pub(super) fn add_folder(&self, path: &str) {
        let mut known = self.known();
        if known.folders.len() >= FOLDERS_MAX {
            known.folders.clear();
        }
        known.folders.insert(path.to_owned());
    }

    /// Forgets which folders are there: one is not.
    pub(super) fn forget_folders(&self) {
        self.known().folders.clear();
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
