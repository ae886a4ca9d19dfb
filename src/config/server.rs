//! The tables `[server]`, `[admin]` and `[registry]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use oncegate_admin::TokenOptions;
use oncegate_core::terms::Span;
use oncegate_transport::tls::TlsOptions;
use oncegate_web::problem::ProblemBase;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Table `[server]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ServerOptions {
    /// Address of the API.
    pub listen: SocketAddr,
    /// Address of metrics, health checks and the admin API.
    pub admin_listen: SocketAddr,
    /// True if a gateway without apps may listen beyond loopback.
    pub allow_open: bool,
    /// Folder of persistent data.
    pub data_dir: PathBuf,
    /// Time between failing readiness and closing the listener.
    #[serde(with = "delay")]
    pub drain_delay: Duration,
    /// Longest time for requests in flight to end.
    #[serde(with = "delay")]
    pub drain_timeout: Duration,
    /// Base of the types of problems.
    pub problem_base: ProblemBase,
    /// TLS of the API.
    pub tls: TlsOptions,
    /// TLS of metrics, health checks and the admin API.
    pub admin_tls: TlsOptions,
}

/// Table `[admin]`.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AdminOptions {
    /// The admin tokens, by the name that the audit trail shows.
    pub tokens: BTreeMap<String, TokenOptions>,
}

/// Table `[registry]`.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryOptions {
    /// URL of the database with the apps; empty if they are in the configuration. It may contain a password.
    pub url: String,
}

/// Durations that may be zero, unlike those of claims: `0s`, or a [`Span`].
mod delay {
    use super::{Deserialize, Deserializer, Duration, Serializer, Span};

    pub(super) fn parse(text: &str) -> Option<Duration> {
        match text {
            "0s" | "0ms" => Some(Duration::ZERO),
            _ => text.parse().ok().map(|Span(duration)| duration),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse(&String::deserialize(deserializer)?).ok_or_else(|| {
            serde::de::Error::custom(
                "a delay is \"0s\", or a whole number from 1 to 999999999 and a unit, ms, s, m, h or d: \"5s\"",
            )
        })
    }

    pub(super) fn serialize<S: Serializer>(delay: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        if delay.is_zero() { serializer.serialize_str("0s") } else { serializer.collect_str(&Span(*delay)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_may_be_zero() {
        for (text, delay) in [("0s", 0), ("0ms", 0), ("5s", 5), ("1m", 60)] {
            assert_eq!(delay::parse(text), Some(Duration::from_secs(delay)));
        }
        for text in ["", "0", "5", "0d", "-1s"] {
            assert_eq!(delay::parse(text), None, "{text}");
        }
    }
}
