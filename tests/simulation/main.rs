//! Whole worlds in one thread: several gateways, a store, the network between them and their callers, on one paused clock
//! and one seed. Many calls meet every fault in many orders, and each run can be repeated exactly, as CONTRIBUTING.md explains.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue fails at that place")]

mod bugs;
mod business;
mod caller;
mod chaos;
mod clock;
mod engine_call;
mod ledger;
mod locks;
mod network;
mod oracle;
mod reference;
mod rng;
mod scenario;
mod stack;
mod store;
mod switches;
mod trace;
mod world;

use bugs::Bug;
use chaos::Fault::{Clock, DataLoss, Disk, Gateways, Network, Replicas, Server, Switches};
use scenario::Scenario;
use world::Kind;

/// Operations of each seed, a million in all: many short worlds find more than a few long ones.
const OPERATIONS: u64 = 25_000;

/// The same with outage policies: their checks take longer, and fewer operations find as much.
const OPERATIONS_FEWER: u64 = 12_000;

/// The same with locks: the check of a history takes longer than its length.
const OPERATIONS_OF_LOCKS: u64 = 6_000;

const EVERYTHING: Scenario =
    Scenario::of("everything is wrong", &[Network, Network, Server, Clock, DataLoss, Gateways, Gateways]);

/// Outage policies, and a store that keeps its data.
const OUTAGES: Scenario =
    Scenario::of("policies answer", &[Network, Network, Server, Server, Gateways, Gateways]).in_a(Kind::Policies);

/// Outage policies that grant and renew the same keys at both gateways.
const CROWDED_OUTAGES: Scenario =
    Scenario::of("policies grant to a crowd", &[Network, Network, Network, Network, Server, Gateways])
        .in_a(Kind::Policies)
        .crowded();

const OUTAGES_OF_EVERYTHING: Scenario = Scenario::of(
    "policies answer, everything is wrong",
    &[Network, Network, Server, Clock, DataLoss, Gateways, Gateways],
)
.in_a(Kind::Policies);

/// Outage policies, and journals that are full or fail.
const OUTAGES_WITHOUT_ROOM: Scenario =
    Scenario::of("policies answer, journals are full", &[Network, Network, Server, Server, Gateways, Disk, Disk, Disk])
        .in_a(Kind::Policies)
        .short_of_room();

/// Operators switch between two stores.
const SWITCHES: Scenario =
    Scenario::of("stores are switched", &[Switches, Network, Network, Server, Gateways]).in_a(Kind::Switched);

/// Gateways switch between two stores with a witness, and operators do too.
const FAILOVERS: Scenario = Scenario::of(
    "stores are switched automatically",
    &[Switches, Network, Network, Network, Server, Server, Server, Gateways],
)
.in_a(Kind::Failover);

/// Outage policies, and operators that switch to another store when one is unavailable.
const OUTAGES_AND_SWITCHES: Scenario =
    Scenario::of("policies answer, stores are switched", &[Switches, Network, Network, Server, Server, Gateways])
        .in_a(Kind::PoliciesAndSwitches);

/// Grant freezes after losses of data.
const GRANT_FREEZES: Scenario =
    Scenario::of("grants are frozen after a loss of data", &[DataLoss, Network, Gateways, Gateways])
        .in_a(Kind::GrantFreeze);

/// A store of three shards that fail separately, with replicas that acknowledge.
const SHARDS: Scenario =
    Scenario::of("shards fail one by one", &[Replicas, Replicas, Server, Network, Gateways]).in_a(Kind::Sharded);

/// A store of three shards that lose their data separately, with replicas that do not acknowledge.
const SHARDS_WITHOUT_ACKNOWLEDGEMENT: Scenario =
    Scenario::of("shards lose their data one by one", &[DataLoss, DataLoss, Server, Network, Gateways])
        .in_a(Kind::Sharded);

/// Callers of locks at three gateways.
const LOCKS: Scenario =
    Scenario::of("locks, everything is wrong", &[Network, Network, Server, Gateways, Gateways]).in_a(Kind::Locks);

#[test]
fn promises_hold_while_nothing_is_wrong() {
    Scenario::of("nothing is wrong", &[]).assert_promises(0..1, OPERATIONS);
}

#[test]
fn promises_hold_on_a_bad_network() {
    Scenario::of("a bad network", &[Network, Network]).assert_promises(0..9, OPERATIONS);
}

#[test]
fn promises_hold_while_the_store_crashes_stops_and_fills_up() {
    Scenario::of("a bad server", &[Server]).assert_promises(0..12, OPERATIONS);
}

#[test]
fn promises_hold_while_clocks_are_set() {
    Scenario::of("bad clocks", &[Clock, Clock, Network]).assert_promises(0..12, OPERATIONS);
}

#[test]
fn promises_hold_from_one_loss_of_data_to_the_next() {
    Scenario::of("data is lost", &[DataLoss, Network]).assert_promises(0..6, OPERATIONS);
}

#[test]
fn promises_hold_while_gateways_are_killed() {
    Scenario::of("gateways die", &[Gateways, Gateways, Network]).assert_promises(0..6, OPERATIONS);
}

#[test]
fn promises_hold_while_everything_is_wrong() {
    EVERYTHING.assert_promises(0..15, OPERATIONS);
}

#[test]
fn promises_hold_while_everything_is_wrong_from_other_seeds() {
    EVERYTHING.assert_promises(1_000_000..1_000_015, OPERATIONS);
}

#[test]
fn promises_hold_while_policies_answer_for_the_store() {
    OUTAGES.assert_promises(0..15, OPERATIONS);
}

#[test]
fn promises_hold_while_policies_grant_to_a_crowd() {
    CROWDED_OUTAGES.assert_promises(0..6, OPERATIONS_FEWER);
}

#[test]
fn promises_hold_while_policies_answer_and_everything_is_wrong() {
    OUTAGES_OF_EVERYTHING.assert_promises(0..15, OPERATIONS);
}

#[test]
fn promises_hold_while_journals_are_full_or_fail() {
    OUTAGES_WITHOUT_ROOM.assert_promises(0..6, OPERATIONS_FEWER);
}

#[test]
fn promises_hold_while_stores_are_switched() {
    SWITCHES.assert_promises(0..12, OPERATIONS);
}

#[test]
fn promises_hold_while_stores_are_switched_automatically() {
    FAILOVERS.assert_promises(0..12, OPERATIONS);
}

#[test]
fn a_world_of_failovers_switches_automatically() {
    let tally = FAILOVERS.run(1, OPERATIONS).tally;
    assert!(tally.contains_key(&("chain", "switched automatically")), "{tally:?}");
}

#[test]
fn promises_hold_while_policies_answer_and_stores_are_switched() {
    OUTAGES_AND_SWITCHES.assert_promises(0..6, OPERATIONS_FEWER);
}

#[test]
fn promises_hold_while_grants_are_frozen_after_a_loss() {
    GRANT_FREEZES.assert_promises(0..6, OPERATIONS);
}

#[test]
fn promises_hold_while_shards_fail_or_lack_replicas() {
    SHARDS.assert_promises(0..12, OPERATIONS);
}

#[test]
fn promises_hold_for_the_other_shards_while_one_loses_its_data() {
    SHARDS_WITHOUT_ACKNOWLEDGEMENT.assert_promises(0..6, OPERATIONS);
}

#[test]
fn promises_of_locks_hold_while_nothing_is_wrong() {
    Scenario::of("locks, nothing is wrong", &[]).in_a(Kind::Locks).assert_promises(0..1, OPERATIONS_OF_LOCKS);
}

#[test]
fn promises_of_locks_hold_while_everything_is_wrong() {
    LOCKS.assert_promises(0..12, OPERATIONS_OF_LOCKS);
}

/// Some kinds are rare in a single world.
#[test]
fn worlds_of_locks_meet_every_kind_of_answer() {
    let tallies: Vec<_> = (0..4).map(|seed| LOCKS.run(seed, OPERATIONS_OF_LOCKS).tally).collect();
    let kinds = ["granted", "repeated", "held", "upgrade refused", "released", "not held", "renewed"];
    for kind in kinds.into_iter().chain(["unknown", "refused"]) {
        let met: u64 = tallies.iter().filter_map(|tally| tally.get(&("lock", kind))).sum();
        assert!(met >= 5, "{kind:?}: {tallies:?}");
    }
}

/// More of the same, from a new seed. Without a crowd: from some seeds its gateways report overlaps that were none, because a spooled
/// outcome is compared as if its claim had been granted when it was called, and the audit knows no such excuse.
#[test]
#[ignore = "a soak test: it runs for a minute, from new seeds"]
fn promises_hold_from_new_seeds() {
    let seed = oncegate_core::attempt::Entropy::bits(&oncegate_core::attempt::SystemEntropy) >> 1;
    for world in [
        EVERYTHING,
        OUTAGES,
        OUTAGES_OF_EVERYTHING,
        OUTAGES_WITHOUT_ROOM,
        OUTAGES_AND_SWITCHES,
        SWITCHES,
        FAILOVERS,
        GRANT_FREEZES,
        SHARDS,
        SHARDS_WITHOUT_ACKNOWLEDGEMENT,
        LOCKS,
    ] {
        world.assert_promises(seed..seed + 50, OPERATIONS_FEWER);
    }
}

#[test]
fn a_seed_replays_exactly_and_another_differs() {
    for world in [
        EVERYTHING,
        OUTAGES,
        OUTAGES_WITHOUT_ROOM,
        SWITCHES,
        FAILOVERS,
        GRANT_FREEZES,
        SHARDS,
        SHARDS_WITHOUT_ACKNOWLEDGEMENT,
        LOCKS,
    ] {
        let hash = |seed| world.run(seed, 3_000).hash;
        let first = hash(7);
        assert_eq!(hash(7), first, "{}: the run depends on more than its seed", world.name);
        assert_ne!(hash(8), first);
    }
}

/// A rule without an answer to check proves nothing.
#[test]
fn a_world_meets_every_kind_of_answer() {
    let tally = EVERYTHING.run(3, OPERATIONS).tally;
    let kinds = [
        ("claim", "granted"),
        ("claim", "repeated"),
        ("claim", "taken over"),
        ("claim", "duplicate in progress"),
        ("claim", "duplicate succeeded"),
        ("claim", "duplicate unknown"),
        ("claim", "mismatch"),
        ("claim", "outcome unknown"),
        ("claim", "store unavailable"),
        ("settle", "succeeded"),
        ("settle", "released"),
        ("settle", "unknown"),
        ("settle", "absent"),
        ("settle", "recorded late"),
        ("settle", "already succeeded"),
        ("settle", "superseded"),
        ("settle", "outcome unknown"),
        ("settle", "store unavailable"),
        ("renew", "renewed"),
        ("renew", "lease lost"),
        ("renew", "superseded"),
        ("renew", "outcome unknown"),
        ("release", "answered"),
        ("read", "answered"),
    ];
    for kind in kinds {
        assert!(tally.get(&kind).is_some_and(|count| *count >= 5), "{kind:?}: {tally:?}");
    }
}

#[test]
fn worlds_meet_every_way_in_which_a_journal_refuses() {
    // The part of one app is full in one world of four.
    let tallies: Vec<_> = (0..8).map(|seed| OUTAGES_WITHOUT_ROOM.run(seed, OPERATIONS_FEWER).tally).collect();
    for kind in ["full", "full for the app", "no room", "broken", "unsure"] {
        assert!(tallies.iter().any(|tally| tally.contains_key(&("journal", kind))), "{kind:?}: {tallies:?}");
    }
}

/// Each bug, with the world that must find it, and promises. The bug must break at least one of them.
const PLANTED: &[(Bug, Scenario, &[&str])] = &[
    (Bug::DeleteWithoutCompare, EVERYTHING, &["S2"]),
    (Bug::FailureUndoesSuccess, EVERYTHING, &["S3"]),
    (Bug::NonceIgnored, EVERYTHING, &["S1"]),
    (Bug::SweeperDeletesRenewed, EVERYTHING, &["S1", "S2", "S6"]),
    (Bug::RenewalShortens, EVERYTHING, &["S2"]),
    (Bug::LateOutcomeDropped, EVERYTHING, &["S3", "S5"]),
    (Bug::FenceFalls, EVERYTHING, &["S11"]),
    (Bug::TimeoutTakenAsClaimed, EVERYTHING, &["S9"]),
    (Bug::TimeoutTakenAsRefused, EVERYTHING, &["S9"]),
    (Bug::RetryByAnotherAttempt, EVERYTHING, &["S9"]),
    (Bug::UnknownClaimUndone, EVERYTHING, &["S2"]),
    (Bug::TimeoutTakenAsSettled, EVERYTHING, &["S9"]),
    (Bug::LeaseReportedTooLong, EVERYTHING, &["S10"]),
    (Bug::SlowToComeBack, EVERYTHING, &["L3"]),
    (Bug::DuplicateFromMemory, EVERYTHING, &["S9"]),
    (Bug::LocalForgets, OUTAGES, &["local", "S10"]),
    (Bug::PolicyNotReported, OUTAGES, &["S9"]),
    (Bug::PolicyNotChosen, OUTAGES, &["S12"]),
    (Bug::JournalNotSynced, OUTAGES, &["local", "spool", "S1"]),
    (Bug::HalfAnEntryStays, OUTAGES_WITHOUT_ROOM, &["local", "spool", "S1", "S9", "overlap"]),
    (Bug::DeliveryDropped, OUTAGES, &["spool"]),
    (Bug::DeliveryTooLate, OUTAGES, &["spool"]),
    (Bug::OverlapNotReported, OUTAGES, &["overlap"]),
    // Without the record, an accepted outcome may be taken for one that need not be sent.
    (Bug::SameTryNotDetected, CROWDED_OUTAGES, &["nonce", "spool"]),
    (Bug::GrantTooLong, CROWDED_OUTAGES, &["overlap"]),
    // Without them, an attempt is not known as one of the same try either.
    (Bug::GrantsOverwritten, CROWDED_OUTAGES, &["overlap", "nonce"]),
    (Bug::GrantsEndTooSoon, CROWDED_OUTAGES, &["overlap", "nonce"]),
    // If both stores grant, either promise may be broken first.
    (Bug::SwitchedAtOnce, SWITCHES, &["switch", "S1", "S3"]),
    (Bug::SwitchNotSeen, SWITCHES, &["switch", "S1", "S3"]),
    (Bug::SwitchedAtOnce, FAILOVERS, &["switch", "S1", "S3"]),
    (Bug::SwitchNotSeen, FAILOVERS, &["switch", "S1", "S3"]),
    (Bug::GrantFreezeForgotten, GRANT_FREEZES, &["freeze", "S1"]),
    (Bug::GrantFreezeTooShort, GRANT_FREEZES, &["freeze", "S1"]),
    (Bug::MovedTakenAsClaimed, SHARDS, &["S9"]),
    (Bug::ShortfallTakenAsClaimed, SHARDS, &["S9"]),
    (Bug::RetryByAnotherAttempt, SHARDS, &["S9"]),
    (Bug::StaleSlotMap, SHARDS, &["S9", "S1"]),
    (Bug::ShardsRenumbered, SHARDS_WITHOUT_ACKNOWLEDGEMENT, &["S1", "S2", "S3", "S6"]),
];

/// Bugs that worlds of the usual length do not find.
const PLANTED_RARE: &[(Bug, Scenario, &[&str])] = &[(Bug::RenewalNotDelivered, CROWDED_OUTAGES, &["S1"])];

/// Bugs of locks.
const PLANTED_IN_LOCKS: &[(Bug, Scenario, &[&str])] = &[
    (Bug::LockQueueIgnored, LOCKS, &["order"]),
    (Bug::LockTicketOutlivesOwner, LOCKS, &["progress"]),
    (Bug::LockCounter, LOCKS, &["holds"]),
    (Bug::LockFenceRestarts, LOCKS, &["fence"]),
];

/// Worlds in which a bug is looked for.
const PLANTED_SEEDS: u64 = 8;

#[test]
fn planted_bugs_are_found() {
    find(PLANTED, OPERATIONS);
}

/// Not every world has an automatic switch that is followed by a claim.
#[test]
fn a_forgotten_freeze_after_an_automatic_switch_is_found() {
    let scenario = Scenario { bug: Some(Bug::GrantFreezeForgotten), ..FAILOVERS };
    let found = (0..PLANTED_SEEDS).find_map(|seed| scenario.run(seed, OPERATIONS).broken.map(|(rule, _)| rule));
    assert!(matches!(found, Some("freeze" | "S1")), "{found:?}");
}

#[test]
fn planted_bugs_of_locks_are_found() {
    find(PLANTED_IN_LOCKS, OPERATIONS_OF_LOCKS);
}

#[test]
fn rare_planted_bugs_are_found() {
    find(PLANTED_RARE, 250_000);
}

#[expect(clippy::print_stdout, reason = "prints how soon a bug is found")]
fn find(planted: &[(Bug, Scenario, &[&str])], operations: u64) {
    let mut missed = Vec::new();
    for (bug, world, rules) in planted {
        let scenario = Scenario { bug: Some(*bug), ..*world };
        let mut outcomes = (0..PLANTED_SEEDS).map(|seed| scenario.run(seed, operations));
        match outcomes.find_map(|outcome| Some((outcome.broken?, outcome.operations))) {
            Some(((rule, _), after)) if rules.contains(&rule) => {
                println!("{bug:?} was found as {rule} after {after} operations");
            }
            Some(((_, report), _)) => missed.push(format!("{bug:?} was found as {report}")),
            None => missed.push(format!("{bug:?} was not found")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}
