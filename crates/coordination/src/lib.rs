//! Parts that the engines on coordination services share, etcd and ZooKeeper: their URLs, the store's clock that gateways push, and calls
//! as guarded writes on a key. An engine on top of them writes how a batch of steps is sent, and how keys are named. This crate names
//! no engine. Reasons: `docs/adr/0151-a-clock-that-gateways-push.md`, `docs/adr/0185-one-crate-for-coordination-services.md`.

pub mod claims;
mod connection;
pub mod gate;
pub mod item;
pub mod operation;
pub mod options;
pub mod queue;
pub mod records;
pub mod routes;
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
use self::seen::Seen;
use self::time::StoreTime;

/// What an engine knows of its store.
pub struct State {
    /// The store's time.
    pub time: StoreTime,
    /// Values that are likely to be changed again.
    pub seen: Seen,
    /// Whether grants are made now.
    pub gate: Gate,
}

impl State {
    /// Forgets what was true of data that are lost. The clock never goes back.
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
