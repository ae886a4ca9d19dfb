//! The clients in `clients`, each against real gateways, through a proxy that loses messages. Each scenario runs once
//! for every language. Effects are counted here, by the lines that the scenario programs print.

mod program;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use oncegate_testkit::client::Client;
use oncegate_testkit::fresh;
use oncegate_testkit::tcp_proxy::{Mode, TcpProxy};
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use self::program::Language;
use crate::support::caller;
use crate::support::gateway;

/// The scenarios in one language.
macro_rules! in_language {
    ($module:ident, $language:expr) => {
        mod $module {
            use super::*;

            #[tokio::test]
            async fn computes_the_global_ids_of_the_vectors() {
                super::computes_the_global_ids_of_the_vectors($language).await;
            }

            #[tokio::test]
            async fn many_workers_do_each_order_once_over_a_lossy_network() {
                super::many_workers_do_each_order_once_over_a_lossy_network($language).await;
            }

            #[tokio::test]
            async fn an_answer_that_is_lost_is_asked_for_again() {
                super::an_answer_that_is_lost_is_asked_for_again($language).await;
            }

            #[tokio::test]
            async fn a_claim_is_kept_while_its_work_takes_longer_than_the_lease() {
                super::a_claim_is_kept_while_its_work_takes_longer_than_the_lease($language).await;
            }

            #[tokio::test]
            async fn a_lease_counts_from_when_it_was_asked_for() {
                super::a_lease_counts_from_when_it_was_asked_for($language).await;
            }

            #[tokio::test]
            async fn a_holder_that_paused_too_long_is_informed() {
                super::a_holder_that_paused_too_long_is_informed($language).await;
            }

            #[tokio::test]
            async fn an_outcome_is_reported_until_a_gateway_takes_it() {
                super::an_outcome_is_reported_until_a_gateway_takes_it($language).await;
            }

            #[tokio::test]
            async fn without_a_gateway_the_callers_own_policy_decides() {
                super::without_a_gateway_the_callers_own_policy_decides($language).await;
            }

            #[tokio::test]
            async fn results_of_other_callers_are_answers() {
                super::results_of_other_callers_are_answers($language).await;
            }

            #[tokio::test]
            async fn a_success_is_reported_without_a_result_that_cannot_be_sent() {
                super::a_success_is_reported_without_a_result_that_cannot_be_sent($language).await;
            }

            #[tokio::test]
            async fn the_cause_of_each_failure_is_kept() {
                super::the_cause_of_each_failure_is_kept($language).await;
            }

            #[tokio::test]
            async fn connections_are_reused_and_replaced_once_they_are_closed() {
                super::connections_are_reused_and_replaced_once_they_are_closed($language).await;
            }
        }
    };
}

in_language!(python, Language::Python);
in_language!(typescript, Language::TypeScript);
in_language!(java, Language::Java);
in_language!(go, Language::Go);
in_language!(rust, Language::Rust);

const WORKERS: usize = 4;
const ORDERS: usize = 6;

fn url(address: SocketAddr) -> String {
    format!("urls=http://{address}")
}

/// An address that is in use but without a listener: connections are refused.
fn nowhere() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((Ipv4Addr::LOCALHOST, fresh::port()).into()).expect("a free port");
    let address = socket.local_addr().expect("its address");
    (socket, address)
}

fn claim(order: &str) -> Value {
    json!({ "operation": "order.submit", "contents": { "order_id": order } })
}

/// Returns the answer to another claim call: `None` for 201, or the state of the claim.
async fn asked(client: &Client, order: &str) -> Option<String> {
    let answer = client.post("/v1/claims", &claim(order)).await;
    (answer.status == 409).then(|| answer.body["state"].as_str().expect("a state").to_owned())
}

async fn computes_the_global_ids_of_the_vectors(language: Language) {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/global_id.json")).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/global_id.json");
    let Some(said) = language.run(&["vectors", path]).await else { return };
    let list = |name: &str| vectors[name].as_array().expect("a list").clone();
    let accepted = list("accepted");
    assert_eq!(said.len(), accepted.len() + list("refused").len());
    for (vector, said) in accepted.iter().zip(&said) {
        assert_eq!(*said, format!("accepted {}", vector["global_id"].as_str().unwrap()), "{vector}");
    }
    for (vector, said) in list("refused").iter().zip(&said[accepted.len()..]) {
        assert_eq!(said, "refused", "{vector}");
    }
}

async fn many_workers_do_each_order_once_over_a_lossy_network(language: Language) {
    let gateway = gateway::on_memory().start().await;
    let mut proxy = TcpProxy::start_any(gateway.api()).await;
    let (workers, orders) = (format!("workers={WORKERS}"), format!("orders={ORDERS}"));
    let words = ["orders", &url(proxy.address()), &workers, &orders, "work=50", "timeout=400", "lease=10s"];
    let Some(mut program) = language.start(&words) else { return };
    let mut accidents = 0;
    while !program.has_ended() {
        match accidents % 6 {
            0 | 2 => proxy.lose_next_reply(),
            1 => proxy.cut_after(100),
            3 => proxy.drop_connections(),
            4 => proxy.set(Mode::HalfOpen),
            _ => proxy.refuse().await,
        }
        accidents += 1;
        tokio::time::sleep(Duration::from_millis(70)).await;
        proxy.heal().await;
    }
    assert!(accidents > 6, "the network was lossy while they worked");

    let said = program.ended().await;
    let mut effects = BTreeMap::<&str, usize>::new();
    for line in &said {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["effect", order] => *effects.entry(order).or_default() += 1,
            ["done" | "duplicate", order, number] => assert_eq!(order, number, "the result is the order's own"),
            _ => {}
        }
    }
    assert_eq!(effects.len(), ORDERS, "{said:#?}");
    assert!(effects.values().all(|times| *times == 1), "not once: {effects:?} {said:#?}");
    let answers = said.iter().filter(|line| line.starts_with("done ") || line.starts_with("duplicate ")).count();
    assert_eq!(answers, WORKERS * ORDERS, "each worker has its answer: {said:#?}");
}

async fn an_answer_that_is_lost_is_asked_for_again(language: Language) {
    let gateway = gateway::on_memory().start().await;
    let proxy = TcpProxy::start_any(gateway.api()).await;
    proxy.lose_next_reply();
    // The first of the two gateways does not exist.
    let (_taken, gone) = nowhere();
    let urls = format!("urls=http://{gone},http://{}", proxy.address());
    let Some(mut program) = language.start(&["one", &urls, "order=A-1", "work=2000"]) else { return };
    program.says("granted").await;
    proxy.lose_next_reply();
    let said = program.ended().await;
    assert_eq!(said, ["granted A-1 repeated -", "effect A-1", "done A-1 A-1 succeeded - in_time"]);
    assert!(proxy.accepted() >= 3, "both calls were made again");
}

async fn a_claim_is_kept_while_its_work_takes_longer_than_the_lease(language: Language) {
    let gateway = gateway::on_memory().start().await;
    let words = ["one", &url(gateway.api()), "order=A-1", "lease=3s", "work=7000"];
    let Some(mut program) = language.start(&words) else { return };
    program.says("granted").await;
    let client = gateway.client();
    while !program.said().iter().any(|line| line.starts_with("effect")) {
        assert!(asked(&client, "A-1").await.is_some(), "another caller was granted: {:?}", program.said());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let said = program.ended().await;
    assert_eq!(said[1..], ["effect A-1", "done A-1 A-1 succeeded - in_time"], "{said:?}");
}

async fn a_lease_counts_from_when_it_was_asked_for(language: Language) {
    let gateway = gateway::on_memory().start().await;
    let proxy = TcpProxy::start_any(gateway.api()).await;
    proxy.set(Mode::Delay(Duration::from_millis(400)));
    let words = ["one", &url(proxy.address()), "order=A-1", "lease=600ms", "timeout=5000"];
    let Some(said) = language.run(&words).await else { return };

    assert!(
        said == ["raised failure"] || said[0].starts_with("unavailable"),
        "the answer came too late to begin: {said:?}"
    );
    assert_eq!(asked(&gateway.client(), "A-1").await, None, "and it is free for the next one");
}

async fn a_holder_that_paused_too_long_is_informed(language: Language) {
    let gateway = gateway::on_memory().start().await;
    let words = ["one", &url(gateway.api()), "order=A-1", "lease=1500ms", "work=3000"];
    let Some(mut program) = language.start(&words) else { return };
    program.says("granted").await;
    program.signal("STOP");
    let client = gateway.client();
    let body = claim("A-1");
    let timeout = Duration::from_secs(10);
    until("the lease ends", timeout, async || client.post("/v1/claims", &body).await.status == 201).await;
    program.signal("CONT");
    let said = program.ended().await;
    assert!(said[1].starts_with("lost "), "{said:?}");
    assert_eq!(said[2..], ["effect A-1", "refused superseded"], "{said:?}");
}

async fn an_outcome_is_reported_until_a_gateway_takes_it(language: Language) {
    let folder = tempfile::tempdir().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fresh::port()));
    let setup = gateway::on_disk(&folder.path().join("claims")).listen(&address.to_string());
    let mut gateway = setup.start().await;
    // It works for so long that the gateway is killed before, also on a busy machine.
    let words = ["one", &url(address), "order=A-1", "work=3000", "settle_within=5000"];
    let Some(mut program) = language.start(&words) else { return };
    program.says("granted").await;
    gateway.kill();
    // It has given the outcome up once, kept it, and continues.
    program.says("not_settled").await;
    let gateway = setup.start().await;
    let said = program.ended().await;
    assert_eq!(said[1..], ["effect A-1", "not_settled", "settled succeeded"], "{said:?}");
    let answer = gateway.client().post("/v1/claims", &claim("A-1")).await.expect(409);
    assert_eq!((&answer.body["state"], &answer.body["result"]["order_number"]), (&json!("succeeded"), &json!("A-1")));
}

async fn without_a_gateway_the_callers_own_policy_decides(language: Language) {
    let (taken, address) = nowhere();
    let url = url(address);
    let Some(said) = language.run(&["one", &url, "order=A-1", "claim_within=300"]).await else { return };
    assert!(said[0].starts_with("unavailable "), "{said:?}");

    let words = ["one", &url, "order=A-1", "claim_within=300", "policy=proceed"];
    let Some(said) = language.run(&words).await else { return };
    assert_eq!(said, ["granted A-1 first caller", "effect A-1", "done A-1 A-1 - caller in_time"]);

    // The gateway is back while the work runs: the outcome is recorded, and stops the next attempt.
    let words = ["one", &url, "order=A-2", "claim_within=300", "policy=proceed", "work=2000"];
    let Some(mut program) = language.start(&words) else { return };
    program.says("granted").await;
    drop(taken);
    let gateway = gateway::on_memory().listen(&address.to_string()).start().await;
    assert_eq!(program.ended().await[1..], ["effect A-2", "done A-2 A-2 succeeded caller in_time"]);
    assert_eq!(asked(&gateway.client(), "A-2").await.as_deref(), Some("succeeded"));
}

async fn results_of_other_callers_are_answers(language: Language) {
    let gateway = gateway::on_memory().config(&caller::app("shop")).start().await;
    let client = caller::caller(&gateway, "shop");
    let (url, credential) = (url(gateway.api()), format!("credential={}", caller::credential("shop")));
    let one = async |order: &str, more: &str| {
        language.run(&["one", &url, &credential, &format!("order={order}"), more]).await.unwrap_or_default()
    };
    let first = one("A-1", "fails=failure").await;
    if first.is_empty() {
        return;
    }
    // After a failure it is free again; after an unknown outcome it is not.
    assert_eq!(first.join("; ").replace("repeated", "first"), "granted A-1 first -; raised failure");
    // On a busy machine the client may have sent its call twice.
    let unknown = one("A-1", "fails=unknown").await.join("; ").replace("repeated", "first");
    assert_eq!(unknown, "granted A-1 first -; raised unknown");
    assert_eq!(asked(&client, "A-1").await.as_deref(), Some("unknown"));

    let held = client.post("/v1/claims", &claim("A-2")).await.expect(201);
    assert_eq!(one("A-2", "work=0").await, ["duplicate A-2 - in_progress"]);
    client.report(&held, json!({ "outcome": "success", "result": { "order_number": 7 } })).await.expect(200);
    assert_eq!(one("A-2", "work=0").await, ["duplicate A-2 7 succeeded"]);
    assert_eq!(one("A-2", "fingerprint=other").await, ["mismatch fingerprint_mismatch"]);
    assert_eq!(one("A-3", "lease=1ms").await, ["rejected 400 invalid_request"]);
}

async fn a_success_is_reported_without_a_result_that_cannot_be_sent(language: Language) {
    let gateway = gateway::on_memory().env("ONCEGATE_LIMITS__RESULT_BYTES", 200).start().await;
    let client = gateway.client();
    // Not JSON, too long for any gateway, nested too deep for this one.
    for (order, returns, why) in
        [("A-1", "foreign", "not_serialisable"), ("A-2", "long", "too_large"), ("A-3", "deep", "refused")]
    {
        let words = ["one", &url(gateway.api()), &format!("order={order}"), &format!("returns={returns}")];
        let Some(said) = language.run(&words).await else { return };
        let done = format!("done {order} {order} succeeded - in_time");
        assert_eq!(said[1..], [format!("effect {order}"), "not_stored".into(), done], "{returns}");
        let duplicate = client.post("/v1/claims", &claim(order)).await.expect(409);
        let marker = json!({"$oncegate": {"omitted": why}});
        assert_eq!((&duplicate.body["state"], &duplicate.body["result"]), (&json!("succeeded"), &marker));
    }
}

async fn the_cause_of_each_failure_is_kept(language: Language) {
    let gateway = gateway::on_memory().start().await;
    let hanging = TcpProxy::start_any(gateway.api()).await;
    hanging.set(Mode::Blackhole);
    let (_taken, refused) = nowhere();
    let page = answering("404 Not Found", "text/html", "<h1>no such page</h1>");
    let other = answering("200 OK", "application/json", "{}");
    let full = answering("503 Service Unavailable", "application/problem+json", r#"{"code": "store_full"}"#);
    let mut urls = vec![format!("http://{refused}"), format!("http://{page}"), format!("http://{other}")];
    let mut kinds = vec!["refused", "not_a_gateway", "not_a_gateway"];
    // A label that is too long for any name: no resolver asks the network for it.
    let unknown = format!("http://{}.invalid", "a".repeat(64));
    urls.extend([format!("http://{}", hanging.address()), format!("http://{full}"), unknown]);
    kinds.extend(["timeout", "answer", "dns"]);
    urls.push(format!("http://{}", closing()));
    kinds.push("connection");
    urls.push(format!("https://{}", gateway.api()));
    kinds.push("tls");
    let urls = format!("urls={}", urls.join(","));
    let words = ["one", &urls, "order=A-1", "timeout=1000", "claim_within=5000"];
    let Some(said) = language.run(&words).await else { return };
    assert_eq!(said, [format!("unavailable {}", kinds.join(" "))]);
}

async fn connections_are_reused_and_replaced_once_they_are_closed(language: Language) {
    let gateway = gateway::on_memory().start().await;
    let proxy = TcpProxy::start_any(gateway.api()).await;
    let words = ["orders", &url(proxy.address()), "workers=1", "orders=20"];
    let Some(said) = language.run(&words).await else { return };
    assert_eq!(said.iter().filter(|line| line.starts_with("done ")).count(), 20, "{said:#?}");
    let kept = proxy.accepted();
    // Some libraries open a second one while the first answer is being read.
    assert!(kept <= 3, "{kept} connections for 40 calls");

    let words = ["one", &url(proxy.address()), "order=B-1", "work=2000"];
    let Some(mut program) = language.start(&words) else { return };
    program.says("granted").await;
    proxy.drop_connections();
    assert_eq!(program.ended().await[1..], ["effect B-1", "done B-1 B-1 succeeded - in_time"]);
    assert!(proxy.accepted() >= kept + 2, "one for the claim, and a new one for the outcome");
}

/// A server that closes each connection without an answer.
fn closing() -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(drop));
    address
}

/// A server that is not a gateway, or returns an unusual answer: it reads each request and sends the same answer.
fn answering(status: &str, content_type: &str, body: &str) -> SocketAddr {
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            // The whole request fits, and ends with its JSON: unread bytes would reset the connection.
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"}") {
                let Ok(count @ 1..) = connection.read(&mut piece) else { break };
                request.extend_from_slice(&piece[..count]);
            }
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    address
}
