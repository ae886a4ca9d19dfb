//! The behaviour that is the same in every language: `clients/vectors`.

#[path = "vectors/outcomes.rs"]
mod outcomes;
#[path = "vectors/script.rs"]
mod script;
#[path = "vectors/values.rs"]
mod values;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_client::{
    Action, ClaimItem, Client, Consumer, Contents, Event, Grant, Hold, Mode, OnUnavailable, OnceError, Options, Terms,
    WorkError, canonical, global_id,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use crate::outcomes::{Returned, field, of_claimed, of_error, of_grant, of_once};
use crate::script::{Script, merged};
use crate::values::{duration, typed};

/// Most cases wait most of the time.
const CASES_AT_ONCE: usize = 8;
/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

fn vectors() -> PathBuf {
    // The gateway's own tests run this file too.
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [package.join("clients/vectors"), package.join("../vectors")];
    folders.into_iter().find(|folder| folder.is_dir()).expect("the vectors")
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[test]
fn contents_have_one_canonical_form_in_every_language() {
    let table = read(&vectors().join("contents.json"));
    for vector in list(&table["accepted"]) {
        let contents = typed(&vector["input"]).expect("Rust has all values that are accepted");
        assert_eq!(canonical(&contents).as_deref(), Ok(text(&vector["canonical"])), "{vector}");
        let id = global_id(text(&table["app_key"]), text(&table["operation"]), &contents);
        assert_eq!(id.as_deref(), Ok(text(&vector["global_id"])), "{vector}");
        let again = canonical(&Contents::json(text(&vector["canonical"])));
        assert_eq!(again.as_deref(), Ok(text(&vector["canonical"])), "a canonical form is its own: {vector}");
    }
    for vector in list(&table["refused"]) {
        let Some(contents) = typed(&vector["input"]) else {
            eprintln!("skipped: Rust has no such value: {}", vector["name"]);
            continue;
        };
        let refused = canonical(&contents).expect_err(text(&vector["name"]));
        let got = (refused.reason.name(), refused.path.as_str());
        assert_eq!(got, (text(&vector["reason"]), text(&vector["path"])), "{vector}");
    }
}

#[test]
fn global_ids_are_those_of_the_gateway() {
    let table = read(&vectors().join("../../tests/vectors/global_id.json"));
    for vector in list(&table["accepted"]) {
        let contents = Contents::json(text(&vector["contents_json"]));
        assert_eq!(canonical(&contents).as_deref(), Ok(text(&vector["canonical"])), "{vector}");
        let id = global_id(text(&vector["app_key"]), text(&vector["operation"]), &contents);
        assert_eq!(id.as_deref(), Ok(text(&vector["global_id"])), "{vector}");
    }
    for vector in list(&table["refused"]) {
        assert!(canonical(&Contents::json(text(&vector["contents_json"]))).is_err(), "{vector}");
    }
}

#[tokio::test]
async fn decisions_of_a_consumer_are_the_same_in_every_language() {
    let client = Client::new(["http://127.0.0.1:1"], Options::default()).expect("a client");
    let consumer = Consumer::new(&client, "order.submit").redeliver_after(Duration::from_secs(7)).max_failures(3);
    for vector in list(&read(&vectors().join("decisions.json"))["decisions"]) {
        let is_kept = vector["report_is_kept"] == true;
        let failures = u32::try_from(vector["failures"].as_u64().unwrap_or(0)).expect("a small number");
        let (action, delay) = if vector["end"]["error"] == "contents_not_derived" {
            let never = async |_| -> Result<(), WorkError> { panic!("it was not derived") };
            let decision = consumer.consume_once(Err("no order_id".into()), failures, never).await;
            (decision.action, decision.delay)
        } else {
            consumer.decide(&outcomes::end_of(&vector["end"]), failures, is_kept)
        };
        let name = match action {
            Action::Ack => "ack",
            Action::Redeliver => "redeliver",
            Action::Park => "park",
            Action::DeadLetter => "dead_letter",
        };
        assert_eq!(name, text(&vector["decision"]), "{vector}");
        let expected = vector["delay_ms"].as_u64().map_or(Duration::from_secs(7), Duration::from_millis);
        assert!(action != Action::Redeliver || delay == expected, "{vector}: {delay:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behaviour_is_the_same_in_every_language() {
    let folder = vectors().join("behaviour");
    let common = Arc::new(read(&folder.join("common.json")));
    let at_once = Arc::new(Semaphore::new(CASES_AT_ONCE));
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        if path.ends_with("common.json") {
            continue;
        }
        for vector in list(&read(&path)["cases"]) {
            let name = format!("{}: {}", path.file_stem().expect("a name").display(), text(&vector["name"]));
            let (common, at_once, vector) = (Arc::clone(&common), Arc::clone(&at_once), vector.clone());
            let run = tokio::spawn(async move {
                let _permit = at_once.acquire().await.expect("it stays open");
                Case::run(common, vector).await
            });
            cases.push((name, run));
        }
    }
    assert!(cases.len() > 100, "{} cases", cases.len());
    let mut failed = Vec::new();
    for (name, run) in cases {
        match run.await {
            Ok(failures) => failed.extend(failures.into_iter().map(|failure| format!("{name}: {failure}"))),
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// One case: its servers, and the checks between the steps.
struct Case {
    script: Arc<Script>,
    events: Mutex<Vec<Event>>,
    ahead_ms: Arc<AtomicU64>,
    cancel: Notify,
    runs: AtomicUsize,
    steps: Mutex<Vec<Value>>,
    /// Number of the events that the call expects; 0 if they do not matter.
    events_expected: AtomicUsize,
}

/// A grant or a hold.
enum Held<'a> {
    Grant(&'a Grant),
    Hold(&'a Hold),
}

impl Case {
    async fn run(common: Arc<Value>, vector: Value) -> Vec<String> {
        let settings = merged(&common["options"], &vector["options"]);
        let script = Script::start(&common, &vector, list(&settings["urls"])).await;
        let case = Arc::new(Self {
            script,
            events: Mutex::default(),
            ahead_ms: Arc::default(),
            cancel: Notify::new(),
            runs: AtomicUsize::new(0),
            steps: Mutex::default(),
            events_expected: AtomicUsize::new(0),
        });
        let client = case.client(&settings);
        let calls = list(&vector["calls"]);
        for (number, call) in calls.iter().enumerate() {
            case.events.lock().expect("no panic").clear();
            case.runs.store(0, Ordering::SeqCst);
            let steps = if call["work"].is_null() { &common["work"] } else { &call["work"] };
            *case.steps.lock().expect("no panic") = list(steps).to_vec();
            case.events_expected.store(call["events"].as_array().map_or(0, Vec::len), Ordering::SeqCst);
            let what = if call["call"].is_null() { &common["call"] } else { &call["call"] };
            let got = case.made(&client, what, call["cancel_at_exchange"].as_u64()).await;
            // Leaves background tasks time to end.
            if number + 1 == calls.len() {
                case.script.ended().await;
            }
            case.script.check("", &got, &case.script.filled(&call["expected"]));
            if let Some(runs) = call["runs"].as_u64() {
                let ran = case.runs.load(Ordering::SeqCst);
                case.script.check("runs", &json!(ran), &json!(runs));
            }
            if let Some(expected) = call["events"].as_array() {
                case.check_events(expected).await;
            }
        }
        case.script.failures()
    }

    fn client(self: &Arc<Self>, settings: &Value) -> Client {
        let millis = |name: &str| Duration::from_millis(settings[name].as_u64().expect("milliseconds"));
        let (receiver, ahead) = (Arc::downgrade(self), Arc::clone(&self.ahead_ms));
        let proceeds = settings["on_unavailable"] == "proceed";
        let options = Options::default()
            .credential(text(&settings["credential"]))
            .timeout(millis("timeout_ms"))
            .claim_within(millis("claim_within_ms"))
            .settle_within(millis("settle_within_ms"))
            .on_unavailable(if proceeds { OnUnavailable::Proceed } else { OnUnavailable::FailClosed })
            .clock_ahead(move || Duration::from_millis(ahead.load(Ordering::SeqCst)))
            .on_event(move |event| {
                if let Some(case) = receiver.upgrade() {
                    case.events.lock().expect("no panic").push(event);
                }
            });
        Client::new(&self.script.urls, options).expect("a client")
    }

    /// Makes a call in a separate task, which a cancellation drops.
    async fn made(self: &Arc<Self>, client: &Client, what: &Value, cancel_at: Option<u64>) -> Value {
        let (case, client, what) = (Arc::clone(self), client.clone(), what.clone());
        let mut call = tokio::spawn(async move { case.call(&client, &what).await });
        let cancelled = async {
            match cancel_at {
                Some(at) => self.script.is_read(usize::try_from(at).expect("a position")).await,
                None => self.cancel.notified().await,
            }
        };
        let ended = tokio::select! {
            ended = &mut call => Some(ended),
            () = cancelled => None,
            () = tokio::time::sleep(LIMIT) => panic!("the call does not end"),
        };
        if let Some(got) = ended {
            return got.expect("the call does not panic");
        }
        call.abort();
        let aborted = call.await;
        assert!(aborted.is_err_and(|error| error.is_cancelled()), "the call ended before it was cancelled");
        json!({ "error": "cancelled" })
    }

    async fn call(&self, client: &Client, what: &Value) -> Value {
        let (name, args) = what.as_object().and_then(|call| call.iter().next()).expect("a call");
        match name.as_str() {
            "once" => {
                let contents = typed(&args["contents"]).expect("contents");
                let work = async |grant: Grant| self.work(Held::Grant(&grant)).await;
                of_once(client.once_with(text(&args["operation"]), contents, terms(args), work).await)
            }
            "settle" => match client.settle(&args["report"].to_string()).await {
                Err(error) => {
                    // The result is in the report, which the caller has.
                    let mut got = of_error(&error);
                    got["result"] = args["report"]["result"].clone();
                    got
                }
                Ok(settled) => json!({ "settled": {
                    "state": settled.state.as_ref().map(oncegate_client::State::name), "late": settled.late, "degraded": settled.degraded,
                    "result_omitted": settled.result_omitted.is_some(), "global_id": settled.global_id,
                }}),
            },
            "lookup" => match client.lookup(text(&args["global_id"])).await {
                Err(error) => of_error(&error),
                Ok(None) => json!({ "record": null }),
                Ok(Some(record)) => json!({ "record": {
                    "state": record.state, "operation": record.operation, "result": record.result,
                }}),
            },
            "lock_lookup" => match client.lock(text(&args["name"])).lookup().await {
                Err(error) => of_error(&error),
                Ok(None) => json!({ "lock_record": null }),
                Ok(Some(record)) => {
                    let holders = record.holders.iter().map(|holder| {
                        json!({
                            "hash": holder.hash, "mode": holder.mode.name(), "claimed_at": holder.claimed_at, "lease_ms": holder.lease_ms,
                        })
                    });
                    json!({ "lock_record": {
                        "held": record.held(), "mode": record.mode.map(Mode::name), "limit": record.limit, "fence": record.fence, "waiting": record.waiting,
                        "holders": holders.collect::<Vec<_>>(),
                    }})
                }
            },
            "claim_batch" => {
                let items = list(&args["items"]).iter().map(|item| ClaimItem {
                    terms: terms(item),
                    ..ClaimItem::new(text(&item["operation"]), item["contents"].clone())
                });
                match client.claim_batch(items.collect()).await {
                    Err(error) => of_error(&error),
                    Ok(claimed) => json!({ "batch": claimed.into_iter().map(of_claimed).collect::<Vec<_>>() }),
                }
            }
            "lock" => self.lock(client, args).await,
            other => panic!("unknown call {other}"),
        }
    }

    async fn lock(&self, client: &Client, args: &Value) -> Value {
        let mut locker = client.lock(text(&args["name"]));
        if args["mode"] == "shared" {
            locker = locker.shared();
        }
        if let Some(owner) = args["owner"].as_str() {
            locker = locker.owner(owner);
        }
        if let Some(lease) = args["lease"].as_str() {
            locker = locker.lease(duration(lease));
        }
        if let Some(limit) = args["limit"].as_u64() {
            locker = locker.limit(u32::try_from(limit).expect("a small number"));
        }
        if args["fair"] == true {
            locker = locker.fair();
        }
        let hold = match locker.acquire(args["wait"].as_str().map_or(Duration::ZERO, duration)).await {
            Ok(hold) => hold,
            Err(error) => return of_error(&error),
        };
        let worked = self.work(Held::Hold(&hold)).await;
        let fence = hold.fence();
        let released = hold.release().await;
        match (worked, released) {
            (Err(error), _) => of_once(Err(OnceError::Work(error))),
            (_, Err(error)) => of_error(&error),
            (Ok(result), Ok(())) => json!({ "hold": { "result": result.value(), "fence": fence } }),
        }
    }

    async fn work(&self, held: Held<'_>) -> Result<Returned, WorkError> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let steps = self.steps.lock().expect("no panic").clone();
        for step in steps {
            let (name, value) = step.as_object().and_then(|step| step.iter().next()).expect("a step");
            match name.as_str() {
                "returns" => return Ok(Returned::Value(value.clone())),
                "returns_unserialisable" => return Ok(Returned::Unserialisable),
                "returns_text_of" => {
                    let length = usize::try_from(value.as_u64().expect("a length")).expect("a length");
                    return Ok(Returned::Value("x".repeat(length).into()));
                }
                "raises" if value == "nothing_happened" => return Err(WorkError::nothing_happened("who knows")),
                "raises" => return Err("who knows".into()),
                "cancelled" => {
                    self.cancel.notify_one();
                    std::future::pending::<()>().await;
                }
                "wait_ms" => tokio::time::sleep(Duration::from_millis(value.as_u64().expect("milliseconds"))).await,
                "until_exchange" => {
                    let position = usize::try_from(value.as_u64().expect("a position")).expect("a position");
                    self.script.is_answered(position).await;
                    // The client reads the answer.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    self.has_noted(position.min(self.events_expected.load(Ordering::SeqCst))).await;
                }
                "until_lost" => drop(within(held.until_lost()).await),
                "monotonic_clock_steps_ms" => {
                    self.ahead_ms.fetch_add(value.as_u64().expect("milliseconds"), Ordering::SeqCst);
                }
                // No wall clock is read.
                "wall_clock_steps_ms" => {}
                "sees" => self.script.check("the work sees", &held.seen(), value),
                other => panic!("unknown step {other}"),
            }
        }
        Ok(Returned::Value(Value::Null))
    }

    /// Waits until the client has noted so many events: one may come after the answer that it is about.
    async fn has_noted(&self, count: usize) {
        for _ in 0..200 {
            if self.events.lock().expect("no panic").len() >= count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn check_events(&self, expected: &[Value]) {
        self.has_noted(expected.len()).await;
        let names: Vec<_> = self.events.lock().expect("no panic").iter().map(|event| event.name).collect();
        if names.len() != expected.len() {
            self.script.fail(format!("events {names:?}, not {expected:?}"));
            return;
        }
        let events = self.events.lock().expect("no panic").clone();
        for (event, expected) in events.iter().zip(expected) {
            let name_alone = json!({ "name": expected });
            let fields = if expected.is_object() { expected } else { &name_alone };
            for (name, value) in fields.as_object().expect("fields") {
                self.script.check(&format!("event {}: {name}", event.name), &field(event, name), value);
            }
        }
    }
}

impl Held<'_> {
    async fn until_lost(&self) -> String {
        match self {
            Self::Grant(grant) => grant.until_lost().await,
            Self::Hold(hold) => hold.until_lost().await,
        }
    }

    fn seen(&self) -> Value {
        match self {
            Self::Grant(grant) => of_grant(grant),
            Self::Hold(hold) => json!({ "is_live": hold.is_live(), "lost": hold.lost(), "fence": hold.fence() }),
        }
    }
}

async fn within<T>(awaited: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, awaited).await.expect("it comes in time")
}

fn terms(args: &Value) -> Terms {
    let mut terms = Terms::new();
    for (name, value) in args.as_object().into_iter().flatten() {
        terms = match name.as_str() {
            "fingerprint" => terms.fingerprint(typed(value).expect("a fingerprint")),
            "lease" => terms.lease(duration(text(value))),
            "retention" => terms.retention(duration(text(value))),
            "take_over" => terms.take_over(),
            "on_lease_end" => terms.unknown_on_lease_end(),
            "wait" => terms.wait(duration(text(value))),
            _ => terms,
        };
    }
    terms
}

#[test]
fn a_wrong_url_or_option_is_refused_at_once() {
    for url in [
        "gateway:8080",
        "ftp://gateway",
        "http://",
        "http://user@gateway",
        "http://gateway/?a=b",
        "http://gateway/#a",
        "",
    ] {
        assert!(Client::new([url], Options::default()).is_err(), "{url}");
    }
    assert!(Client::new::<&str>([], Options::default()).is_err());
    assert!(Client::new(["http://gateway"], Options::default().credential("shop")).is_err());
    assert!(Client::new(["http://gateway"], Options::default().timeout(Duration::ZERO)).is_err());
    assert!(Client::new(["http://gateway/base/", "http://[::1]:8080"], Options::default().credential("")).is_ok());
}

#[tokio::test]
async fn a_name_or_owner_that_no_lock_has_is_refused_before_anything_is_sent() {
    let client = Client::new(["http://127.0.0.1:1"], Options::default()).expect("a client");
    for locker in [client.lock(""), client.lock("a/b"), client.lock("stock").owner("short")] {
        let refused = locker.acquire(Duration::ZERO).await.expect_err("it is refused");
        assert!(matches!(refused, oncegate_client::Error::Argument(_)), "{refused}");
    }
    assert!(matches!(client.claim("order.submit", "").await, Err(oncegate_client::Error::NotCanonical(_))));
}
