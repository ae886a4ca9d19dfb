//! The lease of an exchange: a request is sent only if the lease outlasts it.

use std::net::SocketAddr;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{Answer, Caller, SOON, Upstream, config};
use crate::admin::{alice, operated};
use crate::support::gateway;

/// A server that accepts no connection and refuses none.
struct Hanging {
    address: SocketAddr,
    _listener: TcpListener,
    _filling: TcpStream,
}

impl Hanging {
    async fn start() -> Self {
        // One connection fills the queue of this listener, and later ones hang.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        Self { address, _listener: listener, _filling: TcpStream::connect(address).await.unwrap() }
    }

    /// Returns the settings of an upstream whose second server is at this port.
    fn and(&self, port: u16) -> String {
        let hangs = self.address;
        format!(
            "urls = [\"http://{hangs}\", \"http://127.0.0.1:{port}\"]\nconnect_timeout = \"3s\"\ntimeout = \"30s\"\n"
        )
    }
}

/// The store is out while the first server hangs, so no renewal succeeds. The second server must not get a request
/// whose lease may end before it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_lease_is_nearly_over_is_not_sent_and_its_key_is_free() {
    let Some(redis) = RedisServer::start().await else { return };
    let (upstream, port) = Upstream::start().await;
    let hanging = Hanging::start().await;
    let setup = gateway::on(redis.url()).config(&config("", &hanging.and(port), "lease = \"6s\"\n"));
    let gateway = setup.start().await;
    let caller = Caller::of(&gateway);
    let call = tokio::spawn(async move { (caller.post("/orders/a", "k-1", "one").await, caller) });
    until("the key is claimed", SOON, async || {
        redis.query::<Vec<String>>("KEYS ogp:*").iter().any(|key| key.contains('{'))
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

/// Begins a request that hangs at its first server, and releases its claim there. Returns its answer.
async fn answered_after_release(config: &str, body: &'static str) -> (Answer, Caller, Gateway) {
    let gateway = operated("memory:").config(config).start().await;
    let (caller, alice) = (Caller::of(&gateway), alice(&gateway));
    let call = tokio::spawn(async move { (super::uploads::upload(&caller, "k-1", body, body).await, caller) });
    let mut global_id = json!(null);
    until("the key is claimed", SOON, async || {
        let claims = alice.get("/admin/v1/claims?app=default&realm=proxy").await.expect(200);
        global_id = claims.body["claims"][0]["global_id"].clone();
        global_id.is_string()
    })
    .await;
    let release = json!({ "app": "default", "realm": "proxy", "global_id": global_id, "reason": "r" });
    alice.post("/admin/v1/claims/release", &release).await.expect(200);
    let (answer, caller) = call.await.unwrap();
    (answer, caller, gateway)
}

/// The lease lasts much longer than the first server hangs, so no renewal shows that the claim has ended.
#[tokio::test]
async fn a_request_whose_claim_an_operator_released_is_sent_to_no_further_server() {
    let long: &str = "x".repeat(100_000).leak();
    for body in ["x", long] {
        let (upstream, port) = Upstream::start().await;
        let hanging = Hanging::start().await;
        let more = format!("lease = \"5m\"\n{}", super::uploads::LIMITS);
        let (answer, caller, _gateway) = answered_after_release(&config("", &hanging.and(port), &more), body).await;
        assert_eq!((answer.status, &answer.json()["code"]), (503, &"store_unavailable".into()));
        assert_eq!(upstream.requests(), 0, "the operator may have let another one run");
        until("the key is free", SOON, async || caller.post("/orders/a", "k-1", "one").await.status == 201).await;
        assert_eq!(upstream.effects(), 1);
    }
}

#[tokio::test]
async fn observe_mode_sends_a_request_whose_claim_has_ended_to_the_next_server() {
    let (upstream, port) = Upstream::start().await;
    let hanging = Hanging::start().await;
    let config = config("", &hanging.and(port), "lease = \"5m\"\n[defaults]\nmode = \"observe\"\n");
    let (answer, _caller, _gateway) = answered_after_release(&config, "x").await;
    assert_eq!((answer.status, upstream.effects()), (201, 1));
}
