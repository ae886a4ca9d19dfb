//! A grant: the right to run one operation.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::answer::Answer;
use crate::call::has_global_id;
use crate::claim_call::ClaimCall;
use crate::client::Client;
use crate::error::{Error, IDENTITY_DIFFERS, Rejected};
use crate::lease::{Lease, Renewal};
use crate::outcome::Outcome;

/// The right to run one operation, until its lease ends. It is renewed in the background until it is reported, stopped, or its last
/// clone is dropped.
#[derive(Clone)]
pub struct Grant(pub(crate) Arc<Granted>);

pub(crate) struct Granted {
    pub(crate) client: Client,
    pub(crate) claim: Arc<ClaimCall>,
    pub(crate) global_id: String,
    /// Nothing if no gateway answered.
    pub(crate) attempt: Option<String>,
    pub(crate) fence: Option<i64>,
    pub(crate) repeated: bool,
    pub(crate) taken_over: bool,
    pub(crate) degraded: Option<String>,
    pub(crate) would_be: Option<String>,
    /// Position of the gateway that granted.
    pub(crate) at: usize,
    /// Nothing if there is no claim to renew or to lose.
    lease: Option<Arc<Lease>>,
    /// For the cleanup when a future is dropped.
    pub(crate) runtime: Handle,
    /// Outcome that the work has marked, for the middleware.
    mark: Mutex<Option<Outcome>>,
    /// True once the caller of the request has left, with the middleware.
    is_caller_gone: watch::Sender<bool>,
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            lease.stop();
        }
    }
}

impl Grant {
    pub(crate) fn of(client: &Client, claim: &Arc<ClaimCall>, answer: Answer) -> Self {
        let ends = answer.lease_ends(client.now());
        let body = answer.body;
        let attempt = body.attempt.unwrap_or_default();
        let global_id = body.global_id.unwrap_or_default();
        let lease = body.would_be.is_none().then(|| {
            let renewal = Renewal {
                client: client.clone(),
                first: answer.at,
                endpoint: "renewal",
                path: format!("/v1/claims/{global_id}/renewal"),
                attempt: attempt.clone(),
                lease: None,
                about: claim.about.clone(),
                genuine: has_global_id,
                event: "lost",
            };
            Lease::keep(renewal, ends)
        });
        Self(Arc::new(Granted {
            client: client.clone(),
            claim: Arc::clone(claim),
            global_id,
            attempt: Some(attempt),
            fence: body.fence,
            repeated: body.repeated.unwrap_or(false),
            taken_over: body.taken_over.unwrap_or(false),
            degraded: body.degraded,
            would_be: body.would_be,
            at: answer.at,
            lease,
            runtime: Handle::current(),
            mark: Mutex::default(),
            is_caller_gone: watch::Sender::new(false),
        }))
    }

    /// Returns a grant that no gateway gave: `caller` for the caller's own policy, `disabled` for a client that is switched off.
    pub(crate) fn of_caller(client: &Client, claim: &Arc<ClaimCall>, degraded: &str) -> Self {
        Self(Arc::new(Granted {
            client: client.clone(),
            claim: Arc::clone(claim),
            global_id: claim.global_id.clone(),
            attempt: None,
            fence: None,
            repeated: false,
            taken_over: false,
            degraded: Some(degraded.to_owned()),
            would_be: None,
            at: 0,
            lease: None,
            runtime: Handle::current(),
            mark: Mutex::default(),
            is_caller_gone: watch::Sender::new(false),
        }))
    }

    /// Returns the global ID of the operation.
    pub fn global_id(&self) -> &str {
        &self.0.global_id
    }

    /// Returns the proof that the claim is held: keep it like a secret. Nothing if no gateway answered.
    pub fn attempt(&self) -> Option<&str> {
        self.0.attempt.as_deref()
    }

    /// Returns a number that rises with every attempt at the operation, for the resource to compare. Nothing if the
    /// store has none.
    pub fn fence(&self) -> Option<i64> {
        self.0.fence
    }

    /// Returns true if a repeat of the claim call found the claim that it had been granted.
    pub fn repeated(&self) -> bool {
        self.0.repeated
    }

    /// Returns true if a claim of unknown outcome was taken over.
    pub fn taken_over(&self) -> bool {
        self.0.taken_over
    }

    /// Returns the outage policy that granted the claim; `caller` if no gateway answered.
    pub fn degraded(&self) -> Option<&str> {
        self.0.degraded.as_deref()
    }

    /// Returns, in observe mode, what enforcing would have answered. Such a grant holds nothing.
    pub fn would_be(&self) -> Option<&str> {
        self.0.would_be.as_deref()
    }

    /// Returns true if the claim is still live by this clock, to check before an effect that cannot be undone. Only the fence closes
    /// the gap.
    pub fn is_live(&self) -> bool {
        self.0.lease.as_ref().is_none_or(|lease| lease.is_live())
    }

    /// Returns `lease_lost`, `superseded` or `already_succeeded` by the answer to a renewal, `not_renewed` if none came
    /// in time. Report the outcome all the same.
    pub fn lost(&self) -> Option<String> {
        self.0.lease.as_ref()?.lost()
    }

    /// Waits until the claim is lost, and returns the reason; for `tokio::select!` next to the work.
    pub async fn until_lost(&self) -> String {
        match &self.0.lease {
            Some(lease) => lease.until_lost().await,
            None => std::future::pending().await,
        }
    }

    /// Renews the claim now, in addition to the renewal in the background.
    ///
    /// # Errors
    ///
    /// No answer, or an answer that the claim is lost.
    pub async fn renew(&self) -> Result<(), Error> {
        match &self.0.lease {
            Some(lease) => lease.renew(self.0.client.0.timeout).await,
            None => Ok(()),
        }
    }

    /// Says the outcome of a request that the middleware protects, unless its response says it. The last mark counts.
    pub fn mark(&self, outcome: Outcome) {
        *self.0.mark.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    /// Returns true once the caller of a request that the middleware protects has left. The handler continues: a repeat gets its response.
    pub fn is_caller_gone(&self) -> bool {
        *self.0.is_caller_gone.borrow()
    }

    /// Waits until the caller of the request disconnects. Never returns if the caller stays.
    pub async fn until_caller_gone(&self) {
        let mut gone = self.0.is_caller_gone.subscribe();
        // The sender is a part of this grant.
        drop(gone.wait_for(|gone| *gone).await);
    }

    #[cfg(feature = "middleware")]
    pub(crate) fn caller_left(&self) {
        self.0.is_caller_gone.send_replace(true);
    }

    #[cfg(feature = "middleware")]
    pub(crate) fn marked(&self) -> Option<Outcome> {
        *self.0.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the gateway granted another identity than this client computes: duplicates that it answers would be of
    /// another operation, or of none.
    pub(crate) fn identity_differs(&self) -> Option<Error> {
        let (theirs, ours) = (&self.0.global_id, &self.0.claim.global_id);
        (theirs != ours).then(|| {
            let detail = format!(
                "the gateway granted the identity {theirs}, but this client computes {ours}; the claim was released and the work was not \
                 run. Remove the credential if the gateway has no apps; otherwise use a client and a gateway with the same rules"
            );
            let (code, request_id, retry_after) = (IDENTITY_DIFFERS.to_owned(), None, None);
            Error::Rejected(Rejected { status: 201, code, detail, request_id, retry_after })
        })
    }

    /// A claim whose lease has ended is lost.
    pub(crate) fn expire(&self) {
        if let Some(lease) = &self.0.lease {
            lease.expire();
        }
    }

    /// Ends the renewal. A claim that is not reported ends with its lease.
    pub fn stop(&self) {
        if let Some(lease) = &self.0.lease {
            lease.stop();
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the attempt, which is a secret.
        f.debug_struct("Grant")
            .field("global_id", &self.0.global_id)
            .field("fence", &self.0.fence)
            .finish_non_exhaustive()
    }
}
