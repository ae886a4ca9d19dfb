//! Parts that the engines on coordination services (etcd and ZooKeeper) share: their URLs, the store's clock that
//! gateways push, and calls as guarded writes on a key. An engine on top of them writes how a batch of steps is sent,
//! and how keys are named. This crate names no engine. Reasons: `docs/adr/0151-a-clock-that-gateways-push.md`,
//! `docs/adr/0185-one-crate-for-coordination-services.md`.

pub mod claims;
mod connection;
pub mod gate;
pub mod inspection;
pub mod item;
pub mod members;
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

use oncegate_driver::Server;

use self::gate::Gate;
use self::members::Members;
use self::seen::Seen;
use self::time::StoreTime;

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
}

impl State {
    /// Forgets the state of lost data. The clock never goes back.
    pub fn forget(&self) {
        self.gate.forget_clock();
        self.seen.clear();
    }

    /// Reports to `server` that the store has this marker. If it is another one than before, the data are lost.
    pub fn set_marker(&self, server: &Server, marker: Option<&[u8]>) {
        let losses = server.data_losses();
        server.set_marker(marker);
        if server.data_losses() != losses {
            self.forget();
        }
    }
}
