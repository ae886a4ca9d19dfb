//! Servers that the tests of a process share: started by the first test, stopped when no test uses them any more.

use std::sync::{Arc, Weak};

use tokio::sync::Mutex;

/// A server for tests that do not disturb each other: they use their own names, and inject no faults.
pub struct Shared<Server>(Mutex<Weak<Server>>);

impl<Server> Shared<Server> {
    #[expect(clippy::new_without_default, reason = "it is the value of a static")]
    pub const fn new() -> Self {
        Self(Mutex::const_new(Weak::new()))
    }

    /// Returns the running server, or starts it. `None` if it is not installed.
    pub async fn get(&self, start: impl Future<Output = Option<Server>>) -> Option<Arc<Server>> {
        let mut shared = self.0.lock().await;
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(start.await?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_server_is_started_once_and_stopped_after_its_last_test() {
        static STARTS: AtomicUsize = AtomicUsize::new(0);
        let shared = Shared::new();
        let get = async || shared.get(async { Some(STARTS.fetch_add(1, Ordering::Relaxed)) }).await.expect("a server");
        let (first, second) = (get().await, get().await);
        assert!(Arc::ptr_eq(&first, &second));
        let stopped = Arc::downgrade(&first);
        drop((first, second));
        assert_eq!(stopped.strong_count(), 0);
        assert_eq!(*get().await, 1, "it is started again");
    }

    #[tokio::test]
    async fn a_server_that_is_not_installed_is_none() {
        assert_eq!(Shared::<()>::new().get(async { None }).await, None);
    }
}
