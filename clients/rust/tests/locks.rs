//! Locks against a real gateway: `scripts/with-gateway cargo test --test locks`. Without one they are skipped.

use std::time::Duration;

use oncegate_client::{Client, Error, Hold, Mode, Options};

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

fn client() -> Option<Client> {
    let Some(url) = option("ONCEGATE_URL") else {
        eprintln!("skipped: there is no gateway; run it with scripts/with-gateway");
        return None;
    };
    let options = Options::default().credential(option("ONCEGATE_CREDENTIAL").unwrap_or_default());
    Some(Client::new([url], options).expect("a client"))
}

fn option(name: &str) -> Option<String> {
    std::env::vars().find(|(known, _)| known == name).map(|(_, value)| value)
}

fn is_held(acquired: Result<Hold, Error>) -> bool {
    matches!(acquired, Err(Error::LockNotAcquired { code, .. }) if code == "lock_held")
}

#[tokio::test]
async fn another_owner_is_excluded_until_the_release() {
    let Some(client) = client() else { return };
    let lock = client.lock("rust:excluded");
    let hold = lock.acquire(Duration::ZERO).await.expect("it is free");
    assert_eq!((hold.name(), hold.mode(), hold.holds()), ("rust:excluded", Mode::Exclusive, 1));
    assert!(hold.is_live() && hold.lost().is_none());
    assert!(is_held(lock.acquire(Duration::ZERO).await));
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire(LIMIT).await }
    });
    hold.renew().await.expect("it is held");
    let fence = hold.fence();
    hold.release().await.expect("it is released");
    let next = waiting.await.expect("no panic").expect("it is free");
    assert!(next.fence() > fence);
}

#[tokio::test]
async fn a_hold_that_is_dropped_is_released() {
    let Some(client) = client() else { return };
    let lock = client.lock("rust:dropped");
    drop(lock.acquire(Duration::ZERO).await.expect("it is free"));
    lock.acquire(LIMIT).await.expect("it was released");
}

#[tokio::test]
async fn an_owner_acquires_again_and_readers_share() {
    let Some(client) = client() else { return };
    let owned = client.lock("rust:owned").owner("worker-0123456789").fair();
    let first = owned.acquire(Duration::ZERO).await.expect("it is free");
    let second = owned.acquire(Duration::ZERO).await.expect("the owner holds it");
    assert_eq!((first.holds(), second.holds()), (1, 2));
    let shared = client.lock("rust:shared").shared();
    let readers = [shared.acquire(Duration::ZERO).await, shared.acquire(Duration::ZERO).await]
        .map(|hold| hold.expect("it is shared"));
    assert_eq!(readers.map(|hold| hold.mode()), [Mode::Shared; 2]);
}

#[tokio::test]
async fn a_request_that_is_dropped_is_withdrawn() {
    let Some(client) = client() else { return };
    let lock = client.lock("rust:withdrawn").fair();
    let hold = lock.acquire(Duration::ZERO).await.expect("it is free");
    let waiting = tokio::time::timeout(Duration::from_millis(300), lock.acquire(LIMIT)).await;
    assert!(waiting.is_err(), "it is held");
    hold.release().await.expect("it is released");
    // Otherwise the request that left would be first in the queue.
    lock.acquire(LIMIT).await.expect("it is free");
}
