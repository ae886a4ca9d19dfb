//! Choice of one view of a cluster among those that nodes have sent. A node that has just come back has missed the
//! changes since it left: it still names the earlier primaries, perhaps itself.

use super::layout::Layout;

/// The views of the nodes that one refresh asks.
pub(super) struct Views {
    /// Epoch of the map.
    current: u64,
    /// Nodes that may be asked.
    nodes: usize,
    best: Option<Layout>,
    /// The newest one among views that are older than the map, and their number.
    best_older: Option<Layout>,
    older: usize,
}

impl Views {
    pub(super) fn new(current: u64, nodes: usize) -> Self {
        Self { current, nodes, best: None, best_older: None, older: 0 }
    }

    pub(super) fn add(&mut self, view: Layout) {
        let is_older = view.epoch < self.current;
        self.older += usize::from(is_older);
        let best = if is_older { &mut self.best_older } else { &mut self.best };
        if best.as_ref().is_none_or(|best| view.is_newer_than(best)) {
            *best = Some(view);
        }
    }

    /// Returns whether there is a view as new as the map.
    pub(super) fn have_best(&self) -> bool {
        self.best.is_some()
    }

    /// Returns whether other views are hardly worth waiting for. A node that reports that the cluster does not work may
    /// be cut off.
    pub(super) fn are_enough(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.works)
    }

    /// Returns the view to follow. Most nodes must have a view that is older than the map before such a view counts:
    /// the cluster may have been created again.
    pub(super) fn believed(self) -> Option<Layout> {
        self.best.or(self.best_older.filter(|_| self.older * 2 > self.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(epoch: u64, works: bool) -> Layout {
        Layout { works, epoch, ranges: Vec::new() }
    }

    fn believed(current: u64, nodes: usize, of: &[(u64, bool)]) -> Option<(u64, bool)> {
        let mut views = Views::new(current, nodes);
        for (epoch, works) in of {
            views.add(view(*epoch, *works));
        }
        views.believed().map(|view| (view.epoch, view.works))
    }

    #[test]
    fn the_newest_view_is_believed_and_none_that_is_older_than_the_map() {
        assert_eq!(believed(0, 6, &[(3, true), (7, true), (3, true)]), Some((7, true)));
        assert_eq!(believed(7, 6, &[(7, false), (7, true)]), Some((7, true)));
        assert_eq!(believed(7, 6, &[(3, true)]), None, "the only one in reach has just come back");
        assert_eq!(believed(7, 6, &[(3, true), (3, true), (3, true)]), None);
        assert_eq!(believed(7, 6, &[(3, true), (2, true), (3, true), (3, true)]), Some((3, true)), "made anew");
        assert_eq!(believed(7, 1, &[]), None);
    }

    #[test]
    fn a_view_of_a_cluster_that_works_is_enough() {
        let mut views = Views::new(5, 3);
        views.add(view(4, true));
        assert!(!views.are_enough() && !views.have_best());
        views.add(view(6, false));
        assert!(!views.are_enough() && views.have_best());
        views.add(view(5, true));
        assert!(!views.are_enough(), "the newest one does not work");
        views.add(view(6, true));
        assert!(views.are_enough());
    }
}
