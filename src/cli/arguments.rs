//! Reads the command line. Adds a tip to errors about words that newcomers often type. Has the parsers of numbers, and the
//! arguments of lists.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Error, Parser as _};

use super::Cli;

/// Words of other programs, and what to type here.
const TIPS: &[(&str, &str)] = &[
    ("--port", "a port is part of an address: '--listen 127.0.0.1:8080'"),
    ("-p", "a port is part of an address: '--listen 127.0.0.1:8080'"),
    ("--host", "a host is part of an address: '--listen 127.0.0.1:8080'"),
    ("--bind", "use '--listen 127.0.0.1:8080'"),
    ("--url", "the admin listener is named by '--admin http://127.0.0.1:9464'"),
    ("--admin", "'--url http://127.0.0.1:8080' names the API; a gateway is given '--admin-listen 127.0.0.1:9464'"),
    ("--token", "a token is not an argument, which others could see: use ONCEGATE_ADMIN_TOKEN or '--token-file FILE'"),
    ("--json", "use '--output json'"),
    ("run", "'oncegate serve' runs a gateway"),
    ("start", "'oncegate serve' runs a gateway"),
    ("server", "'oncegate serve' runs a gateway"),
    ("version", "use 'oncegate --version'"),
    ("status", "'oncegate summary' shows the state of a gateway, 'oncegate health' whether it is ready"),
    ("doctor", "'oncegate summary' shows what needs a person, 'oncegate config check --connect' checks the stores"),
    ("check", "'oncegate config check' checks the configuration, 'oncegate health' a gateway"),
    ("validate", "use 'oncegate config check'"),
];

/// Parses the arguments of the process. Ends the process if they are wrong.
pub fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| with_tip(error).exit())
}

/// Parses these arguments.
///
/// # Errors
/// They are wrong. The error has a tip, where there is one.
pub fn parse_from(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, Error> {
    Cli::try_parse_from(arguments).map_err(with_tip)
}

fn with_tip(mut error: Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        _ => return error,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else { return error };
    let word = word.split('=').next().unwrap_or_default().to_owned();
    let tip = match TIPS.iter().find(|(wrong, _)| *wrong == word) {
        Some((_, tip)) => (*tip).to_owned(),
        None if Path::new(&word).extension().is_some_and(|kind| kind == "toml") => {
            format!("a configuration file is named by '--config {word}'")
        }
        None => return error,
    };
    // The similar names would lead elsewhere.
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    error
}

/// The part of a list that is printed: its newest entries, or the next older ones.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Page {
    /// List only those older than the one with this ID
    #[arg(long, value_name = "ID", value_parser = number::<u64>(1..=u64::MAX))]
    pub(super) after: Option<u64>,
    /// List at most this many, from 1 to 1000
    #[arg(long, default_value_t = 50, value_parser = number::<u32>(1..=1000))]
    pub(super) limit: u32,
}

/// Parses an instant.
pub(super) fn instant(text: &str) -> Result<jiff::Timestamp, String> {
    text.parse().map_err(|_| "an instant has a date, a time and a zone, such as 2026-10-20T09:00:00Z".to_owned())
}

/// Returns the parser of a whole number in this range.
pub(super) fn number<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match range.end() {
            &u64::MAX => format!("it is a whole number from {}", range.start()),
            last => format!("it is a whole number from {} to {last}", range.start()),
        })
    }
}
