//! A cluster: a slot map above the connections to each primary. After a reply that means "not executed", the command is
//! sent to the right node. After a lost reply, the caller decides: only the caller knows what may be repeated.

mod layout;
mod map;
mod refresh;
mod views;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(super) use self::map::{Shard, SlotMap};
use super::address::Address;
use super::commands::Commands;
use super::keys::{self, KeyName, Keys};
use super::limit::{Limit, RESEND};
use super::marker::Markers;
use super::options::Options;
use super::primary::Primary;
use super::redirect::Redirect;
use super::reply::not_executed;
use super::route::{Route, Sending};
use super::slots;
use super::target::Target;
use super::transaction;
use super::url::Url;
use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::engine::notification::Hub;
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_core::record::Key;

/// A cluster.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    closing: CancellationToken,
    _guard: DropGuard,
}

/// State that calls share with the task that refreshes the map.
struct Shared {
    url: Arc<Url>,
    options: Options,
    keys: Keys,
    markers: Arc<Markers>,
    map: ArcSwap<SlotMap<Primary>>,
    /// Reason for the missing map. Nothing once there was one.
    why_not: watch::Sender<Option<Determinate>>,
    nodes: Mutex<HashMap<Address, Arc<Primary>>>,
    /// Asks for a refresh.
    stale: Arc<Notify>,
}

impl Cluster {
    /// Starts to look for the nodes, on the current runtime.
    pub(super) fn open(url: Arc<Url>, mut options: Options) -> Self {
        if options.cores.is_empty() {
            // Connections to nodes that are found later also use the runtime in which the engine was opened.
            options.cores.push(Handle::current());
        }
        let shared = Arc::new(Shared {
            keys: Keys::new(&url),
            url,
            options,
            markers: Arc::default(),
            map: ArcSwap::from_pointee(SlotMap::empty()),
            why_not: watch::Sender::new(Some(Determinate::Unavailable(
                "no node of the cluster has answered yet".into(),
            ))),
            nodes: Mutex::default(),
            stale: Arc::default(),
        });
        let closing = CancellationToken::new();
        tokio::spawn(refresh::run(shared.clone(), closing.clone()));
        Self { shared, _guard: closing.clone().drop_guard(), closing }
    }

    /// Returns the primaries that answer for slots.
    pub(super) fn primaries(&self) -> Vec<Arc<Primary>> {
        self.shared.map.load().shards().iter().map(|shard| shard.primary.clone()).collect()
    }

    /// Returns whether there are primaries, and all survive a crash without loss.
    pub(super) fn is_durable(&self) -> bool {
        let map = self.shared.map.load();
        let shards = map.shards();
        !shards.is_empty() && shards.iter().all(|shard| shard.primary.server().is_durable())
    }

    /// Checks that a primary answers.
    pub(super) async fn probe(&self) -> Result<(), EngineError> {
        self.map().await?;
        let mut failure = EngineError::unavailable("no node of the Redis cluster answers for any slot");
        let primaries = self.primaries();
        let mut probes: FuturesUnordered<_> = primaries.iter().map(|primary| primary.probe()).collect();
        while let Some(probed) = probes.next().await {
            match probed {
                Ok(()) => return Ok(()),
                Err(why) => failure = why,
            }
        }
        Err(failure)
    }

    /// Checks that the primary of a shard answers, if there is one.
    pub(super) async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        let map = self.map().await?;
        match map.by_number(shard) {
            Some(shard) => shard.primary.probe().await,
            None => Ok(()),
        }
    }

    /// Returns the number of the shard of a claim.
    pub(super) fn shard_of(&self, key: &Key) -> u16 {
        self.shared.map.load().shard(slots::slot_of_claim(key)).map_or(0, |shard| shard.number)
    }

    /// Returns the shard of a key in the store.
    pub(super) fn shard_of_key(&self, text: &str) -> u16 {
        self.shared.map.load().shard(slots::slot_of(text.as_bytes())).map_or(0, |shard| shard.number)
    }

    /// Returns the shards.
    pub(super) fn shards(&self) -> Vec<Shard<Primary>> {
        self.shared.map.load().shards().to_vec()
    }

    /// Returns how often a primary came back without its data.
    pub(super) fn data_losses(&self) -> u64 {
        self.shared.markers.data_losses()
    }

    /// Returns how often a shard lost its data, or may have lost the newest of it.
    pub(super) fn losses(&self, shard: u16) -> u64 {
        self.shared.markers.losses(shard)
    }

    /// Returns the name of metadata about a shard, stored with the shard's marker.
    pub(super) fn metadata_name(&self, shard: u16, name: &str) -> String {
        let map = self.shared.map.load();
        let marker = map.by_number(shard).and_then(|shard| shard.primary.health().marker());
        marker.map_or_else(|| name.to_owned(), |marker| keys::beside(&marker, name))
    }

    /// Returns the slot map. Waits for the first one, for as long as a node may take to answer.
    pub(super) async fn map(&self) -> Result<Arc<SlotMap<Primary>>, Determinate> {
        let map = self.shared.map.load();
        if !map.shards().is_empty() {
            return Ok(arc_swap::Guard::into_inner(map));
        }
        drop(map);
        refresh::first_map(&self.shared).await
    }

    /// Returns the subscriptions at the node that answers for a key, if there is one.
    pub(super) fn hub(&self, key: &str) -> Option<Arc<Hub>> {
        let map = self.shared.map.load();
        map.shard(slots::slot_of(key.as_bytes())).map(|shard| shard.primary.hub().clone())
    }

    /// Returns where the commands of a key are sent.
    pub(super) fn route(&self, map: &SlotMap<Primary>, key: &KeyName, core: Id) -> Result<Route, EngineError> {
        let slot = slots::slot_of(key.text.as_bytes());
        let Some(shard) = map.shard(slot) else {
            self.shared.stale.notify_one();
            return Err(EngineError::unavailable(format!(
                "no node of the Redis cluster answers for slot {slot}; see `redis-cli --cluster check`"
            )));
        };
        let worker = shard.primary.worker_for(key.spread, core);
        Ok(Route { primary: shard.primary.clone(), worker })
    }

    /// Sends a command for a key, and again for as long as nodes reply that they have not executed it.
    pub(super) async fn send(&self, sending: Sending<'_>) -> Result<Value, EngineError> {
        let Sending { key, purpose, time, command } = sending;
        let core = Handle::current().id();
        let (mut limit, mut failures) = (None, 0);
        loop {
            let map = self.map().await?;
            let Route { primary, worker } = self.route(&map, key, core)?;
            let mut reply = match primary.send_one(worker, command(), purpose, time.wait).await {
                Ok(reply) => reply,
                Err(failure) => {
                    self.shared.stale.notify_one();
                    return Err(failure);
                }
            };
            let Some(mut next) = redirect(&primary, &reply) else { return Ok(reply) };
            if let Redirect::Ask { to: Some(node) } = &next {
                let node = self.shared.node(node);
                let own = command();
                let own_count = own.len();
                let commands = self.asking(key, own);
                let count = commands.len();
                let replies = node.send(node.worker_for(key.spread, core), commands, purpose, time.wait).await?;
                reply = asked_reply(replies, own_count, count)?;
                match redirect(&node, &reply) {
                    None => return Ok(reply),
                    Some(other) => next = other,
                }
            }
            if let Redirect::Moved { slot, to: Some(to) } = &next {
                self.shared.moved(*slot, to);
            }
            self.shared.stale.notify_one();
            failures += 1;
            let limit = limit.get_or_insert_with(|| Limit::of_resending(time.deadline));
            // The first move is followed at once.
            let is_known = failures == 1 && matches!(next, Redirect::Moved { to: Some(_), .. });
            let pause = if is_known { Duration::ZERO } else { RESEND.delay(failures, SystemEntropy.bits()) };
            if !limit.pause(pause).await {
                return Err(not_executed(&next).into());
            }
        }
    }

    /// Returns whether a reply means that the command was not executed, so that it can be sent again. Remembers a move.
    pub(super) fn is_to_be_resent(&self, primary: &Primary, reply: &Value) -> bool {
        let redirect = redirect(primary, reply);
        if let Some(Redirect::Moved { slot, to: Some(to) }) = &redirect {
            self.shared.moved(*slot, to);
        }
        redirect.is_some()
    }

    /// Records that commands were not answered: another node may answer for their slots by now.
    pub(super) fn has_failed(&self) {
        self.shared.stale.notify_one();
    }

    /// Returns a command or a transaction for a node to which a slot is moving. The node accepts either for the slot only after
    /// ASKING. Where replicas acknowledge, a write is sent with it: the node may have no slot yet, and so no marker to
    /// write.
    fn asking(&self, key: &KeyName, command: Commands) -> Commands {
        let mut commands = Commands::from(redis::cmd("ASKING"));
        commands.append(command);
        if self.shared.url.acknowledgement.is_some() {
            let mut write = redis::cmd("SET");
            write.arg(self.shared.keys.written(slots::slot_of(key.text.as_bytes()))).arg(1).arg("PX").arg(60_000);
            commands.extend([redis::cmd("ASKING"), write]);
        }
        commands
    }

    /// Closes all connections.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let nodes: Vec<_> = self.shared.nodes().drain().map(|(_, primary)| primary).collect();
        futures_util::future::join_all(nodes.iter().map(|primary| primary.close())).await;
    }
}

impl Shared {
    /// Returns the connections to a node, which are opened if there are none. Opening waits for nothing.
    fn node(&self, address: &Address) -> Arc<Primary> {
        let open = || {
            let target = Target::Node { address: address.clone(), failed: self.stale.clone() };
            Arc::new(Primary::open(&self.url, &self.options, &target, None, &self.markers))
        };
        self.nodes().entry(address.clone()).or_insert_with(open).clone()
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, Arc<Primary>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that a slot has moved, until the next refresh.
    fn moved(&self, slot: u16, to: &Address) {
        if self.map.load().shard(slot).is_none_or(|shard| shard.address != *to) {
            self.map.rcu(|map| map.moved(slot, to, |address| self.node(address)));
            self.stale.notify_one();
        }
    }
}

/// Reads a reply of a node.
fn redirect(node: &Primary, reply: &Value) -> Option<Redirect> {
    Redirect::of(reply, Some(node.server().address()))
}

/// Returns the reply to the caller's own commands between the others of [`Cluster::asking`].
fn asked_reply(replies: Vec<Value>, own_count: usize, count: usize) -> Result<Value, EngineError> {
    let unwritten = replies.get(own_count + 2).is_some_and(|reply| matches!(reply, Value::ServerError(_)));
    let own = (replies.len() == count).then(|| replies.into_iter().skip(1).take(own_count).collect());
    let reply = own.and_then(transaction::reply);
    let reply = reply.ok_or_else(|| EngineError::indeterminate("the Redis server sent no reply"))?;
    if unwritten && !matches!(reply, Value::ServerError(_)) {
        return Err(EngineError::shortfall(
            "a node that a slot is on its way to took no write that replicas could have",
        ));
    }
    Ok(reply)
}

#[cfg(test)]
pub(super) mod tests {
    use super::layout::Layout;
    use super::layout::tests::{address, range_of};
    use super::*;

    /// A cluster whose nodes are not there, with the slots of this view.
    pub(in super::super) fn cluster(url: &str, nodes: [&[&str]; 3]) -> Cluster {
        let cluster = Cluster::open(Arc::new(Url::parse(url).unwrap()), Options::default());
        refresh::apply(&cluster.shared, &view(nodes));
        cluster
    }

    pub(super) fn view(nodes: [&[&str]; 3]) -> Layout {
        let slots = [0..=5460, 5461..=10922, 10923..=16383];
        let ranges = slots.into_iter().zip(nodes).map(|(slots, nodes)| range_of(slots, nodes));
        Layout { works: true, epoch: 1, ranges: ranges.collect() }
    }

    pub(in super::super) const URL: &str = "redis+cluster://127.0.0.1:1";
    pub(in super::super) const NODES: [&[&str]; 3] = [&["127.0.0.1:2"], &["127.0.0.1:3"], &["127.0.0.1:4"]];

    fn error(line: &str) -> Value {
        redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap()
    }

    #[tokio::test]
    async fn each_slot_has_a_shard_with_its_own_name_for_metadata() {
        let cluster = cluster(URL, NODES);
        assert_eq!(cluster.shards().iter().map(|shard| shard.number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(["foo", "bar", "hello"].map(|key| cluster.shard_of_key(key)), [2, 0, 0]);
        let names: Vec<_> = (0..3).map(|shard| cluster.metadata_name(shard, "kept.main")).collect();
        assert!(
            names.iter().all(|name| name.starts_with("kept.main.at.")) && names[0] != names[1] && names[1] != names[2]
        );
        assert_eq!(cluster.metadata_name(7, "kept.main"), "kept.main", "there is no such shard");
        assert!(cluster.hub("foo").is_some() && cluster.probe_shard(7).await.is_ok());
        assert!(cluster.probe_shard(1).await.is_err() && cluster.probe().await.is_err());
    }

    #[tokio::test]
    async fn a_cluster_is_durable_if_each_primary_is() {
        let empty = Cluster::open(Arc::new(Url::parse(URL).unwrap()), Options::default());
        assert!(!empty.is_durable() && empty.hub("foo").is_none() && empty.primaries().is_empty());
        let cluster = cluster(URL, NODES);
        assert!(!cluster.is_durable());
        for (at, primary) in cluster.primaries().iter().enumerate() {
            primary.server().set_durable(true);
            assert_eq!(cluster.is_durable(), at == 2);
        }
    }

    #[tokio::test]
    async fn a_move_is_remembered_and_the_command_sent_again() {
        let cluster = cluster(URL, NODES);
        let owner = |slot| cluster.shared.map.load().shard(slot).unwrap().address.clone();
        let primary = cluster.primaries()[0].clone();
        let is_resent = |reply: &Value| cluster.is_to_be_resent(&primary, reply);
        assert!(!is_resent(&Value::Okay) && !is_resent(&error("ERR no")));
        assert!(is_resent(&error("LOADING x")) && is_resent(&error("MOVED 100 127.0.0.1:9")));
        assert_eq!((owner(100), owner(101)), (address("127.0.0.1:9"), address("127.0.0.1:2")));
        let before = cluster.shared.map.load_full();
        assert!(is_resent(&error("MOVED 101 127.0.0.1:2")));
        assert!(Arc::ptr_eq(&before, &cluster.shared.map.load_full()), "it is there already");
    }

    #[test]
    fn the_reply_to_a_command_with_asking_counts_once_its_write_was_taken() {
        let reply = || Value::BulkString(b"reply".to_vec());
        assert_eq!(asked_reply(vec![Value::Okay, reply()], 1, 2), Ok(reply()));
        assert_eq!(asked_reply(vec![Value::Okay, reply(), Value::Okay, Value::Okay], 1, 4), Ok(reply()));
        let unwritten = asked_reply(vec![Value::Okay, reply(), Value::Okay, error("ERR no")], 1, 4);
        assert!(unwritten.is_err_and(|why| why.is_shortfall()));
        let refused = asked_reply(vec![Value::Okay, error("TRYAGAIN x"), Value::Okay, error("ERR no")], 1, 4);
        assert!(matches!(refused, Ok(Value::ServerError(_))));
        assert!(asked_reply(vec![Value::Okay], 1, 2).is_err_and(|why| why.is_uncertain()));
        let executed = |write| {
            let queued = Value::SimpleString("QUEUED".into());
            vec![Value::Okay, Value::Okay, queued, Value::Array(vec![reply()]), Value::Okay, write]
        };
        assert_eq!(asked_reply(executed(Value::Okay), 3, 6), Ok(Value::Array(vec![reply()])));
        assert!(asked_reply(executed(error("ERR no")), 3, 6).is_err_and(|why| why.is_shortfall()));
    }

    #[tokio::test]
    async fn with_asking_goes_a_write_where_replicas_acknowledge() {
        let key = KeyName { text: "foo".into(), spread: keys::Spread::None };
        for (url, count) in [(URL.to_owned(), 2), (format!("{URL}?replicas=1"), 4)] {
            let cluster = cluster(&url, NODES);
            assert_eq!(cluster.asking(&key, redis::cmd("GET").into()).len(), count, "{url}");
            let written = cluster.shared.keys.written(slots::slot_of(b"foo"));
            assert_eq!(slots::slot_of(written.as_bytes()), slots::slot_of(b"foo"));
        }
    }

    #[tokio::test]
    async fn closing_closes_the_connections_to_all_nodes() {
        let cluster = cluster(URL, NODES);
        assert_eq!(cluster.shared.nodes().len(), 3);
        cluster.close().await;
        assert!(cluster.shared.nodes().is_empty() && cluster.closing.is_cancelled());
    }
}
