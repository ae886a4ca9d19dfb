//! The topology: the servers, and the server that answers for a key. The claim protocol knows keys and commands
//! only.

mod nodes;
mod one;
mod shards;

use std::sync::Arc;

use oncegate_core::engine::notification::Hub;
use oncegate_core::engine::{EngineError, StoreIdentity};
use redis::Value;
use tokio::runtime::Handle;

use self::one::One;
use super::cluster::Cluster;
use super::connection::BATCH;
use super::keys::KeyName;
use super::options::Options;
use super::primary::Primary;
use super::route::{Route, Sending};
use super::url::{Layout, Url};

/// The servers of an engine.
pub(super) enum Topology {
    /// One server that answers for all keys: a fixed one, or the primary that Sentinels name.
    One(One),
    /// Several; each answers for some slots.
    Cluster(Cluster),
}

/// Items with one route, or items without a route and the reason.
pub(super) type Group<T> = (Result<Route, EngineError>, Vec<T>);

impl Topology {
    /// Starts connecting.
    pub(super) fn open(url: Arc<Url>, options: Options) -> Self {
        match url.layout {
            Layout::Single | Layout::Sentinel { .. } => Self::One(One::open(&url, &options)),
            Layout::Cluster { .. } => Self::Cluster(Cluster::open(url, options)),
        }
    }

    /// Returns the servers that answer for keys.
    pub(super) fn primaries(&self) -> Vec<Arc<Primary>> {
        match self {
            Self::One(one) => vec![one.server.clone()],
            Self::Cluster(cluster) => cluster.primaries(),
        }
    }

    /// Returns whether every server survives a crash without loss. Chains with requirements ask before each claim.
    pub(super) fn is_durable(&self) -> bool {
        match self {
            Self::One(one) => one.server.server().is_durable(),
            Self::Cluster(cluster) => cluster.is_durable(),
        }
    }

    /// Returns what tells the store from others. A cluster has no name.
    pub(super) fn identity(&self) -> Option<StoreIdentity> {
        match self {
            Self::One(one) => one.server.server().identity(),
            Self::Cluster(_) => None,
        }
    }

    /// Returns the subscriptions at the server that answers for a key, if there is one.
    pub(super) fn hub(&self, key: &str) -> Option<Arc<Hub>> {
        match self {
            Self::One(one) => Some(one.server.hub().clone()),
            Self::Cluster(cluster) => cluster.hub(key),
        }
    }

    /// Closes all connections.
    pub(super) async fn close(&self) {
        match self {
            Self::One(one) => one.server.close().await,
            Self::Cluster(cluster) => cluster.close().await,
        }
    }

    /// Sends a command for a key, or a transaction, and returns its reply.
    pub(super) async fn send(&self, sending: Sending<'_>) -> Result<Value, EngineError> {
        match self {
            Self::One(one) => one.send(sending).await,
            // Boxed: every call would take memory for this.
            Self::Cluster(cluster) => Box::pin(cluster.send(sending)).await,
        }
    }

    /// Returns whether a reply means that the command was not executed, so that it can be sent again.
    pub(super) fn is_to_be_resent(&self, route: &Route, reply: &Value) -> bool {
        match self {
            Self::One(one) => one.is_to_be_resent(reply),
            Self::Cluster(cluster) => cluster.is_to_be_resent(&route.primary, reply),
        }
    }

    /// Records that commands were not answered.
    pub(super) fn has_failed(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.has_failed();
        }
    }

    /// Splits items into groups whose commands go out together, each along its route.
    pub(super) async fn split<T>(&self, items: Vec<T>, key: impl Fn(&T) -> &KeyName) -> Vec<Group<T>> {
        let core = Handle::current().id();
        match self {
            Self::One(one) => grouped(items, |item| Ok(one.route(key(item), core))),
            Self::Cluster(cluster) => {
                let map = match cluster.map().await {
                    Ok(map) => map,
                    Err(why) => return vec![(Err(why.into()), items)],
                };
                grouped(items, |item| cluster.route(&map, key(item), core))
            }
        }
    }
}

fn grouped<T>(items: Vec<T>, route: impl Fn(&T) -> Result<Route, EngineError>) -> Vec<Group<T>> {
    let mut groups: Vec<Group<T>> = Vec::new();
    for item in items {
        let route = route(&item);
        // Only the last group of a route may have room.
        let fits = |(other, group): &&mut Group<T>| match (other, &route) {
            (Ok(other), Ok(route)) => {
                Arc::ptr_eq(&other.primary, &route.primary) && other.worker == route.worker && group.len() < BATCH
            }
            (Err(other), Err(why)) => other == why,
            _ => false,
        };
        match groups.iter_mut().rev().find(fits) {
            Some((_, group)) => group.push(item),
            None => groups.push((route, vec![item])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Spread;

    fn primary() -> Arc<Primary> {
        let url = Arc::new(Url::parse("redis://127.0.0.1:1").unwrap());
        let target = super::super::target::Target::Url;
        Arc::new(Primary::open(&url, &Options::default(), &target, None, &Arc::default()))
    }

    #[tokio::test]
    async fn items_of_one_route_go_out_together_up_to_the_size_of_a_batch() {
        let primaries = [primary(), primary()];
        let route = |number: &usize| match number % 4 {
            3 => Err(EngineError::unavailable("none answers")),
            at => Ok(Route { primary: primaries[at / 2].clone(), worker: at % 2 }),
        };
        let groups = grouped((0..16).collect(), route);
        let numbers = |at: usize| groups[at].1.clone();
        assert_eq!(groups.len(), 4);
        assert_eq!((numbers(0), numbers(1)), (vec![0, 4, 8, 12], vec![1, 5, 9, 13]));
        assert_eq!((numbers(2), numbers(3)), (vec![2, 6, 10, 14], vec![3, 7, 11, 15]));
        assert!(groups[3].0.is_err() && groups[2].0.is_ok());
        let sizes: Vec<_> = grouped((0..=BATCH).collect(), |_| route(&0)).iter().map(|group| group.1.len()).collect();
        assert_eq!(sizes, [BATCH, 1]);
        let failures = grouped((0..3).collect(), |at: &usize| Err(EngineError::unavailable(format!("why {at}"))));
        assert_eq!(failures.len(), 3, "each has its own reason");
    }

    #[tokio::test]
    async fn one_server_is_one_shard_and_without_sentinels_nothing_is_sent_again() {
        let topology = Topology::open(Arc::new(Url::parse("redis://127.0.0.1:1").unwrap()), Options::default());
        assert_eq!((topology.shards(), topology.shard_of_key("a"), topology.losses(0)), (vec![0], 0, 0));
        assert_eq!((topology.metadata_name(0, "a"), topology.data_losses()), ("a".to_owned(), 0));
        assert!(topology.nodes().is_empty() && topology.hub("a").is_some() && !topology.is_durable());
        let [primary] = &topology.primaries()[..] else { panic!("one") };
        primary.server().set_durable(true);
        primary.server().report_loss();
        assert!(topology.is_durable());
        assert_eq!((topology.losses(0), topology.data_losses()), (1, 1));
        let key = || KeyName { text: "a".into(), spread: Spread::None };
        let groups = topology.split(vec![key(), key()], |key| key).await;
        let [(Ok(route), items)] = &groups[..] else { panic!("one group") };
        assert_eq!(items.len(), 2);
        let loading = redis::parse_redis_value(b"-LOADING x\r\n").unwrap();
        assert!(!topology.is_to_be_resent(route, &loading));
        let url = "redis+sentinel://127.0.0.1:1/mymaster";
        let sentinels = Topology::open(Arc::new(Url::parse(url).unwrap()), Options::default());
        assert!(sentinels.is_to_be_resent(route, &loading) && !sentinels.is_to_be_resent(route, &Value::Okay));
        let moved = redis::parse_redis_value(b"-MOVED 1 h:1\r\n").unwrap();
        assert!(!sentinels.is_to_be_resent(route, &moved), "it is no cluster");
    }

    #[tokio::test]
    async fn the_primary_that_sentinels_name_is_a_node_and_its_promotions_are_losses() {
        use super::super::sentinel::tests::promote;

        for (replicas, losses) in [("", 1), ("?replicas=1", 0)] {
            let url = format!("redis+sentinel://127.0.0.1:1/mymaster{replicas}");
            let topology = Topology::open(Arc::new(Url::parse(&url).unwrap()), Options::default());
            let Topology::One(one) = &topology else { panic!("one server") };
            let discovery = one.discovery().unwrap();
            assert!(topology.nodes().is_empty());
            promote(discovery, "127.0.0.1:2", 1);
            assert_eq!(topology.nodes().iter().map(|node| node.address.clone()).collect::<Vec<_>>(), ["127.0.0.1:2"]);
            assert_eq!(topology.losses(0), 0);
            promote(discovery, "127.0.0.1:3", 2);
            assert_eq!(topology.losses(0), losses, "{url}");
        }
    }
}
