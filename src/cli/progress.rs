//! Progress of commands that can take seconds, on standard error. Shown on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// Delay before anything is shown, so that short commands do not flicker.
const TICK: Duration = Duration::from_millis(200);

/// Shows a message, a spinner and the time that has passed, until it is dropped.
pub(super) fn spinner(message: String) -> ProgressBar {
    shown(ProgressBar::new_spinner(), "{spinner} {msg} ({elapsed})", message)
}

/// Shows a message, a bar and how many of `total` are done, until it is dropped.
pub(super) fn bar(total: u64, message: String) -> ProgressBar {
    shown(ProgressBar::new(total), "{msg} [{bar:30}] {pos}/{len} ({elapsed})", message)
}

fn shown(bar: ProgressBar, template: &str, message: String) -> ProgressBar {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    let bar = bar.with_finish(ProgressFinish::AndClear).with_message(message);
    bar.enable_steady_tick(TICK);
    bar
}
