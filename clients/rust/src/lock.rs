//! Locks: acquired, renewed in the background, released on drop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::Handle;

use crate::about::About;
use crate::answer::{Answer, Body};
use crate::call::{Call, object, quoted, sleep, with_wait, written};
use crate::claim::{DISABLED, WAIT_MAX, left_until, pause_between, whole_millis};
use crate::client::{Client, nonce};
use crate::error::{Cause, Error, Kind};
use crate::event::Level;
use crate::lease::{Lease, Renewal};

/// Acquires one lock. It holds nothing itself, and can be used again.
#[derive(Clone, Debug)]
#[must_use]
pub struct Locker {
    client: Client,
    name: String,
    mode: Mode,
    limit: Option<u32>,
    owner: Option<String>,
    lease: Option<Duration>,
    fair: bool,
}

/// Mode of a lock.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// No other caller holds it.
    Exclusive,
    /// Others hold it that ask for it shared too.
    Shared,
}

/// One acquisition of a lock. It is renewed in the background until it is released or dropped.
pub struct Hold {
    held: Option<Held>,
}

/// Stored state of a lock, for people and reports: the lock may change right after the lookup.
#[derive(Deserialize, Clone, Debug)]
#[non_exhaustive]
pub struct LockRecord {
    /// Name of the lock.
    pub name: String,
    /// Nothing if the lock is free and requests queue for it.
    pub mode: Option<Mode>,
    /// Maximum number of holds at once; nothing if the holders have named none.
    pub limit: Option<u32>,
    /// Nothing if the lock is free.
    pub fence: Option<i64>,
    /// The holds, without their attempts.
    pub holders: Vec<LockHolder>,
    /// Number of requests in the queue.
    pub waiting: u64,
}

/// One hold of a lock.
#[derive(Deserialize, Clone, Debug)]
#[non_exhaustive]
pub struct LockHolder {
    /// The first 8 hex digits of the SHA-256 of the hold's nonce.
    pub hash: String,
    /// Its mode.
    pub mode: Mode,
    /// Time of the grant, RFC 3339.
    pub claimed_at: String,
    /// Milliseconds that are left of its lease.
    pub lease_ms: u64,
}

impl LockRecord {
    /// Returns true if the lock was held.
    pub fn held(&self) -> bool {
        self.mode.is_some()
    }
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

impl Client {
    /// Returns a [`Locker`] for the lock with this name.
    pub fn lock(&self, name: impl Into<String>) -> Locker {
        let (client, name) = (self.clone(), name.into());
        Locker { client, name, mode: Mode::Exclusive, limit: None, owner: None, lease: None, fair: false }
    }
}

impl Locker {
    /// Lets others hold the lock that ask for it shared too.
    pub fn shared(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// Shares the lock with at most so many holds at once, 2 to 1000, as of a semaphore: for [`Self::shared`] holds only. All that hold it
    /// at the same time name the same limit, and an owner has no more than others.
    pub fn limit(mut self, holds: u32) -> Self {
        self.limit = Some(holds);
        self
    }

    /// Names the requesting process or workflow: an owner that holds the lock gets another hold at once. 16 to 64 of
    /// `[A-Za-z0-9_-]`. By default each hold is its own owner.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets how long a hold lasts without renewal. The default is the gateway's.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Grants requests in the order in which they first asked.
    pub fn fair(mut self) -> Self {
        self.fair = true;
        self
    }

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
            return self.held(answer, &about).await;
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
                request.open = false;
                return self.held(answer, &about).await;
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

    /// Returns the holders of the lock and the length of its queue, or nothing if it is free and no request queues. It acquires nothing.
    ///
    /// # Errors
    ///
    /// No gateway answered, or a mistake of the caller.
    pub async fn lookup(&self) -> Result<Option<LockRecord>, Error> {
        self.check()?;
        let about = self.client.about(&self.name, None);
        let call = Call {
            endpoint: "lookup",
            method: Method::GET,
            path: &format!("/v1/locks/{}", self.name),
            body: Bytes::new(),
            within: self.client.0.claim_within,
            wait: Duration::ZERO,
            first: self.client.0.first.load(Ordering::Relaxed),
            stop: None,
            genuine: |body| body.waiting.is_some(),
            about: &about,
        };
        let answer = self.client.call(call, &mut false).await?;
        if answer.status == 404 && answer.code() == "not_found" {
            return Ok(None);
        }
        if !answer.is_success() {
            return Err(answer.rejection());
        }
        let read = serde_json::from_slice(&answer.text);
        read.map(Some).map_err(|error| Error::Argument(format!("a lock of another form: {error}")))
    }

    async fn held(&self, answer: Answer, about: &About) -> Result<Hold, Error> {
        let renewal = Renewal {
            client: self.client.clone(),
            first: answer.at,
            endpoint: "lock",
            path: self.path("renewal"),
            attempt: answer.body.attempt.clone().unwrap_or_default(),
            // It was checked when the lock was requested.
            lease: self.lease.and_then(|lease| written(lease).ok()),
            about: about.clone(),
            genuine: |body| body.lease_ms.is_some(),
            event: "lock_lost",
        };
        let lease = Lease::keep(renewal, answer.lease_ends(self.client.now()));
        let fence = answer.body.fence.unwrap_or_default();
        let hold = Hold {
            held: Some(Held {
                locker: self.clone(),
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
        self.client.event(about, "lock_acquired", Level::Debug, || vec![("fence", fence.into())]);
        if hold.is_live() {
            return Ok(hold);
        }
        let url = &self.client.0.servers[answer.at].url;
        let late = Cause::of(url, Kind::TooLate, "the hold arrived after its lease had ended, and was released");
        drop(hold.release().await);
        Err(Error::unavailable(vec![late]))
    }

    fn path(&self, call: &str) -> String {
        format!("/v1/locks/{}/{call}", self.name)
    }

    fn check(&self) -> Result<(), Error> {
        if !is_name(&self.name) {
            let detail = "expected 1 to 128 of A-Z a-z 0-9 . _ : -, beginning with a letter or digit";
            return Err(Error::Argument(format!("not the name of a lock: {:.130?}; {detail}", self.name)));
        }
        if self.owner.as_ref().is_some_and(|owner| !is_owner(owner)) {
            return Err(Error::Argument("not an owner: expected 16 to 64 of A-Z a-z 0-9 _ -".to_owned()));
        }
        if self.limit.is_some() && self.mode != Mode::Shared {
            return Err(Error::Argument("limit: only shared holds have a limit; call `shared()` too".to_owned()));
        }
        if self.limit.is_some_and(|limit| !(2..=1000).contains(&limit)) {
            let advice =
                "a limit is a number of holds from 2 to 1000, such as 4; for one, request the lock in mode exclusive";
            return Err(Error::Argument(format!("limit: {advice}")));
        }
        Ok(())
    }

    fn body(&self, nonce: &str) -> Result<String, Error> {
        self.check()?;
        let mut body = json!({ "mode": self.mode.name(), "attempt_nonce": nonce });
        if let Some(limit) = self.limit {
            body["limit"] = limit.into();
        }
        if let Some(owner) = &self.owner {
            body["owner"] = owner.as_str().into();
        }
        if self.fair {
            body["fair"] = true.into();
        }
        if let Some(lease) = self.lease {
            body["lease"] = written(lease)?.into();
        }
        Ok(body.to_string())
    }

    async fn release(
        &self,
        member: &str,
        value: &str,
        at: usize,
        within: Duration,
        about: &About,
    ) -> Result<Answer, Error> {
        let call = Call {
            endpoint: "lock",
            method: Method::POST,
            path: &self.path("release"),
            body: Bytes::from(object([(member, quoted(value).as_str())])),
            within,
            wait: Duration::ZERO,
            first: at,
            stop: None,
            genuine: |body| body.holds.is_some(),
            about,
        };
        self.client.call(call, &mut false).await
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

impl Hold {
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

impl Mode {
    /// Returns its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

fn is_hold(body: &Body) -> bool {
    body.attempt.is_some() && body.lease_ms.is_some_and(|lease| lease > 0)
}

fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    (1..=128).contains(&name.len()) && name.as_bytes()[0].is_ascii_alphanumeric() && name.bytes().all(is_part)
}

fn is_owner(owner: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (16..=64).contains(&owner.len()) && owner.bytes().all(is_part)
}
