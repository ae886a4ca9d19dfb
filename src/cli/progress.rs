//! Progress of commands that can take seconds, on standard error. Nothing is shown unless that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Delay before anything is shown, so that short commands do not flicker.
const TICK: Duration = Duration::from_millis(200);

/// A line that shows what a command does; removed when it is dropped.
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// Shows a message, a spinner and the time that has passed.
    pub(super) fn spinner(message: String) -> Self {
        Self::with(ProgressBar::new_spinner(), "{spinner} {msg} ({elapsed})", message)
    }

    /// Shows a message, a bar and how many of `total` are done.
    pub(super) fn bar(total: u64, message: String) -> Self {
        Self::with(ProgressBar::new(total), "{msg} [{bar:30}] {pos}/{len} ({elapsed})", message)
    }

    fn with(bar: ProgressBar, template: &str, message: String) -> Self {
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(message);
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Replaces the message.
    pub(super) fn say(&self, message: String) {
        self.0.set_message(message);
    }

    /// Sets how many are done.
    pub(super) fn at(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
