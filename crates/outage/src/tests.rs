//! Scenarios of outages: a gateway whose store becomes unavailable and comes back, and another gateway that still reaches it.
//! Time advances only in the scenario; the background task uses the machine's clock.

mod accepted;
mod conformance;
mod fail_open;
mod faults;
mod late_calls;
mod local;
mod outage_journal;
mod shards;
mod shared_nonce;
mod spool;
mod support;
