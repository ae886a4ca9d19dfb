//! Whole worlds in one thread: several gateways, a store, the network between them and their callers, on one paused clock
//! and one seed. Millions of calls meet every fault in every order, and each run can be repeated exactly.

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
