//! One server that answers for all keys.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::engine::EngineError;
use redis::Value;
use tokio::runtime::{Handle, Id};
use tokio_util::sync::DropGuard;

use crate::keys::{KeyName, Keys};
use crate::limit::{Limit, RESEND};
use crate::marker::Markers;
use crate::options::Options;
use crate::primary::Primary;
use crate::redirect::Redirect;
use crate::reply::not_executed;
use crate::route::{Route, Sending};
use crate::sentinel::Discovery;
use crate::target::Target;
use crate::url::{Layout, Url};

/// One server.
pub(in super::super) struct One {
    pub(super) server: Arc<Primary>,
    sentinels: Option<(Arc<Discovery>, DropGuard)>,
    /// Number of replicas that acknowledge.
    acknowledged_by: usize,
}

impl One {
    pub(super) fn open(url: &Arc<Url>, options: &Options) -> Self {
        let sentinels = matches!(url.layout, Layout::Sentinel { .. }).then(|| Discovery::start(url));
        let target = sentinels.as_ref().map_or(Target::Url, |(discovery, _)| Target::Sentinel(discovery.clone()));
        let marker = Some(Keys::new(url).marker());
        let server = Arc::new(Primary::open(url, options, &target, marker, &Arc::<Markers>::default()));
        let asked = url.acknowledgement.map_or(0, |asked| asked.replicas);
        let acknowledged_by = usize::try_from(asked).unwrap_or(usize::MAX);
        Self { server, sentinels, acknowledged_by }
    }

    pub(super) fn route(&self, key: &KeyName, core: Id) -> Route {
        Route { worker: self.server.worker_for(key.spread, core), primary: self.server.clone() }
    }

    /// Returns the Sentinels, if they name the server.
    pub(in super::super) fn discovery(&self) -> Option<&Discovery> {
        self.sentinels.as_ref().map(|(discovery, _)| &**discovery)
    }

    pub(super) async fn send(&self, sending: Sending<'_>) -> Result<Value, EngineError> {
        let Sending { key, purpose, time, command } = sending;
        let worker = self.server.worker_for(key.spread, Handle::current().id());
        let reply = self.server.send_one(worker, command(), purpose, time.wait).await?;
        if !self.is_to_be_resent(&reply) {
            return Ok(reply);
        }
        let Some(discovery) = self.discovery() else { return Ok(reply) };
        Box::pin(self.resend(discovery, reply, sending)).await
    }

    /// Sends a command again that a server has not executed: it was demoted, or is still loading its data.
    async fn resend(
        &self,
        discovery: &Discovery,
        mut reply: Value,
        sending: Sending<'_>,
    ) -> Result<Value, EngineError> {
        let Sending { key, purpose, time, command } = sending;
        let limit = Limit::of_resending(time.deadline);
        let mut failures = 0;
        loop {
            let Some(redirect) = Redirect::of(&reply, None) else { return Ok(reply) };
            failures += 1;
            let pause = RESEND.delay(failures, SystemEntropy.bits());
            discovery.look_again();
            discovery.changed_within(discovery.version(), pause).await;
            if !limit.pause(Duration::ZERO).await {
                return Err(not_executed(&redirect).into());
            }
            let worker = self.server.worker_for(key.spread, Handle::current().id());
            match self.server.send_one(worker, command(), purpose, time.wait).await {
                Ok(next) => reply = next,
                // The connection to the former primary is being replaced.
                Err(EngineError::Determinate(why)) if why.is_unavailable() => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Returns how often another server became the primary, unless every replica had acknowledged all that was answered.
    pub(super) fn promotions(&self) -> u64 {
        let asked = self.acknowledged_by;
        let is_safe = asked > 0 && asked >= self.server.health().replicas_max();
        self.discovery().filter(|_| !is_safe).map_or(0, Discovery::promotions)
    }

    /// Without Sentinels there is no other server, and the guard repeats the call.
    pub(super) fn is_to_be_resent(&self, reply: &Value) -> bool {
        self.sentinels.is_some() && matches!(Redirect::of(reply, None), Some(Redirect::Later(_)))
    }
}
