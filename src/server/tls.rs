//! Certificates of the listeners: loaded at the start, and again when their files change or at a reload. If a new one
//! is invalid, the old one stays. Open connections are not affected.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_telemetry::metrics::tls::TlsMetrics;
use oncegate_transport::tls::{Identity, InvalidTls, Tls, TlsOptions};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// Interval between two checks of the files. Contents are compared, so that it does not matter how a file is replaced:
/// in index, by renaming, or behind a symbolic link, as in Kubernetes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

const API: fn(&Config) -> &TlsOptions = |config| &config.server.tls;
const ADMIN: fn(&Config) -> &TlsOptions = |config| &config.server.admin_tls;
const PROXY: fn(&Config) -> &TlsOptions = |config| &config.proxy.tls;

/// TLS of the listeners.
pub(super) struct Certificates {
    pub(super) api: Option<Arc<Tls>>,
    pub(super) admin: Option<Arc<Tls>>,
    /// Certificate of the proxy; `None`: it has the one of the API.
    proxy: Option<Arc<Tls>>,
    /// Configuration with the names of the files; updated at every reload.
    named: watch::Sender<Config>,
}

impl Certificates {
    /// Loads the certificates of the TLS listeners, and follows their files until `stop`.
    pub(super) fn open(config: &Config, clock: &Arc<dyn Clock>, stop: CancellationToken) -> anyhow::Result<Self> {
        let mut listeners = Vec::new();
        let mut open = |name, options_of: fn(&Config) -> &TlsOptions| {
            if !options_of(config).is_on() {
                return Ok(None);
            }
            let listener = ListenerCertificate::open(name, options_of, options_of(config).clone(), clock.clone());
            let listener = listener.with_context(|| format!("the listener `{name}` has no TLS"))?;
            let tls = listener.tls.clone();
            listeners.push(listener);
            anyhow::Ok(Some(tls))
        };
        let (api, admin) = (open("api", API)?, open("admin", ADMIN)?);
        let proxy = if config.proxy.listen.is_some() { open("proxy", PROXY)? } else { None };
        let (named, files) = watch::channel(config.clone());
        if !listeners.is_empty() {
            tokio::spawn(follow_files(listeners, files, stop));
        }
        Ok(Self { api, admin, proxy, named })
    }

    /// Returns TLS of the proxy's listener.
    pub(super) fn of_proxy(&self) -> Option<Arc<Tls>> {
        self.proxy.clone().or_else(|| self.api.clone())
    }

    /// Checks the files now, with the names of this configuration.
    pub(super) fn reload(&self, config: &Config) {
        for (now, options_of) in [(&self.api, API), (&self.admin, ADMIN)] {
            if now.is_some() != options_of(config).is_on() {
                tracing::warn!("Switching a listener between HTTP and HTTPS needs a restart");
            }
        }
        self.named.send_replace(config.clone());
    }
}

/// Checks the files periodically and on request.
async fn follow_files(
    mut listeners: Vec<ListenerCertificate>,
    mut names: watch::Receiver<Config>,
    stop: CancellationToken,
) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let requested = tokio::select! {
            _ = ticks.tick() => false,
            changed = names.changed() => match changed {
                Ok(()) => true,
                Err(_server_gone) => return,
            },
            () = stop.cancelled() => return,
        };
        if requested {
            let config = names.borrow_and_update().clone();
            for listener in &mut listeners {
                // A TLS listener stays one until the restart.
                let options = (listener.options_of)(&config);
                if options.is_on() {
                    listener.options = options.clone();
                }
            }
        }
        // Reading may block, on a file system that hangs.
        let checked = tokio::task::spawn_blocking(move || {
            for listener in &mut listeners {
                listener.check(requested);
            }
            listeners
        });
        match checked.await {
            Ok(checked) => listeners = checked,
            Err(_panicked_or_stopping) => return,
        }
    }
}

struct ListenerCertificate {
    name: &'static str,
    options_of: fn(&Config) -> &TlsOptions,
    options: TlsOptions,
    tls: Arc<Tls>,
    /// Digest of the files in use.
    digest: [u8; 32],
    /// Last problem that was logged.
    failure: Option<String>,
    metrics: TlsMetrics,
    clock: Arc<dyn Clock>,
}

impl ListenerCertificate {
    fn open(
        name: &'static str,
        options_of: fn(&Config) -> &TlsOptions,
        options: TlsOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, InvalidTls> {
        let files = options.read()?;
        let (identity, digest, metrics) = (files.identity()?, files.digest(), TlsMetrics::new(name));
        if let Some(expired_at) = expired_at(&identity, &*clock) {
            tracing::error!(listener = name, "Certificate expired at {expired_at}: clients will reject it");
        }
        report_expiry(&metrics, &identity);
        let tls = Arc::new(Tls::new(identity, metrics.clone()));
        Ok(Self { name, options_of, options, tls, digest, failure: None, metrics, clock })
    }

    /// Loads the files if they have changed and are valid. A problem is logged once, and again on request.
    fn check(&mut self, requested: bool) {
        match self.newer() {
            Ok(None) => self.failure = None,
            Ok(Some((identity, digest))) => {
                report_expiry(&self.metrics, &identity);
                let ends_at = identity.ends_at.map(|ends_at| ends_at.to_string());
                self.tls.replace(identity);
                self.metrics.taken_up();
                (self.digest, self.failure) = (digest, None);
                tracing::info!(listener = self.name, ends_at, "Certificate replaced for new connections");
            }
            Err(why) if requested || self.failure.as_ref() != Some(&why) => {
                self.metrics.failed();
                tracing::error!(listener = self.name, error = why, "Certificate not replaced: the files are not valid");
                self.failure = Some(why);
            }
            Err(_logged) => {}
        }
    }

    /// Reads the files; nothing if they are those in use.
    fn newer(&self) -> Result<Option<(Identity, [u8; 32])>, String> {
        let files = self.options.read().map_err(|error| error.to_string())?;
        let digest = files.digest();
        if digest == self.digest {
            return Ok(None);
        }
        let identity = files.identity().map_err(|error| error.to_string())?;
        match expired_at(&identity, &*self.clock) {
            Some(expired_at) => Err(format!("the new certificate expired at {expired_at}; use one that is valid")),
            None => Ok(Some((identity, digest))),
        }
    }
}

/// Returns the expiry of a certificate that has expired.
fn expired_at(identity: &Identity, clock: &dyn Clock) -> Option<Timestamp> {
    identity.ends_at.filter(|expires_at| *expires_at < clock.wall())
}

fn report_expiry(metrics: &TlsMetrics, identity: &Identity) {
    if let Some(expires_at) = identity.ends_at {
        metrics.set_expiry(expires_at.as_micros() / 1_000_000);
    }
}
