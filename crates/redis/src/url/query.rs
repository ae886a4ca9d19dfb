//! The keys of a URL's query.

use std::time::Duration;

use oncegate_core::nearest;
use oncegate_core::terms::Span;

use super::{Layout, Url};
use crate::acknowledgement::Acknowledgement;
use crate::invalid_url::InvalidUrl;

const KEYS: [&str; 12] = [
    "prefix",
    "allow_eviction",
    "connections",
    "response_timeout",
    "replicas",
    "replica_timeout",
    "aof",
    "sentinel_user",
    "sentinel_password",
    "ca",
    "client_certificate",
    "client_key",
];
const CONNECTIONS_MAX: usize = 64;
const REPLICAS_MAX: u32 = 15;
const REPLICA_TIMEOUT: Duration = Duration::from_millis(100);
/// Limit of waiting for replies, if the URL names none.
pub(in super::super) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Keys that only mean something together.
#[derive(Default)]
pub(super) struct Together {
    replicas: Option<u32>,
    replica_timeout: Option<Duration>,
    aof: bool,
}

impl Url {
    /// Takes over one key of the query.
    pub(super) fn set(&mut self, together: &mut Together, key: &str, value: &str) -> Result<(), InvalidUrl> {
        let refuse = |why: &str| Err(InvalidUrl::new(why));
        let is_sentinel = matches!(self.layout, Layout::Sentinel { .. });
        match key {
            "prefix" if is_prefix(value) => self.prefix = value.into(),
            "prefix" => return refuse("a prefix is up to 64 of A-Z a-z 0-9 . _ : / -, such as ?prefix=shop:"),
            "allow_eviction" => {
                let Ok(allow) = value.parse() else { return refuse("allow_eviction is `true` or `false`") };
                self.allow_eviction = allow;
            }
            "connections" => {
                let count = value.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
                let Some(count) = count else { return refuse("connections is a number from 1 to 64") };
                self.connections = Some(count);
            }
            "response_timeout" => self.response_timeout = Some(span(key, value)?),
            "replicas" => {
                let count = value.parse().ok().filter(|count| (1..=REPLICAS_MAX).contains(count));
                let Some(count) = count else {
                    return refuse("replicas is a number from 1 to 15; leave it out for none");
                };
                together.replicas = Some(count);
            }
            "replica_timeout" => together.replica_timeout = Some(span(key, value)?),
            "aof" => match value {
                "1" => together.aof = true,
                "0" => together.aof = false,
                _ => return refuse("aof is `1` or `0`"),
            },
            "sentinel_user" | "sentinel_password" if !is_sentinel => {
                return refuse("sentinel_user and sentinel_password are for redis+sentinel:// and rediss+sentinel://");
            }
            "sentinel_user" => self.sentinel_user = Some(value.into()),
            "sentinel_password" => self.sentinel_password = Some(value.into()),
            "ca" => self.certificates.ca = Some(value.into()),
            "client_certificate" => self.certificates.client_certificate = Some(value.into()),
            "client_key" => self.certificates.client_key = Some(value.into()),
            unknown => return Err(unknown_key(unknown)),
        }
        Ok(())
    }
}

impl Together {
    /// Returns which acknowledgement an answer waits for.
    pub(super) fn acknowledgement(
        self,
        response_timeout: Option<Duration>,
    ) -> Result<Option<Acknowledgement>, InvalidUrl> {
        let Some(replicas) = self.replicas else {
            if self.replica_timeout.is_some() || self.aof {
                return Err(InvalidUrl::new("replica_timeout and aof go with replicas; write ?replicas=1 as well"));
            }
            return Ok(None);
        };
        let timeout = self.replica_timeout.unwrap_or(REPLICA_TIMEOUT);
        let longest = response_timeout.unwrap_or(RESPONSE_TIMEOUT);
        if longest <= timeout {
            return Err(InvalidUrl::new(format!(
                "response_timeout ({}) must be longer than replica_timeout ({}), or a lack of replicas looks like a lost \
                 connection; write response_timeout={}",
                Span(longest),
                Span(timeout),
                Span(timeout + RESPONSE_TIMEOUT)
            )));
        }
        Ok(Some(Acknowledgement { replicas, timeout, aof: self.aof }))
    }
}

fn span(key: &str, value: &str) -> Result<Duration, InvalidUrl> {
    let span = value.parse::<Span>().ok().filter(|span| span.0 <= Duration::from_mins(1));
    let shape = || InvalidUrl::new(format!("{key} is a duration from 1ms to 1m, such as {key}=250ms"));
    span.map(|span| span.0).ok_or_else(shape)
}

/// Braces are not allowed: the first pair in a key is its hash tag, and that must be the global ID.
fn is_prefix(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
    text.len() <= 64 && text.bytes().all(allowed)
}

fn unknown_key(key: &str) -> InvalidUrl {
    if ["tls", "ssl"].contains(&key) {
        return InvalidUrl::new(format!(
            "it has no key `{key}`; the scheme asks for TLS: write rediss:// in place of redis://"
        ));
    }
    InvalidUrl::new(nearest::unknown_key(key, &KEYS))
}
