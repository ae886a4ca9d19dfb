//! Faults of a world: which, when, and for how long, all from its random numbers. Each kind comes and goes by itself, so that
//! they overlap.

use std::sync::Arc;
use std::time::Duration;

use oncegate::resilience::journal::memory::Trouble;
use tokio::time::sleep;

use crate::link::Weather;
use crate::stack::{ENGINES, Host};
use crate::store::{Serves, Store};
use crate::trace::Place;
use crate::world::World;

/// The kinds of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The network between one gateway and the store.
    Network,
    /// The store's server, which keeps its data.
    Server,
    /// The store's clock: back by anything, forward by less than a lease.
    Clock,
    /// The store crashes, and comes back empty.
    DataLoss,
    /// Somebody switches the chain to another store, at any gateway.
    Switches,
    /// The disk of a gateway, where its journal is.
    Disk,
    /// A gateway dies, and another one is started; its machine's clock may have been set.
    Gateways,
}

/// How far the store's clock is set forward at most: less than the shortest lease.
const FORWARD_MAX_MS: u64 = 450;

/// What has it in for a world.
pub(crate) struct Chaos {
    pub(crate) world: Arc<World>,
    pub(crate) stores: Vec<Arc<Store>>,
    pub(crate) hosts: Arc<Vec<Host>>,
}

impl Chaos {
    /// Lets a kind of fault come and go until the world is done.
    pub(crate) async fn reign(&self, fault: Fault) {
        while !self.world.is_done() {
            sleep(self.world.rng.millis(200, 12_000)).await;
            if self.world.is_done() {
                return;
            }
            match fault {
                Fault::Network => self.network().await,
                Fault::Server => self.server().await,
                Fault::Clock => self.clock().await,
                Fault::DataLoss => self.data_loss().await,
                Fault::Switches => self.switches().await,
                Fault::Disk => self.disk().await,
                Fault::Gateways => self.gateways().await,
            }
        }
    }

    /// Asks the engines of a gateway how they are, as the server does all the time.
    pub(crate) async fn keep_up(&self, place: usize) {
        while !self.world.is_done() {
            sleep(Duration::from_secs(5)).await;
            if let Some(running) = self.hosts[place].gateway() {
                let _health = running.died.run_until_cancelled(running.gateway.engines_health()).await;
                self.world.measure(&running.journal);
            }
        }
    }

    /// Short ones that callers hardly feel, and long ones.
    fn duration(&self) -> Duration {
        let rng = &self.world.rng;
        if rng.percent(50) { rng.millis(5, 600) } else { rng.millis(600, 6_000) }
    }

    async fn network(&self) {
        let rng = &self.world.rng;
        let links = [
            Weather::Slow,
            Weather::Lossy(5),
            Weather::Lossy(30),
            Weather::Lossy(80),
            Weather::Cut,
            Weather::Mute,
            Weather::Refused,
        ];
        let (place, weather, duration) = (rng.index(self.hosts.len()), *rng.pick(&links), self.duration());
        let link = Place::Link(u16::try_from(place).expect("few gateways"));
        let what = match weather {
            Weather::Fair => "fair",
            Weather::Slow => "slow",
            Weather::Lossy(_) => "lossy",
            Weather::Cut => "cut",
            Weather::Mute => "mute",
            Weather::Refused => "refused",
        };
        self.world.announce(link, what, millis(duration));
        self.world.trouble_begins();
        let links = &self.hosts[place].links;
        // Where there are several, one of them or all.
        let links = match links.len() {
            1 => &links[..],
            several => match rng.index(several + 1) {
                one if one < several => &links[one..=one],
                _ => &links[..],
            },
        };
        for link in links {
            link.turn(weather);
        }
        sleep(duration).await;
        for link in links {
            link.turn(Weather::Fair);
        }
        self.world.trouble_ends();
        self.world.announce(link, "fair", 0);
    }

    /// One of the stores.
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
                store.serve(Serves::Later);
            }
            _ => {
                self.world.announce(Place::Store(store.number), "full", millis(duration));
                store.serve(Serves::NoClaims);
            }
        }
        sleep(duration).await;
        store.serve(Serves::All);
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
        store.serve(Serves::All);
        self.world.trouble_ends();
        self.world.announce(Place::Store(store.number), "serves, empty", 0);
    }

    async fn switches(&self) {
        let rng = &self.world.rng;
        let (place, to) = (rng.index(self.hosts.len()), rng.index(self.stores.len()));
        let gateway = Place::Link(u16::try_from(place).expect("few gateways"));
        self.world.announce(gateway, "switch", to as u64);
        let switched = self.hosts[place].switch(ENGINES[to]).await;
        self.world.announce(gateway, "switched", u64::from(switched == Some(true)));
    }

    /// A disk is full, which is over when it has room; or it fails, and then somebody reads the log and starts the gateway anew.
    async fn disk(&self) {
        let rng = &self.world.rng;
        let (place, duration) = (rng.index(self.hosts.len()), self.duration());
        let number = u16::try_from(place).expect("few gateways");
        let gateway = Place::Link(number);
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
        let gateway = Place::Link(u16::try_from(place).expect("few gateways"));
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
