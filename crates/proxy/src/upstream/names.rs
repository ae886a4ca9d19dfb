//! Names of upstreams: resolved again while connections are in use, since a connection that stays busy keeps its address.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::net::lookup_host;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Upstream;

/// Time between two lookups of a name, and the time limit of one.
pub(crate) const INTERVAL: Duration = Duration::from_secs(5);

type Addresses = BTreeSet<IpAddr>;

/// Looks up a name, as new connections do.
pub(crate) fn lookup(name: String) -> BoxFuture<'static, io::Result<Addresses>> {
    Box::pin(async move { Ok(lookup_host((name, 0)).await?.map(|address| address.ip()).collect()) })
}

/// Lets the upstream open new connections when a name loses an address. A name that cannot be resolved keeps its connections.
pub(crate) async fn follow(
    upstream: Arc<Upstream>,
    every: Duration,
    lookup: impl Fn(String) -> BoxFuture<'static, io::Result<Addresses>>,
) {
    let names = upstream.names();
    if names.is_empty() {
        return;
    }
    let mut known: BTreeMap<&str, Addresses> = BTreeMap::new();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut has_lost = false;
        for name in &names {
            let Ok(Ok(found)) = timeout(INTERVAL, lookup(name.clone())).await else { continue };
            if found.is_empty() {
                continue;
            }
            if let Some(before) = known.insert(name, found.clone()) {
                has_lost |= !before.is_subset(&found);
            }
        }
        if has_lost {
            tracing::info!(?names, "A name of an upstream has lost an address; further requests use new connections");
            upstream.reconnect();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use axum::http::Request;
    use axum::routing::get;
    use bytes::Bytes;
    use oncegate_core::clock::SystemClock;
    use oncegate_testkit::wait::until;
    use tokio::net::TcpListener;

    use super::super::Always;
    use super::*;
    use crate::options::UpstreamOptions;

    const SOON: Duration = Duration::from_secs(10);

    /// Sends two requests, one of each kind; returns how many connections the server has accepted by then.
    async fn accepted_after_requests(upstream: &Upstream, accepted: &AtomicUsize) -> usize {
        for response in [
            upstream.send(Request::new(Bytes::new()), &Always).await,
            upstream.forward(Request::new(Body::empty()), &Always).await,
        ] {
            assert!(matches!(response, Some(Ok(_))), "{response:?}");
        }
        accepted.load(Ordering::SeqCst)
    }

    #[tokio::test]
    async fn connections_are_replaced_when_a_name_loses_an_address_and_only_then() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}", listener.local_addr().unwrap().port());
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let counted = axum::serve::ListenerExt::tap_io(listener, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        tokio::spawn(axum::serve(counted, axum::Router::new().route("/", get(async || ""))).into_future());

        let options: UpstreamOptions = toml::from_str(&format!("urls = [{url:?}]\nidle = \"1m\"")).unwrap();
        let upstream = Arc::new(Upstream::new(&options, Arc::new(SystemClock::new())).unwrap());
        let (lookups, answer) = (Arc::new(AtomicUsize::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
        let (looked_up, answered) = (lookups.clone(), answer.clone());
        let lookup = move |name: String| -> BoxFuture<'static, io::Result<Addresses>> {
            assert_eq!(name, "localhost");
            let addresses: Vec<&str> = answered.lock().unwrap().clone();
            looked_up.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                let addresses = addresses.iter().map(|address| address.parse().map_err(io::Error::other));
                addresses.collect::<io::Result<Addresses>>()
            })
        };
        tokio::spawn(follow(upstream.clone(), Duration::from_millis(5), lookup));
        let answer_with = async |addresses: &[&'static str]| {
            *answer.lock().unwrap() = addresses.to_vec();
            let before = lookups.load(Ordering::SeqCst);
            // The second one from now has the new answer, and the third one begins after its effect.
            until("it is looked up", SOON, async || lookups.load(Ordering::SeqCst) >= before + 3).await;
        };

        answer_with(&["192.0.2.1"]).await;
        let first = accepted_after_requests(&upstream, &accepted).await;
        // The same, one more, none, and a failure.
        for addresses in [&["192.0.2.1"][..], &["192.0.2.2", "192.0.2.1"], &[], &["no address"]] {
            answer_with(addresses).await;
            assert_eq!(accepted_after_requests(&upstream, &accepted).await, first, "{addresses:?}");
        }
        answer_with(&["192.0.2.2"]).await;
        assert_eq!(accepted_after_requests(&upstream, &accepted).await, first * 2, "one lost");
    }

    #[test]
    fn addresses_are_no_names() {
        let options = "urls = [\"http://127.0.0.1:1\", \"http://[::1]:1\", \"http://orders:1\", \"http://orders:2\"]";
        let upstream = Upstream::new(&toml::from_str(options).unwrap(), Arc::new(SystemClock::new())).unwrap();
        assert_eq!(upstream.names(), BTreeSet::from(["orders".to_owned()]));
    }
}
