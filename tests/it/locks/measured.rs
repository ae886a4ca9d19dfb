//! What locks cost, measured on real servers, beside claims, the `Lock` of redis-py and the lock of etcd. Quoted in
//! `docs/performance.md`; run with `make measure-locks`.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "measurements read the clock and print figures")]

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_testkit::fresh;
use oncegate_testkit::gateway::Gateway;
#[cfg(feature = "postgres")]
use oncegate_testkit::postgres_server::PostgresServer;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::exposition::Page;
use crate::support::gateway;

const LONG: Duration = Duration::from_mins(2);

/// Length of each run.
const RUN: Duration = Duration::from_secs(5);

/// A connection to a server that speaks HTTP, without the checks of the other clients.
struct Http(BufReader<TcpStream>);

impl Http {
    async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    async fn send(&mut self, path: &str, body: &Value) {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).await.unwrap();
    }

    async fn read(&mut self) -> (u16, Value) {
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).await.unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if line.starts_with("http/1.1 ") {
                status = line[9..12].parse().unwrap();
            } else if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        self.send(path, body).await;
        self.read().await
    }

    async fn acquire_and_release(&mut self, name: &str) {
        let (status, held) = self.post(&format!("/v1/locks/{name}/holds"), &json!({})).await;
        assert_eq!(status, 201, "{held}");
        let (status, released) =
            self.post(&format!("/v1/locks/{name}/release"), &json!({ "attempt": held["attempt"] })).await;
        assert_eq!(status, 200, "{released}");
    }

    async fn claim_and_settle(&mut self) {
        let (status, claimed) = self.post("/v1/claims", &json!({ "contents": fresh::contents() })).await;
        assert_eq!(status, 201, "{claimed}");
        let path = format!("/v1/claims/{}/outcome", claimed["global_id"].as_str().unwrap());
        let (status, settled) = self.post(&path, &json!({ "attempt": claimed["attempt"], "outcome": "success" })).await;
        assert_eq!(status, 200, "{settled}");
    }
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Returns the pairs of calls for each second of 16 connections.
async fn rate(gateway: &Gateway, locks: bool) -> u64 {
    let done = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    let (address, began) = (gateway.api(), Instant::now());
    for caller in 0..16 {
        let done = done.clone();
        callers.spawn(async move {
            let mut http = Http::connect(address).await;
            while began.elapsed() < RUN {
                if locks {
                    http.acquire_and_release(&format!("own-{caller}")).await;
                } else {
                    http.claim_and_settle().await;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    callers.join_all().await;
    done.load(Ordering::Relaxed) / RUN.as_secs()
}

async fn uncontended(name: &str, url: &str) {
    let gateway = gateway::on(url).start().await;
    let mut http = Http::connect(gateway.api()).await;
    let (mut claims, mut locks) = (Vec::new(), Vec::new());
    for round in 0..1500 {
        let began = Instant::now();
        http.claim_and_settle().await;
        let between = Instant::now();
        http.acquire_and_release("solo").await;
        if round >= 100 {
            claims.push(between - began);
            locks.push(between.elapsed());
        }
    }
    let (claim, lock) = (percentile(&mut claims, 50), percentile(&mut locks, 50));
    println!(
        "{name}: claim and outcome p50 {claim:?}, acquire and release p50 {lock:?}: {:.2} times",
        ratio(lock, claim)
    );
    let mut rates = Vec::new();
    for locks in [false, true, false, true] {
        rates.push(rate(&gateway, locks).await);
    }
    println!("{name}: pairs a second of 16 connections, claims, locks, claims, locks: {rates:?}");
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs a quiet machine"]
async fn uncontended_locks_beside_claims() {
    uncontended("memory", "memory:").await;
    let Some(server) = RedisServer::start().await else { return };
    uncontended("redis", &server.url()).await;
    #[cfg(feature = "postgres")]
    if let Some(server) = PostgresServer::start().await {
        uncontended("postgres", &server.url()).await;
    }
}

/// Counts grants of a lock, and how often its holder changes. The lock itself makes it one at a time.
#[derive(Clone)]
struct HandOvers {
    last: Arc<AtomicUsize>,
    count: Arc<AtomicU32>,
    grants: Arc<AtomicU32>,
    began: Instant,
}

impl HandOvers {
    fn start() -> Self {
        let (last, count, grants) = (Arc::new(AtomicUsize::new(usize::MAX)), Arc::default(), Arc::default());
        Self { last, count, grants, began: Instant::now() }
    }

    fn held_by(&self, caller: usize) {
        self.grants.fetch_add(1, Ordering::SeqCst);
        if self.last.swap(caller, Ordering::SeqCst) != caller {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= RUN
    }

    fn each_second(&self) -> f64 {
        f64::from(self.count.load(Ordering::SeqCst)) / RUN.as_secs_f64()
    }
}

async fn store_calls(gateways: &[Gateway]) -> u64 {
    let mut calls = 0;
    for gateway in gateways {
        let page = Page::get(&gateway.admin_client()).await;
        let count = |labels: &[(&str, &str)]| page.sum("oncegate_engine_call_duration_seconds_count", labels);
        calls += count(&[]) - count(&[("call", "probe")]);
    }
    calls
}

async fn contended(gateways: &[Gateway], waiters: usize) -> f64 {
    let (hand_overs, before) = (HandOvers::start(), store_calls(gateways).await);
    let mut callers = JoinSet::new();
    for caller in 0..waiters {
        let (address, hand_overs) = (gateways[caller % gateways.len()].api(), hand_overs.clone());
        callers.spawn(async move {
            let mut http = Http::connect(address).await;
            while !hand_overs.is_over() {
                let (status, held) = http.post("/v1/locks/hot/holds", &json!({ "wait": "25s" })).await;
                assert_eq!(status, 201, "{held}");
                hand_overs.held_by(caller);
                http.post("/v1/locks/hot/release", &json!({ "attempt": held["attempt"] })).await;
            }
        });
    }
    callers.join_all().await;
    let (each_second, calls) = (hand_overs.each_second(), store_calls(gateways).await - before);
    let calls = f64::from(u32::try_from(calls).expect("few calls"));
    let of_each = |count: &AtomicU32| calls / f64::from(count.load(Ordering::SeqCst));
    let (each, grant) = (of_each(&hand_overs.count), of_each(&hand_overs.grants));
    println!(
        "oncegate, {waiters} waiters: {each_second:.0} hand-overs a second, {each:.1} store calls for each, {grant:.1} for each grant"
    );
    each_second
}

/// Threads that acquire and release the lock of redis-py as it comes: it asks every 100 ms.
const REDIS_PY: &str = "
import sys, threading, time, redis
port, callers, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
last, count, end = [None], [0], time.monotonic() + seconds
def run(me):
    lock = redis.Redis(port=port).lock('hot', timeout=60)
    while time.monotonic() < end:
        with lock:
            if last[0] != me:
                last[0] = me
                count[0] += 1
threads = [threading.Thread(target=run, args=(me,)) for me in range(callers)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(count[0] / seconds)
";

fn redis_py(server: &RedisServer, waiters: usize) -> Option<f64> {
    let (port, waiters, seconds) = (server.address().port(), waiters.to_string(), RUN.as_secs().to_string());
    let mut command = Command::new("/usr/bin/python3");
    let output = command.args(["-c", REDIS_PY, &port.to_string(), &waiters, &seconds]).output().ok()?;
    let each_second = String::from_utf8(output.stdout).ok()?.trim().parse().ok();
    if each_second.is_none() {
        println!("redis-py is left out: {}", String::from_utf8_lossy(&output.stderr));
    }
    each_second
}

/// An etcd on free ports; killed on drop.
struct Etcd {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Etcd {
    /// Starts it on a file system in memory, where an fsync costs nothing.
    async fn start() -> Option<Self> {
        let folder = tempfile::tempdir_in("/dev/shm").ok()?;
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (address, peers) = (free(), format!("http://{}", free()));
        let (url, dir) = (format!("http://{address}"), folder.path().to_str()?.to_owned());
        let mut command = Command::new("etcd");
        command.args(["--data-dir", &dir, "--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        let Ok(child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            println!("etcd is left out: it is not installed");
            return None;
        };
        let etcd = Self { child, address, _folder: folder };
        until("etcd serves", LONG, async || {
            // Connections are refused until it has elected itself.
            TcpStream::connect(address).await.is_ok() && {
                let (status, _) = Http::connect(address).await.post("/v3/lease/grant", &json!({ "TTL": "1" })).await;
                status == 200
            }
        })
        .await;
        Some(etcd)
    }

    async fn contended(&self, waiters: usize) -> f64 {
        let hand_overs = HandOvers::start();
        let mut callers = JoinSet::new();
        for caller in 0..waiters {
            let (address, hand_overs) = (self.address, hand_overs.clone());
            callers.spawn(async move {
                let mut http = Http::connect(address).await;
                let (_, lease) = http.post("/v3/lease/grant", &json!({ "TTL": "60" })).await;
                let lock = json!({ "name": "aG90", "lease": lease["ID"] });
                while !hand_overs.is_over() {
                    let (status, held) = http.post("/v3/lock/lock", &lock).await;
                    assert_eq!(status, 200, "{held}");
                    hand_overs.held_by(caller);
                    http.post("/v3/lock/unlock", &json!({ "key": held["key"] })).await;
                }
            });
        }
        callers.join_all().await;
        hand_overs.each_second()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs a quiet machine"]
async fn hand_overs_of_a_contended_lock_beside_redis_py_and_etcd() {
    let Some(server) = RedisServer::start().await else { return };
    let gateways = [gateway::on(server.url()).start().await, gateway::on(server.url()).start().await];
    let etcd = Etcd::start().await;
    for waiters in [2, 64] {
        for _ in 0..2 {
            let own = contended(&gateways, waiters).await;
            if let Some(polled) = redis_py(&server, waiters) {
                println!(
                    "redis-py, {waiters} waiters: {polled:.1} hand-overs a second: ours are {:.1} times",
                    own / polled
                );
            }
            if let Some(etcd) = &etcd {
                let theirs = etcd.contended(waiters).await;
                println!(
                    "etcd, {waiters} waiters: {theirs:.0} hand-overs a second: ours are {:.1} times",
                    own / theirs
                );
            }
        }
    }
}

async fn time_from_a_release_to_an_answer(name: &str, url: &str) {
    let (here, there) = (gateway::on(url).start().await, gateway::on(url).start().await);
    let (mut releases, mut waits) = (Http::connect(here.api()).await, Http::connect(there.api()).await);
    let mut times = Vec::new();
    for round in 0..300 {
        let path = |call: &str| format!("/v1/locks/lock-{}/{call}", round % 10);
        let (_, held) = releases.post(&path("holds"), &json!({})).await;
        waits.send(&path("holds"), &json!({ "wait": "10s" })).await;
        sleep(Duration::from_millis(30)).await;
        let (release, body) = (path("release"), json!({ "attempt": held["attempt"] }));
        let began = Instant::now();
        let (((status, next), took), _) =
            tokio::join!(async { (waits.read().await, began.elapsed()) }, releases.post(&release, &body));
        assert_eq!(status, 201, "{next}");
        times.push(took);
        waits.post(&release, &json!({ "attempt": next["attempt"] })).await;
    }
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!("{name}: release to answer at another gateway: p50 {p50:?}, p99 {p99:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: needs a quiet machine"]
async fn time_from_a_release_to_an_answer_at_another_gateway() {
    let Some(server) = RedisServer::start().await else { return };
    time_from_a_release_to_an_answer("redis", &server.url()).await;
    #[cfg(feature = "postgres")]
    if let Some(server) = PostgresServer::start().await {
        time_from_a_release_to_an_answer("postgres", &server.url()).await;
    }
}

fn resident_bytes(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: ten thousand connections"]
async fn memory_of_ten_thousand_callers_that_wait_for_a_lock() {
    const CALLERS: usize = 10_000;
    let setup = gateway::on_memory().env("ONCEGATE_LIMITS__CONNECTIONS", 12_000);
    let gateway = setup.env("ONCEGATE_LIMITS__WAITING", 2 * CALLERS).start().await;
    let path = "/v1/locks/hot/holds";
    let (status, _) = Http::connect(gateway.api()).await.post(path, &json!({ "lease": "10m" })).await;
    assert_eq!(status, 201);
    let idle = resident_bytes(&gateway);
    let (began, mut connections) = (Instant::now(), Vec::new());
    for _ in 0..CALLERS {
        let mut http = Http::connect(gateway.api()).await;
        http.send(path, &json!({ "wait": "30s" })).await;
        connections.push(http);
    }
    sleep(Duration::from_secs(3)).await;
    let bytes = resident_bytes(&gateway) - idle;
    let mut answers = JoinSet::new();
    for mut http in connections {
        answers.spawn(async move { http.read().await });
    }
    let answers = tokio::time::timeout(LONG, answers.join_all()).await.unwrap();
    let waited = |body: &Value| body["waited_ms"].as_u64().unwrap_or_default() > 0;
    assert!(answers.iter().all(|(status, body)| *status == 409 && waited(body)));
    println!("{CALLERS} callers of a lock: {} MiB above idle, all answered after {:?}", bytes >> 20, began.elapsed());
}
