//! The log: one line an event on standard error, as JSON or for people. What is logged is decided where it happens;
//! contents, attempts and secrets never are.

use std::io::{self, IsTerminal};

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The table `[log]` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LogOptions {
    /// How an event is written.
    pub format: LogFormat,
    /// What is written: a level, and exceptions from it by target.
    pub level: String,
}

/// How an event is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// One line for people, in colour on a terminal.
    Pretty,
    /// Pretty on a terminal, else JSON.
    Auto,
}

impl LogOptions {
    /// Whether [`init`] would take these options.
    ///
    /// # Errors
    /// What is wrong with the level, and how it is written.
    pub fn check(&self) -> Result<(), InvalidLevel> {
        self.filter().map(drop)
    }

    fn filter(&self) -> Result<EnvFilter, InvalidLevel> {
        // A lone word that is no level would be taken for a target, and silence everything else: a typing error in
        // `level = "inf"` must not switch the log off.
        let words: Vec<_> = self.level.split(',').map(str::trim).collect();
        let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
        if let Some(word) = words.iter().find(|word| !word.contains(['=', '[']) && !is_level(word)) {
            return Err(InvalidLevel(format!("`{word}` is neither a level nor target=level")));
        }
        EnvFilter::try_new(words.join(",")).map_err(|error| InvalidLevel(error.to_string()))
    }
}

/// A level that says nothing the log could go by.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}; write off, error, warn, info, debug or trace, and exceptions such as \"info,oncegate::engine=debug\"")]
pub struct InvalidLevel(String);

/// Starts the log. Where the process already has one, as in a test, that one stays.
///
/// # Errors
/// The level is not one.
pub fn init(options: &LogOptions) -> Result<(), InvalidLevel> {
    let filter = options.filter()?;
    let on_terminal = io::stderr().is_terminal();
    let pretty = match options.format {
        LogFormat::Json => false,
        LogFormat::Pretty => true,
        LogFormat::Auto => on_terminal,
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(on_terminal);
    let set = if pretty {
        log.try_init()
    } else {
        log.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    };
    // The one error is that there is a log already.
    drop(set);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(level: &str) -> LogOptions {
        LogOptions { format: LogFormat::Auto, level: level.to_owned() }
    }

    #[test]
    fn levels_and_exceptions_are_taken() {
        for level in
            ["info", "WARN", "off", "info,oncegate::engine=debug", "warn, oncegate=trace", "oncegate[claim]=info"]
        {
            assert_eq!(options(level).check(), Ok(()), "{level}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_not_taken_for_a_target() {
        for (level, start) in [
            ("inf", "`inf` is neither a level nor target=level; write off, error, warn"),
            ("info,oncegate", "`oncegate` is neither"),
            ("", "`` is neither"),
            ("oncegate=loud", "invalid filter directive; write off,"),
        ] {
            let message = options(level).check().unwrap_err().to_string();
            assert!(message.starts_with(start), "{level}: {message}");
        }
    }

    #[test]
    fn starting_twice_is_no_error() {
        assert_eq!(init(&options("off")), Ok(()));
        assert_eq!(init(&options("off")), Ok(()));
        assert!(init(&options("loud")).is_err());
    }
}
