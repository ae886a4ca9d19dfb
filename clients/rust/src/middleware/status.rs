//! Meaning of a response for its claim, by its status: stored, nothing happened, or unknown.

/// Meaning of a response for its claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Something may have happened.
    Unknown,
    /// The operation is done. The response is stored.
    Store,
    /// Certainly nothing happened: the key is free again.
    Release,
}

/// A status or a class of them: `201`, `4xx`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StatusRule {
    Exact(u16),
    Class(u16),
}

const STORE: [StatusRule; 5] = [
    StatusRule::Class(2),
    StatusRule::Exact(301),
    StatusRule::Exact(302),
    StatusRule::Exact(303),
    StatusRule::Class(4),
];

const RELEASE: [u16; 11] = [307, 308, 401, 403, 405, 407, 408, 413, 421, 425, 429];

/// Meaning of every status.
#[derive(Clone, Debug)]
pub(super) struct Statuses {
    pub(super) store: Option<Vec<StatusRule>>,
    pub(super) release: Option<Vec<StatusRule>>,
    pub(super) on_5xx: Meaning,
}

impl Default for Statuses {
    fn default() -> Self {
        Self { store: None, release: None, on_5xx: Meaning::Unknown }
    }
}

impl Statuses {
    /// Returns the meaning of a status. An exact status overrides a class. A named status is removed from the defaults
    /// of the other list.
    pub(super) fn meaning(&self, status: u16) -> Meaning {
        let named = |rules: &Option<Vec<StatusRule>>| {
            let exact = StatusRule::Exact(status);
            rules.as_ref().is_some_and(|rules| rules.contains(&exact))
        };
        let store = self.store.as_deref().unwrap_or(&STORE);
        let release = self.release.clone().unwrap_or_else(|| RELEASE.map(StatusRule::Exact).to_vec());
        let is_released = |rule: StatusRule| release.contains(&rule) && !(self.release.is_none() && named(&self.store));
        let is_stored = |rule: StatusRule| store.contains(&rule) && !(self.store.is_none() && named(&self.release));
        for rule in [StatusRule::Exact(status), StatusRule::Class(status / 100)] {
            if is_released(rule) {
                return Meaning::Release;
            }
            if is_stored(rule) {
                return Meaning::Store;
            }
        }
        if status / 100 == 5 { self.on_5xx } else { Meaning::Unknown }
    }

    /// Returns the error in the lists.
    pub(super) fn problem(&self) -> Option<String> {
        let (store, release) = (self.store.as_ref()?, self.release.as_ref()?);
        let both = store.iter().find(|rule| release.contains(rule))?;
        Some(format!("{both:?} is in `store` and in `release`; leave it in one"))
    }
}

/// Reads a list of statuses.
pub(super) fn rules<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<StatusRule>, String> {
    let rule = |text: &str| {
        let class = text.strip_suffix("xx").and_then(|class| class.parse().ok());
        let class = class.filter(|class| (2..=5).contains(class)).map(StatusRule::Class);
        let exact = || text.parse().ok().filter(|status| (200..=599).contains(status)).map(StatusRule::Exact);
        let wrong = || format!("{text:?} is no status; write one like \"404\", or a class like \"2xx\"");
        class.or_else(exact).ok_or_else(wrong)
    };
    texts.into_iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_status_beats_a_class_and_leaves_the_other_default() {
        let mut statuses = Statuses::default();
        for (status, meaning) in [
            (201, Meaning::Store),
            (303, Meaning::Store),
            (304, Meaning::Unknown),
            (404, Meaning::Store),
            (403, Meaning::Release),
            (500, Meaning::Unknown),
            (101, Meaning::Unknown),
        ] {
            assert_eq!(statuses.meaning(status), meaning, "{status}");
        }
        statuses.store = Some(rules(["2xx", "403"]).expect("rules"));
        assert_eq!((statuses.meaning(403), statuses.meaning(404)), (Meaning::Store, Meaning::Unknown));
        statuses.store = None;
        statuses.release = Some(rules(["204", "4xx"]).expect("rules"));
        assert_eq!((statuses.meaning(204), statuses.meaning(404)), (Meaning::Release, Meaning::Release));
        statuses.on_5xx = Meaning::Store;
        assert_eq!(statuses.meaning(503), Meaning::Store);
        statuses.store = Some(rules(["204"]).expect("rules"));
        assert!(statuses.problem().is_some());
        for wrong in ["2x", "1xx", "99", "ok", "600"] {
            assert!(rules([wrong]).is_err(), "{wrong}");
        }
    }
}
