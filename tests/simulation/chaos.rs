//! Faults of a world: kind, start and length, all from its random numbers. Each kind runs independently, so that they
//! overlap.

use std::sync::Arc;
use std::time::Duration;

use oncegate_outage::journal::memory::Trouble;
use tokio::time::sleep;

use crate::network::NetworkState;
use crate::stack::{ENGINES, Host};
use crate::store::{ServerState, Store};
use crate::trace::Place;
use crate::world::World;

/// Kind of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The network between one gateway and the store.
    Network,
    /// The store's server, which keeps its data.
    Server,
    /// The replicas of one shard, until they come back or one of them is promoted.
    Replicas,
    /// The store's clock steps: back by any time, forward by less than a lease.
    Clock,
    /// The store crashes, and restarts empty.
    DataLoss,
    /// An operator switches the chain to another store, at any gateway.
    Switches,
    /// The disk of a gateway's journal.
    Disk,
    /// A gateway dies, and another one starts; the machine's clock may have been set.
    Gateways,
}

/// Longest step forward of the store's clock: less than the shortest lease.
const FORWARD_MAX_MS: u64 = 450;

/// Source of the faults of a world.
pub(crate) struct Chaos {
    pub(crate) world: Arc<World>,
    pub(crate) stores: Vec<Arc<Store>>,
    pub(crate) hosts: Arc<Vec<Host>>,
}

impl Chaos {
    /// Injects and heals one kind of fault until the world ends.
    pub(crate) async fn reign(&self, fault: Fault) {
        while !self.world.is_done() {
            sleep(self.world.rng.millis(200, 12_000)).await;
            if self.world.is_done() {
                return;
            }
            match fault {
                Fault::Network => self.network().await,
                Fault::Server => self.server().await,
                Fault::Replicas => self.replicas().await,
                Fault::Clock => self.clock().await,
                Fault::DataLoss => self.data_loss().await,
                Fault::Switches => self.switches().await,
                Fault::Disk => self.disk().await,
                Fault::Gateways => self.gateways().await,
            }
        }
    }

    /// Probes the engines of a gateway, as the server does.
    pub(crate) async fn keep_up(&self, place: usize) {
        while !self.world.is_done() {
            sleep(Duration::from_secs(5)).await;
            if let Some(running) = self.hosts[place].gateway() {
                let _health = running.died.run_until_cancelled(running.gateway.engines_health()).await;
                self.world.measure(&running.journal);
            }
        }
    }

    /// Returns the length of a fault: short or long.
    fn duration(&self) -> Duration {
        let rng = &self.world.rng;
        if rng.percent(50) { rng.millis(5, 600) } else { rng.millis(600, 6_000) }
    }

    async fn network(&self) {
        let rng = &self.world.rng;
        let networks = [
            NetworkState::Slow,
            NetworkState::Lossy(5),
            NetworkState::Lossy(30),
            NetworkState::Lossy(80),
            NetworkState::Blackhole,
            NetworkState::NoReplies,
            NetworkState::Refused,
        ];
        let (place, state, duration) = (rng.index(self.hosts.len()), *rng.pick(&networks), self.duration());
        let network = Place::Network(u16::try_from(place).expect("few gateways"));
        let what = match state {
            NetworkState::Healthy => "fair",
            NetworkState::Slow => "slow",
            NetworkState::Lossy(_) => "lossy",
            NetworkState::Blackhole => "cut",
            NetworkState::NoReplies => "mute",
            NetworkState::Refused => "refused",
        };
        self.world.announce(network, what, millis(duration));
        self.world.trouble_begins();
        let networks = &self.hosts[place].networks;
        // Of several, one or all.
        let networks = match networks.len() {
            1 => &networks[..],
            several => match rng.index(several + 1) {
                one if one < several => &networks[one..=one],
                _ => &networks[..],
            },
        };
        for network in networks {
            network.set(state);
        }
        sleep(duration).await;
        for network in networks {
            network.set(NetworkState::Healthy);
        }
        self.world.trouble_ends();
        self.world.announce(network, "fair", 0);
    }

    /// Returns one of the stores.
    fn store(&self) -> &Store {
        match &self.stores[..] {
            [only] => only,
            several => &several[self.world.rng.index(several.len())],
        }
    }

    async fn server(&self) {
        let rng = &self.world.rng;
        let duration = self.duration();
        let store = self.store();
        self.world.trouble_begins();
        match rng.between(0, 2) {
            0 => {
                self.world.announce(Place::Store(store.number), "crash", millis(duration));
                store.crash();
            }
            1 => {
                self.world.announce(Place::Store(store.number), "stop", millis(duration));
                store.set_state(ServerState::Frozen);
            }
            _ => {
                self.world.announce(Place::Store(store.number), "full", millis(duration));
                store.set_state(ServerState::Full);
            }
        }
        sleep(duration).await;
        store.set_state(ServerState::Up);
        self.world.trouble_ends();
        self.world.announce(Place::Store(store.number), "serves", 0);
    }

    async fn replicas(&self) {
        let rng = &self.world.rng;
        let (store, duration, kept) = (self.store(), self.duration(), rng.percent(50));
        let what = if kept { "short of replicas" } else { "short of replicas, to be replaced" };
        self.world.announce(Place::Store(store.number), what, millis(duration));
        self.world.trouble_begins();
        store.set_state(ServerState::Short { kept });
        sleep(duration).await;
        store.set_state(ServerState::Up);
        self.world.trouble_ends();
        self.world.announce(Place::Store(store.number), "serves", 0);
    }

    async fn clock(&self) {
        let rng = &self.world.rng;
        let store = self.store();
        if rng.percent(70) {
            let by = rng.millis(1, FORWARD_MAX_MS);
            self.world.announce(Place::Store(store.number), "clock forward", millis(by));
            store.step_forward(by);
        } else {
            let by = rng.millis(1, if rng.percent(80) { 500 } else { 20_000 });
            self.world.announce(Place::Store(store.number), "clock back", millis(by));
            store.step_back(by).await;
        }
        if rng.percent(50) {
            let place = rng.index(self.hosts.len());
            self.hosts[place].step_wall(rng.millis(0, 600_000));
        }
    }

    async fn data_loss(&self) {
        let duration = self.duration();
        let store = self.store();
        self.world.announce(Place::Store(store.number), "crash, data lost", millis(duration));
        self.world.trouble_begins();
        store.crash();
        sleep(duration).await;
        store.lose_data();
        store.set_state(ServerState::Up);
        self.world.trouble_ends();
        self.world.announce(Place::Store(store.number), "serves, empty", 0);
    }

    async fn switches(&self) {
        let rng = &self.world.rng;
        let (place, to) = (rng.index(self.hosts.len()), rng.index(self.stores.len().min(ENGINES.len())));
        let gateway = Place::Network(u16::try_from(place).expect("few gateways"));
        self.world.announce(gateway, "switch", to as u64);
        let switched = self.hosts[place].switch(ENGINES[to]).await;
        self.world.announce(gateway, "switched", u64::from(switched == Some(true)));
    }

    /// Fills a disk for a while, or makes it fail. After a failure an operator restarts the gateway.
    async fn disk(&self) {
        let rng = &self.world.rng;
        let (place, duration) = (rng.index(self.hosts.len()), self.duration());
        let number = u16::try_from(place).expect("few gateways");
        let gateway = Place::Network(number);
        let (trouble, what) = match rng.between(0, 3) {
            0 => (Trouble::NoSync, "disk fails to sync"),
            1 => (Trouble::Stuck, "disk fails"),
            _ => (Trouble::NoRoom, "disk full"),
        };
        let is_unsure = trouble != Trouble::NoRoom;
        self.world.announce(gateway, what, millis(duration));
        if is_unsure {
            self.world.known().disks_unsure_until.insert(number, Duration::MAX);
        }
        self.hosts[place].disk.turn(trouble);
        sleep(duration).await;
        self.hosts[place].disk.turn(Trouble::None);
        self.world.announce(gateway, "disk is well", 0);
        if is_unsure {
            let now = self.world.time.now();
            self.world.known().disks_unsure_until.insert(number, now);
            sleep(rng.millis(0, 5_000)).await;
            self.world.announce(gateway, "gateway restarted", 0);
            self.hosts[place].kill();
            self.hosts[place].start();
        }
    }

    async fn gateways(&self) {
        let rng = &self.world.rng;
        let (place, duration) = (rng.index(self.hosts.len()), self.duration());
        let gateway = Place::Network(u16::try_from(place).expect("few gateways"));
        self.world.announce(gateway, "gateway killed", millis(duration));
        self.hosts[place].kill();
        if rng.percent(30) {
            self.hosts[place].step_wall(rng.millis(0, 600_000));
        }
        sleep(duration).await;
        self.hosts[place].start();
        self.world.announce(gateway, "gateway started", 0);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
