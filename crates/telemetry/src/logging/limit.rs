//! Limit for log lines that callers can provoke: a number of lines per message and app in each period, then a summary.
//! Lines below INFO and the audit trail are not limited.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Lines per message and app between two calls of [`Limit::summarize`].
const LINES_MAX: u64 = 20;

/// Pairs of message and app with their own count. Further apps share one count per message.
const KEYS_MAX: usize = 4096;

/// Characters of a message that the summary repeats.
const MESSAGE_MAX: usize = 120;

/// Target of the audit trail, which must be complete.
const AUDIT: &str = "audit";

/// Line counts by message and app.
#[derive(Clone, Default)]
pub(super) struct Limit(Arc<Counts>);

#[derive(Default)]
struct Counts {
    lines: Mutex<HashMap<Key, Count>>,
    suppressed: AtomicU64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    message: Identifier,
    /// Empty for lines without an app.
    app: Box<str>,
}

#[derive(Default)]
struct Count {
    lines: u64,
    /// Text of the first line left out.
    message: String,
}

impl Limit {
    /// Returns the number of lines left out so far.
    pub(super) fn suppressed(&self) -> u64 {
        self.0.suppressed.load(Ordering::Relaxed)
    }

    /// Logs how many lines were left out since the last call, and resets the counts.
    pub(super) fn summarize(&self) {
        let counts = std::mem::take(&mut *self.0.lines.lock().unwrap_or_else(PoisonError::into_inner));
        for (key, count) in counts {
            let Some(left_out) = count.lines.checked_sub(LINES_MAX).filter(|left_out| *left_out > 0) else { continue };
            let app = Some(&*key.app).filter(|app| !app.is_empty());
            tracing::warn!(app.key = app, log.left_out = left_out, log.of = count.message, "Log lines left out");
        }
    }

    /// Counts a line and returns whether it is within the limit.
    fn allows(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == AUDIT {
            return true;
        }
        let mut key = Key { message: metadata.callsite(), app: text_of(event, "app.key").into() };
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= KEYS_MAX && !lines.contains_key(&key) {
            key.app = Box::default();
        }
        let count = lines.entry(key).or_default();
        count.lines += 1;
        if count.lines <= LINES_MAX {
            return true;
        }
        if count.message.is_empty() {
            count.message = text_of(event, "message").chars().take(MESSAGE_MAX).collect();
        }
        drop(lines);
        self.0.suppressed.fetch_add(1, Ordering::Relaxed);
        false
    }
}

/// Formats events within the limit and drops the others.
pub(super) struct Limited<Format> {
    pub(super) format: Format,
    pub(super) limit: Limit,
}

impl<S, N, Format> FormatEvent<S, N> for Limited<Format>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
    Format: FormatEvent<S, N>,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if self.limit.allows(event) { self.format.format_event(ctx, writer, event) } else { Ok(()) }
    }
}

/// Returns the text of a field of an event; empty if it has none.
fn text_of(event: &Event<'_>, name: &'static str) -> String {
    let mut text = Text { name, text: String::new() };
    event.record(&mut text);
    text.text
}

struct Text {
    name: &'static str,
    text: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == self.name {
            value.clone_into(&mut self.text);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == self.name {
            self.text = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use serde_json::Value;
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Runs `log` with a limit and returns the lines written.
    fn lines(limit: &Limit, log: impl FnOnce()) -> Vec<Value> {
        let text = Arc::new(Mutex::new(Vec::new()));
        let out = text.clone();
        let writer = move || Tee(out.clone());
        let layer = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(writer);
        let layer = layer.map_event_format(|format| Limited { format, limit: limit.clone() });
        tracing::subscriber::with_default(Registry::default().with(layer), log);
        let text = text.lock().unwrap();
        str::from_utf8(&text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    struct Tee(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Tee {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn suspect(app: &str) {
        tracing::warn!(app.key = %app, "a suspected double execution");
    }

    #[test]
    fn a_flood_of_one_app_is_summarized_and_hides_no_other_line() {
        let limit = Limit::default();
        let lines = lines(&limit, || {
            for _ in 0..5000 {
                suspect("loud");
            }
            suspect("quiet");
            tracing::warn!(app.key = "loud", "another message");
            limit.summarize();
            suspect("loud");
            limit.summarize();
        });
        let of = |app: &str, message: &str| {
            lines.iter().filter(|line| line["app.key"] == app && line["message"] == message).count()
        };
        let suspected = "a suspected double execution";
        assert_eq!(of("loud", suspected), 20 + 1, "the limit, and one after it was lifted");
        assert_eq!((of("quiet", suspected), of("loud", "another message")), (1, 1));
        let summaries: Vec<_> = lines.iter().filter(|line| line["message"] == "Log lines left out").collect();
        let [summary] = &summaries[..] else { panic!("{summaries:?}") };
        assert_eq!((&summary["app.key"], &summary["log.left_out"]), (&"loud".into(), &4980.into()));
        assert_eq!(summary["log.of"], suspected);
        assert_eq!(limit.suppressed(), 4980);
    }

    #[test]
    fn the_audit_trail_and_levels_below_info_are_not_limited() {
        let limit = Limit::default();
        let lines = lines(&limit, || {
            for _ in 0..100 {
                tracing::info!(target: "audit", "an operator changed something");
                tracing::debug!("detail");
            }
        });
        assert_eq!((lines.len(), limit.suppressed()), (200, 0));
    }

    #[test]
    fn apps_beyond_the_maximum_share_one_count() {
        let limit = Limit::default();
        let lines = lines(&limit, || (0..KEYS_MAX + 1000).for_each(|app| suspect(&app.to_string())));
        assert_eq!(lines.len(), KEYS_MAX + 20);
        assert!(limit.0.lines.lock().unwrap().len() <= KEYS_MAX + 1);
    }
}
