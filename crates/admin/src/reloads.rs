//! The settings in effect and the last reload of the configuration, for operators.

use std::sync::{Mutex, MutexGuard, PoisonError};

use oncegate_core::clock::Timestamp;
use serde::Serialize;

/// Longest error of a reload that is kept.
const ERROR_CHARS_MAX: usize = 4000;

/// A setting in effect.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Setting {
    /// Its key, such as `defaults.lease`.
    pub key: String,
    /// Its value, without secrets.
    pub value: serde_json::Value,
    /// Place where it was set, such as `oncegate.toml, line 7`; `default` if it was not.
    pub origin: String,
    /// A change takes effect only at a restart.
    pub needs_restart: bool,
}

/// The settings in effect, and the last reload of the configuration.
#[derive(Default)]
pub struct Reloads(Mutex<State>);

#[derive(Default)]
struct State {
    settings: Vec<Setting>,
    last: Option<Reload>,
}

/// A reload of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Reload {
    /// Time of the try.
    pub at: Timestamp,
    /// Time at which reloads began to fail; `None` if this one was applied.
    pub failing_since: Option<Timestamp>,
    /// Reason why it was not applied.
    pub error: Option<String>,
    /// The tables that have changed, and take effect only at a restart.
    pub restart_needed: Vec<String>,
}

impl Reloads {
    /// Replaces the settings in effect.
    pub fn set_settings(&self, settings: Vec<Setting>) {
        self.state().settings = settings;
    }

    /// Returns the settings in effect.
    pub fn settings(&self) -> Vec<Setting> {
        self.state().settings.clone()
    }

    /// Keeps the result of a reload at this instant: the tables that need a restart, or the reason why it was not applied.
    pub fn reloaded(&self, at: Timestamp, result: Result<Vec<String>, &str>) {
        let mut state = self.state();
        let before = state.last.as_ref().and_then(|last| last.failing_since);
        state.last = Some(match result {
            Ok(restart_needed) => Reload { at, failing_since: None, error: None, restart_needed },
            Err(error) => {
                let error = Some(error.chars().take(ERROR_CHARS_MAX).collect());
                Reload { at, failing_since: Some(before.unwrap_or(at)), error, restart_needed: Vec::new() }
            }
        });
    }

    /// Returns the last reload; `None` before the first.
    pub fn last(&self) -> Option<Reload> {
        self.state().last.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloads_fail_since_the_first_failure_in_a_row() {
        let reloads = Reloads::default();
        assert_eq!(reloads.last(), None);
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        for (second, is_applied, since) in
            [(1, true, None), (2, false, Some(2)), (3, false, Some(2)), (4, true, None), (5, false, Some(5))]
        {
            let result = if is_applied { Ok(vec!["limits".to_owned()]) } else { Err("unknown key") };
            reloads.reloaded(at(second), result);
            let last = reloads.last().unwrap();
            assert_eq!((last.at, last.failing_since), (at(second), since.map(at)));
            assert_eq!((last.error.is_some(), last.restart_needed.len()), (!is_applied, usize::from(is_applied)));
        }
    }
}
