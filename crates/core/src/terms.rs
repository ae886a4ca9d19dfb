//! The terms of a claim: lease, retention, and what the end of a lease means. And durations as text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text;

/// A duration as configuration and requests write it: `[1-9][0-9]{0,8}(ms|s|m|h|d)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span(pub Duration);

/// The units of durations in milliseconds, the largest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for Span {
    type Err = InvalidSpan;

    fn from_str(text: &str) -> Result<Self, InvalidSpan> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (count, unit) = text.split_at(digits);
        if count.starts_with('0') || !(1..=9).contains(&digits) {
            return Err(InvalidSpan);
        }
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(InvalidSpan)?;
        let count: u64 = count.parse().map_err(|_| InvalidSpan)?;
        Ok(Self(Duration::from_millis(count * unit)))
    }
}

impl fmt::Display for Span {
    /// Writes the duration in the largest unit that divides it, without parts of a millisecond.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let (name, unit) = UNITS.iter().find(|(_, unit)| ms != 0 && ms % unit == 0).unwrap_or(&UNITS[4]);
        f.write_str(itoa::Buffer::new().format(ms / unit))?;
        f.write_str(name)
    }
}

/// Error: the text is not a duration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a duration is a whole number from 1 to 999999999 and a unit, ms, s, m, h or d: \"30s\", \"24h\"")]
pub struct InvalidSpan;

/// Time for which a settled claim blocks repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Retention {
    /// For this long after its outcome.
    For(Duration),
    /// Until an operator ends it.
    Forever,
}

impl Retention {
    /// Returns the duration; nothing if it never ends.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::For(duration) => Some(duration),
            Self::Forever => None,
        }
    }
}

impl FromStr for Retention {
    type Err = InvalidRetention;

    fn from_str(text: &str) -> Result<Self, InvalidRetention> {
        match text {
            "forever" => Ok(Self::Forever),
            _ => text.parse().map(|Span(duration)| Self::For(duration)).map_err(|_| InvalidRetention),
        }
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::For(duration) => Span(*duration).fmt(f),
            Self::Forever => f.write_str("forever"),
        }
    }
}

/// Error: the text is not a retention.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a retention is a duration or \"forever\": \"24h\", \"30d\", \"forever\"")]
pub struct InvalidRetention;

/// Meaning of the end of a lease without an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// The operation counts as not done: the next caller may claim it.
    #[default]
    Release,
    /// The claim becomes `unknown` until its holder, a take-over or an operator settles it.
    Unknown,
}

/// The terms of a claim, determined at the claim call and stored with the claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Duration of the claim while its operation is in progress.
    pub lease: Duration,
    /// Time for which a succeeded claim blocks repeats.
    pub retention: Retention,
    /// Time for which a claim with the reported outcome `unknown` blocks repeats.
    pub unknown_retention: Retention,
    /// Meaning of the end of the lease.
    pub on_lease_end: LeaseEnd,
}

/// Reaction of a chain to a loss of data in its store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDataLoss {
    /// Continues: lost claims can be claimed again at once.
    #[default]
    Resume,
    /// Grants nothing until every lost claim would have ended.
    Freeze,
}

/// Answer to a claim call while the store is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimOnOutage {
    /// Refused.
    #[default]
    FailClosed,
    /// This process decides alone, from its local claims.
    Local,
    /// Granted without a check.
    FailOpen,
}

/// Answer to an outcome call while the store is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeOnOutage {
    /// Refused; the caller repeats it.
    #[default]
    FailClosed,
    /// Journaled on this gateway's disk, and delivered later.
    Spool,
}

/// Treatment of duplicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A duplicate is refused.
    #[default]
    Enforce,
    /// A duplicate is let through and counted, to see what enforcing would stop.
    Observe,
}

/// Implements serde through `FromStr` and `Display`.
macro_rules! serde_as_text {
    ($($name:ty, $expected:literal;)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                text::deserialize(deserializer, $expected)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

serde_as_text! {
    Span, "a string such as \"30s\"";
    Retention, "a string such as \"24h\" or \"forever\"";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_back_as_written() {
        for text in ["1ms", "100ms", "30s", "90m", "24h", "3650d", "999999999d", "1500ms"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse(), Ok(span), "{text}");
        }
        assert_eq!("60s".parse::<Span>().unwrap().to_string(), "1m");
        assert_eq!("forever".parse(), Ok(Retention::Forever));
        assert_eq!("30d".parse::<Retention>().unwrap().to_string(), "30d");
    }

    #[test]
    fn text_that_is_not_a_duration_is_rejected() {
        for text in [
            "",
            "30",
            "s",
            "0s",
            "030s",
            "1.5s",
            "-1s",
            "+1s",
            " 1s",
            "1 s",
            "1000000000s",
            "1w",
            "1S",
            "١s",
            "forever",
        ] {
            assert_eq!(text.parse::<Span>(), Err(InvalidSpan), "{text}");
        }
        assert_eq!("for ever".parse::<Retention>(), Err(InvalidRetention));
    }
}
