//! What a node says of its cluster: who answers for which slots (`CLUSTER SLOTS`), and how new that is (`CLUSTER INFO`).

use std::ops::RangeInclusive;

use oncegate_core::engine::Determinate;
use redis::{Cmd, Value};

use crate::reply::checked;
use crate::slots::SLOTS;
use crate::url::Address;

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
    /// Replicas that are in reach of the node that was asked.
    pub(super) replicas: Vec<Node>,
}

/// A node's view of its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// Whether the node says that the cluster works. One that is cut off from most others does not.
    pub(super) works: bool,
    /// The highest epoch that it has heard of: the view with the highest one is the newest.
    pub(super) epoch: u64,
    pub(super) ranges: Vec<Range>,
}

/// Returns the commands that ask for a view.
pub(super) fn commands() -> Vec<Cmd> {
    ["SLOTS", "INFO"].map(|word| redis::cmd("CLUSTER").arg(word).to_owned()).into()
}

impl Layout {
    /// Reads the replies of a node to [`commands`].
    pub(super) fn read(replies: Vec<Value>, from: &Address) -> Result<Self, Determinate> {
        let Ok([slots, info]) = <[Value; 2]>::try_from(replies) else { return Err(unreadable()) };
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
        let ranges = rows.iter().map(|row| range(row, from)).collect::<Option<Vec<_>>>().ok_or_else(unreadable)?;
        if ranges.is_empty() {
            return Err(Determinate::Incompatible(format!(
                "the Redis server {from} has joined no cluster with slots; name nodes of the cluster, or assign its slots \
                 (redis-cli --cluster create)"
            )));
        }
        let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.trim_end().parse().ok());
        let works = field("cluster_state").is_some_and(|state| state.trim_end() == "ok");
        Ok(Self { works, epoch: epoch.unwrap_or_default(), ranges })
    }

    /// Returns whether this view is to be believed rather than the other one.
    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        (self.epoch, self.works) > (other.epoch, other.works)
    }
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
    let replicas = replicas.iter().filter_map(|node| self::node(node, from)).collect();
    (!slots.is_empty()).then_some(Range { slots, primary: node(primary, from)?, replicas })
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
        Range { slots, primary: nodes.next().unwrap(), replicas: nodes.collect() }
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
        let view = Layout::read(vec![Value::Array(vec![row]), info.clone()], &address("seed:1")).unwrap();
        assert_eq!((view.works, view.epoch), (true, 6));
        assert_eq!(view.ranges[0].slots, 0..=5460);
        assert_eq!(view.ranges[0].primary, Node { id: "a".into(), address: address("seed:7000") });
        assert_eq!(view.ranges[0].replicas, [Node { id: "b".into(), address: address("10.0.0.2:7003") }]);

        let empty = Layout::read(vec![Value::Array(vec![]), info.clone()], &address("h:1"));
        assert!(matches!(empty, Err(Determinate::Incompatible(why)) if why.contains("joined no cluster")));
        let disabled = redis::parse_redis_value(b"-ERR This instance has cluster support disabled\r\n").unwrap();
        let alone = Layout::read(vec![disabled.clone(), disabled], &address("h:1"));
        assert!(matches!(alone, Err(Determinate::Incompatible(why)) if why.contains("write redis://")));
        for wrong in [vec![], vec![Value::Nil, info.clone()], vec![Value::Array(vec![Value::Nil]), info]] {
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
