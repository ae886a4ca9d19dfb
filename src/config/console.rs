//! Checks of `[console]`, of the values of an app that the console hides, and of what it finds claims by.

use oncegate_admin::ConsoleOptions;

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
        origin.into_iter().chain(links).chain(self.check_apps_in_console()).collect()
    }

    /// Returns the problems of what the apps say about the console.
    pub(super) fn check_apps_in_console(&self) -> Vec<Problem> {
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
            for (operation, options) in &app.operations {
                if options.console_find.as_deref().is_some_and(|template| !ConsoleOptions::is_find_template(template)) {
                    let path = KeyPath::of(["apps", key.as_ref(), "operations", operation.as_ref(), "console_find"]);
                    let message =
                        "write JSON with one \"{text}\" or \"{number}\", such as '{\"order_id\": \"{text}\"}'";
                    problems.push(Problem::of_key(path, message));
                }
            }
        }
        problems
    }
}
