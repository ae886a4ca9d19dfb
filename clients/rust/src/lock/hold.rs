//! One acquisition of a lock: renewed in the background, released on drop.

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::{Locker, Mode};
use crate::about::About;
use crate::answer::Answer;
use crate::call::written;
use crate::error::{Cause, Error, Kind};
use crate::event::Level;
use crate::lease::{Lease, Renewal};

/// One acquisition of a lock. It is renewed in the background until it is released or dropped.
pub struct Hold {
    held: Option<Held>,
}

struct Held {
    locker: Locker,
    mode: Mode,
    attempt: String,
    fence: i64,
    holds: i64,
    at: usize,
    about: About,
    lease: Arc<Lease>,
    runtime: Handle,
}

impl Hold {
    /// Begins with the answer that granted it, and its renewal.
    pub(super) async fn begin(locker: &Locker, answer: Answer, about: &About) -> Result<Self, Error> {
        let renewal = Renewal {
            client: locker.client.clone(),
            first: answer.at,
            endpoint: "lock",
            path: locker.path("renewal"),
            attempt: answer.body.attempt.clone().unwrap_or_default(),
            // It was checked when the lock was requested.
            lease: locker.lease.and_then(|lease| written(lease).ok()),
            about: about.clone(),
            genuine: |body| body.lease_ms.is_some(),
            event: "lock_lost",
        };
        let lease = Lease::keep(renewal, answer.lease_ends(locker.client.now()));
        let fence = answer.body.fence.unwrap_or_default();
        let hold = Self {
            held: Some(Held {
                locker: locker.clone(),
                mode: if answer.body.mode.as_deref() == Some("shared") { Mode::Shared } else { Mode::Exclusive },
                attempt: answer.body.attempt.unwrap_or_default(),
                fence,
                holds: answer.body.holds.unwrap_or_default(),
                at: answer.at,
                about: about.clone(),
                lease,
                runtime: Handle::current(),
            }),
        };
        locker.client.event(about, "lock_acquired", Level::Debug, || vec![("fence", fence.into())]);
        if hold.is_live() {
            return Ok(hold);
        }
        let url = &locker.client.0.servers[answer.at].url;
        let late = Cause::of(url, Kind::TooLate, "the hold arrived after its lease had ended, and was released");
        drop(hold.release().await);
        Err(Error::unavailable(vec![late]))
    }

    fn get(&self) -> &Held {
        // Only `release` and `drop` take it, and both end the hold.
        self.held.as_ref().expect("a hold that is not released")
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.get().locker.name
    }

    /// Returns the mode in which it is held.
    pub fn mode(&self) -> Mode {
        self.get().mode
    }

    /// Returns the proof of the hold: keep it like a secret.
    pub fn attempt(&self) -> &str {
        &self.get().attempt
    }

    /// Returns a number that rises whenever the lock becomes held or changes its mode, for the resource to compare.
    pub fn fence(&self) -> i64 {
        self.get().fence
    }

    /// Returns the number of holds that the owner has.
    pub fn holds(&self) -> i64 {
        self.get().holds
    }

    /// Returns true if the hold is still live by this clock. Only the fence closes the gap.
    pub fn is_live(&self) -> bool {
        self.get().lease.is_live()
    }

    /// Returns `not_held` by the answer to a renewal, or `not_renewed` if none came in time.
    pub fn lost(&self) -> Option<String> {
        self.get().lease.lost()
    }

    /// Waits until the hold is lost, and returns the reason: stop the work then.
    pub async fn until_lost(&self) -> String {
        self.get().lease.until_lost().await
    }

    /// Renews the hold now, in addition to the renewal in the background.
    ///
    /// # Errors
    ///
    /// No answer, or an answer that it is not held.
    pub async fn renew(&self) -> Result<(), Error> {
        self.get().lease.renew(self.get().locker.client.0.timeout).await
    }

    /// Releases the hold, and repeats that within [`crate::Options::settle_within`]. A hold that was lost is no error. The release
    /// continues if the future is dropped.
    ///
    /// # Errors
    ///
    /// No gateway answered.
    pub async fn release(mut self) -> Result<(), Error> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let (client, runtime) = (held.locker.client.clone(), held.runtime.clone());
        match client.spawn(&runtime, held.release()).await {
            Ok(released) => released,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(Error::unavailable(Vec::new())),
            },
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let (client, runtime) = (held.locker.client.clone(), held.runtime.clone());
            client.spawn(&runtime, held.release());
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the attempt, which is a secret.
        f.debug_struct("Hold").field("name", &self.name()).field("fence", &self.fence()).finish_non_exhaustive()
    }
}

impl Held {
    async fn release(self) -> Result<(), Error> {
        let Self { locker, attempt, fence, at, about, lease, .. } = self;
        let client = &locker.client;
        if !client.0.is_enabled {
            lease.stop();
            return Ok(());
        }
        let answered = locker.release("attempt", &attempt, at, client.0.settle_within, &about).await;
        let was_lost = lease.lost().is_some();
        lease.stop();
        let answer = answered?;
        match answer.status {
            ..300 => client.event(&about, "lock_released", Level::Debug, || vec![("fence", fence.into())]),
            409 if was_lost => {}
            409 => client.event(&about, "lock_lost", Level::Warn, || vec![("code", answer.code().into())]),
            _ => return Err(answer.rejection()),
        }
        Ok(())
    }
}
