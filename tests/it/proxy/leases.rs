//! The lease of an exchange: nothing is sent that it may not outlast.

use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use tokio::net::{TcpSocket, TcpStream};

use super::{Caller, SOON, Upstream, config};
use crate::support::gateway;

/// The store is out while the first server hangs, so that no renewal succeeds: the second server must not get a request whose lease
/// may end before it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_lease_is_nearly_over_is_not_sent_and_its_key_is_free() {
    let Some(redis) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    // One connection fills the queue of this listener, and later ones hang.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let hanging = socket.listen(0).unwrap();
    let hangs = hanging.local_addr().unwrap();
    let _filling = TcpStream::connect(hangs).await.unwrap();

    let servers = format!(
        "urls = [\"http://{hangs}\", \"http://127.0.0.1:{port}\"]\nconnect_timeout = \"3s\"\ntimeout = \"30s\"\n"
    );
    let setup = gateway::on(redis.url()).config(&config("", &servers, "lease = \"6s\"\n"));
    let gateway = setup.start().await;
    let caller = Caller::of(&gateway);
    let call = tokio::spawn(async move { (caller.post("/orders/a", "k-1", "one").await, caller) });
    until("the key is claimed", SOON, async || {
        redis.query::<Vec<String>>("KEYS og:*").iter().any(|key| key.contains('{'))
    })
    .await;
    redis.freeze();
    let (answer, caller) = call.await.unwrap();
    assert_eq!((answer.status, &answer.json()["code"]), (503, &"store_unavailable".into()));
    assert_eq!(upstream.requests(), 0);

    redis.thaw();
    until("the key is free again", SOON, async || caller.post("/orders/a", "k-1", "one").await.status == 201).await;
    assert_eq!(upstream.effects(), 1);
}
