//! Whole worlds in one thread: several gateways, a store, the network between them and their callers, on one paused clock
//! and one seed. Many calls meet every fault in many orders, and each run can be repeated exactly: CONTRIBUTING.md says how.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

mod bugs;
mod business;
mod caller;
mod chaos;
mod clock;
mod dice;
mod judge;
mod link;
mod question;
mod reference;
mod scenario;
mod stack;
mod store;
mod trace;
mod world;

use chaos::Fault::{Clock, DataLoss, Gateways, Network, Server};
use scenario::Scenario;

#[test]
fn promises_hold_while_nothing_is_wrong() {
    Scenario::of("nothing is wrong", &[]).hold(0..1, 20_000);
}

#[test]
fn promises_hold_while_everything_is_wrong() {
    Scenario::of("everything is wrong", &[Network, Network, Server, Clock, DataLoss, Gateways]).hold(0..2, 20_000);
}
