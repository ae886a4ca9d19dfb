//! After a load with faults, the timeline of each claim is what its callers have recorded in their history: no event is missing, none is
//! made up, and none stands before another one that had ended when it began.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::clock::SystemClock;
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use oncegate_testkit::client::global_id;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::history::http_service::HttpService;
use oncegate_testkit::history::workload::{Service, Workload};
use oncegate_testkit::history::{Answer, Call, Event, History, Reply};
use oncegate_testkit::output::print;
use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::wait::until;
use tokio_util::sync::CancellationToken;

use super::browser::Browser;
use super::{ROLES, operators};
use crate::support::gateway;

const SOON: Duration = Duration::from_mins(1);

/// Calls before the store stops, while it is away, and after it is back.
const CALLS: usize = 300;

/// Leases of the callers. The first one, which is also that of the last claims, outlives the test.
const LEASES: [Duration; 3] = [Duration::from_mins(30), Duration::from_millis(400), Duration::from_millis(1500)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeline_of_each_claim_is_what_its_callers_have_recorded() {
    agree("", 11).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeline_of_each_claim_has_the_answers_of_outage_policies() {
    agree("[defaults.on_outage]\nclaim = \"fail_open\"\noutcome = \"spool\"\n", 12).await;
}

async fn agree(config: &str, seed: u64) {
    let Some(server) = RedisServer::start().await else { return };
    let setup = gateway::on(server.url()).config(config).config(&operators(&ROLES));
    let gateway = setup.env("ONCEGATE_DEFAULTS__DEADLINE", "500ms").start().await;
    let history = load(&gateway, &server, seed).await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let recent = browser.get("/console/json/recent?limit=1").await.expect(200);
    assert!(recent.text.contains("\"lost\":0"), "{}", recent.text);
    let (mut events_shown, mut live) = (0, 0);
    for (key, events) in history.keys() {
        let id = global_id("default", &format!("\"{key}\""));
        let answer = browser.get(&format!("/console/claims/default/{id}")).await;
        let page = Page::of(&answer.text);
        assert_eq!(wrong(&page.seen, &events), None, "{key}: {events:#?}\n{}", answer.text);
        events_shown += page.seen.len();
        live += usize::from(page.claimed.is_some());
        assert_holder(&page, &events, &answer.text);
    }
    print(format_args!(
        "{} claims, {live} of them live, and {events_shown} events of their callers",
        history.keys().len()
    ));
    assert!(events_shown > CALLS / 4 && live > 0, "{events_shown} events, {live} live claims");
}

/// Lets callers work while the store stops and comes back.
async fn load(gateway: &Gateway, server: &RedisServer, seed: u64) -> History {
    let (history, stop) = (History::new(Arc::new(SystemClock::new())), CancellationToken::new());
    let day = Retention::For(Duration::from_hours(24));
    let workload = Workload {
        seed,
        callers: 32,
        keys: 24,
        events_per_key: 12,
        terms: Terms { lease: LEASES[0], retention: day, unknown_retention: day, on_lease_end: LeaseEnd::Release },
        leases: LEASES.to_vec(),
        retentions: vec![Retention::For(Duration::from_secs(1)), day],
        pace: Duration::from_millis(40),
    };
    let service: Arc<dyn Service> = Arc::new(HttpService(gateway.client()));
    let calling = tokio::spawn(workload.run(vec![service], history.clone(), stop.clone()));
    let events = || history.keys().into_values().flatten().collect::<Vec<Event>>();
    let more = async |what| {
        let before = events().len();
        until(what, SOON, async || events().len() >= before + CALLS).await;
    };
    more("callers are answered").await;
    server.freeze();
    let frozen = history.now();
    let is_unanswered = |event: &Event| event.started > frozen && !matches!(event.reply, Reply::Answered(_));
    until("the outage is felt", SOON, async || events().into_iter().filter(is_unanswered).count() >= CALLS).await;
    server.thaw();
    let thawed = history.now();
    let is_served = |event: &Event| event.started > thawed && matches!(event.reply, Reply::Answered(_));
    until("the store is back", SOON, async || events().into_iter().filter(is_served).count() >= CALLS).await;
    stop.cancel();
    calling.await.expect("no caller panics");
    history
}

/// The timeline of a page.
struct Page {
    /// The attempt that holds the claim, as the store has it.
    claimed: Option<String>,
    /// What this gateway has seen, the oldest first: each event in words.
    seen: Vec<String>,
}

impl Page {
    fn of(page: &str) -> Self {
        let lines: Vec<_> =
            page.split("<ol class=\"timeline\">").skip(1).filter_map(|rest| rest.split("</ol>").next()).collect();
        let lines: Vec<_> = lines.iter().flat_map(|lines| lines.split("</li>")).map(text).collect();
        let parts = |line: &str| line.split(" · ").map(|part| part.trim().to_owned()).collect::<Vec<_>>();
        let claimed = lines.iter().find(|line| line.starts_with('●') && line.contains(" · claimed · "));
        let claimed = claimed.map(|line| parts(line)[2].trim_start_matches("attempt ").to_owned());
        let seen = lines.iter().filter(|line| line.starts_with('○')).flat_map(|line| {
            let words = parts(line)[1].clone();
            match words.split_once(" × ") {
                Some((count, words)) => vec![words.to_owned(); count.parse().unwrap()],
                None => vec![words],
            }
        });
        Self { claimed, seen: seen.collect() }
    }
}

/// Returns the text of markup.
fn text(markup: &str) -> String {
    let pieces = markup.split('<').enumerate();
    pieces
        .map(|(index, piece)| if index == 0 { piece } else { piece.split_once('>').map_or("", |(_, text)| text) })
        .collect()
}

/// Returns the words for an event of a history that the timeline shows. A plain grant or success is not among them.
fn words(event: &Event) -> Option<&'static str> {
    match (&event.reply, &event.call) {
        (Reply::Degraded(..), _) => Some("the outage policy"),
        (Reply::Refused | Reply::Unknown, _) => Some("a call was refused: "),
        (Reply::Answered(Answer::Duplicate { .. }), Call::Claim { .. }) => Some("a repeat got 409: "),
        (Reply::Answered(Answer::Done { late: Some(true), .. }), _) => {
            Some("an outcome came after the claim had ended: ")
        }
        (
            Reply::Answered(Answer::Superseded { .. } | Answer::LeaseLost | Answer::AlreadySucceeded | Answer::Expired),
            _,
        ) => Some("an attempt that does not hold the claim called: "),
        _ => None,
    }
}

/// Reports whether a line of a timeline is of this event.
fn is_of(line: &str, event: &Event) -> bool {
    let end = match &event.reply {
        Reply::Degraded(policy, _) => format!(" {policy} answered in place of the store"),
        Reply::Unknown => "outcome_unknown".to_owned(),
        Reply::Answered(Answer::Duplicate { state, .. }) => match state.name() {
            "in_progress" => "in progress".to_owned(),
            "succeeded" => "done".to_owned(),
            other => other.to_owned(),
        },
        Reply::Answered(Answer::Superseded { .. }) => "superseded".to_owned(),
        Reply::Answered(Answer::LeaseLost) => "lease_lost".to_owned(),
        Reply::Answered(Answer::AlreadySucceeded) => "already_succeeded".to_owned(),
        Reply::Answered(Answer::Expired) => "expired".to_owned(),
        _ => String::new(),
    };
    let is_refusal = event.reply != Reply::Refused || !line.ends_with("outcome_unknown");
    words(event).is_some_and(|words| line.starts_with(words)) && line.ends_with(&end) && is_refusal
}

/// Returns an error in the lines of a timeline, or none if they agree with the events of a history. Each line takes one event of its kind that may
/// have been the next one: no other event had ended before it began.
fn wrong(lines: &[String], events: &[Event]) -> Option<String> {
    let mut left: Vec<&Event> = events.iter().filter(|event| words(event).is_some()).collect();
    for line in lines {
        let first_end = left.iter().map(|event| event.answered).min().unwrap_or_default();
        let may_be_next = |event: &Event| is_of(line, event) && event.started <= first_end;
        let next =
            left.iter().enumerate().filter(|(_, event)| may_be_next(event)).min_by_key(|(_, event)| event.answered);
        let Some((index, _)) = next else {
            return Some(format!("{line:?} is no event here, or too early: {lines:#?}"));
        };
        left.remove(index);
    }
    (!left.is_empty()).then(|| format!("not on the timeline {lines:#?}: {left:#?}"))
}

/// Asserts that a live claim is held by the attempt that the last caller has seen.
fn assert_holder(page: &Page, events: &[Event], text: &str) {
    let Some(last) = events.last() else { return };
    let attempts = events.iter().filter_map(|event| match &event.reply {
        Reply::Answered(Answer::Granted { attempt, .. }) => Some(attempt),
        _ => None,
    });
    let hash_of = |timestamp: u64| {
        let attempt = attempts.clone().find(|attempt| attempt.timestamp().as_micros() == timestamp)?;
        Some(attempt.hash().to_string())
    };
    match &last.reply {
        Reply::Answered(Answer::Granted { attempt, .. }) => {
            assert_eq!(page.claimed, Some(attempt.hash().to_string()), "{events:#?}\n{text}");
        }
        // Its lease or its retention may have ended since.
        Reply::Answered(Answer::Duplicate { timestamp, .. }) if page.claimed.is_some() => {
            let known = hash_of(*timestamp);
            assert!(known.is_none() || page.claimed == known, "{known:?}, {:?}: {events:#?}\n{text}", page.claimed);
        }
        _ => {}
    }
}

#[test]
fn a_timeline_with_a_missing_a_made_up_or_an_early_event_is_wrong() {
    let event = |from: u64, to: u64, reply| {
        let terms = Terms {
            lease: LEASES[0],
            retention: Retention::Forever,
            unknown_retention: Retention::Forever,
            on_lease_end: LeaseEnd::Release,
        };
        let call = Call::Settle {
            attempt: "1700000000000000-0123456789abcdef".parse().unwrap(),
            outcome: oncegate_core::claim::Outcome::Failure,
            terms,
        };
        let (started, answered) = (Duration::from_secs(from), Duration::from_secs(to));
        Event { caller: 0, service: 0, started, answered, call, reply }
    };
    let events =
        [event(1, 2, Reply::Refused), event(3, 5, Reply::Unknown), event(4, 6, Reply::Answered(Answer::Expired))];
    let [refused, unknown, expired] = [
        "a call was refused: store_unavailable",
        "a call was refused: outcome_unknown",
        "an attempt that does not hold the claim called: expired",
    ]
    .map(str::to_owned);
    let is_right =
        |lines: &[&String]| wrong(&lines.iter().map(|line| (*line).clone()).collect::<Vec<_>>(), &events).is_none();
    assert!(is_right(&[&refused, &unknown, &expired]) && is_right(&[&refused, &expired, &unknown]));
    for bad in [&[&refused, &unknown][..], &[&unknown, &refused, &expired], &[&refused, &unknown, &expired, &expired]] {
        assert!(!is_right(bad), "{bad:?}");
    }
    let page = "<ol class=\"timeline\"><li>● 1 · claimed · attempt <code><bdi>ab</bdi></code></li><li>○ 1 – 2 · 2 × a <span>· x</span></li></ol>";
    let Page { claimed, seen } = Page::of(page);
    assert_eq!((claimed.as_deref(), seen), (Some("ab"), vec!["a".to_owned(); 2]));
}
