//! Parts that the engines on coordination services (etcd and ZooKeeper) share: their URLs, the store's clock that
//! gateways push, and calls as guarded writes on a key. An engine on top of them writes how a batch of steps is sent,
//! and how keys are named. This crate names no engine. Reasons: `docs/adr/0151-a-clock-that-gateways-push.md`,
//! `docs/adr/0185-one-crate-for-coordination-services.md`.

pub mod backend;
pub mod claims;
mod connection;
pub mod gate;
mod identity;
pub mod inspection;
pub mod item;
pub mod members;
mod opening;
pub mod operation;
pub mod options;
pub mod queue;
pub mod records;
pub mod routes;
pub mod scheme;
pub mod seen;
pub mod service;
pub mod step;
pub mod sweep;
pub mod tick;
pub mod time;
pub mod tls;
pub mod url;
pub mod value;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::clock::Clock;
use oncegate_core::engine::Determinate;
use oncegate_driver::Server;

use self::gate::Gate;
use self::identity::Identity;
use self::members::Members;
use self::seen::Seen;
use self::time::StoreTime;

/// Two notices of lost data within this time are of one loss: its marker, its clock and its revision show it one after another.
const ONE_LOSS: Duration = Duration::from_secs(5);

/// Length of the marker of a store: random bits.
const MARKER_BYTES: usize = 8;

/// Knowledge of an engine about its store.
pub struct State {
    /// The store's time.
    pub time: StoreTime,
    /// Values that are likely to be changed again.
    pub seen: Seen,
    /// Gate for grants.
    pub gate: Gate,
    /// Members of the cluster, for operators.
    pub members: Members,
    identity: Identity,
    /// A session was opened before.
    has_opened: AtomicBool,
    /// A loss of data was reported, and no session has been opened since.
    is_loss_reported: AtomicBool,
    /// When a loss of data was last noticed, by this gateway's monotonic time.
    lost_at: Mutex<Option<Duration>>,
}

impl State {
    /// Creates the state of an engine that has not seen its store yet.
    pub fn new(clock: Arc<dyn Clock>, gate: Gate, members: Members) -> Self {
        let (seen, identity, lost_at) = (Seen::default(), Identity::default(), Mutex::default());
        let (has_opened, is_loss_reported) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { time: StoreTime::new(clock), seen, gate, members, identity, has_opened, is_loss_reported, lost_at }
    }

    /// Forgets the state of lost data. The clock never goes back.
    pub fn forget(&self) {
        self.gate.forget_clock();
        self.seen.clear();
    }

    /// Reports to `server` that a member shows this marker, in a read that was sent at this monotonic time. Returns whether it is
    /// another one than before: then the data are lost, and the engine has to forget what it knew of them.
    ///
    /// # Errors
    /// Other members show another marker. This one must not be used.
    pub fn set_marker(&self, server: &Server, marker: Option<&[u8]>, sent_at: Duration) -> Result<bool, Determinate> {
        if marker.is_some_and(|marker| marker.len() != MARKER_BYTES) {
            return Err(time::not_ours("the key `marker`"));
        }
        let checked = self.identity.check(marker, sent_at, self.time.monotonic());
        // Sessions that are open learn of it with their next heartbeat.
        self.gate.report_two_stores(matches!(checked, Err(Determinate::Incompatible(_))));
        checked?;
        let lost = server.replace_marker(marker);
        if lost {
            self.report_loss(server);
        }
        Ok(lost)
    }

    /// Records that a session was opened: the next loss of data is another one.
    pub fn opened(&self) {
        self.is_loss_reported.store(false, Ordering::Release);
    }

    /// Reports to `server` that the store has lost its data, unless that was reported since the last session was opened.
    pub fn report_loss_once(&self, server: &Server) {
        if !self.is_loss_reported.swap(true, Ordering::AcqRel) {
            self.report_loss(server);
        }
    }

    /// Reports to `server` that the store has lost its data, once for each loss.
    pub fn report_loss(&self, server: &Server) {
        let now = self.time.monotonic();
        let before = self.lost_at.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if before.is_none_or(|before| now.saturating_sub(before) > ONE_LOSS) {
            server.report_loss();
        }
    }
}
