//! Bounds on the resources of requests and responses, on every path through the proxy: memory for bodies, exchanges
//! with the upstream, the pace of bodies, and unread responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::uploads::LIMITS;
use super::{Answer, Caller, SOON, Upstream, address, at, proxy};
use crate::support::exposition::Page;
use crate::support::{caller, gateway};

/// The ways of a request with a body: the name, the request line and its fields. Each asks for `KIND`.
const WAYS: [Way; 5] = [
    ("keyed", "POST /orders/KIND", "idempotency-key: KEY\r\nauthorization: alice\r\n"),
    ("no key", "POST /free/KIND", ""),
    ("another method", "PUT /orders/KIND", ""),
    ("no route", "POST /elsewhere/KIND", ""),
    ("observed", "POST /observed/KIND", "idempotency-key: KEY\r\nauthorization: alice\r\n"),
];

type Way = (&'static str, &'static str, &'static str);

/// Routes for all paths to the upstream at this port: of an observed app, and of an enforced one. The requests without
/// a route count for none.
async fn on_all_ways(port: u16, of_proxy: &str, of_upstream: &str, more: &str) -> (Gateway, Caller) {
    let route = |app: &str, path: &str, key: &str| {
        format!(
            "[[proxy.routes]]\nname = \"{path}\"\napp = \"{app}\"\npath = \"/{path}/{{kind}}\"\nmethods = [\"POST\"]\n\
             upstream = \"orders\"\nprincipal = [\"authorization\"]\nkey = \"{key}\"\nwait = \"20s\"\n"
        )
    };
    let routes = [("shop", "orders", "required"), ("shop", "free", "optional"), ("watched", "observed", "required")];
    let routes = routes.map(|(app, path, key)| route(app, path, key)).concat();
    let apps = format!(
        "{}mode = \"observe\"\n{}[apps.shop.quota]\nrequests_in_flight = 8\n",
        caller::app("watched"),
        caller::app("shop")
    );
    let config = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\nunmatched = \"orders\"\n{of_proxy}[proxy.upstreams.orders]\n{}{of_upstream}{routes}\
         {apps}{more}",
        at(port)
    );
    let gateway = gateway::on_memory().config(&config).start().await;
    let caller = Caller::of(&gateway);
    (gateway, caller)
}

/// Sends a head on a way, and this much of the body.
async fn begin(gateway: &Gateway, way: Way, kind: &str, framing: &str, body: &[u8]) -> TcpStream {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut stream = TcpStream::connect(address(gateway)).await.unwrap();
    let (_, line, fields) = way;
    let line = line.replace("KIND", kind);
    let fields = fields.replace("KEY", &format!("key-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    let head = format!("{line} HTTP/1.1\r\nhost: a\r\n{fields}{framing}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // It may have answered already.
    let _ = stream.write_all(body).await;
    stream
}

/// Reads the answer; waits for it as long as it takes.
async fn answer(stream: &mut TcpStream) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match timeout(6 * SOON, stream.read(&mut buffer)).await.expect("an answer") {
            Ok(count) if count > 0 => text.extend_from_slice(&buffer[..count]),
            _ => break,
        }
        let so_far = String::from_utf8_lossy(&text);
        if so_far.split_once("\r\n\r\n").is_some_and(|(_, body)| !body.is_empty()) {
            break;
        }
    }
    String::from_utf8_lossy(&text).to_ascii_lowercase()
}

/// Requests that hold memory for 60 KiB each, although no byte of their bodies has arrived.
struct Held<'a> {
    gateway: &'a Gateway,
    way: Way,
    requests: Vec<TcpStream>,
}

impl<'a> Held<'a> {
    async fn begin(gateway: &'a Gateway, way: Way) -> Self {
        let requests = vec![Self::request(gateway, way).await, Self::request(gateway, way).await];
        Self { gateway, way, requests }
    }

    async fn request(gateway: &Gateway, way: Way) -> TcpStream {
        begin(gateway, way, "a", &format!("content-length: {}\r\n", 60 << 10), b"").await
    }

    /// Sends those again that were refused, because the memory of earlier requests was not free yet.
    async fn send_refused_again(&mut self) {
        for request in &mut self.requests {
            if request.try_read(&mut [0; 1024]).is_ok() {
                *request = Self::request(self.gateway, self.way).await;
            }
        }
    }
}

async fn reached(gateway: &Gateway, bound: &str) -> u64 {
    let page = Page::get(&gateway.admin_client()).await;
    page.sum("oncegate_proxy_bounds_reached_total", &[("bound", bound)])
}

#[tokio::test]
async fn a_body_takes_memory_before_it_is_read_on_every_way() {
    let (upstream, port) = Upstream::start().await;
    // Half of it, 144 KiB, is for each app, and an eighth of that for short bodies alone.
    let (gateway, caller) = on_all_ways(port, "request_bytes_total = \"288KiB\"\n", "", LIMITS).await;
    let length = |bytes: usize| format!("content-length: {bytes}\r\n");
    let long = vec![b'x'; 40 << 10];
    let chunk = [b"4000\r\n".as_slice(), &[b'x'; 0x4000], b"\r\n"].concat();
    let chunks = [&chunk[..], &chunk, &chunk, b"0\r\n\r\n"].concat();
    for way in WAYS {
        let mut held = Held::begin(&gateway, way).await;
        let mut refused = String::new();
        until(&format!("{}: the memory is taken", way.0), SOON, async || {
            held.send_refused_again().await;
            refused = answer(&mut begin(&gateway, way, "a", &length(long.len()), &long).await).await;
            refused.starts_with("http/1.1 503")
        })
        .await;
        assert!(
            refused.contains("\"code\":\"overloaded\"") && refused.contains("retry-after: "),
            "{}: {refused}",
            way.0
        );
        // The held ones may still be on their way to the upstream; they have no effect there.
        let before = upstream.effects();
        let refused = answer(&mut begin(&gateway, way, "a", "transfer-encoding: chunked\r\n", &chunks).await).await;
        assert!(refused.starts_with("http/1.1 503") && refused.contains("overloaded"), "{}: {refused}", way.0);
        assert_eq!(upstream.effects(), before, "{}", way.0);
        let short = answer(&mut begin(&gateway, way, "a", &length(100), &[b'x'; 100]).await).await;
        assert!(short.starts_with("http/1.1 201"), "{}: short bodies have room: {short}", way.0);
        drop(held);
        until(&format!("{}: the memory is free again", way.0), SOON, async || {
            let again = answer(&mut begin(&gateway, way, "a", &length(long.len()), &long).await).await;
            answer(&mut begin(&gateway, way, "a", "transfer-encoding: chunked\r\n", &chunks).await).await;
            again.starts_with("http/1.1 201")
        })
        .await;
    }
    assert!(reached(&gateway, "request_bytes").await >= 2 * WAYS.len() as u64);
    // A long upload needs memory for its buffers.
    let mut held = Held::begin(&gateway, WAYS[2]).await;
    let body = "x".repeat(100_000);
    let number = AtomicUsize::new(0);
    let upload = async || {
        let key = format!("upload-{}", number.fetch_add(1, Ordering::Relaxed));
        super::uploads::upload(&caller, &key, &body, &body).await.status
    };
    until("the memory is taken", SOON, async || {
        held.send_refused_again().await;
        upload().await == 503
    })
    .await;
    drop(held);
    until("the memory is free again", SOON, async || upload().await == 201).await;
}

#[tokio::test]
async fn exchanges_are_bounded_on_every_way_and_take_no_permits() {
    const EXCHANGES: usize = 12;
    let (upstream, port) = Upstream::start().await;
    let (gateway, _caller) = on_all_ways(port, "", &format!("exchanges = {}\n", 2 * EXCHANGES), "").await;
    let one = async |way, kind| begin(&gateway, way, kind, "content-length: 3\r\n", b"one").await;
    for way in WAYS {
        let effects = upstream.effects();
        let mut running = Vec::new();
        for number in 1..=EXCHANGES {
            running.push(one(way, "slow").await);
            until("it runs", SOON, async || upstream.effects() == effects + number).await;
        }
        if way.0 == "keyed" {
            // The callers hang up; the exchanges go on.
            running.clear();
        }
        let refused = answer(&mut one(way, "a").await).await;
        assert!(refused.starts_with("http/1.1 503") && refused.contains("overloaded"), "{}: {refused}", way.0);
        assert!(refused.contains("retry-after: "), "{refused}");
        // More exchanges are running than the app has permits, and its other work has all of those.
        caller::caller(&gateway, "shop").claim(oncegate_testkit::fresh::contents()).await.expect(201);
        // Others have their half of the exchanges.
        let other = if way.0 == "no route" { WAYS[0] } else { WAYS[3] };
        assert!(answer(&mut one(other, "a").await).await.starts_with("http/1.1 201"), "{}", way.0);
        upstream.gate.add_permits(EXCHANGES);
        until("the exchanges have ended", SOON, async || {
            answer(&mut one(way, "a").await).await.starts_with("http/1.1 201")
        })
        .await;
        drop(running);
    }
    assert!(reached(&gateway, "exchanges").await >= WAYS.len() as u64);
}

#[tokio::test]
async fn a_response_that_is_still_arriving_holds_its_exchange_on_every_way() {
    let (_upstream, port) = Upstream::start().await;
    for way in WAYS {
        let (gateway, _caller) = on_all_ways(port, "", "exchanges = 4\n", "").await;
        let one = async |kind| begin(&gateway, way, kind, "content-length: 3\r\n", b"one").await;
        let mut arriving = Vec::new();
        for _ in 0..2 {
            // Only its head: a piece may be held back until the next one comes.
            let (mut request, mut status) = (one("stalls").await, [0; 12]);
            timeout(6 * SOON, request.read_exact(&mut status)).await.expect("an answer").unwrap();
            assert_eq!(status, *b"HTTP/1.1 201", "{}", way.0);
            arriving.push(request);
        }
        let refused = answer(&mut one("a").await).await;
        assert!(refused.starts_with("http/1.1 503") && refused.contains("overloaded"), "{}: {refused}", way.0);
        drop(arriving);
    }
}

pub(super) async fn waiting(gateway: &Gateway) -> u64 {
    Page::get(&gateway.admin_client()).await.sum("oncegate_claims_waiting", &[])
}

/// Lets one request run and others wait for it, each with a body of 40 KiB. Returns all answers.
async fn wait_for(
    upstream: &Arc<Upstream>,
    gateway: &Gateway,
    caller: &Arc<Caller>,
    path: &'static str,
) -> Vec<Answer> {
    const WAITING: usize = 12;
    let send = || {
        let caller = caller.clone();
        async move { caller.post(path, path, &"x".repeat(40 << 10)).await }
    };
    let effects = upstream.effects();
    let mut requests = JoinSet::new();
    requests.spawn(send());
    until("the upstream has it", SOON, async || upstream.effects() == effects + 1).await;
    for count in 1..=WAITING {
        requests.spawn(send());
        until("it waits", SOON, async || waiting(gateway).await == count as u64).await;
    }
    let other = caller.post("/orders/a", &format!("{path}-other"), &"x".repeat(40 << 10)).await;
    assert_eq!(other.status, 201, "{path}: those that wait hold nothing: {:?}", other.body);
    upstream.gate.add_permits(1);
    requests.join_all().await
}

#[tokio::test]
async fn callers_that_wait_hold_neither_permits_nor_bodies_nor_exchanges() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, caller) = on_all_ways(port, "request_bytes_total = \"288KiB\"\n", "exchanges = 6\n", LIMITS).await;
    let caller = Arc::new(caller);
    let answers = wait_for(&upstream, &gateway, &caller, "/orders/slow").await;
    assert!(answers.iter().all(|answer| answer.status == 201));
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1);
    // Without a response to wait for, they are as if they had not waited, and the key is free.
    let effects = upstream.effects();
    let answers = wait_for(&upstream, &gateway, &caller, "/orders/slow-nothing").await;
    let repeated: Vec<_> = answers.iter().filter(|answer| answer.status == 409).collect();
    assert_eq!((repeated.len(), answers.len()), (12, 13));
    for repeat in repeated {
        assert_eq!(repeat.json()["state"], Value::from("in_progress"));
        assert!(repeat.headers.contains_key("retry-after"));
    }
    assert_eq!(upstream.effects(), effects + 2, "the first of them, and the other request");
    upstream.gate.add_permits(1);
    // One that has waited may have its answer before it has given the key back, if that takes longer than the deadline.
    until("it runs", SOON, async || {
        let repeat = caller.post("/orders/slow-nothing", "/orders/slow-nothing", &"x".repeat(40 << 10)).await;
        assert!(repeat.status == 500 || repeat.json()["state"] == "in_progress", "{} {:?}", repeat.status, repeat.body);
        repeat.status == 500 && !repeat.is_replay()
    })
    .await;
}

#[tokio::test]
async fn a_repeat_whose_caller_has_left_does_not_wait_any_more() {
    let (upstream, port) = Upstream::start().await;
    let (gateway, caller) = on_all_ways(port, "", "", "[limits]\nwait_max = \"5m\"\n").await;
    let first = tokio::spawn(async move { caller.post("/orders/slow", "k-1", "one").await.status });
    until("the upstream has it", SOON, async || upstream.effects() == 1).await;
    let address = address(&gateway);
    let request = format!(
        "POST /orders/slow HTTP/1.1\r\nhost: {address}\r\nauthorization: alice\r\nidempotency-key: k-1\r\nprefer: wait=300\r\ncontent-length: 3\r\n\r\none"
    );
    let mut repeats = Vec::new();
    for count in 1..=3 {
        let mut repeat = TcpStream::connect(&address).await.unwrap();
        repeat.write_all(request.as_bytes()).await.unwrap();
        repeats.push(repeat);
        until("it waits", SOON, async || waiting(&gateway).await == count).await;
    }
    let mut stays = repeats.pop().unwrap();
    drop(repeats);
    // Less than the time for which they would wait.
    until("only one waits", SOON, async || waiting(&gateway).await == 1).await;
    upstream.gate.add_permits(1);
    assert_eq!(first.await.unwrap(), 201);
    assert!(answer(&mut stays).await.contains("idempotent-replayed: true"));
    assert_eq!(upstream.effects(), 1);
}

/// Takes as long as a slow sender has, half a minute.
#[tokio::test]
async fn a_body_that_dribbles_is_cut_on_every_way() {
    let (_upstream, port) = Upstream::start().await;
    let more = format!("{LIMITS}body_read_timeout = \"2s\"\n");
    let (gateway, _caller) = on_all_ways(port, "", "", &more).await;
    let gateway = Arc::new(gateway);
    let mut requests = JoinSet::new();
    let digest = "content-digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:\r\n";
    for way in WAYS {
        for framing in ["content-length: 90000\r\n", "transfer-encoding: chunked\r\n"] {
            // A short one with a key is read first, in less time.
            let framing = format!("{framing}{digest}");
            let gateway = gateway.clone();
            requests.spawn(async move {
                let mut stream = begin(&gateway, way, "a", &framing, b"").await;
                let piece: &[u8] = if framing.starts_with("content") { b"x" } else { b"1\r\nx\r\n" };
                let mut text = Vec::new();
                while text.is_empty() {
                    let _ = stream.write_all(piece).await;
                    let mut buffer = [0; 4096];
                    if let Ok(read) = timeout(Duration::from_secs(1), stream.read(&mut buffer)).await {
                        text.extend_from_slice(&buffer[..read.unwrap()]);
                        assert!(!text.is_empty(), "{}: closed without an answer", way.0);
                    }
                }
                let text = String::from_utf8(text).unwrap();
                assert!(text.starts_with("HTTP/1.1 400"), "{}, {framing}: {text}", way.0);
            });
        }
    }
    timeout(12 * SOON, requests.join_all()).await.expect("all are cut");
    assert!(reached(&gateway, "body_rate").await >= WAYS.len() as u64);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_no_failure_of_the_upstream_on_any_way() {
    let (_upstream, port) = Upstream::start().await;
    let (gateway, _caller) = on_all_ways(port, "", "", LIMITS).await;
    let digest = "content-digest: sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:\r\n";
    for way in WAYS {
        for length in [1, 90_000] {
            let body = format!("{length:x}\r\n{}\r\nno size\r\n", "x".repeat(length));
            let framing = format!("{digest}transfer-encoding: chunked\r\n");
            let mut stream = begin(&gateway, way, "a", &framing, body.as_bytes()).await;
            let text = answer(&mut stream).await;
            assert!(text.starts_with("http/1.1 400") && text.contains("broke off"), "{}, {length}: {text}", way.0);
        }
    }
    assert!(!gateway.log().contains("A request was not forwarded"));
}

#[tokio::test]
async fn responses_that_nobody_reads_are_bounded_together() {
    let (upstream, port) = Upstream::start().await;
    let more = "response_bytes = \"1MiB\"\n[limits]\nunread_answer_bytes = 262144\nwrite_timeout = \"1m\"\n";
    let (gateway, caller) = proxy(port, more).await;
    let dropped = async || {
        let page = Page::get(&gateway.admin_client()).await;
        page.sum("oncegate_unread_responses_dropped_total", &[])
    };
    // First answers, then replays, then responses without a key.
    for (case, method) in [("first", "POST"), ("replay", "POST"), ("unprotected", "PUT")] {
        let before = dropped().await;
        let mut unread = Vec::new();
        for number in 0..4 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let mut stream = socket.connect(address(&gateway).parse().unwrap()).await.unwrap();
            let head = format!(
                "{method} /orders/large HTTP/1.1\r\nhost: a\r\nidempotency-key: k-{number}\r\nauthorization: alice\r\n\
                 content-length: 3\r\n\r\none"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            unread.push(stream);
        }
        until("some lose their answers", SOON, async || dropped().await > before).await;
        drop(unread);
        // Callers without a credential share an account: until the gateway sees that the others are gone, theirs may cost this one.
        let fields = [("idempotency-key", "k-r"), ("authorization", "alice")];
        until(&format!("who reads gets all: {case}"), SOON, async || {
            let read = caller.send(method, "/orders/large", &fields, "one").await.body;
            read.is_some_and(|body| body.len() == super::LARGE)
        })
        .await;
    }
    until("all have run", SOON, async || upstream.effects() > 4 + 1).await;
}
