//! The fault matrix for gateways with outage policies: two of them before one store, and one loses it. The answers of
//! the store must be explained, one gateway alone never grants twice, and double grants of both are in the report.

use std::collections::BTreeSet;
use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::claim::Outcome;
use oncegate_core::hex;
use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::history::double_grants::{double_grants, undelivered_grants};
use oncegate_testkit::history::workload::Workload;
use oncegate_testkit::history::{Answer, Call, Event, Reply};
use oncegate_testkit::output::print;
use oncegate_testkit::wait::until;
use sha2::{Digest, Sha256};

#[cfg(feature = "postgres")]
use super::postgres::{self, Postgres};
#[cfg(feature = "redis")]
use super::redis::{FAULTS, Fault, Redis};
use super::{DEADLINE, Store, gateway, watch_all, workload};
use crate::support::exposition::Page;

const TOKEN: &str = "token_of_alice_0123456789abcdef";

/// Longest delivery of spooled entries, before the store answers all calls again.
const BACKLOG: Duration = Duration::from_secs(1);

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_grant_is_given_once_by_each_gateway() {
    let Some(mut store) = Redis::start().await else { return };
    hold(&mut store, "local", &[Fault::Killed, Fault::Silent, Fault::HalfOpen, Fault::Demoted]).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn double_grants_by_policies_are_in_the_report() {
    let Some(mut store) = Redis::start().await else { return };
    hold(&mut store, "fail_open", &[Fault::Stopped, Fault::Refused, Fault::Full, Fault::Loading]).await;
}

/// `cargo test --test it -- --ignored --nocapture outage::policies`
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute; the others try each fault once"]
async fn every_fault_of_redis_under_every_policy() {
    let Some(mut store) = Redis::start().await else { return };
    for policy in ["local", "fail_open"] {
        hold(&mut store, policy, &FAULTS).await;
    }
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute; policies are tried on Redis, and faults of PostgreSQL without them"]
async fn every_fault_of_postgres_under_every_policy() {
    use postgres::Fault::{HalfOpen, Killed, ReadOnly, Refused, Silent, Stopped};
    let Some(mut store) = Postgres::start().await else { return };
    for policy in ["local", "fail_open"] {
        hold(&mut store, policy, &[Stopped, Killed, Silent, HalfOpen, Refused, ReadOnly]).await;
    }
}

/// Two grants that were both valid for less than this may leave marks that do not overlap.
const MARKED: Duration = Duration::from_millis(2);

/// A fault of the first gateway's network does not affect the second one; a fault of the server affects both.
async fn hold<S: Store>(store: &mut S, policy: &str, faults: &[S::Fault]) {
    let digest = hex::encode(&Sha256::digest(TOKEN));
    let config = format!(
        "[admin.tokens]\nalice = \"sha256:{digest}\"\n\
         [defaults.on_outage]\nclaim = \"{policy}\"\noutcome = \"spool\"\n"
    );
    let cut_off = gateway(store, &config).await;
    let deadline = format!("{}ms", DEADLINE.as_millis());
    let direct = gateway::on(store.direct_url()).config(&config).env("ONCEGATE_DEFAULTS__DEADLINE", deadline);
    let direct = direct.start().await;
    for &fault in faults {
        let seen = watch_all(store, fault, &[&cut_off, &direct], long_kept()).await;
        let mut reported = BTreeSet::new();
        for gateway in [&cut_off, &direct] {
            delivered(gateway).await;
            reported.extend(overlaps(gateway).await);
        }
        print(format_args!("{policy}, {fault:?}: {seen}"));
        seen.assert_explained(&fault);
        seen.assert_in_time(&fault, false, BACKLOG);
        let (mut twice, mut noticed) = (0, 0);
        for (key, events) in seen.history.keys() {
            for attempt in undelivered_grants(&events) {
                // If another attempt held the claim at the delivery, that is reported.
                assert!(
                    reported.contains(&attempt.timestamp().as_micros()),
                    "{policy}, {fault:?}: {key}: the store granted it in addition to {attempt:?}: {events:#?}"
                );
            }
            for double in double_grants(&events) {
                twice += 1;
                let both = [&double.attempts.0, &double.attempts.1];
                // It may be reported with a third attempt that held the claim at the delivery, and has failed since.
                let is_reported = both.iter().any(|one| timestamps(&events, one).any(|at| reported.contains(&at)));
                noticed += usize::from(is_reported);
                let both_done = both.iter().all(|one| is_done(&events, one));
                let both_degraded = both.iter().all(|one| is_degraded(&events, one));
                // Marks have whole milliseconds, and are rounded to the shorter time.
                let can_be_compared = both_degraded && double.lasted >= MARKED;
                assert!(
                    is_reported || !(both_done || can_be_compared),
                    "{policy}, {fault:?}: {key}: {double:?} is not reported: {events:#?}"
                );
            }
        }
        print(format_args!("{policy}, {fault:?}: {twice} were granted twice, and {noticed} of them are reported"));
    }
}

/// Reported successes are kept forever: an ended one could not be compared, and would not be in the report.
fn long_kept() -> Workload {
    let workload = workload();
    Workload { retentions: vec![workload.terms.retention], ..workload }
}

/// Returns the timestamps of the grants of an attempt's nonce: two gateways may grant it, each under its own attempt.
fn timestamps(events: &[Event], attempt: &Attempt) -> impl Iterator<Item = u64> {
    events.iter().filter_map(|event| match &event.reply {
        Reply::Answered(Answer::Granted { attempt: own, .. })
        | Reply::Degraded(_, Answer::Granted { attempt: own, .. })
            if own.nonce() == attempt.nonce() =>
        {
            Some(own.timestamp().as_micros())
        }
        _ => None,
    })
}

/// Returns true if a success of this attempt's nonce was accepted, to be kept for longer than the test.
fn is_done(events: &[Event], attempt: &Attempt) -> bool {
    events.iter().any(|event| {
        let Call::Settle { attempt: own, outcome: Outcome::Success { .. }, .. } = &event.call else { return false };
        let taken =
            matches!(&event.reply, Reply::Answered(Answer::Done { .. }) | Reply::Degraded(_, Answer::Done { .. }));
        taken && own.nonce() == attempt.nonce()
    })
}

/// Returns true if only policies granted this attempt's nonce, so that journals have it. A grant of the store leaves no
/// entry and no mark, also if a policy repeats it, or granted the same nonce before at another gateway. If the store
/// extended a lease, that lease is longer than the mark of its grant.
fn is_degraded(events: &[Event], attempt: &Attempt) -> bool {
    let is_own = |own: &Attempt| own.nonce() == attempt.nonce();
    let grants = |granted: fn(&Reply) -> Option<&Answer>| {
        let is_grant =
            |answer: Option<&Answer>| matches!(answer, Some(Answer::Granted { attempt: own, .. }) if is_own(own));
        events.iter().any(|event| is_grant(granted(&event.reply)))
    };
    let by_store = grants(|reply| if let Reply::Answered(answer) = reply { Some(answer) } else { None });
    let in_its_place = grants(|reply| if let Reply::Degraded(_, answer) = reply { Some(answer) } else { None });
    let extended = events.iter().any(|event| {
        let is_renewal = matches!(&event.call, Call::Renew { attempt: own, .. } if is_own(own));
        is_renewal && matches!(event.reply, Reply::Answered(Answer::Renewed { .. }) | Reply::Unknown)
    });
    in_its_place && !by_store && !extended
}

/// Waits until nothing waits for the store any more.
async fn delivered(gateway: &Gateway) {
    let admin = gateway.admin_client();
    until("all is delivered", Duration::from_secs(10), async || {
        Page::get(&admin).await.sum("oncegate_spool_entries", &[]) == 0
    })
    .await;
}

/// The attempts that a gateway reports, by their timestamps. An operation that was granted often has many overlaps, so
/// there are more than one page.
async fn overlaps(gateway: &Gateway) -> Vec<u64> {
    let alice = gateway.admin_client().with_credential(TOKEN);
    let both = |overlap: &serde_json::Value| {
        ["ours", "theirs"].map(|whose| overlap[whose]["timestamp"].as_u64().expect("a timestamp"))
    };
    let (mut reported, mut after) = (Vec::new(), String::new());
    loop {
        let page = alice.get(&format!("/admin/v1/overlaps?limit=1000{after}")).await.expect(200).body;
        reported.extend(page["overlaps"].as_array().expect("a list").iter().flat_map(both));
        let Some(next) = page["next"].as_u64() else { return reported };
        after = format!("&after={next}");
    }
}
