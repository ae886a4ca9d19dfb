//! The outage journal as operators and other modules see it.

use std::time::Duration;

use oncegate_core::clock::Clock as _;
use oncegate_core::engine::conformance::fresh_claim;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::spool::SpoolFilter;
use oncegate_core::suspect::{Cause, Check, Found, MaskedAttempt, Superseded, Suspect, SuspectFilter};

use super::support::*;
use crate::OutageJournal;
use crate::journal::memory::{Disk, Flaw, Trouble};
use crate::journal::{Bounds, Journal, Recovered};
use oncegate_core::outage::entry::{Entry, JournaledOperation};

fn entry(chain: &str, app: &str) -> Entry {
    let mut request = fresh_claim();
    request.key.app = app.parse().unwrap();
    let at = request.attempt.timestamp();
    Entry { chain: chain.into(), policy: OutagePolicy::Local, at, journaled: JournaledOperation::Granted(request) }
}

#[tokio::test]
async fn entries_of_a_chain_that_is_gone_stay_and_are_named() {
    let world = World::new().await;
    assert!(world.journal.check_exists().is_err() && !world.journal.exists());
    for chain in ["old", "older", "old", "default"] {
        world.journal.append(&entry(chain, "shop")).await.unwrap();
    }
    assert!(world.journal.check_exists().is_ok() && world.journal.exists());
    assert_eq!(world.journal.unconfigured_chains(), Vec::<String>::new());
    let world = world.restarted().await;
    assert_eq!(world.journal.unconfigured_chains(), ["old", "older"]);
    let all = SpoolFilter::default();
    let entries = world.journal.unconfigured_entries(&all, 9);
    assert_eq!(entries.iter().map(|entry| &*entry.chain).collect::<Vec<_>>(), ["old", "older", "old"]);
    let listed = |filter| world.journal.unconfigured_entries(&filter, 1);
    assert_eq!(listed(all.clone()), entries[..1]);
    assert_eq!(listed(SpoolFilter { after: Some(entries[0].id), ..all }), entries[1..2]);
    assert_eq!(listed(SpoolFilter { app: Some("other".parse().unwrap()), after: None }), []);
}

#[tokio::test]
async fn a_check_of_a_suspect_that_cannot_be_kept_is_an_error() {
    let disk = Disk::new(|| Duration::ZERO, Flaw::None);
    let world = World::new().await.started_on(&disk).await;
    let held = fresh_claim();
    let suspect = Suspect {
        id: 0,
        cause: Cause::Double(Superseded::SupersededSuccess),
        app: held.key.app.clone(),
        operation: None,
        realm: held.key.realm,
        global_id: held.key.global_id,
        ours: MaskedAttempt::from(&held.attempt),
        theirs: None,
        state: None,
        noticed_at: world.clock.wall(),
        checked: None,
    };
    world.journal.report(suspect).await;
    let id = world.journal.suspects(&SuspectFilter::default(), 1)[0].id;
    let checked_at = world.clock.wall();
    let check = Check { found: Found::Once, reason: "INC-1".to_owned(), who: "alice".to_owned(), checked_at };
    disk.turn(Trouble::NoSync);
    assert!(world.journal.check_suspect(id, check).await.is_err());
}

#[tokio::test]
async fn answers_are_counted_by_app_and_policy() {
    let counted =
        |policy| metric(&format!("oncegate_degraded_answers_total{{app=\"counted-answers\",policy=\"{policy}\"}}"));
    counted("local");
    let world = World::new().await;
    let app = "counted-answers".parse().unwrap();
    for policy in [OutagePolicy::Local, OutagePolicy::FailOpen, OutagePolicy::Local] {
        world.journal.count_answer(&app, policy);
    }
    assert_eq!(["local", "fail_open", "spool"].map(counted), [Some(2.0), Some(1.0), Some(0.0)]);
}

#[tokio::test]
async fn its_status_says_what_waits_and_whether_it_takes_more() {
    let full = Bounds { bytes: 2000, app_bytes: 10 };
    for (bounds, takes) in [(ROOMY, true), (full, false)] {
        let world = World::with(bounds).await;
        let empty = world.journal.status();
        assert_eq!((empty.entries, empty.bytes, empty.oldest_at, empty.takes), (0, 0, None, true));
        let appended = world.journal.append(&entry("default", "shop")).await;
        let status = world.journal.status();
        assert_eq!((appended.is_ok(), status.takes, status.entries), (takes, takes, usize::from(takes)));
        assert_eq!((status.bytes > 0, status.oldest_at.is_some(), status.bytes_max), (takes, takes, bounds.bytes));
    }
}

#[tokio::test]
async fn what_waits_is_measured() {
    let waiting = || metric("oncegate_spool_entries");
    waiting();
    let world = World::new().await;
    let waits = Entry { at: world.clock.wall(), ..entry("other", "shop") };
    world.journal.append(&waits).await.unwrap();
    // Other journals of this process write the same metric.
    for _ in 0..1000 {
        world.clock.advance(Duration::from_secs(1));
        world.journal.update_gauges();
        if waiting() == Some(1.0) && metric("oncegate_spool_oldest_seconds").is_some_and(|age| age > 0.0) {
            return;
        }
    }
    panic!("it is not measured");
}

#[tokio::test]
async fn a_damaged_journal_is_counted_as_a_failure() {
    let failures = || metric("oncegate_journal_errors_total").unwrap_or_default();
    failures();
    let world = World::new().await;
    let before = failures();
    let damaged = Some((3, "entries.damaged".into()));
    let clock = world.clock.clone();
    let recovered = Recovered { damaged, ..Default::default() };
    let disk = Disk::new(|| Duration::ZERO, Flaw::None);
    let (journal, _) = Journal::open_in_memory(&disk, ROOMY).unwrap();
    drop(OutageJournal::over(journal, recovered, clock));
    assert!(failures() > before);
}

/// As in a damaged journal that has lost the grant: its lease is unknown.
#[tokio::test]
async fn a_renewal_without_its_grant_is_removed_and_changes_nothing() {
    let world = World::new().await;
    let held = fresh_claim();
    world.claim_elsewhere(&held).await;
    let hour = Some(Duration::from_hours(1));
    let renewed = JournaledOperation::Renewed(RenewalRequest { lease: hour, ..renewal(&held) });
    let entry = Entry { journaled: renewed, ..entry("default", held.key.app.as_ref()) };
    world.journal.append(&entry).await.unwrap();
    let world = world.restarted().await;
    world.back().await;
    assert_eq!(world.held(&held).await.unwrap().left, Some(held.terms.lease));
}
