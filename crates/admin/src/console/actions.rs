//! Actions run once: each form has a nonce, and a second click or a reload gets the result of the first. An action runs to its end
//! even if the browser disconnects. A refused action can be sent again, for example with a better reason.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use oncegate_web::problem::{Code, Problem};

/// Results that are kept.
const RESULTS_MAX: usize = 256;

/// Secrets that are kept until they are shown.
const SECRETS_MAX: usize = 16;

/// The result of an action: where it leads, or why it was refused.
type Done = Result<String, Problem>;

/// The results of the newest actions, by session and nonce.
#[derive(Default)]
pub(super) struct Actions {
    results: Mutex<VecDeque<(String, Shared<BoxFuture<'static, Done>>)>>,
    /// Secrets that were made and not shown yet, by the name of their action.
    secrets: Mutex<VecDeque<(String, String)>>,
}

impl Actions {
    /// Runs an action once for its name, and returns the result of that run.
    pub(super) async fn once(&self, name: String, action: impl Future<Output = Done> + Send + 'static) -> Done {
        let result = {
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, result)) = results.iter().find(|(known, _)| *known == name) {
                result.clone()
            } else {
                let run = tokio::spawn(action).map(|ended| ended.unwrap_or_else(|_| Err(fault())));
                let result = run.boxed().shared();
                if results.len() == RESULTS_MAX {
                    results.pop_front();
                }
                results.push_back((name.clone(), result.clone()));
                result
            }
        };
        let done = result.await;
        if done.is_err() {
            self.results.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| *known != name);
        }
        done
    }

    /// Keeps the secret that an action has made until it is shown: the browser may have abandoned the request that made
    /// it.
    pub(super) fn hand_over(&self, name: String, secret: String) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if secrets.len() == SECRETS_MAX {
            secrets.pop_front();
        }
        secrets.push_back((name, secret));
    }

    /// Removes the secret that an action has made.
    pub(super) fn take(&self, name: &str) -> Option<String> {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let index = secrets.iter().position(|(known, _)| known == name)?;
        secrets.remove(index).map(|(_, secret)| secret)
    }

    /// Reports whether a successful action of this session has led to this address.
    pub(super) fn has_led(&self, session: &str, to: &str) -> bool {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        let own = results.iter().filter(|(name, _)| name.split(' ').next() == Some(session));
        own.filter_map(|(_, result)| result.peek()).any(|done| done.as_ref().is_ok_and(|led| led == to))
    }

    /// Reports whether an action with this name is running or was successful.
    pub(super) fn has(&self, name: &str) -> bool {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(known, _)| known == name)
    }
}

fn fault() -> Problem {
    Problem::new(
        Code::Internal,
        "The gateway has a defect; the log has its cause. Look at the present state before you repeat this.",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_second_click_gets_the_result_of_the_first() {
        let (actions, count, go_on) =
            (Arc::new(Actions::default()), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let click = |name: &str| {
            let (actions, count, go_on, name) = (actions.clone(), count.clone(), go_on.clone(), name.to_owned());
            tokio::spawn(async move {
                let action = async move {
                    let number = count.fetch_add(1, Ordering::SeqCst);
                    go_on.notified().await;
                    Ok(number.to_string())
                };
                actions.once(name, action).await
            })
        };
        let first = click("a");
        while count.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        // The browser gives up its first request when the button is clicked again.
        first.abort();
        let second = click("a");
        go_on.notify_one();
        assert_eq!(second.await.unwrap().unwrap(), "0");
        assert_eq!(click("a").await.unwrap().unwrap(), "0", "a reload");
        go_on.notify_one();
        assert_eq!(click("b").await.unwrap().unwrap(), "1", "another form");
        assert!(actions.has("a") && !actions.has("c"));
        assert!(actions.has_led("a", "0") && !actions.has_led("a", "1") && !actions.has_led("b", "0"));
        let refused = || async { Err(fault()) };
        assert!(actions.once("c".to_owned(), refused()).await.is_err() && !actions.has("c"), "it can be sent again");
        for number in 0..RESULTS_MAX {
            go_on.notify_one();
            click(&number.to_string()).await.unwrap().unwrap();
        }
        assert_eq!(actions.results.lock().unwrap().len(), RESULTS_MAX);
    }
}
