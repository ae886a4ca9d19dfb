//! Stories of outages: a gateway whose store goes and comes back, another that still reaches it, and what each is told. Time
//! moves only when a story says so; only the work behind the calls runs by the machine's clock.

mod accepted;
mod conformance;
mod fail_open;
mod faults;
mod late_calls;
mod local;
mod same_try;
mod spool;
mod support;
