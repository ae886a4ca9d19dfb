//! The gateway in memory: it answers as a real one does, and a test steers it. `scripts/with-gateway cargo test --features testing --test
//! testing` compares it with a gateway.
#![cfg(feature = "testing")]

use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use oncegate_client::testing::MemoryGateway;
use oncegate_client::{
    ClaimItem, Claimed, Client, Error, Grant, Once, OnceError, Options, OutcomeItem, State, Terms, WorkError, contents,
};

/// Operation of a user's service.
async fn send_invoice(client: &Client, number: &str) -> Result<String, String> {
    let sent =
        client.once("invoice.send", contents! { "invoice" => number }, async |_| Ok(format!("mail of {number}"))).await;
    sent.map_err(|error| error.to_string())?.into_result().map_err(|problem| problem.code)
}

#[tokio::test]
async fn a_unit_test_of_a_user() {
    let gateway = MemoryGateway::new();
    let client = gateway.client(Options::default());
    assert_eq!(send_invoice(&client, "7").await.as_deref(), Ok("mail of 7"));
    assert_eq!(send_invoice(&client, "7").await.as_deref(), Ok("mail of 7"), "the stored result");
    let claims = gateway.claims();
    assert_eq!((claims.len(), &*claims[0].operation, &claims[0].state), (1, "invoice.send", &State::Succeeded));
    gateway.unavailable(true);
    let options = Options::default().claim_within(Duration::from_millis(50));
    assert!(send_invoice(&gateway.client(options), "8").await.is_err_and(|why| why.contains("unavailable")));
    gateway.unavailable(false);
    gateway.fail_next(403, "app_disabled");
    assert!(send_invoice(&client, "8").await.is_err_and(|why| why.contains("app_disabled")));
    gateway.advance(Duration::from_secs(86_401));
    assert_eq!(gateway.claims(), [], "the retention is over");
}

/// A process that ends drops its runtime, and with it what was not drained.
#[tokio::test]
async fn what_continues_in_the_background_has_ended_after_a_drain() {
    let gateway = MemoryGateway::new();
    let client = gateway.client(Options::default());
    let held = client.lock("job").acquire(Duration::ZERO).await.expect("it is free");
    let (lock, minute) = (client.lock("job").fair(), Duration::from_secs(60));
    let waiting = tokio::time::timeout(Duration::from_millis(300), lock.acquire(minute)).await;
    assert!(waiting.is_err(), "it is held");
    assert!(client.drain(minute).await, "the request is withdrawn");
    drop(held);
    assert!(client.drain(minute).await);
    assert!(lock.lookup().await.expect("an answer").is_none(), "the hold is released");
    let endless = async |_| std::future::pending::<Result<(), WorkError>>().await;
    tokio::select! {
        ended = client.once("job", contents! { "number" => 1 }, endless) => panic!("{ended:?}"),
        () = until(async || !gateway.claims().is_empty()) => {}
    }
    assert!(client.drain(minute).await);
    let claims = gateway.claims();
    let is_ended = claims.iter().all(|claim| claim.state != State::InProgress);
    assert!(is_ended, "it is released, or reported as unknown");
}

async fn until(is_met: impl AsyncFn() -> bool) {
    while !is_met().await {
        tokio::task::yield_now().await;
    }
}

#[derive(Debug)]
struct StockError(u32);

impl std::fmt::Display for StockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} left", self.0)
    }
}

impl std::error::Error for StockError {}

#[tokio::test]
async fn a_declared_error_releases_the_operation_and_its_kin_do_not() {
    let gateway = MemoryGateway::new();
    let none_left = |error: &StockError| error.0 == 0;
    let of_client = gateway.client(Options::default().nothing_happened_if(none_left));
    let of_terms = gateway.client(Options::default());
    for (client, terms) in [(of_client, Terms::new()), (of_terms, Terms::new().nothing_happened_if(none_left))] {
        for (left, states) in [(0, &[][..]), (1, &[State::Unknown])] {
            let work = async |_| Err::<(), _>(StockError(left).into());
            let ended = client.once_with("o", contents! { "left" => left }, terms.clone(), work).await;
            let Err(OnceError::Work(error)) = ended else { panic!("{ended:?}") };
            assert_eq!((error.is_nothing_happened(), error.to_string()), (left == 0, format!("{left} left")));
            assert_eq!(gateway.claims().iter().map(|claim| claim.state.clone()).collect::<Vec<_>>(), states);
        }
        gateway.advance(Duration::from_secs(8 * 86_400));
    }
}

#[tokio::test]
async fn a_result_of_another_type_or_none_is_never_nothing() {
    let client = MemoryGateway::new().client(Options::default());
    drop(client.once("o", "a", async |_| Ok("text".to_owned())).await.expect("it runs"));
    let other = client.once("o", "a", async |_| Ok(7)).await;
    assert!(matches!(&other, Err(error) if matches!(error.call(), Some(Error::ResultNotRead(_)))), "{other:?}");
    let long = || async |_: Grant| Ok("x".repeat(70_000));
    let first = client.once("o", "long", long()).await.expect("it runs").into_result();
    assert_eq!(first.expect("its result").len(), 70_000);
    let repeat = client.once("o", "long", long()).await.expect("an answer");
    assert!(matches!(&repeat, Once::Duplicate(it) if it.result_omitted.as_deref() == Some("too_large")));
    let problem = repeat.into_result().expect_err("no result");
    assert_eq!((problem.status, &*problem.code), (409, "response_not_stored"));
}

#[tokio::test]
async fn a_lease_ends_with_the_clock() {
    let gateway = MemoryGateway::new();
    let client = gateway.client(Options::default());
    let first = granted(client.claim("o", "a").await);
    gateway.advance(Duration::from_secs(31));
    assert!(!first.is_live());
    let second = granted(client.claim("o", "a").await);
    assert!(second.fence() > first.fence());
    let refused = first.succeed(7).await.expect_err("it was taken");
    assert!(matches!(refused.call(), Some(Error::OutcomeRefused { code }) if code == "superseded"));
}

fn granted(claimed: Result<Claimed, Error>) -> Grant {
    match claimed {
        Ok(Claimed::Grant(grant)) => grant,
        other => panic!("no grant: {other:?}"),
    }
}

#[tokio::test]
async fn it_answers_as_a_gateway_does() {
    if std::env::var("ONCEGATE_URL").is_err() {
        eprintln!("skipped: there is no gateway; run it with scripts/with-gateway");
        return;
    }
    let real = Client::from_env(Options::default()).expect("a client");
    let of_gateway = script(&real).await;
    let of_memory = script(&MemoryGateway::new().client(Options::default())).await;
    assert!(of_gateway.len() > 25);
    for (gateway, memory) in of_gateway.iter().zip(&of_memory) {
        assert_eq!(gateway, memory);
    }
}

/// Returns the comparable part of an answer to a claim.
fn of_claim(claimed: &Result<Claimed, Error>) -> String {
    match claimed {
        Ok(Claimed::Grant(grant)) => {
            format!(
                "grant {:?}",
                (grant.repeated(), grant.taken_over(), grant.degraded(), grant.is_live(), grant.fence().is_some())
            )
        }
        Ok(Claimed::Duplicate(it)) => format!(
            "duplicate {:?}",
            (
                it.state.name(),
                it.result.as_ref().map(|text| text.get()),
                it.claimed_at.is_some(),
                it.expires_at.is_some()
            )
        ),
        Ok(Claimed::Mismatch(it)) => format!("mismatch {}", it.code),
        Err(error) => of_error(error),
    }
}

fn of_error(error: &Error) -> String {
    match error {
        Error::Rejected(rejected) => format!("rejected {} {}", rejected.status, rejected.code),
        Error::OutcomeRefused { code } => format!("refused {code}"),
        Error::LockNotAcquired { code, .. } => format!("not acquired {code}"),
        other => other.to_string(),
    }
}

fn of<T: Debug>(result: Result<T, Error>) -> String {
    result.map_or_else(|error| of_error(&error), |value| format!("{value:?}"))
}

fn of_once<T: Debug>(ended: Result<Once<T>, OnceError<T>>) -> String {
    match ended {
        Ok(Once::Done(it)) => format!("done {:?}", (it.result, it.state, it.late, it.result_omitted, it.degraded)),
        Ok(Once::Duplicate(it)) => format!("duplicate {:?}", (it.result, it.state, it.result_omitted)),
        Ok(Once::Mismatch(it)) => format!("mismatch {}", it.code),
        Err(OnceError::Work(error)) => format!("work {error}"),
        Err(OnceError::Call { error, result }) => format!("call {} {result:?}", of_error(&error)),
    }
}

/// Makes the same calls of every gateway, and returns what came back.
async fn script(client: &Client) -> Vec<String> {
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos().to_string();
    let operation = |name: &str| format!("testing.{name}");
    let id = |name: &str| contents! { "name" => name, "run" => &run };
    let mut seen = Vec::new();

    for value in [7, 8] {
        seen.push(of_once(client.once(&operation("once"), id("a"), async |_| Ok(value)).await));
    }
    let long = "x".repeat(70_000);
    for _ in 0..2 {
        let ended = client.once(&operation("once"), id("long"), async |_| Ok(long.clone())).await;
        seen.push(of_once(ended).replace(&long, "long"));
    }
    for _ in 0..2 {
        let nothing = async |_| Err::<(), _>(WorkError::nothing_happened("out of stock"));
        seen.push(of_once(client.once(&operation("once"), id("nothing"), nothing).await));
        seen.push(of_once(
            client.once(&operation("once"), id("error"), async |_| Err::<(), _>("who knows".into())).await,
        ));
    }

    let terms = |amount: i32| Terms::new().fingerprint(contents! { "amount" => amount });
    let claim = async |terms: Terms| client.claim_with(&operation("claim"), id("c"), terms).await;
    let first = claim(terms(1)).await;
    seen.push(of_claim(&first));
    seen.push(of_claim(&claim(terms(1)).await));
    seen.push(of_claim(&claim(terms(2)).await));
    let first = granted(first);
    seen.push(of(first.renew().await));
    let record = client.lookup(first.global_id()).await.expect("an answer").expect("a record");
    seen.push(format!("{:?}", (record.state, record.operation, record.has_fingerprint, record.result.is_some())));
    seen.push(of(first.give_up().await.map(|settled| (settled.state, settled.late))));
    seen.push(of_claim(&claim(terms(1)).await));
    let second = claim(terms(1).take_over()).await;
    seen.push(of_claim(&second));
    seen.push(of(first.renew().await));
    seen.push(
        first.succeed(1).await.map_or_else(|error| of_error(error.call().expect("a call")), |_| "accepted".to_owned()),
    );
    let second = granted(second);
    for _ in 0..2 {
        let done = second.succeed("result").await.expect("it is accepted");
        seen.push(format!("{:?}", (done.state, done.late)));
    }
    seen.push(of(second.fail().await.map(|settled| settled.state)));
    seen.push(of(second.renew().await));
    seen.push(of_claim(&claim(terms(1)).await));
    seen.push(of(client.lookup("00000000000000000000000000000000").await.map(|record| record.is_some())));

    // A repeat that waits gets the result of the first, or the grant after it has failed.
    for is_failing in [false, true] {
        let name = if is_failing { "w-fail" } else { "w" };
        let holder = granted(client.claim(&operation("wait"), id(name)).await);
        let (waiter, contents) = (client.clone(), id(name));
        let waiting = tokio::spawn(async move {
            let terms = Terms::new().wait(Duration::from_secs(10));
            let claimed = waiter.claim_with("testing.wait", contents, terms).await;
            if let Ok(Claimed::Grant(grant)) = &claimed {
                grant.fail().await.expect("it is accepted");
            }
            of_claim(&claimed)
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        if is_failing {
            holder.fail().await.expect("it is accepted");
        } else {
            drop(holder.succeed(1).await.expect("it is accepted"));
        }
        seen.push(waiting.await.expect("an answer"));
    }

    let items = || ["x", "y"].map(|name| ClaimItem::new(operation("batch"), id(name))).to_vec();
    let claimed = client.claim_batch(items()).await.expect("an answer");
    seen.extend(claimed.iter().map(of_claim));
    let grants: Vec<_> = claimed.into_iter().map(granted).collect();
    let outcomes = vec![OutcomeItem::success(&grants[0], &1), OutcomeItem::failure(&grants[1])];
    let settled = client.settle_batch(outcomes).await.expect("an answer");
    seen.extend(settled.into_iter().map(|settled| of(settled.map(|settled| (settled.state, settled.late)))));
    seen.extend(client.claim_batch(items()).await.expect("an answer").iter().map(of_claim));

    let (name, owner) = (format!("l{run}"), "owner-0123456789abcdef");
    let lock = || client.lock(&name);
    let now = Duration::ZERO;
    seen.push(of(lock().lookup().await.map(|record| record.is_some())));
    let hold = lock().owner(owner).acquire(now).await.expect("it is free");
    let again = lock().owner(owner).acquire(now).await.expect("it is its own");
    seen.push(format!("{:?}", (hold.holds(), again.holds(), hold.fence() == again.fence(), hold.mode())));
    seen.push(of(lock().acquire(now).await.map(|_| ())));
    seen.push(of(hold.renew().await));
    for hold in [hold, again] {
        hold.release().await.expect("an answer");
    }
    let (one, two) = (lock().shared().acquire(now).await, lock().shared().acquire(now).await);
    let record = lock().lookup().await.expect("an answer").expect("it is held");
    seen.push(format!("{:?}", (one.is_ok(), two.is_ok(), record.held(), record.holders.len(), record.mode)));
    seen.push(of(lock().acquire(now).await.map(|_| ())));
    seen
}
