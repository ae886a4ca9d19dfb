//! The log: one line per event on standard error, as JSON or for people. Contents, attempts and secrets are never
//! logged.

pub mod access;
mod limit;
mod panics;
mod writer;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, reload};

use self::access::AccessLog;
use self::limit::{Limit, Limited};
use self::writer::LineWriter;
use super::traces::{self, TraceLayer};

/// Longest wait for the last lines when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Libraries that are limited to `warn` while the level is `info`: their `info` lines are of no use to operators.
const QUIET: &str = "fjall=warn,lsm_tree=warn,sqlx=warn";

/// Table `[log]` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogOptions {
    /// Format of a line.
    pub format: LogFormat,
    /// Level, and exceptions by target.
    pub level: String,
    /// Bytes of lines that may wait to be written. Further lines are dropped.
    pub buffer_bytes: usize,
    /// True if each HTTP response is logged.
    pub access: bool,
}

/// Format of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// One line for people, in colour on a terminal.
    Pretty,
    /// Pretty on a terminal, otherwise JSON.
    Auto,
}

impl LogOptions {
    /// Checks that [`Log::start`] accepts these options.
    pub fn check(&self) -> Result<(), InvalidLevel> {
        self.filter(false).map(drop)
    }

    /// Returns the filter of the level, which also lets the spans of traces pass if there are any.
    fn filter(&self, has_traces: bool) -> Result<EnvFilter, InvalidLevel> {
        // A single word that is not a level would be parsed as a target, and would switch off everything else: a typing
        // error such as `level = "inf"` must not switch the log off.
        let words: Vec<_> = self.level.split(',').map(str::trim).collect();
        let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
        if let Some(word) = words.iter().find(|word| !word.contains(['=', '[']) && !is_level(word)) {
            return Err(InvalidLevel(format!("`{word}` is neither a level nor target=level")));
        }
        let general = words.iter().rev().find(|word| is_level(word));
        let quiet = general.is_some_and(|level| level.eq_ignore_ascii_case("info")).then_some(QUIET);
        let spans = has_traces.then(|| format!("{}=debug", traces::TARGET));
        EnvFilter::try_new(quiet.into_iter().chain(words).chain(spans.as_deref()).collect::<Vec<_>>().join(","))
            .map_err(|_| InvalidLevel(format!("`{}` names a level that does not exist", self.level)))
    }
}

/// Invalid log level.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; write off, error, warn, info, debug or trace, and exceptions such as \"info,oncegate_redis=debug\"")]
pub struct InvalidLevel(String);

/// Log of a process. A separate thread writes the lines, so that a slow reader never blocks the gateway.
#[derive(Clone)]
pub struct Log {
    writer: LineWriter,
    access: Option<AccessLog>,
    limit: Limit,
    /// Number of dropped lines already reported in the log.
    reported: Arc<AtomicU64>,
    levels: Levels,
    has_traces: bool,
}

/// Registry of spans with the layer of traces.
type Traced = Layered<Option<TraceLayer>, Registry>;

/// Handle of the level filter, which a reload replaces.
type Levels = reload::Handle<EnvFilter, Traced>;

/// Builds the subscriber of all events and spans.
///
/// The level filter is global, not a filter of the line layer: a per-layer filter remembers per thread that it has
/// refused an event until the event itself arrives. A library that only checks whether logging is enabled sends no
/// event; the next line of that thread would be lost.
fn subscriber(
    filter: EnvFilter,
    traces: Option<TraceLayer>,
    lines: impl tracing_subscriber::Layer<Layered<reload::Layer<EnvFilter, Traced>, Traced>> + Send + Sync,
) -> (impl Subscriber + Send + Sync, Levels) {
    let (filter, levels) = reload::Layer::new(filter);
    (tracing_subscriber::registry().with(traces).with(filter).with(lines), levels)
}

/// Log lines that were not written, since the process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// The buffer was full, or standard error was closed.
    pub full: u64,
    /// Over the limit of lines per message and app.
    pub suppressed: u64,
}

impl Log {
    /// Starts the log on standard error, with the layer of traces if there is one. Lines are `colored` on a terminal only. A log that
    /// the process already has stays, as in tests.
    pub fn start(options: &LogOptions, colored: bool, traces: Option<TraceLayer>) -> anyhow::Result<Self> {
        let has_traces = traces.is_some();
        let filter = options.filter(has_traces)?;
        let writer =
            LineWriter::start(io::stderr(), options.buffer_bytes).context("cannot start the log's writer thread")?;
        let access = options.access.then(|| AccessLog::new(writer.clone()));
        let limit = Limit::default();
        let on_terminal = io::stderr().is_terminal();
        let pretty = match options.format {
            LogFormat::Json => false,
            LogFormat::Pretty => true,
            LogFormat::Auto => on_terminal,
        };
        let waiting = writer.clone();
        let line = move || Line(waiting.clone());
        let lines = tracing_subscriber::fmt::layer().with_writer(line).with_ansi(on_terminal && colored);
        let limiting = limit.clone();
        let lines = if pretty {
            lines.map_event_format(|format| Limited { format, limit: limiting }).boxed()
        } else {
            let json = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            json.map_event_format(|format| Limited { format, limit: limiting }).boxed()
        };
        let (subscriber, levels) = subscriber(filter, traces, lines);
        if subscriber.try_init().is_ok() {
            panics::log_panics();
        }
        let log = Self { writer, access, limit, reported: Arc::default(), levels, has_traces };
        Ok(log)
    }

    /// Applies the level of these options. All other options apply at the start of the process only.
    pub fn reload(&self, options: &LogOptions) -> Result<(), InvalidLevel> {
        let filter = options.filter(self.has_traces)?;
        // Fails only if another log is the process's log.
        let _ = self.levels.reload(filter);
        Ok(())
    }

    /// Returns the access log, if it is enabled.
    pub fn access(&self) -> Option<AccessLog> {
        self.access.clone()
    }

    /// Returns the number of lines that were not written.
    pub fn dropped(&self) -> Dropped {
        Dropped { full: self.writer.dropped(), suppressed: self.limit.suppressed() }
    }

    /// Logs how many lines were left out since the last call. Call it every few seconds.
    pub fn summarize(&self) {
        self.limit.summarize();
        let dropped = self.writer.dropped();
        if dropped > self.reported.load(Ordering::Relaxed) && self.writer.has_space() {
            let reported = self.reported.swap(dropped, Ordering::Relaxed);
            tracing::warn!(log.dropped = dropped - reported, "Log lines dropped: standard error was not read in time");
        }
    }

    /// Writes all waiting lines, but gives up after a second in case standard error is not read.
    pub fn flush(&self) {
        self.summarize();
        self.writer.flush(FLUSH_TIMEOUT);
    }
}

/// Sink of one event's line.
struct Line(LineWriter);

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line, 100);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tracing::Metadata;

    use super::*;

    /// Counts written lines.
    #[derive(Clone)]
    struct Counter(Arc<AtomicU64>);

    impl io::Write for Counter {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn options(level: &str) -> LogOptions {
        LogOptions { format: LogFormat::Auto, level: level.to_owned(), buffer_bytes: 1024, access: false }
    }

    #[test]
    fn levels_and_exceptions_are_taken() {
        for level in
            ["info", "WARN", "off", "info,oncegate_redis=debug", "warn, oncegate=trace", "oncegate[claim]=info"]
        {
            assert_eq!(options(level).check(), Ok(()), "{level}");
        }
    }

    #[test]
    fn a_word_that_is_not_a_level_is_refused() {
        for (level, start) in [
            ("inf", "`inf` is neither a level nor target=level; write off, error, warn"),
            ("info,oncegate", "`oncegate` is neither"),
            ("", "`` is neither"),
            ("oncegate=loud", "`oncegate=loud` names a level that does not exist; write off,"),
        ] {
            let message = options(level).check().unwrap_err().to_string();
            assert!(message.starts_with(start), "{level}: {message}");
        }
    }

    /// Libraries ask whether a line is wanted, for instance through the `log` crate, and send none if it is not.
    #[test]
    fn a_refused_question_loses_no_line() {
        struct Refused;
        impl tracing::Callsite for Refused {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                &REFUSED
            }
        }
        static REFUSED: Metadata<'static> = tracing::metadata! {
            name: "refused",
            target: "sqlx::postgres::notice",
            level: tracing::Level::INFO,
            fields: &[],
            callsite: &Refused,
            kind: tracing::metadata::Kind::EVENT
        };
        for has_traces in [false, true] {
            let spans = tracing_subscriber::filter::filter_fn(|metadata: &Metadata<'_>| metadata.is_span());
            let traces: Option<TraceLayer> =
                has_traces.then(|| tracing_subscriber::layer::Identity::new().with_filter(spans).boxed());
            let seen = Arc::new(AtomicU64::new(0));
            let counter = Counter(seen.clone());
            let lines = tracing_subscriber::fmt::layer().with_writer(move || counter.clone());
            let (subscriber, _) = subscriber(options("info").filter(has_traces).unwrap(), traces, lines);
            let dispatch = tracing::Dispatch::new(subscriber);
            tracing::dispatcher::with_default(&dispatch, || {
                tracing::info!("first");
                assert!(!dispatch.enabled(&REFUSED));
                tracing::info!("second");
            });
            assert_eq!(seen.load(Ordering::Relaxed), 2);
        }
    }

    #[test]
    fn starting_twice_is_no_error() {
        assert!(Log::start(&options("off"), true, None).is_ok());
        assert!(Log::start(&options("off"), true, None).is_ok());
        assert!(Log::start(&options("loud"), true, None).is_err());
    }

    #[test]
    fn libraries_are_quiet_unless_configured() {
        let shown = |level: &str| options(level).filter(false).unwrap().to_string();
        for level in ["info", "INFO", "oncegate=debug,info"] {
            assert!(shown(level).contains("sqlx=warn"), "{level}: {}", shown(level));
        }
        for level in ["warn", "off", "debug", "oncegate=info"] {
            assert!(!shown(level).contains("sqlx"), "{level}: {}", shown(level));
        }
        assert!(shown("info,sqlx=debug").contains("sqlx=debug") && !shown("info,sqlx=debug").contains("sqlx=warn"));
    }
}
