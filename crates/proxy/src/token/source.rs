//! Source of the keys of an issuer: a file, or a URL that is read again from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::http::uri::Scheme;
use axum::http::{Request, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use oncegate_core::clock::{Clock, millis};
use rustls::RootCertStore;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::keys::KeySet;
use crate::options::{IssuerOptions, authorities, server_of};
use crate::upstream::connector::Connector;
use crate::upstream::pools::Pools;

/// Time until keys are read again.
const REFRESH: Duration = Duration::from_mins(5);

/// Least time between two reads that tokens with unknown keys ask for.
const REFRESH_MIN: Duration = Duration::from_secs(10);

/// Time until a read that failed is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// Time limit of a read.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest set of keys, in bytes.
const SET_BYTES_MAX: usize = 256 << 10;

/// The keys of an issuer.
pub(super) struct Source {
    keys: ArcSwapOption<KeySet>,
    url: Option<Fetch>,
}

struct Fetch {
    uri: Uri,
    pools: Pools<Empty<Bytes>>,
    wanted: Notify,
    /// Monotonic time of the last read that was asked for, in milliseconds, plus one.
    asked_ms: AtomicU64,
}

impl Source {
    pub(super) fn new(options: &IssuerOptions) -> Result<Self, String> {
        match (&options.jwks_file, &options.jwks_url) {
            (Some(file), None) => {
                let text = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
                let keys = KeySet::parse(&text).map_err(|why| format!("{}: {why}", file.display()))?;
                Ok(Self { keys: ArcSwapOption::from_pointee(keys), url: None })
            }
            (None, Some(url)) => {
                let fetch = Fetch::new(url, options)?;
                Ok(Self { keys: ArcSwapOption::empty(), url: Some(fetch) })
            }
            _ => Err("name its keys: either jwks_url or jwks_file".to_owned()),
        }
    }

    /// Returns the keys, once they are known.
    pub(super) fn keys(&self) -> Option<Arc<KeySet>> {
        self.keys.load_full()
    }

    /// Lets the keys be read again. Returns false if they were read for this purpose a short time ago, or never change.
    pub(super) fn refresh(&self, clock: &dyn Clock) -> bool {
        let Some(fetch) = &self.url else { return false };
        let now = millis(clock.monotonic());
        let asked = fetch.asked_ms.load(Ordering::Relaxed);
        let is_due = asked == 0 || now.saturating_sub(asked) >= millis(REFRESH_MIN);
        let is_first =
            is_due && fetch.asked_ms.compare_exchange(asked, now + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first {
            fetch.wanted.notify_one();
        }
        is_first
    }

    /// Reads the keys again and again. Returns at once if they are in a file.
    pub(super) async fn follow(&self, issuer: &str) {
        let Some(fetch) = &self.url else { return };
        loop {
            let pause = match timeout(TIMEOUT, fetch.read())
                .await
                .unwrap_or_else(|_late| Err("no answer in time".to_owned()))
            {
                Ok(keys) => {
                    self.keys.store(Some(Arc::new(keys)));
                    REFRESH
                }
                Err(reason) => {
                    tracing::warn!(
                        issuer,
                        reason,
                        "The keys of an issuer were not read; those that are known stay in use"
                    );
                    RETRY
                }
            };
            let _ = timeout(pause, fetch.wanted.notified()).await;
        }
    }
}

impl Fetch {
    fn new(url: &str, options: &IssuerOptions) -> Result<Self, String> {
        let wrong = || format!("{url:?} is no URL of keys; write one like \"https://id.example/keys\"");
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let server = uri.scheme().zip(uri.authority()).map(|(scheme, authority)| format!("{scheme}://{authority}"));
        let server = server.ok_or_else(wrong)?;
        server_of(&server).ok_or_else(wrong)?;
        let host = uri.host().unwrap_or_default();
        let is_here = host == "localhost"
            || host.trim_matches(['[', ']']).parse().is_ok_and(|it: std::net::IpAddr| it.is_loopback());
        let is_https = uri.scheme() == Some(&Scheme::HTTPS);
        if !is_https && !is_here {
            return Err(format!("{url:?} is not https: who can change the keys on their way can be every caller"));
        }
        let authorities = if is_https { authorities(&options.ca_file)? } else { RootCertStore::empty() };
        let connector = Connector::new(authorities, TIMEOUT, false).ok_or("TLS cannot be used")?;
        Ok(Self { uri, pools: Pools::new(&connector, TIMEOUT), wanted: Notify::new(), asked_ms: AtomicU64::new(0) })
    }

    async fn read(&self) -> Result<KeySet, String> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.uri.clone();
        let response = self.pools.here().request(request).await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("the answer is {}", response.status()));
        }
        let body = Limited::new(response.into_body(), SET_BYTES_MAX).collect().await;
        KeySet::parse(&body.map_err(|error| error.to_string())?.to_bytes())
    }
}

impl IssuerOptions {
    /// Reports whether its keys can be used, without reading a URL.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self) -> Result<(), String> {
        Source::new(self).map(drop).map_err(|why| format!("`{}`: {why}", self.issuer))
    }
}
