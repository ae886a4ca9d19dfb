//! The token of an engine's user. All connections of an engine share it, and one of them at a time asks for another.
//!
//! etcd computes a slow hash for each request for a token, even if its caller has given up. Callers that each asked within the
//! time limit of a connection, and tried again, would keep a busy member from ever answering one of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_coordination::url::{Credentials, Url};
use oncegate_core::attempt::{Entropy as _, SystemEntropy};
use oncegate_core::backoff::Backoff;
use tokio::time::{sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};

use super::failure::Failure;

/// A token, as requests carry it. Every member knows it.
pub(super) type Token = MetadataValue<Ascii>;

/// Time limit of a request for a token. Those of calls and connections are shorter: a call fails, and the request continues.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a request that failed. Until then its failure is the answer.
const PAUSE: Backoff = Backoff { first: Duration::from_millis(200), max: Duration::from_secs(5) };

/// The authentication of an engine's user.
pub(super) struct Authentication {
    pub(super) credentials: Credentials,
    state: Mutex<State>,
    /// Held by the request that is under way.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// Failures in a row.
    failures: u32,
    /// The last failure, during the pause after it.
    failure: Option<Failure>,
}

impl Authentication {
    /// Returns the authentication of a URL's user, without a token yet. `None` if the URL has no user.
    pub(super) fn of(url: &Url) -> Option<Arc<Self>> {
        let credentials = url.credentials.clone()?;
        Some(Arc::new(Self { credentials, state: Mutex::default(), asking: Arc::default() }))
    }

    /// Returns the token, if one is known.
    pub(super) fn token(&self) -> Option<Token> {
        self.state().token.clone()
    }

    /// Gets a token other than `used` with this request, unless there is one already. If this is dropped, the request continues, and
    /// later calls use its token.
    ///
    /// # Errors
    /// The failure of the request, or of the one before, if that is not long ago.
    pub(super) async fn renew(
        self: &Arc<Self>,
        used: Option<Token>,
        request: impl Future<Output = Result<Token, Failure>> + Send + 'static,
    ) -> Result<(), Failure> {
        let asking = self.asking.clone().lock_owned().await;
        if self.token() != used {
            return Ok(());
        }
        if let Some(failure) = self.state().failure.clone() {
            return Err(failure);
        }
        let this = self.clone();
        let (reply, answer) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let silent = |_elapsed| Failure::lost(format!("etcd gave no token within {TIMEOUT:?}"));
            let asked = timeout(TIMEOUT, request).await.map_err(silent).flatten();
            let (answer, pause) = this.answered(asked);
            drop(asking);
            // Fails if the caller has given up.
            let _ = reply.send(answer);
            if let Some(pause) = pause {
                sleep(pause).await;
                this.state().failure = None;
            }
        });
        answer.await.unwrap_or_else(|_| Err(Failure::lost("the request for a token ended early")))
    }

    /// Notes the answer to a request. Returns it, and the pause until the next request.
    fn answered(&self, asked: Result<Token, Failure>) -> (Result<(), Failure>, Option<Duration>) {
        let mut state = self.state();
        match asked {
            Ok(token) => {
                *state = State { token: Some(token), ..State::default() };
                (Ok(()), None)
            }
            Err(failure) => {
                state.failures = state.failures.saturating_add(1);
                state.failure = Some(failure.clone());
                (Err(failure), Some(PAUSE.delay(state.failures, SystemEntropy.bits())))
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn authentication() -> Arc<Authentication> {
        let credentials = Credentials { user: "me".into(), password: "secret".into() };
        Arc::new(Authentication { credentials, state: Mutex::default(), asking: Arc::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_give_up_share_one_request_which_goes_on() {
        let (authentication, requests) = (authentication(), Arc::new(AtomicUsize::new(0)));
        let request = || {
            let requests = requests.clone();
            async move {
                requests.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_secs(2)).await;
                Ok(Token::from_static("token"))
            }
        };
        for _ in 0..20 {
            assert!(timeout(Duration::from_millis(50), authentication.renew(None, request())).await.is_err());
        }
        assert_eq!(authentication.renew(None, request()).await, Ok(()));
        assert_eq!((authentication.token(), requests.load(Ordering::SeqCst)), (Some(Token::from_static("token")), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_the_answer_until_its_pause_is_over() {
        let (authentication, requests) = (authentication(), Arc::new(AtomicUsize::new(0)));
        let refused = || {
            let requests = requests.clone();
            async move {
                requests.fetch_add(1, Ordering::SeqCst);
                Err(Failure::unfit("no"))
            }
        };
        for _ in 0..1000 {
            assert_eq!(authentication.renew(None, refused()).await, Err(Failure::unfit("no")));
            sleep(Duration::from_millis(60)).await;
        }
        let sent = requests.load(Ordering::SeqCst);
        assert!((12..40).contains(&sent), "{sent} requests in a minute");
    }
}
