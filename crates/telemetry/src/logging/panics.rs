//! Panics as log lines. Rust's own hook writes to standard error directly, and blocks if that is not read.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic;
use std::thread;

/// Longest panic message and backtrace in the log, in characters.
const MESSAGE_MAX: usize = 500;
const BACKTRACE_MAX: usize = 8000;

/// Logs every panic from now on. The log must have been started.
pub(super) fn log_panics() {
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string);
        let thread = thread::current();
        let message = bounded(panic.payload_as_str().unwrap_or("no message"), MESSAGE_MAX);
        // Captured only if RUST_BACKTRACE is set.
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        tracing::error!(
            panic.location = location,
            panic.thread = thread.name(),
            panic.message = message,
            panic.backtrace = backtrace.as_deref().map(|text| bounded(text, BACKTRACE_MAX)),
            "Internal error: the gateway panicked"
        );
    }));
}

fn bounded(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character_boundary() {
        assert_eq!(bounded("äöü", 2), "äö");
        assert_eq!(bounded("äöü", 3), "äöü");
        assert_eq!(bounded("", 3), "");
    }
}
