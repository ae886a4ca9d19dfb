//! The tables `[defaults.quota]` and `[apps.<app>.quota]`, and the syntax of their values.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use oncegate_core::terms::Span;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Quota;

/// Either table. Missing values of an app come from `[defaults.quota]`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaOptions {
    /// Requests per second.
    pub requests_per_second: Option<PerSecond>,
    /// Bytes of contents, fingerprints and results per second.
    pub claim_bytes_per_second: Option<PerSecond>,
    /// Time for which an unused rate is saved up.
    pub burst: Option<Span>,
    /// Requests in progress at once.
    pub requests_in_flight: Option<ConcurrencyLimit>,
    /// Bytes of responses that the proxy has stored for repeats.
    pub response_bytes_total: Option<ByteLimit>,
}

/// Rate: a whole number from 1, or `"none"` for unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerSecond(pub Option<NonZeroU32>);

/// Limit of bytes: a number, a size such as `"10GiB"`, or `"none"` for unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteLimit(pub Option<NonZeroU64>);

/// Concurrency limit: a whole number from 1, a share such as `"50%"`, or `"none"` for unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConcurrencyLimit {
    /// Unlimited.
    All,
    /// A number of requests.
    Count(NonZeroU32),
    /// A percentage, 1 to 100.
    Percent(u8),
}

impl ConcurrencyLimit {
    /// Returns the limit out of `all`, at least 1; `None` if unlimited.
    pub fn of(self, all: usize) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Count(count) => Some(usize::try_from(count.get()).unwrap_or(usize::MAX)),
            Self::Percent(percent) => Some((all.saturating_mul(percent.into()) / 100).max(1)),
        }
    }
}

impl QuotaOptions {
    /// Returns the quotas of an app: its own, or these defaults. `permits` is the limit for all apps together, `None`
    /// if the app does not share it.
    pub fn resolve(&self, own: Option<&Self>, permits: Option<usize>) -> Quota {
        let none = Self::default();
        let own = own.unwrap_or(&none);
        let rate =
            |own: Option<PerSecond>, default: Option<PerSecond>| own.or(default).and_then(|PerSecond(rate)| rate);
        let in_flight = own.requests_in_flight.or(self.requests_in_flight).unwrap_or(ConcurrencyLimit::All);
        Quota {
            requests_per_second: rate(own.requests_per_second, self.requests_per_second),
            claim_bytes_per_second: rate(own.claim_bytes_per_second, self.claim_bytes_per_second),
            burst: own.burst.or(self.burst).map_or(Quota::default().burst, |Span(burst)| burst),
            requests_in_flight: match (in_flight, permits) {
                (ConcurrencyLimit::Percent(_), None) => None,
                (in_flight, permits) => in_flight.of(permits.unwrap_or(usize::MAX)),
            },
            response_bytes_total: own.response_bytes_total.or(self.response_bytes_total).and_then(ByteLimit::bytes),
        }
    }
}

const NONE: &str = "none";

/// Parses a whole number from 1, or a text.
struct NumberOrText<T> {
    expected: &'static str,
    number: fn(NonZeroU32) -> T,
    text: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for NumberOrText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        let count = u32::try_from(number).ok().and_then(NonZeroU32::new);
        count.map(self.number).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.text)(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for PerSecond {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expected: "a whole number from 1 to 4294967295, or \"none\"",
            number: |rate| Self(Some(rate)),
            text: |text| (text == NONE).then_some(Self(None)),
        })
    }
}

impl Serialize for PerSecond {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(rate) => rate.serialize(serializer),
            None => serializer.serialize_str(NONE),
        }
    }
}

/// Units of sizes, the largest first.
const SIZES: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl ByteLimit {
    fn bytes(self) -> Option<u64> {
        self.0.map(NonZeroU64::get)
    }

    fn size(text: &str) -> Option<Self> {
        let (unit, shift) = SIZES.into_iter().find(|(unit, _)| text.ends_with(unit))?;
        let count = text.strip_suffix(unit)?.parse::<u32>().ok()?;
        NonZeroU64::new(u64::from(count) << shift).map(|bytes| Self(Some(bytes)))
    }
}

impl<'de> Deserialize<'de> for ByteLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expected: "a size such as \"512MiB\" or \"10GiB\", a number of bytes from 1 to 4294967295, or \"none\"",
            number: |bytes| Self(Some(bytes.into())),
            text: |text| if text == NONE { Some(Self(None)) } else { Self::size(text) },
        })
    }
}

impl Serialize for ByteLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(bytes) = self.bytes() else { return serializer.serialize_str(NONE) };
        match SIZES.into_iter().find(|(_, shift)| bytes.trailing_zeros() >= *shift) {
            Some((unit, shift)) => serializer.collect_str(&format_args!("{}{unit}", bytes >> shift)),
            None => serializer.serialize_u64(bytes),
        }
    }
}

impl<'de> Deserialize<'de> for ConcurrencyLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText {
            expected: "a whole number from 1, a part of limits.requests_in_flight such as \"50%\", or \"none\"",
            number: Self::Count,
            text: |text| {
                let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
                match digits.and_then(|digits| digits.parse().ok()) {
                    Some(percent @ 1..=100) => Some(Self::Percent(percent)),
                    _ => (text == NONE).then_some(Self::All),
                }
            },
        })
    }
}

impl Serialize for ConcurrencyLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str(NONE),
            Self::Count(count) => count.serialize(serializer),
            Self::Percent(percent) => serializer.collect_str(&format_args!("{percent}%")),
        }
    }
}

impl QuotaOptions {
    /// Returns the invalid key, and the correction.
    pub fn check(&self) -> Option<(&'static str, String)> {
        const BURST_MAX: Duration = Duration::from_hours(1);
        let too_long = self.burst.filter(|Span(burst)| *burst > BURST_MAX)?;
        Some(("burst", format!("{too_long} is longer than a burst may be; write 1ms to {}", Span(BURST_MAX))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<QuotaOptions, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn quotas_round_trip() {
        let text = "requests_per_second = 100\nclaim_bytes_per_second = \"none\"\nburst = \"2s\"\n\
                    requests_in_flight = \"25%\"\nresponse_bytes_total = \"10GiB\"\n";
        assert_eq!(toml::to_string(&read(text).unwrap()).unwrap(), text);
        assert_eq!(toml::to_string(&read("requests_in_flight = 7\n").unwrap()).unwrap(), "requests_in_flight = 7\n");
        assert_eq!(read("requests_in_flight = \"none\"").unwrap().requests_in_flight, Some(ConcurrencyLimit::All));
    }

    #[test]
    fn quotas_that_admit_nothing_are_refused() {
        for value in ["0", "-1", "4294967296", "\"0\"", "\"all\"", "1.5", "true", "\"50%\""] {
            assert!(read(&format!("requests_per_second = {value}")).is_err(), "{value}");
        }
        for value in ["0", "\"0%\"", "\"101%\"", "\"%\"", "\"+5%\"", "\"5\"", "[]"] {
            assert!(read(&format!("requests_in_flight = {value}")).is_err(), "{value}");
        }
        for value in ["0", "\"0MiB\"", "\"1MB\"", "\"MiB\"", "\"-1KiB\"", "\"7\"", "1.5"] {
            assert!(read(&format!("response_bytes_total = {value}")).is_err(), "{value}");
        }
        assert!(read("burst = \"61m\"").unwrap().check().is_some());
        assert!(read("burst = \"1h\"").unwrap().check().is_none());
    }

    #[test]
    fn an_app_overrides_single_quotas_of_the_defaults() {
        let defaults = read("requests_per_second = 100\nburst = \"2s\"\nrequests_in_flight = \"50%\"").unwrap();
        let quota = defaults.resolve(None, Some(4096));
        assert_eq!((quota.requests_per_second.map(NonZeroU32::get), quota.requests_in_flight), (Some(100), Some(2048)));
        assert_eq!((quota.claim_bytes_per_second, quota.burst), (None, Duration::from_secs(2)));
        let own = read("requests_per_second = \"none\"\nclaim_bytes_per_second = 7\nrequests_in_flight = 9").unwrap();
        let quota = defaults.resolve(Some(&own), Some(4096));
        assert_eq!((quota.requests_per_second, quota.requests_in_flight), (None, Some(9)));
        assert_eq!(quota.claim_bytes_per_second.map(NonZeroU32::get), Some(7));
        assert_eq!(defaults.resolve(None, None).requests_in_flight, None, "an app that shares nothing is unlimited");
        assert_eq!(defaults.resolve(None, Some(1)).requests_in_flight, Some(1), "at least one");
    }
}
