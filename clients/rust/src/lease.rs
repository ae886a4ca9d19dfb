//! A lease, kept by renewal in the background.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use tokio::sync::watch;

use crate::about::About;
use crate::answer::Body;
use crate::call::{Call, object, quoted};
use crate::client::Client;
use crate::error::Error;
use crate::event::Level;

/// Renewal of a lease.
pub(crate) struct Renewal {
    pub(crate) client: Client,
    /// Position of the gateway that granted.
    pub(crate) first: usize,
    pub(crate) endpoint: &'static str,
    pub(crate) path: String,
    pub(crate) attempt: String,
    /// Lease that the caller asked for, where the gateway would otherwise take its default.
    pub(crate) lease: Option<String>,
    pub(crate) about: About,
    pub(crate) genuine: fn(&Body) -> bool,
    /// Name of the event when it is lost.
    pub(crate) event: &'static str,
}

#[derive(Clone, PartialEq, Eq)]
enum Phase {
    Running,
    Stopped,
    Lost(String),
}

pub(crate) struct Lease {
    renewal: Renewal,
    ends: Mutex<Instant>,
    phase: watch::Sender<Phase>,
}

impl Lease {
    pub(crate) fn keep(renewal: Renewal, ends: Instant) -> Arc<Self> {
        let (phase, _) = watch::channel(Phase::Running);
        let lease = Arc::new(Self { renewal, ends: Mutex::new(ends), phase });
        // If it has ended already, the caller releases it or calls it lost.
        if !lease.left().is_zero() {
            tokio::spawn(Arc::clone(&lease).run());
        }
        lease
    }

    pub(crate) fn is_live(&self) -> bool {
        self.lost().is_none() && !self.left().is_zero()
    }

    pub(crate) fn lost(&self) -> Option<String> {
        match &*self.phase.borrow() {
            Phase::Lost(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    pub(crate) async fn until_lost(&self) -> String {
        let mut phase = self.phase.subscribe();
        let reason = match phase.wait_for(|phase| matches!(phase, Phase::Lost(_))).await.as_deref() {
            Ok(Phase::Lost(reason)) => Some(reason.clone()),
            _ => None,
        };
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn stop(&self) {
        self.enter(Phase::Stopped);
    }

    /// Renews at a third of the rest. This leaves time to repeat a lost answer.
    async fn run(self: Arc<Self>) {
        let mut phase = self.phase.subscribe();
        let ended = async { drop(phase.wait_for(|phase| *phase != Phase::Running).await) };
        let renewals = async {
            loop {
                let left = self.left();
                if left.is_zero() {
                    return self.lose("not_renewed");
                }
                tokio::time::sleep((left / 3).max(Duration::from_millis(1))).await;
                let left = self.left();
                if !left.is_zero() {
                    // Without an answer it is repeated for as long as the lease lasts.
                    drop(self.renew(left).await);
                }
            }
        };
        tokio::select! {
            () = ended => {}
            () = renewals => {}
        }
    }

    pub(crate) fn left(&self) -> Duration {
        let ends = *self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.saturating_duration_since(self.renewal.client.now())
    }

    pub(crate) async fn renew(&self, within: Duration) -> Result<(), Error> {
        let renewal = &self.renewal;
        let (attempt, lease) = (quoted(&renewal.attempt), renewal.lease.as_deref().map(quoted));
        let members = [Some(("attempt", attempt.as_str())), lease.as_deref().map(|lease| ("lease", lease))];
        let call = Call {
            endpoint: renewal.endpoint,
            method: Method::POST,
            path: &renewal.path,
            body: Bytes::from(object(members.into_iter().flatten())),
            within,
            wait: Duration::ZERO,
            first: renewal.first,
            stop: None,
            genuine: renewal.genuine,
            about: &renewal.about,
        };
        let answer = renewal.client.call(call, &mut false).await?;
        if !answer.is_success() {
            self.lose(answer.code());
            return Err(answer.rejection());
        }
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *ends = answer.lease_ends(renewal.client.now()).max(*ends);
        drop(ends);
        renewal.client.event(&renewal.about, "renewed", Level::Debug, Vec::new);
        Ok(())
    }

    /// A lease that has ended is lost.
    pub(crate) fn expire(&self) {
        if self.left().is_zero() {
            self.lose("not_renewed");
        }
    }

    /// Ends the lease, unless the outcome was reported before.
    fn lose(&self, reason: &str) {
        if self.enter(Phase::Lost(reason.to_owned())) {
            let fields = || vec![("code", reason.into())];
            self.renewal.client.event(&self.renewal.about, self.renewal.event, Level::Warn, fields);
        }
    }

    fn enter(&self, next: Phase) -> bool {
        self.phase.send_if_modified(|phase| {
            let is_running = *phase == Phase::Running;
            if is_running {
                *phase = next;
            }
            is_running
        })
    }
}
