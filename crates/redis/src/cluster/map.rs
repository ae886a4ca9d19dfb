//! The slot map: the primary that answers for each slot. A value; a change makes a new one.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use oncegate_core::engine::SHARDS_MAX;

use super::layout::{Layout, Range};
use crate::address::Address;
use crate::slots::SLOTS;

/// No shard.
const NONE: u16 = u16::MAX;

/// A primary, its slots and its replicas. It keeps its number when a replica takes over.
pub(in super::super) struct Shard<P> {
    pub(in super::super) number: u16,
    pub(in super::super) primary: Arc<P>,
    pub(in super::super) address: Address,
    pub(in super::super) slots: Vec<RangeInclusive<u16>>,
    pub(in super::super) replicas: Vec<Address>,
    /// IDs of the nodes that were in it.
    nodes: BTreeSet<String>,
}

impl<P> Clone for Shard<P> {
    fn clone(&self) -> Self {
        Self {
            number: self.number,
            primary: self.primary.clone(),
            address: self.address.clone(),
            slots: self.slots.clone(),
            replicas: self.replicas.clone(),
            nodes: self.nodes.clone(),
        }
    }
}

impl<P> Shard<P> {
    /// Returns the slot of the marker: the last one, since resharding begins with the first ones.
    pub(super) fn marker_slot(&self) -> Option<u16> {
        self.slots.iter().map(|slots| *slots.end()).max()
    }
}

/// The slot map.
pub(in super::super) struct SlotMap<P> {
    /// For each slot the index of its shard.
    owners: Box<[u16]>,
    shards: Vec<Shard<P>>,
    /// Epoch of the view that it follows.
    epoch: u64,
}

/// A replica that became the primary of its shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Promotion {
    /// Number of the shard.
    pub(super) shard: u16,
    pub(super) from: Address,
    pub(super) to: Address,
    /// Number of replicas that were attached before.
    pub(super) replicas: usize,
}

impl<P> SlotMap<P> {
    pub(super) fn empty() -> Self {
        Self { owners: vec![NONE; usize::from(SLOTS)].into(), shards: Vec::new(), epoch: 0 }
    }

    /// Returns the shard of a slot.
    pub(super) fn shard(&self, slot: u16) -> Option<&Shard<P>> {
        self.owners.get(usize::from(slot)).and_then(|index| self.shards.get(usize::from(*index)))
    }

    /// Returns the shard with this number.
    pub(super) fn by_number(&self, number: u16) -> Option<&Shard<P>> {
        self.shards.iter().find(|shard| shard.number == number)
    }

    /// Returns all shards.
    pub(super) fn shards(&self) -> &[Shard<P>] {
        &self.shards
    }

    /// Returns the epoch of the view that it follows.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns whether a view has named this primary. Otherwise at most a redirect has.
    pub(super) fn has_primary(&self, address: &Address) -> bool {
        self.shards.iter().any(|shard| shard.address == *address && !shard.nodes.is_empty())
    }

    /// Returns how many slots no node answers for.
    pub(super) fn uncovered(&self) -> usize {
        self.owners.iter().filter(|index| **index == NONE).count()
    }

    /// Returns the map of a view, and which replicas have taken over since this one. `primary` finds or opens connections to
    /// an address.
    pub(super) fn follow(&self, view: &Layout, mut primary: impl FnMut(&Address) -> Arc<P>) -> (Self, Vec<Promotion>) {
        let mut map = Self { epoch: view.epoch, ..Self::empty() };
        let mut promotions = Vec::new();
        // Nodes keep the number of their shard; a new shard gets a free number.
        let before = |range: &Range| self.shards.iter().find(|shard| shard.nodes.contains(&range.primary.id));
        let mut used: BTreeSet<_> = view.ranges.iter().filter_map(|range| Some(before(range)?.number)).collect();
        for range in &view.ranges {
            let address = &range.primary.address;
            let index = map.shards.iter().position(|shard| shard.address == *address).unwrap_or_else(|| {
                let before = before(range).filter(|before| map.by_number(before.number).is_none());
                let number = before.map_or_else(|| free_number(&used), |before| before.number);
                if let Some(before) = before.filter(|before| before.address != *address) {
                    let (from, replicas) = (before.address.clone(), before.replicas.len());
                    promotions.push(Promotion { shard: number, from, to: address.clone(), replicas });
                }
                used.insert(number);
                map.shards.push(shard(number, range, primary(address)));
                map.shards.len() - 1
            });
            map.assign(range.slots.clone(), index);
        }
        (map, promotions)
    }

    /// Returns the map after a MOVED: another primary answers for one slot.
    pub(super) fn moved(&self, slot: u16, to: &Address, primary: impl FnOnce(&Address) -> Arc<P>) -> Self {
        let mut map = Self { owners: self.owners.clone(), shards: self.shards.clone(), epoch: self.epoch };
        let index = map.shards.iter().position(|shard| shard.address == *to).unwrap_or_else(|| {
            // The next refresh finds out more.
            let promoted = map.shards.iter().find(|shard| shard.replicas.contains(to)).map(|shard| shard.number);
            let number =
                promoted.unwrap_or_else(|| free_number(&map.shards.iter().map(|shard| shard.number).collect()));
            let primary = primary(to);
            let (slots, replicas) = (Vec::new(), Vec::new());
            let (address, nodes) = (to.clone(), BTreeSet::new());
            map.shards.push(Shard { number, primary, address, slots, replicas, nodes });
            map.shards.len() - 1
        });
        if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
            *owner = u16::try_from(index).unwrap_or(NONE);
        }
        map
    }

    fn assign(&mut self, slots: RangeInclusive<u16>, index: usize) {
        let owner = u16::try_from(index).unwrap_or(NONE);
        self.owners[usize::from(*slots.start())..=usize::from(*slots.end())].fill(owner);
        self.shards[index].slots.push(slots);
    }
}

/// Returns the smallest number that no shard has. Beyond [`SHARDS_MAX`] shards, several have the last one.
fn free_number(used: &BTreeSet<u16>) -> u16 {
    (0..SHARDS_MAX).find(|number| !used.contains(number)).unwrap_or(SHARDS_MAX - 1)
}

fn shard<P>(number: u16, range: &Range, primary: Arc<P>) -> Shard<P> {
    let nodes = range.replica_ids.iter().chain([&range.primary.id]).cloned().collect();
    let replicas = range.replicas.iter().map(|node| node.address.clone()).collect();
    Shard { number, primary, address: range.primary.address.clone(), slots: Vec::new(), replicas, nodes }
}

impl<P> fmt::Debug for SlotMap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.shards.iter().map(|shard| (shard.address.to_string(), &shard.slots))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::{address, range_of};
    use super::*;

    fn view(ranges: Vec<Range>) -> Layout {
        Layout { works: true, epoch: 1, ranges }
    }

    fn three() -> Layout {
        view(vec![
            range_of(0..=5460, &["a:1", "d:1"]),
            range_of(5461..=10922, &["b:1", "e:1"]),
            range_of(10923..=16383, &["c:1", "f:1"]),
        ])
    }

    fn opened(address: &Address) -> Arc<String> {
        Arc::new(address.to_string())
    }

    fn owner(map: &SlotMap<String>, slot: u16) -> Option<(u16, &str)> {
        map.shard(slot).map(|shard| (shard.number, &**shard.primary))
    }

    #[test]
    fn slots_are_found_and_uncovered_ones_counted() {
        let (map, promotions) = SlotMap::empty().follow(&three(), opened);
        assert!(promotions.is_empty());
        assert_eq!([0, 5460, 5461, 16383].map(|slot| owner(&map, slot).unwrap().0), [0, 0, 1, 2]);
        assert_eq!((map.uncovered(), map.shards()[1].marker_slot()), (0, Some(10922)));
        let (less, _) = map.follow(&view(three().ranges.into_iter().skip(1).collect()), opened);
        assert_eq!((less.uncovered(), owner(&less, 5)), (5461, None));
    }

    #[test]
    fn a_map_has_the_epoch_of_its_view_and_knows_its_primaries() {
        let (map, _) = SlotMap::empty().follow(&Layout { epoch: 7, ..three() }, opened);
        assert_eq!((SlotMap::<String>::empty().epoch(), map.epoch()), (0, 7));
        let moved = map.moved(6000, &address("g:1"), opened);
        assert_eq!(moved.epoch(), 7);
        let knows = |named: &str| moved.has_primary(&address(named));
        assert_eq!(
            ["a:1", "b:1", "d:1", "g:1"].map(knows),
            [true, true, false, false],
            "a redirect has named the last"
        );
    }

    #[test]
    fn a_shard_keeps_its_number_when_a_replica_takes_over() {
        let (map, _) = SlotMap::empty().follow(&three(), opened);
        let mut after = three();
        after.ranges[1] = range_of(5461..=10922, &["e:1"]);
        let (map, promotions) = map.follow(&after, opened);
        assert_eq!(promotions, [Promotion { shard: 1, from: address("b:1"), to: address("e:1"), replicas: 1 }]);
        assert_eq!(owner(&map, 6000), Some((1, "e:1")));
        let (_, promotions) = map.follow(&after, opened);
        assert!(promotions.is_empty(), "once");
    }

    #[test]
    fn a_replica_that_was_out_of_reach_keeps_the_number_when_it_takes_over() {
        let mut before = three();
        let away = before.ranges[1].replicas.pop().unwrap();
        assert_eq!(before.ranges[1].replica_ids, [away.id]);
        let (map, _) = SlotMap::empty().follow(&before, opened);
        let mut after = three();
        after.ranges[1] = range_of(5461..=10922, &["e:1"]);
        let (map, promotions) = map.follow(&after, opened);
        assert_eq!((owner(&map, 6000), promotions.len()), (Some((1, "e:1")), 1));
    }

    #[test]
    fn a_replica_that_a_redirect_names_is_of_its_shard_and_the_number_of_a_shard_that_is_gone_is_used_again() {
        let (map, _) = SlotMap::empty().follow(&three(), opened);
        let moved = map.moved(6000, &address("e:1"), opened);
        assert_eq!(owner(&moved, 6000), Some((1, "e:1")));
        let mut after = three();
        after.ranges[0] = range_of(0..=5460, &["b:1", "e:1"]);
        let (two, _) = moved.follow(&after, opened);
        assert_eq!((two.shards().len(), owner(&two, 0).unwrap().0, owner(&two, 16383).unwrap().0), (2, 1, 2));
        after.ranges[0] = range_of(0..=5460, &["g:1"]);
        let (three, promotions) = two.follow(&after, opened);
        assert_eq!((owner(&three, 0), promotions.len()), (Some((0, "g:1")), 0));
        assert_eq!(free_number(&(0..SHARDS_MAX).collect()), SHARDS_MAX - 1);
    }

    #[test]
    fn slots_that_move_are_no_promotion() {
        let (map, _) = SlotMap::empty().follow(&three(), opened);
        let moved = map.moved(7, &address("b:1"), opened);
        assert_eq!((owner(&moved, 7), owner(&moved, 8)), (Some((1, "b:1")), Some((0, "a:1"))));
        let new = map.moved(7, &address("g:1"), opened);
        assert_eq!(owner(&new, 7), Some((3, "g:1")));
        let mut after = three();
        after.ranges[0] = range_of(8..=5460, &["a:1", "d:1"]);
        after.ranges.push(range_of(0..=7, &["b:1", "e:1"]));
        let (after, promotions) = map.follow(&after, opened);
        assert!(promotions.is_empty());
        assert_eq!((owner(&after, 7).unwrap().0, after.shards().len()), (1, 3));
    }
}
