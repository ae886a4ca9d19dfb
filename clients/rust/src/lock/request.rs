//! A request for a lock, with its wait. One that gives up is withdrawn.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::runtime::Handle;

use super::{Hold, Locker};
use crate::about::About;
use crate::answer::{Answer, Body};
use crate::call::{Call, sleep, with_wait};
use crate::claim::{DISABLED, WAIT_MAX, left_until, pause_between, whole_millis};
use crate::client::nonce;
use crate::error::{Error, IDENTITY_DIFFERS, Rejected};
use crate::event::Level;

impl Locker {
    /// Acquires the lock, and waits up to this time for it: zero tries once, [`crate::FOREVER`] has no limit. If the future is dropped,
    /// the request is withdrawn.
    ///
    /// # Errors
    ///
    /// [`Error::LockNotAcquired`] if it was held until then; [`Error::Unavailable`] without an answer: locks always fail closed.
    pub async fn acquire(&self, wait: Duration) -> Result<Hold, Error> {
        let nonce = nonce()?;
        let body = self.body(&nonce)?;
        let (client, about) = (&self.client, self.client.about(&self.name, None));
        if !client.0.is_enabled {
            let (attempt, mode, lease_ms) =
                (Some(DISABLED.to_owned()), Some(self.mode.name().to_owned()), Some(u64::MAX));
            let body = Body { attempt, mode, lease_ms, fence: Some(0), holds: Some(1), ..Body::default() };
            let answer = Answer { status: 201, body, text: Bytes::new(), sent: client.now(), at: 0 };
            return Hold::begin(self, answer, &about).await;
        }
        let ends = client.end_after(wait);
        let at = client.0.first.load(Ordering::Relaxed);
        let mut request = Request { locker: self, nonce, at, about: &about, open: true };
        // A request whose reply was lost may hold the lock or a place in its queue.
        let mut uncertain = self.fair;
        let mut left = wait.min(WAIT_MAX);
        loop {
            let call = Call {
                endpoint: "lock",
                method: Method::POST,
                path: &self.path("holds"),
                body: with_wait(&body, left),
                within: client.0.claim_within,
                wait: left,
                first: client.0.first.load(Ordering::Relaxed),
                stop: None,
                genuine: is_hold,
                about: &about,
            };
            let answer = match client.call(call, &mut uncertain).await {
                Ok(answer) => answer,
                Err(error) => {
                    request.end(uncertain).await;
                    return Err(error);
                }
            };
            client.0.first.store(answer.at, Ordering::Relaxed);
            request.at = answer.at;
            if answer.is_success() {
                if let Some(rejected) = self.lock_differs(&answer) {
                    request.end(true).await;
                    return Err(rejected);
                }
                request.open = false;
                return Hold::begin(self, answer, &about).await;
            }
            if answer.status == 422 {
                request.end(uncertain).await;
                return Err(answer.rejection());
            }
            let pause = pause_between(left, &answer);
            // A ticket lives while its request polls.
            let pause = if self.fair { pause.min(Duration::from_secs(1)) } else { pause };
            if answer.code() == "lock_held" && left_until(ends, client.now() + pause) >= Duration::from_millis(1) {
                sleep(pause, None).await;
                left = whole_millis(left_until(ends, client.now())).min(WAIT_MAX);
                continue;
            }
            client.event(&about, "lock_held", Level::Debug, || vec![("code", answer.code().into())]);
            request.end(uncertain).await;
            let (code, retry_after) = (answer.code().to_owned(), answer.retry_after());
            return Err(Error::LockNotAcquired {
                name: self.name.clone(),
                code,
                retry_after,
                limit: answer.body.limit,
            });
        }
    }

    /// Returns an error if the gateway granted another lock than this one: it would protect nothing that others ask for.
    fn lock_differs(&self, answer: &Answer) -> Option<Error> {
        let granted = answer.body.name.as_deref().unwrap_or_default();
        (granted != self.name).then(|| {
            let detail = format!(
                "the gateway granted the lock {granted:.130?} for {:?}; the request was withdrawn, and nothing has run. Is something between \
                 client and gateway that changes paths?",
                self.name
            );
            let (code, request_id, retry_after) = (IDENTITY_DIFFERS.to_owned(), None, None);
            Error::Rejected(Rejected { status: 201, code, detail, request_id, retry_after })
        })
    }
}

/// A request for a lock. If it is dropped while it is open, it is withdrawn.
struct Request<'a> {
    locker: &'a Locker,
    nonce: String,
    at: usize,
    about: &'a About,
    open: bool,
}

impl Request<'_> {
    async fn end(&mut self, uncertain: bool) {
        if uncertain {
            let within = self.locker.client.0.timeout;
            drop(self.locker.release("attempt_nonce", &self.nonce, self.at, within, self.about).await);
        }
        self.open = false;
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.open {
            let (locker, about) = (self.locker.clone(), self.about.clone());
            let (nonce, at) = (std::mem::take(&mut self.nonce), self.at);
            self.locker.client.spawn(&runtime, async move {
                let within = locker.client.0.timeout;
                drop(locker.release("attempt_nonce", &nonce, at, within, &about).await);
            });
        }
    }
}

fn is_hold(body: &Body) -> bool {
    body.attempt.is_some() && body.lease_ms.is_some_and(|lease| lease > 0)
}
