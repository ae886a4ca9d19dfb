//! Locks: what is asked for. `request` asks the gateways, `hold` keeps and releases what they grant, `record` reads the state.

mod hold;
mod record;
mod request;

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::json;

pub use self::hold::Hold;
pub use self::record::{LockHolder, LockRecord};
use crate::about::About;
use crate::answer::Answer;
use crate::call::{Call, object, quoted, written};
use crate::client::Client;
use crate::error::Error;

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

impl Mode {
    /// Returns its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-');
    (1..=128).contains(&name.len()) && name.as_bytes()[0].is_ascii_alphanumeric() && name.bytes().all(is_part)
}

fn is_owner(owner: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (16..=64).contains(&owner.len()) && owner.bytes().all(is_part)
}
