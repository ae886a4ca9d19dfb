//! Checks of `[console]`, and of the values of an app that the console hides.

use super::Config;
use super::path::KeyPath;
use super::problem::Problem;

/// Pointers to the values of an app that the console hides.
const MASKS_MAX: usize = 32;

impl Config {
    /// Returns the problems of the console's settings.
    pub(super) fn check_console(&self) -> Vec<Problem> {
        let origin = self.console.check().err();
        let origin = origin.map(|error| Problem::of_key(KeyPath::of(["console", "origin"]), error.to_string()));
        let links = self.console.check_links().into_iter();
        let links =
            links.map(|(key, error)| Problem::of_key(KeyPath::of(["console", "links", key]), error.to_string()));
        origin.into_iter().chain(links).chain(self.check_masks()).collect()
    }

    /// Returns the problems of the apps' masks.
    pub(super) fn check_masks(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, app) in &self.apps {
            let path = KeyPath::of(["apps", key.as_ref(), "console_mask"]);
            if app.console_mask.len() > MASKS_MAX {
                let message = format!("at most {MASKS_MAX} pointers; mask an object as a whole");
                problems.push(Problem::of_key(path.clone(), message));
            }
            let is_pointer = |pointer: &&String| pointer.is_empty() || pointer.starts_with('/');
            for pointer in app.console_mask.iter().filter(|pointer| !is_pointer(pointer)) {
                let message = format!("`{pointer}` is not a JSON pointer, such as \"/customer/email\"");
                problems.push(Problem::of_key(path.clone(), message));
            }
        }
        problems
    }
}
