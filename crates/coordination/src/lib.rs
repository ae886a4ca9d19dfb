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

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::Determinate;
use oncegate_driver::Server;

use self::gate::Gate;
use self::identity::Identity;
use self::members::Members;
use self::options::Options;
use self::seen::Seen;
use self::time::{StoreTime, Time};

/// Two notices of lost data within this time are of one loss: its marker, its clock and its revision show it one after another.
const ONE_LOSS: Duration = Duration::from_secs(5);

/// Length of the marker of a store: random bits.
const MARKER_BYTES: usize = 8;

/// Knowledge of an engine about its store.
pub struct State {
    /// Options of the engine.
    pub options: Options,
    /// Reachability of the store, and the losses of its data.
    pub server: Server,
    /// The store's time.
    pub time: StoreTime,
    /// Values that are likely to be changed again.
    pub seen: Seen,
    /// Gate for grants.
    pub gate: Gate,
    /// Members of the cluster, for operators.
    pub members: Members,
    identity: Identity,
    /// The newest revision or transaction that a reply has shown.
    newest: AtomicI64,
    /// A session was opened before.
    has_opened: AtomicBool,
    /// A loss of data was reported, and no session has been opened since.
    is_loss_reported: AtomicBool,
    /// When a loss of data was last noticed, by this gateway's monotonic time.
    lost_at: Mutex<Option<Duration>>,
}

/// What no later reply may be below: the clock, and the newest revision or transaction.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    clock: Timestamp,
    newest: i64,
}

impl State {
    /// Creates the state of an engine that has not seen its store yet. The address is for messages: it must hold no password.
    pub fn new(engine: &'static str, address: String, options: Options, gate: Gate) -> Self {
        Self {
            time: StoreTime::new(options.clock.clone()),
            server: Server::new(engine, address, options.on_data_loss.clone()),
            members: Members::new(engine),
            options,
            gate,
            seen: Seen::default(),
            identity: Identity::default(),
            newest: AtomicI64::new(0),
            has_opened: AtomicBool::new(false),
            is_loss_reported: AtomicBool::new(false),
            lost_at: Mutex::default(),
        }
    }

    /// Forgets the state of lost data. The clock never goes back.
    fn forget(&self) {
        self.newest.store(0, Ordering::Release);
        self.gate.forget_clock();
        self.seen.clear();
    }

    /// Returns the newest revision or transaction that a reply has shown.
    pub fn newest(&self) -> i64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Returns what the reply to a request may not be below. Read it before the request is sent.
    pub fn floor(&self) -> Floor {
        Floor { clock: self.time.seen(), newest: self.newest() }
    }

    /// Records the clock and the revision or transaction of a reply. The request was sent at this monotonic time. Returns the time;
    /// `None` if the reply is below the floor, since the store came back without its data.
    pub fn observe(&self, clock: Timestamp, newest: i64, sent_at: Duration, floor: Floor) -> Option<Time> {
        if clock < floor.clock || newest < floor.newest {
            return None;
        }
        self.newest.fetch_max(newest, Ordering::AcqRel);
        self.gate.compare_clocks(clock, sent_at, self.time.monotonic());
        Some(self.time.observe(clock, sent_at))
    }

    /// Records that a member shows this marker, in a read that was sent at this monotonic time. Returns whether it is another one
    /// than before: then the data are lost.
    fn set_marker(&self, marker: Option<&[u8]>, sent_at: Duration) -> Result<bool, Determinate> {
        if marker.is_some_and(|marker| marker.len() != MARKER_BYTES) {
            return Err(time::not_ours("the key `marker`"));
        }
        let checked = self.identity.check(marker, sent_at, self.time.monotonic());
        // Sessions that are open learn of it with their next heartbeat.
        self.gate.report_two_stores(matches!(checked, Err(Determinate::Incompatible(_))));
        checked?;
        let lost = self.server.replace_marker(marker);
        if lost {
            self.report_loss();
        }
        Ok(lost)
    }

    /// Records that a session was opened: the next loss of data is another one.
    pub fn opened(&self) {
        self.is_loss_reported.store(false, Ordering::Release);
    }

    /// Reports that the store has lost its data, unless that was reported since the last session was opened.
    fn report_loss_once(&self) {
        if !self.is_loss_reported.swap(true, Ordering::AcqRel) {
            self.report_loss();
        }
    }

    /// Reports that the store has lost its data, once for each loss.
    fn report_loss(&self) {
        let now = self.time.monotonic();
        let before = self.lost_at.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if before.is_none_or(|before| now.saturating_sub(before) > ONE_LOSS) {
            self.server.report_loss();
        }
    }
}
