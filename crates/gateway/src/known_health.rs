//! The last known health of the engines: the result of the last probe of each one, the time since when it is the same, and
//! what its store has refused or lost. A read calls no store, so it may be frequent.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::Node;
use oncegate_core::engine::breaker::BreakerState;
use serde::Serialize;

use super::resilience::refusal::Refusal;
use super::{BreakerHealth, EngineHealth, Gateway, NamedEngine};

/// An engine as this gateway last saw it.
#[derive(Clone, Debug, Serialize)]
pub struct KnownEngine {
    /// Its name.
    pub name: String,
    /// True if the engine answers. `None` before the first check.
    pub up: Option<bool>,
    /// Time at which the engine began to answer, or stopped, as far as this gateway knows.
    pub since: Option<Timestamp>,
    /// The reason if it does not answer.
    pub detail: Option<String>,
    /// Time of the last check.
    pub checked_at: Option<Timestamp>,
    /// The breaker in front of it.
    pub breaker: BreakerHealth,
    /// The last call that its store has refused, if that was within the last minute.
    pub refusal: Option<Refusal>,
    /// The servers of the store that were not up at the last check, where it has several.
    pub nodes_down: Vec<Node>,
    /// Time at which this gateway last noticed that the store had lost its data, or was restored from a backup.
    pub data_lost_at: Option<Timestamp>,
    /// The chains that have it.
    pub chains: Vec<String>,
}

/// The results of the last probes.
#[derive(Default)]
pub(super) struct KnownHealth(Mutex<BTreeMap<String, Probed>>);

#[derive(Clone)]
struct Probed {
    up: bool,
    since: Timestamp,
    detail: String,
    checked_at: Timestamp,
    losses: u64,
    data_lost_at: Option<Timestamp>,
    nodes_down: Vec<Node>,
}

impl KnownHealth {
    /// Keeps the results of a check at this instant.
    pub(super) fn checked(&self, health: &BTreeMap<String, EngineHealth>, now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, EngineHealth { up, detail, losses, nodes, .. }) in health {
            let before = known.get(name);
            let since = before.filter(|before| before.up == *up).map_or(now, |before| before.since);
            let data_lost_at = match before {
                Some(before) if before.losses >= *losses => before.data_lost_at,
                _ => (*losses > 0).then_some(now),
            };
            let probed = Probed {
                up: *up,
                since,
                detail: detail.clone(),
                checked_at: now,
                losses: *losses,
                data_lost_at,
                nodes_down: nodes.iter().filter(|node| !node.up).cloned().collect(),
            };
            known.insert(name.clone(), probed);
        }
    }

    fn get(&self, name: &str) -> Option<Probed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

impl Gateway {
    /// Returns the result of the last check of every engine, and the present state of its breaker.
    pub fn known_engines(&self) -> Vec<KnownEngine> {
        self.engines.by_name.iter().map(|(name, engine)| self.known_engine(name, engine)).collect()
    }

    fn known_engine(&self, name: &str, engine: &NamedEngine) -> KnownEngine {
        let breaker = self.breaker(&engine.engine);
        let probed = self.known_health.get(name);
        let engine = KnownEngine {
            name: name.to_owned(),
            up: probed.as_ref().map(|probed| probed.up),
            since: probed.as_ref().map(|probed| probed.since),
            detail: probed.as_ref().filter(|probed| !probed.up).map(|probed| probed.detail.clone()),
            checked_at: probed.as_ref().map(|probed| probed.checked_at),
            breaker,
            refusal: engine.engine.refusal(),
            data_lost_at: probed.as_ref().and_then(|probed| probed.data_lost_at),
            nodes_down: probed.map(|probed| probed.nodes_down).unwrap_or_default(),
            chains: self.chains_of(name),
        };
        engine.with_open_breaker()
    }
}

impl KnownEngine {
    /// An open breaker says earlier than the next probe that the engine does not answer calls.
    fn with_open_breaker(self) -> Self {
        match self.breaker {
            BreakerHealth { state: BreakerState::Open, since } if self.up != Some(false) => Self {
                up: Some(false),
                since: Some(since),
                detail: Some("its breaker is open: too many calls failed or got no answer in time".to_owned()),
                ..self
            },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros(second * 1_000_000)
    }

    fn health(up: bool, losses: u64) -> BTreeMap<String, EngineHealth> {
        let detail = if up { "answers" } else { "connection refused" };
        let breaker = BreakerHealth { state: BreakerState::Closed, since: at(1) };
        let health = EngineHealth { up, detail: detail.into(), breaker, nodes: Vec::new(), losses };
        [("primary".to_owned(), health)].into()
    }

    #[test]
    fn an_outage_began_with_the_first_probe_that_failed() {
        let known = KnownHealth::default();
        assert!(known.get("primary").is_none());
        for (second, up, since) in [(1, true, 1), (2, true, 1), (3, false, 3), (4, false, 3), (5, true, 5)] {
            known.checked(&health(up, 0), at(second));
            let probed = known.get("primary").unwrap();
            assert_eq!((probed.up, probed.since, probed.checked_at), (up, at(since), at(second)));
        }
    }

    #[test]
    fn an_outage_with_another_reason_is_the_same_outage() {
        let known = KnownHealth::default();
        for (second, detail) in [(1, "connection refused"), (2, "no answer within 1000 ms"), (3, "connection refused")]
        {
            let mut health = health(false, 0);
            health.get_mut("primary").unwrap().detail = detail.to_owned();
            known.checked(&health, at(second));
            let probed = known.get("primary").unwrap();
            assert_eq!((&*probed.detail, probed.since), (detail, at(1)));
        }
    }

    #[test]
    fn a_loss_of_data_is_known_from_the_check_that_noticed_it() {
        let known = KnownHealth::default();
        for (second, losses, lost_at) in [(1, 0, None), (2, 1, Some(2)), (3, 1, Some(2)), (4, 3, Some(4))] {
            known.checked(&health(true, losses), at(second));
            assert_eq!(known.get("primary").unwrap().data_lost_at, lost_at.map(at), "{second}");
        }
        let restored = KnownHealth::default();
        restored.checked(&health(true, 1), at(1));
        assert_eq!(restored.get("primary").unwrap().data_lost_at, Some(at(1)), "lost when it was opened");
    }

    #[test]
    fn an_open_breaker_counts_before_the_next_probe() {
        let breaker = |state| BreakerHealth { state, since: at(7) };
        let known = |up, breaker| KnownEngine {
            name: "primary".to_owned(),
            up,
            since: Some(at(3)),
            detail: None,
            checked_at: Some(at(5)),
            breaker,
            refusal: None,
            data_lost_at: None,
            nodes_down: Vec::new(),
            chains: Vec::new(),
        };
        for (up, state, expected) in [
            (Some(true), BreakerState::Open, (Some(false), Some(at(7)))),
            (Some(false), BreakerState::Open, (Some(false), Some(at(3)))),
            (Some(true), BreakerState::Closed, (Some(true), Some(at(3)))),
            (Some(false), BreakerState::HalfOpen, (Some(false), Some(at(3)))),
            (None, BreakerState::Open, (Some(false), Some(at(7)))),
        ] {
            let seen = known(up, breaker(state)).with_open_breaker();
            assert_eq!((seen.up, seen.since), expected, "{up:?} {state:?}");
        }
    }
}
