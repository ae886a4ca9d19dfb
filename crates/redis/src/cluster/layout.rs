//! A node's view of its cluster: the nodes that answer for the slots (`CLUSTER SLOTS`), the state of the cluster
//! (`CLUSTER INFO`), and the age of the view (`CLUSTER NODES`).

use std::collections::HashMap;
use std::ops::RangeInclusive;

use oncegate_core::engine::Determinate;
use redis::{Cmd, Value};

use crate::address::Address;
use crate::reply::checked;
use crate::slots::SLOTS;

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) id: String,
    pub(super) address: Address,
}

/// Slots that one primary answers for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) primary: Node,
    /// Replicas that the asked node reaches.
    pub(super) replicas: Vec<Node>,
    /// IDs of all replicas. An unreachable one may be promoted later.
    pub(super) replica_ids: Vec<String>,
}

/// A node's view of its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// True if the node reports that the cluster works. A node without a connection to most others does not.
    pub(super) works: bool,
    /// The highest config epoch of the primaries. Each promotion and each slot that moves raises it, so the view with the highest
    /// one is the newest. The current epoch does not show that: a node learns it before it learns of the promotion.
    pub(super) epoch: u64,
    pub(super) ranges: Vec<Range>,
}

/// Returns the commands that ask for a view.
pub(super) fn commands() -> Vec<Cmd> {
    ["SLOTS", "INFO", "NODES"].map(|word| redis::cmd("CLUSTER").arg(word).to_owned()).into()
}

impl Layout {
    /// Reads the replies of a node to [`commands`].
    pub(super) fn read(replies: Vec<Value>, from: &Address) -> Result<Self, Determinate> {
        let Ok([slots, info, nodes]) = <[Value; 3]>::try_from(replies) else { return Err(unreadable()) };
        if let Value::ServerError(error) = &slots
            && error.details().is_some_and(|details| details.contains("cluster support disabled"))
        {
            return Err(Determinate::Incompatible(format!(
                "the Redis server {from} is not part of a cluster; write redis:// in place of redis+cluster://, or name nodes \
                 of a cluster"
            )));
        }
        let Value::BulkString(info) = checked(info)? else { return Err(unreadable()) };
        let info = String::from_utf8_lossy(&info);
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let Value::Array(rows) = checked(slots)? else { return Err(unreadable()) };
        let mut ranges = rows.iter().map(|row| range(row, from)).collect::<Option<Vec<_>>>().ok_or_else(unreadable)?;
        if ranges.is_empty() {
            return Err(Determinate::Incompatible(format!(
                "the Redis server {from} has joined no cluster with slots; name nodes of the cluster, or assign its slots \
                 (redis-cli --cluster create)"
            )));
        }
        let works = field("cluster_state").is_some_and(|state| state.trim_end() == "ok");
        // An ACL from before may not allow CLUSTER NODES.
        let current = || field("cluster_current_epoch").and_then(|epoch| epoch.trim_end().parse().ok());
        let epoch = read_nodes(&nodes, &mut ranges).or_else(current).unwrap_or_default();
        Ok(Self { works, epoch, ranges })
    }

    /// Returns whether this view is newer than the other one, and so replaces it.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        (self.epoch, self.works) > (other.epoch, other.works)
    }
}

/// Fills in the replicas that are out of reach, and returns the highest config epoch of the primaries. Nothing if the reply does not
/// have it.
fn read_nodes(nodes: &Value, ranges: &mut [Range]) -> Option<u64> {
    let Value::BulkString(nodes) = nodes else { return None };
    let nodes = String::from_utf8_lossy(nodes);
    let (mut epochs, mut replicas) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
    for line in nodes.lines() {
        let mut fields = line.split(' ');
        let [id, _address, _flags, primary, _ping, _pong, epoch] =
            std::array::from_fn(|_| fields.next().unwrap_or("-"));
        replicas.entry(primary).or_default().push(id);
        epoch.parse::<u64>().ok().and_then(|epoch| epochs.insert(id, epoch));
    }
    for range in &mut *ranges {
        let ids = replicas.get(&*range.primary.id).into_iter().flatten();
        range.replica_ids = ids.map(|id| (*id).to_owned()).collect();
    }
    ranges.iter().filter_map(|range| epochs.get(&*range.primary.id).copied()).max()
}

fn range(row: &Value, from: &Address) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [first, last, primary, replicas @ ..] = &**row else { return None };
    let slot = |value: &Value| match value {
        Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    };
    let slots = slot(first)?..=slot(last)?;
    // A replica whose address is not known yet is left out; a primary cannot be.
    let replicas: Vec<_> = replicas.iter().filter_map(|node| self::node(node, from)).collect();
    let replica_ids = replicas.iter().map(|node| node.id.clone()).collect();
    (!slots.is_empty()).then_some(Range { slots, primary: node(primary, from)?, replicas, replica_ids })
}

/// Reads a node. One without an address is reached as the node that was asked is.
fn node(value: &Value, from: &Address) -> Option<Node> {
    let Value::Array(fields) = value else { return None };
    let [host, Value::Int(port), id, ..] = &**fields else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::Nil => Some(String::new()),
        _ => None,
    };
    let host = text(host).map(|host| if host.is_empty() || host == "?" { from.host.clone() } else { host })?;
    Some(Node { id: text(id)?, address: Address { host, port: u16::try_from(*port).ok()? } })
}

fn unreadable() -> Determinate {
    Determinate::Unavailable("a node of the Redis cluster described it in an unexpected form".into())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    pub(in super::super) fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    /// A range of slots: its primary, then its replicas, named by their addresses.
    pub(in super::super) fn range_of(slots: RangeInclusive<u16>, nodes: &[&str]) -> Range {
        let mut nodes = nodes.iter().map(|text| Node { id: (*text).into(), address: address(text) });
        let (primary, replicas) = (nodes.next().unwrap(), nodes.collect::<Vec<_>>());
        let replica_ids = replicas.iter().map(|node| node.id.clone()).collect();
        Range { slots, primary, replicas, replica_ids }
    }

    #[test]
    fn a_view_is_read() {
        let node =
            |host: Value, port, id: &str| Value::Array(vec![host, Value::Int(port), bulk(id), Value::Array(vec![])]);
        let row = Value::Array(vec![
            Value::Int(0),
            Value::Int(5460),
            node(Value::Nil, 7000, "a"),
            node(bulk("10.0.0.2"), 7003, "b"),
        ]);
        let info = bulk("cluster_state:ok\r\ncluster_current_epoch:6\r\n");
        let read = |nodes| Layout::read(vec![Value::Array(vec![row.clone()]), info.clone(), nodes], &address("seed:1"));
        let nodes = "b 10.0.0.2:7003@1 slave a 0 0 9 connected\na :7000@1 myself,master - 0 0 5 connected 0-5460\n\
                     c 10.0.0.3:7004@1 slave,fail a 0 0 5 disconnected\nd 10.0.0.4:7005@1 master,fail - 0 0 8 connected\n";
        let view = read(bulk(nodes)).unwrap();
        assert_eq!((view.works, view.epoch), (true, 5));
        assert_eq!(view.ranges[0].slots, 0..=5460);
        assert_eq!(view.ranges[0].primary, Node { id: "a".into(), address: address("seed:7000") });
        assert_eq!(view.ranges[0].replicas, [Node { id: "b".into(), address: address("10.0.0.2:7003") }]);
        assert_eq!(view.ranges[0].replica_ids, ["b", "c"]);
        let denied = redis::parse_redis_value(b"-NOPERM this user has no permissions\r\n").unwrap();
        assert_eq!(read(denied).unwrap().epoch, 6, "the current epoch");

        let beyond = Value::Array(vec![Value::Int(0), Value::Int(16384), node(bulk("h"), 7000, "a")]);
        let wrong = Layout::read(vec![Value::Array(vec![beyond]), info.clone(), Value::Nil], &address("h:1"));
        assert!(matches!(wrong, Err(Determinate::Unavailable(_))), "there is no such slot");

        let empty = Layout::read(vec![Value::Array(vec![]), info.clone(), Value::Nil], &address("h:1"));
        assert!(matches!(empty, Err(Determinate::Incompatible(why)) if why.contains("joined no cluster")));
        let disabled = redis::parse_redis_value(b"-ERR This instance has cluster support disabled\r\n").unwrap();
        let alone = Layout::read(vec![disabled.clone(), disabled.clone(), disabled], &address("h:1"));
        assert!(matches!(alone, Err(Determinate::Incompatible(why)) if why.contains("write redis://")));
        let rows = Value::Array(vec![Value::Nil]);
        for wrong in [vec![], vec![Value::Nil, info.clone(), Value::Nil], vec![rows, info, Value::Nil]] {
            assert!(matches!(Layout::read(wrong, &address("h:1")), Err(Determinate::Unavailable(_))));
        }
    }

    #[test]
    fn the_view_with_the_highest_epoch_is_believed() {
        let view = |epoch, works| Layout { works, epoch, ranges: Vec::new() };
        assert!(view(7, false).is_newer_than(&view(6, true)));
        assert!(view(6, true).is_newer_than(&view(6, false)));
        assert!(!view(6, true).is_newer_than(&view(6, true)));
    }
}
