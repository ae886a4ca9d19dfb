//! The certificates of the listeners: read at the start, and again when their files change or a reload is asked for. A
//! new one that is no good is told of, and the old one stays. Connections that stand are never touched.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config::ServerOptions;
use crate::domain::clock::{Clock, Timestamp};
use crate::http::tls::{Identity, InvalidTls, Tls, TlsOptions};
use crate::telemetry::metrics::tls::TlsMetrics;

/// How often the files are looked at. Their contents are compared, so that it does not matter how they are changed: in
/// place, by renaming, or behind a symbolic link, as Kubernetes does.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The TLS of both listeners.
pub(super) struct Certificates {
    api: Option<Arc<Tls>>,
    admin: Option<Arc<Tls>>,
    /// Which files the configuration names; set again at every reload.
    named: watch::Sender<[TlsOptions; 2]>,
}

impl Certificates {
    /// Reads the certificates of those listeners that have one, and looks after them until `stop`.
    pub(super) fn open(
        server: &ServerOptions,
        clock: &Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> anyhow::Result<Self> {
        let mut kept = Vec::new();
        let mut open = |place: usize| {
            let (name, options) = LISTENERS[place](server);
            if !options.is_on() {
                return Ok(None);
            }
            let listener = Kept::open(place, name, options.clone(), clock.clone());
            let listener = listener.with_context(|| format!("the listener `{name}` has no TLS"))?;
            let tls = listener.tls.clone();
            kept.push(listener);
            anyhow::Ok(Some(tls))
        };
        let (api, admin) = (open(0)?, open(1)?);
        let (named, files) = watch::channel(named(server));
        if !kept.is_empty() {
            tokio::spawn(look_after(kept, files, stop));
        }
        Ok(Self { api, admin, named })
    }

    /// The TLS of the API's listener.
    pub(super) fn api(&self) -> Option<Arc<Tls>> {
        self.api.clone()
    }

    /// The TLS of the admin listener.
    pub(super) fn admin(&self) -> Option<Arc<Tls>> {
        self.admin.clone()
    }

    /// Has the files looked at again now, under the names that they have by now.
    pub(super) fn reload(&self, server: &ServerOptions) {
        for (on, options) in [(self.api.is_some(), &server.tls), (self.admin.is_some(), &server.admin_tls)] {
            if on != options.is_on() {
                tracing::warn!("a listener changes between HTTP and HTTPS only with a restart");
            }
        }
        self.named.send_replace(named(server));
    }
}

type Named = fn(&ServerOptions) -> (&'static str, &TlsOptions);

/// The listeners, each with its name in logs and metrics and with where its files are named.
const LISTENERS: [Named; 2] = [|server| ("api", &server.tls), |server| ("admin", &server.admin_tls)];

fn named(server: &ServerOptions) -> [TlsOptions; 2] {
    LISTENERS.map(|listener| listener(server).1.clone())
}

/// Looks at the files every now and then, and whenever it is asked to.
async fn look_after(mut kept: Vec<Kept>, mut names: watch::Receiver<[TlsOptions; 2]>, stop: CancellationToken) {
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked = tokio::select! {
            _ = looks.tick() => false,
            changed = names.changed() => match changed {
                Ok(()) => true,
                Err(_server_gone) => return,
            },
            () = stop.cancelled() => return,
        };
        if asked {
            let names = names.borrow_and_update().clone();
            for listener in &mut kept {
                // A listener that speaks TLS goes on speaking it.
                let options = &names[listener.place];
                if options.is_on() {
                    listener.options = options.clone();
                }
            }
        }
        // Files may be on a file system that hangs.
        let looked = tokio::task::spawn_blocking(move || {
            for listener in &mut kept {
                listener.look(asked);
            }
            kept
        });
        match looked.await {
            Ok(looked) => kept = looked,
            Err(_panicked_or_stopping) => return,
        }
    }
}

/// What one listener shows, and where it came from.
struct Kept {
    place: usize,
    name: &'static str,
    options: TlsOptions,
    tls: Arc<Tls>,
    /// Of the files that what is shown was read from.
    digest: [u8; 32],
    /// What was last told to be wrong with newer ones.
    failure: Option<String>,
    metrics: TlsMetrics,
    clock: Arc<dyn Clock>,
}

impl Kept {
    fn open(place: usize, name: &'static str, options: TlsOptions, clock: Arc<dyn Clock>) -> Result<Self, InvalidTls> {
        let files = options.read()?;
        let (identity, digest, metrics) = (files.identity()?, files.digest(), TlsMetrics::new(name));
        if let Some(ended_at) = ended_at(&identity, &*clock) {
            tracing::error!(listener = name, "the certificate ended at {ended_at}: clients will not take it");
        }
        tell_expiry(&metrics, &identity);
        let tls = Arc::new(Tls::new(identity, metrics.clone()));
        Ok(Self { place, name, options, tls, digest, failure: None, metrics, clock })
    }

    /// Takes up what the files hold by now, if that is something else and any good. What is wrong is told once, and
    /// again when asked for.
    fn look(&mut self, asked: bool) {
        match self.newer() {
            Ok(None) => self.failure = None,
            Ok(Some((identity, digest))) => {
                tell_expiry(&self.metrics, &identity);
                let ends_at = identity.ends_at.map(|ends_at| ends_at.to_string());
                self.tls.replace(identity);
                self.metrics.taken_up();
                (self.digest, self.failure) = (digest, None);
                tracing::info!(listener = self.name, ends_at, "new connections are shown a new certificate");
            }
            Err(why) if asked || self.failure.as_ref() != Some(&why) => {
                self.metrics.failed();
                tracing::error!(listener = self.name, error = why, "the certificate stays as it was");
                self.failure = Some(why);
            }
            Err(_told) => {}
        }
    }

    /// What the files hold, if it is not what is shown.
    fn newer(&self) -> Result<Option<(Identity, [u8; 32])>, String> {
        let files = self.options.read().map_err(|error| error.to_string())?;
        let digest = files.digest();
        if digest == self.digest {
            return Ok(None);
        }
        let identity = files.identity().map_err(|error| error.to_string())?;
        match ended_at(&identity, &*self.clock) {
            Some(ended_at) => Err(format!("the new certificate ended at {ended_at}; put one there that is valid")),
            None => Ok(Some((identity, digest))),
        }
    }
}

/// When a certificate ended, if it has.
fn ended_at(identity: &Identity, clock: &dyn Clock) -> Option<Timestamp> {
    identity.ends_at.filter(|ends_at| *ends_at < clock.wall())
}

fn tell_expiry(metrics: &TlsMetrics, identity: &Identity) {
    if let Some(ends_at) = identity.ends_at {
        metrics.set_expiry(ends_at.as_micros() / 1_000_000);
    }
}
