//! The gateways of one case: servers that play its exchanges.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::{LIMIT, list, text};

pub(crate) struct Script {
    pub(crate) urls: Vec<String>,
    common: Value,
    exchanges: Vec<Value>,
    state: Mutex<State>,
    progress: watch::Sender<Vec<Progress>>,
    /// Ports that are bound, without a listener.
    _bound: Vec<TcpSocket>,
}

#[derive(Default)]
struct State {
    next: usize,
    values: HashMap<String, Value>,
    failures: Vec<String>,
    answering_at: Duration,
}

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Progress {
    Expected,
    Read,
    Answered,
}

struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// Returns the members of both; those of `body` and `headers` are replaced one by one.
pub(crate) fn merged(base: &Value, over: &Value) -> Value {
    let mut out = base.as_object().cloned().unwrap_or_default();
    for (name, value) in over.as_object().into_iter().flatten() {
        let both = out.get(name).is_some_and(Value::is_object) && value.is_object();
        let value =
            if both && (name == "body" || name == "headers") { merged(&out[name], value) } else { value.clone() };
        out.insert(name.clone(), value);
    }
    Value::Object(out)
}

fn used(table: &Value, value: &Value) -> Value {
    match value {
        Value::String(name) => table.get(name).cloned().unwrap_or_else(|| json!({ "accident": name })),
        Value::Object(members) => match members.get("use") {
            Some(name) => merged(&table[text(name)], value),
            None => value.clone(),
        },
        _ => json!({}),
    }
}

/// Time since any fixed moment.
fn now() -> Duration {
    UNIX_EPOCH.elapsed().expect("it is after 1970")
}

impl Script {
    pub(crate) async fn start(common: &Value, vector: &Value, kinds: &[Value]) -> Arc<Self> {
        let (mut urls, mut listeners, mut bound) = (Vec::new(), Vec::new(), Vec::new());
        for kind in kinds {
            if kind == "unresolvable" {
                urls.push(format!("http://{}.invalid:80", "a".repeat(64)));
            } else if kind == "refused" {
                let socket = TcpSocket::new_v4().expect("a socket");
                socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
                urls.push(format!("http://{}", socket.local_addr().expect("its address")));
                bound.push(socket);
            } else {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                urls.push(format!("http://{}", listener.local_addr().expect("its address")));
                listeners.push((urls.len() - 1, text(kind).to_owned(), listener));
            }
        }
        let exchanges = list(&vector["exchanges"]).to_vec();
        let (progress, _) = watch::channel(vec![Progress::Expected; exchanges.len()]);
        let state = Mutex::new(State { answering_at: now(), ..State::default() });
        let script = Arc::new(Self { urls, common: common.clone(), exchanges, state, progress, _bound: bound });
        for (at, kind, listener) in listeners {
            let script = Arc::clone(&script);
            tokio::spawn(async move {
                while let Ok((connection, _)) = listener.accept().await {
                    match kind.as_str() {
                        "closing" => drop(connection),
                        "silent" => drop(tokio::spawn(silence(connection))),
                        _ => drop(tokio::spawn(Arc::clone(&script).serve(at, connection))),
                    }
                }
            });
        }
        script
    }

    pub(crate) fn fail(&self, failure: String) {
        self.state.lock().expect("no panic").failures.push(failure);
    }

    pub(crate) fn failures(&self) -> Vec<String> {
        let mut state = self.state.lock().expect("no panic");
        let mut failures = std::mem::take(&mut state.failures);
        if state.next != self.exchanges.len() {
            failures.push(format!("{} requests, not {}", state.next, self.exchanges.len()));
        }
        failures
    }

    async fn until(&self, exchange: usize, progress: Progress) {
        let mut seen = self.progress.subscribe();
        let came = seen.wait_for(|seen| seen[exchange - 1] >= progress);
        let came = tokio::time::timeout(LIMIT, came).await.is_ok();
        if !came {
            self.fail(format!("request {exchange} did not come"));
        }
    }

    pub(crate) async fn is_read(&self, exchange: usize) {
        self.until(exchange, Progress::Read).await;
    }

    pub(crate) async fn is_answered(&self, exchange: usize) {
        self.until(exchange, Progress::Answered).await;
    }

    /// Waits for all exchanges, and a moment for one too many.
    pub(crate) async fn ended(&self) {
        for (at, exchange) in self.exchanges.iter().enumerate() {
            let is_silent = exchange["answer"] == "silence";
            self.until(at + 1, if is_silent { Progress::Read } else { Progress::Answered }).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    /// Replaces placeholders by their values.
    pub(crate) fn filled(&self, value: &Value) -> Value {
        self.filled_with(&self.state.lock().expect("no panic").values, value)
    }

    fn filled_with(&self, values: &HashMap<String, Value>, value: &Value) -> Value {
        match value {
            Value::String(raw) if raw.contains('$') => {
                let mut filled = raw.clone();
                for (at, url) in self.urls.iter().enumerate() {
                    filled = filled.replace(&format!("$url{at}"), url);
                }
                // The longest first: one name may begin another.
                let mut known: Vec<_> = values.iter().collect();
                known.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
                for (name, value) in known {
                    filled = filled.replace(name.as_str(), text(value));
                }
                filled.into()
            }
            Value::Array(items) => items.iter().map(|item| self.filled_with(values, item)).collect(),
            Value::Object(members) => {
                let filled = members.iter().map(|(name, value)| (name.clone(), self.filled_with(values, value)));
                Value::Object(filled.collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }

    /// Compares a request, and keeps the values of placeholders.
    fn matches(&self, values: &mut HashMap<String, Value>, expected: &Value, got: &Value) -> bool {
        match (expected, got) {
            (Value::String(name), _) if name == "$rest" => got.as_str().is_some_and(|text| text.ends_with('s')),
            (Value::String(name), _)
                if name.starts_with('$') && !name.starts_with("$url") && !values.contains_key(name) =>
            {
                let is_new = !values.values().any(|other| other == got);
                values.insert(name.clone(), got.clone());
                if let ("$nonce", Some(nonce)) = (name.as_str(), got.as_str()) {
                    let hash = Sha256::digest(format!("1792488615123456-{nonce}"));
                    let begin = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
                    values.insert("$attempt_hash".to_owned(), format!("{begin:08x}").into());
                }
                is_new
            }
            (Value::String(_), _) => self.filled_with(values, expected) == *got,
            (Value::Object(expected), Value::Object(got)) => {
                expected.iter().all(|(name, value)| self.matches(values, value, got.get(name).unwrap_or(&Value::Null)))
                    && got.iter().all(|(name, value)| value.is_null() || expected.contains_key(name))
            }
            (Value::Array(expected), Value::Array(got)) => {
                expected.len() == got.len()
                    && expected.iter().zip(got).all(|(expected, got)| self.matches(values, expected, got))
            }
            _ => expected == got,
        }
    }

    /// Checks the expected members of the received value.
    pub(crate) fn check(&self, name: &str, got: &Value, expected: &Value) {
        match expected {
            Value::Object(members) => {
                for (inner, value) in members {
                    let found = match inner.as_str() {
                        // A gateway's position is replaced by its URL.
                        "at" => {
                            self.urls.iter().position(|url| *url == text(&got["url"])).map_or(Value::Null, Value::from)
                        }
                        _ => got[inner].clone(),
                    };
                    self.check(&format!("{name}.{inner}"), &found, value);
                }
            }
            Value::Array(items) if list(got).len() == items.len() => {
                for (at, (got, expected)) in list(got).iter().zip(items).enumerate() {
                    self.check(&format!("{name}[{at}]"), got, expected);
                }
            }
            _ if got == expected => {}
            _ => self.fail(format!("{name} is {got}, not {expected}")),
        }
    }

    async fn serve(self: Arc<Self>, at: usize, mut connection: TcpStream) {
        while let Some(request) = read(&mut connection).await {
            if !self.exchange(at, &request, &mut connection).await {
                return;
            }
        }
    }

    fn reached(&self, number: usize, progress: Progress) {
        self.progress.send_modify(|all| all[number] = progress);
    }

    /// Returns the number of the exchange, and its answer.
    fn take(&self, at: usize, request: &Request) -> Option<(usize, Value)> {
        let mut state = self.state.lock().expect("no panic");
        let state = &mut *state;
        let number = state.next;
        state.next += 1;
        let Request { method, path, headers, body } = request;
        let body_text = String::from_utf8_lossy(body);
        let Some(exchange) = self.exchanges.get(number) else {
            state.failures.push(format!("one request too many: {method} {path} {body_text}"));
            return None;
        };
        let expected = used(&self.common["requests"], &exchange["expect"]);
        let mut failed = |what: String| state.failures.push(format!("request {}: {what}", number + 1));
        if at as u64 != exchange["at"].as_u64().unwrap_or(0) {
            failed(format!("it came to gateway {at}"));
        }
        if method != text(&expected["method"]) || path != text(&expected["path"]) {
            failed(format!("{method} {path}, not {expected}"));
        }
        for (name, value) in expected["headers"].as_object().into_iter().flatten() {
            let got = headers.get(name).map(String::as_str);
            if got != self.filled_with(&state.values, value).as_str() {
                failed(format!("{name}: {got:?}"));
            }
        }
        let got: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        if expected.get("body").is_some_and(|wanted| !self.matches(&mut state.values, wanted, &got)) {
            failed(format!("{body_text}, not {}", self.filled_with(&state.values, &expected["body"])));
        }
        let after = Duration::from_millis(exchange["after_ms"].as_u64().unwrap_or(0));
        if now().saturating_sub(state.answering_at) < after {
            failed(format!("it came before {after:?}"));
        }
        let answer = used(&self.common["answers"], &exchange["answer"]);
        Some((number, self.filled_with(&state.values, &answer)))
    }

    /// Plays one, and returns true if the connection stays open.
    async fn exchange(&self, at: usize, request: &Request, connection: &mut TcpStream) -> bool {
        let Some((number, answer)) = self.take(at, request) else { return false };
        self.reached(number, Progress::Read);
        tokio::time::sleep(Duration::from_millis(answer["delay_ms"].as_u64().unwrap_or(0))).await;
        if answer["accident"] != "silence" {
            // Before it is written: the client may have it before the write returns.
            self.state.lock().expect("no panic").answering_at = now();
        }
        let stays = match answer["accident"].as_str() {
            Some("reset") => {
                connection.set_zero_linger().expect("an open connection");
                false
            }
            Some("close") => false,
            Some("silence") => {
                silence_on(connection).await;
                return false;
            }
            Some(other) => panic!("unknown answer {other}"),
            None => {
                let mut bytes = response(&answer).into_bytes();
                let cut = answer["cut_after_bytes"].as_u64();
                if let Some(cut) = cut {
                    bytes.truncate(usize::try_from(cut).expect("a length"));
                }
                let closes = String::from_utf8_lossy(&bytes).to_ascii_lowercase().contains("connection: close");
                connection.write_all(&bytes).await.is_ok() && cut.is_none() && !closes
            }
        };
        self.reached(number, Progress::Answered);
        stays
    }
}

fn response(answer: &Value) -> String {
    let status = answer["status"].as_u64().expect("a status");
    let kind = if status >= 400 { "application/problem+json" } else { "application/json" };
    let body = answer.get("body").map_or_else(|| text(&answer["text"]).to_owned(), Value::to_string);
    let headers = merged(&json!({ "content-type": kind, "content-length": body.len() }), &answer["headers"]);
    let mut written = format!("HTTP/1.1 {status} Status\r\n");
    for (name, value) in headers.as_object().expect("headers") {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(written, "{name}: {value}\r\n");
    }
    format!("{written}\r\n{body}")
}

async fn silence(mut connection: TcpStream) {
    silence_on(&mut connection).await;
}

/// Reads until the other side closes.
async fn silence_on(connection: &mut TcpStream) {
    let mut piece = [0; 1024];
    while matches!(connection.read(&mut piece).await, Ok(1..)) {}
}

/// Reads one request, or nothing once the connection is closed.
async fn read(connection: &mut TcpStream) -> Option<Request> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut lines = head.lines();
            let mut words = lines.next()?.split(' ').map(str::to_owned);
            let headers: HashMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect();
            let length: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                return Some(Request {
                    method: words.next()?,
                    path: words.next()?,
                    headers,
                    body: bytes.split_off(end + 4),
                });
            }
        }
        match connection.read(&mut piece).await {
            Ok(count @ 1..) => bytes.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
}
