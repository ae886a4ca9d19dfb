//! What gateway and store use after each round, and whether it grows.

use std::fmt;

use serde::Serialize;

use crate::report::ratio;

const MIB: u64 = 1 << 20;

/// Use after a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// Resident memory of the gateway.
    pub(super) memory_bytes: u64,
    /// Open descriptors of the gateway.
    pub(super) descriptors: u64,
    /// Threads of the gateway.
    pub(super) threads: u64,
    /// Data of the store: files, `used_memory`, tables with their indexes. Of the memory engine, the gateway's memory.
    pub(super) store_bytes: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "memory {:.1} MiB, {} descriptors, {} threads, store {:.1} MiB",
            ratio(self.memory_bytes, MIB),
            self.descriptors,
            self.threads,
            ratio(self.store_bytes, MIB)
        )
    }
}

/// A figure whose growth is bounded.
struct Figure {
    name: &'static str,
    of: fn(&Usage) -> u64,
    /// Units of the figure in a unit of the report.
    unit: u64,
    /// Growth that is still none, as a ratio.
    ratio_max: f64,
    /// Growth that is still none, in units of the report: what is small varies by more than the ratio.
    difference_max: f64,
}

/// Figures and bounds. A store collects its garbage in steps, so its size varies most.
const FIGURES: [Figure; 4] = [
    Figure { name: "memory, MiB", of: |use_| use_.memory_bytes, unit: MIB, ratio_max: 1.1, difference_max: 8.0 },
    Figure { name: "descriptors", of: |use_| use_.descriptors, unit: 1, ratio_max: 1.0, difference_max: 8.0 },
    Figure { name: "threads", of: |use_| use_.threads, unit: 1, ratio_max: 1.0, difference_max: 4.0 },
    Figure { name: "store, MiB", of: |use_| use_.store_bytes, unit: MIB, ratio_max: 1.25, difference_max: 8.0 },
];

/// Growth of a figure.
#[derive(Debug, Serialize)]
pub(super) struct Growth {
    what: &'static str,
    /// Most in the second third of the rounds: in the first, gateway and store fill up.
    middle: f64,
    /// Most in the last third.
    last: f64,
    is_too_much: bool,
}

impl Growth {
    pub(super) fn is_too_much(&self) -> bool {
        self.is_too_much
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_too_much { "GROWS" } else { "steady" };
        let Self { what, middle, last, .. } = self;
        write!(f, "{what} | {middle:.1} | {last:.1} | {:.2} | {verdict}", last / middle.max(f64::MIN_POSITIVE))
    }
}

/// Compares the most of the last third of the rounds with that of the second.
pub(super) fn judge(uses: &[Usage]) -> Vec<Growth> {
    let third = uses.len() / 3;
    let (rest, last) = uses.split_at(uses.len() - third);
    let middle = &rest[rest.len() - third..];
    let judged = FIGURES.iter().map(|figure| {
        let most = |uses: &[Usage]| ratio(uses.iter().map(figure.of).max().unwrap_or_default(), figure.unit);
        let (middle, last) = (most(middle), most(last));
        let is_too_much = last > middle * figure.ratio_max && last - middle > figure.difference_max;
        Growth { what: figure.name, middle, last, is_too_much }
    });
    judged.collect()
}
