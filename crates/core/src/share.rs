//! Bounds that apps share fairly: when a bound is reached, the app with the most items loses one. An app with no more than its
//! equal share never does.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::tenant::AppKey;

/// Returns the app with the most items; of equals, the first by name.
pub fn heaviest<'a>(apps: impl Iterator<Item = (&'a AppKey, usize)>) -> Option<&'a AppKey> {
    apps.max_by(|(one, count), (other, other_count)| count.cmp(other_count).then(other.cmp(one))).map(|(app, _)| app)
}

/// The newest items of all apps, up to a bound.
#[derive(Debug)]
pub struct Newest<T> {
    by_app: HashMap<AppKey, VecDeque<T>>,
    count: usize,
    max: usize,
    app_max: usize,
}

impl<T> Newest<T> {
    /// Creates a list of at most `max` items.
    pub fn new(max: usize) -> Self {
        Self::bounded(max, max)
    }

    /// Creates a list of at most `max` items, and at most `app_max` of one app.
    pub fn bounded(max: usize, app_max: usize) -> Self {
        Self { by_app: HashMap::new(), count: 0, max, app_max }
    }

    /// Adds an item. Returns the item that it displaced: the oldest one of the app if the app has too many, otherwise
    /// of the app with the most.
    pub fn push(&mut self, app: &AppKey, item: T) -> Option<T> {
        let items = self.by_app.entry_ref(app).or_default();
        items.push_back(item);
        self.count += 1;
        let largest = if items.len() > self.app_max {
            app.clone()
        } else if self.count > self.max {
            heaviest(self.by_app.iter().map(|(app, items)| (app, items.len())))?.clone()
        } else {
            return None;
        };
        let items = self.by_app.get_mut(&largest)?;
        let oldest = items.pop_front();
        if items.is_empty() {
            self.by_app.remove(&largest);
        }
        self.count -= usize::from(oldest.is_some());
        oldest
    }

    /// Returns all items, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.by_app.values_mut().flatten()
    }

    /// Returns all items. Those of one app are in order, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_app.values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_app_with_the_most_items_loses_its_oldest() {
        let [shop, bank] = ["shop", "bank"].map(|app| app.parse::<AppKey>().unwrap());
        let mut newest = Newest::new(4);
        assert_eq!((newest.push(&bank, 1), newest.push(&bank, 2)), (None, None));
        for number in 10..12 {
            assert_eq!(newest.push(&shop, number), None);
        }
        for number in 12..100 {
            assert_eq!(newest.push(&shop, number), Some(number - 2), "however many it adds");
        }
        assert_eq!(newest.push(&bank, 3), Some(1), "of equals the first by name");
        let mut left: Vec<_> = newest.iter().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [2, 3, 98, 99]);
        assert_eq!(newest.count, 4);
    }
    #[test]
    fn an_app_has_no_more_than_its_own_bound() {
        let [shop, bank] = ["shop", "bank"].map(|app| app.parse::<AppKey>().unwrap());
        let mut newest = Newest::bounded(5, 2);
        let pushed = [(&shop, 1), (&shop, 2), (&bank, 3), (&shop, 4)].map(|(app, item)| newest.push(app, item));
        assert_eq!(pushed, [None, None, None, Some(1)]);
    }
}
