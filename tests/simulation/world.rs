//! A simulated world: its time, its random numbers, its trace, the rules of every key, and the first broken promise.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::record::Key;
use oncegate_core::suspect::{Suspect, SuspectFilter, SuspectKind};
use oncegate_outage::OutageJournal;
use oncegate_outage::journal::Bounds;

use crate::clock::{StoreClock, Time};
use crate::ledger::Ledger;
use crate::oracle::{Beliefs, Open};
use crate::reference::{Broken, Reference, ensure};
use crate::rng::Rng;
use crate::stack::Host;
use crate::switches::Switches;
use crate::trace::{Event, NO_KEY, Name, Place, Trace};

/// Kind of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One store, without outage policies.
    Plain,
    /// One store, with outage policies.
    Policies,
    /// Two stores, between which operators switch.
    Switched,
    /// Two stores, between which operators switch, with outage policies.
    PoliciesAndSwitches,
    /// Two stores and a witness, with which gateways switch automatically, and operators too.
    Failover,
    /// One store, with a grant freeze after a loss of data.
    GrantFreeze,
    /// One store of three shards.
    Sharded,
    /// One store, whose callers request locks.
    Locks,
}

impl Kind {
    /// Returns true for a world with outage policies.
    pub(crate) fn has_policies(self) -> bool {
        matches!(self, Self::Policies | Self::PoliciesAndSwitches)
    }

    /// Returns true if a loss of this store's data is one of this key. Of shards each loses its own keys.
    fn loses(self, store: u16, key: &Key) -> bool {
        self != Self::Sharded
            || key.global_id.as_bytes().last().is_some_and(|last| u16::from(*last) % self.stores() == store)
    }

    /// Returns the number of stores; of shards, in a store of several.
    pub(crate) fn stores(self) -> u16 {
        match self {
            Self::Switched | Self::PoliciesAndSwitches => 2,
            // The last store of a failover is the witness.
            Self::Sharded | Self::Failover => 3,
            Self::Plain | Self::Policies | Self::GrantFreeze | Self::Locks => 1,
        }
    }
}

/// Special behaviour of callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Habits {
    /// None.
    Usual,
    /// Callers claim few keys at two gateways at once, renew them for long, and fail.
    Crowding,
}

/// Largest number of stores of a world.
pub(crate) const STORES_MAX: usize = 3;

/// State that a whole world shares.
pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) habits: Habits,
    pub(crate) time: Time,
    pub(crate) rng: Rng,
    pub(crate) store_clock: Arc<StoreClock>,
    /// Bounds of the journal of each gateway.
    pub(crate) journal_bounds: Bounds,
    /// Number of operations that have started.
    operations: AtomicU64,
    operations_max: AtomicU64,
    /// Set at the end: all operations have been made, or a rule is broken.
    over: AtomicBool,
    known: Mutex<Known>,
}

/// Knowledge of everything that has happened.
pub(crate) struct Known {
    pub(crate) trace: Trace,
    numbers: HashMap<Key, u32>,
    pub(crate) keys: Vec<OfKey>,
    /// Open calls of callers.
    pub(crate) open: HashMap<(u16, &'static str, Name), Open>,
    /// Calls at gateways with outage policies whose result was unknown.
    pub(crate) left_unknown: HashSet<(u16, &'static str, Name)>,
    /// Attempts that were reported or released. Nothing else ends a claim.
    pub(crate) reported: HashSet<Name>,
    pub(crate) trouble: Trouble,
    pub(crate) switches: Switches,
    /// Time until which it is uncertain whether a gateway's disk has the last writes.
    pub(crate) disks_unsure_until: HashMap<u16, Duration>,
    /// Degraded grants that stores know: the store, the claim and the nonce.
    pub(crate) degraded: HashSet<(u16, Key, u64)>,
    /// True if every call must be served, because there is no fault.
    pub(crate) serves: bool,
    /// Number of answers to callers, by kind.
    pub(crate) tally: BTreeMap<(&'static str, &'static str), u64>,
    broken: Option<(Broken, u32)>,
}

/// Knowledge of a key.
pub(crate) struct OfKey {
    pub(crate) key: Key,
    /// Expected record in each store.
    pub(crate) references: [Reference; STORES_MAX],
    /// Number of losses of its data: with the store's, or because another store is used.
    pub(crate) losses: u64,
    /// Answers to callers.
    pub(crate) beliefs: Beliefs,
    /// The last attempt whose failure has released the claim, and when.
    pub(crate) released: Option<(Name, Duration)>,
    /// Answers of policies.
    pub(crate) ledger: Ledger,
}

/// Faults that callers may notice.
#[derive(Default)]
pub(crate) struct Trouble {
    now: u32,
    since: Duration,
}

/// Result of a run.
pub(crate) struct Outcome {
    pub(crate) hash: u64,
    pub(crate) operations: u64,
    /// Simulated time of the run.
    pub(crate) lasted: Duration,
    pub(crate) tally: BTreeMap<(&'static str, &'static str), u64>,
    /// The first broken rule, and the report.
    pub(crate) broken: Option<(&'static str, String)>,
}

impl World {
    pub(crate) fn new(kind: Kind, habits: Habits, journal_bounds: Bounds, seed: u64, operations_max: u64) -> Arc<Self> {
        let time = Time::begin();
        let known = Known {
            trace: Trace::new(seed),
            numbers: HashMap::new(),
            keys: Vec::new(),
            open: HashMap::new(),
            left_unknown: HashSet::new(),
            reported: HashSet::new(),
            trouble: Trouble::default(),
            switches: Switches::default(),
            disks_unsure_until: HashMap::new(),
            degraded: HashSet::new(),
            serves: matches!(kind, Kind::Plain | Kind::Policies | Kind::Sharded),
            tally: BTreeMap::new(),
            broken: None,
        };
        Arc::new(Self {
            kind,
            habits,
            time,
            rng: Rng::new(seed),
            store_clock: Arc::new(StoreClock::new(time)),
            journal_bounds,
            operations: AtomicU64::new(0),
            operations_max: operations_max.into(),
            over: AtomicBool::new(false),
            known: Mutex::new(known),
        })
    }

    /// Locks the knowledge. Never held across an await.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the end of all faults and their effects: from now on every call must be served.
    pub(crate) fn settles_down(&self) {
        self.known().serves = true;
    }

    /// Checks that the promises of all answers by policies were kept.
    pub(crate) fn audit(&self, hosts: &[Host]) {
        let journals: Vec<_> = hosts.iter().filter_map(Host::gateway).map(|running| running.journal).collect();
        let waiting: usize = journals.iter().map(|journal| journal.status().entries).sum();
        self.check(NO_KEY, ensure(waiting == 0, "spool", || format!("{waiting} entries are never delivered")));
        let of_overlaps = SuspectFilter { kinds: vec![SuspectKind::Overlap], ..SuspectFilter::default() };
        let mut overlaps: HashMap<Key, Vec<(u16, Suspect)>> = HashMap::new();
        for (gateway, host) in (0..).zip(hosts) {
            let journal = host.gateway().map(|running| running.journal);
            for overlap in journal.iter().flat_map(|journal| journal.suspects(&of_overlaps, usize::MAX)) {
                let key = Key { app: overlap.app.clone(), realm: overlap.realm, global_id: overlap.global_id };
                overlaps.entry(key).or_default().push((gateway, overlap));
            }
        }
        let known = &mut *self.known();
        known.tally.insert(("overlap", "noticed"), overlaps.values().map(|own| own.len() as u64).sum());
        let audit = |of_key: &OfKey| of_key.ledger.audit(overlaps.get(&of_key.key).map_or(&[], Vec::as_slice));
        let mut audited = known.keys.iter().zip(0..).map(|(of_key, number)| (number, audit(of_key)));
        let broken = audited.find(|(_, audited)| audited.is_err());
        if let Some((number, broken)) = broken {
            self.check_known(known, number, broken);
        }
    }

    /// Checks that spooled entries fit into the bounds of the journal.
    pub(crate) fn measure(&self, journal: &OutageJournal) {
        let (bytes, bounds) = (journal.status().bytes, self.journal_bounds);
        self.check(NO_KEY, ensure(bytes <= bounds.bytes, "L4", || format!("{bytes} bytes wait, of {bounds:?}")));
    }

    /// Counts an operation. Returns false after the last one.
    pub(crate) fn count(&self) -> bool {
        !self.is_over() && self.operations.fetch_add(1, Ordering::Relaxed) < self.operations_max()
    }

    /// Counts operations beyond the last one.
    pub(crate) fn extend(&self, operations: u64) {
        let started = self.operations.load(Ordering::Relaxed).min(self.operations_max());
        self.operations.store(started, Ordering::Relaxed);
        self.operations_max.store(started + operations, Ordering::Relaxed);
    }

    fn operations_max(&self) -> u64 {
        self.operations_max.load(Ordering::Relaxed)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_over() || self.operations.load(Ordering::Relaxed) >= self.operations_max()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Ends the world.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Adds to the trace.
    pub(crate) fn note(&self, event: Event) {
        self.known().trace.add(self.time.now(), event);
    }

    /// Adds an event of all keys to the trace.
    pub(crate) fn announce(&self, place: Place, what: &'static str, number: u64) {
        let nobody = Name::default();
        self.note(Event { place, key: NO_KEY, what, attempt_name: nobody, answer: "", other: nobody, number });
    }

    /// Records that a store has lost its data, or is no longer used. Grants remain valid if a grant freeze follows.
    pub(crate) fn lost(&self, store: u16) {
        let known = &mut *self.known();
        known.switches.lost_at = Some(self.time.now());
        for of_key in known.keys.iter_mut().filter(|of_key| self.kind.loses(store, &of_key.key)) {
            of_key.losses += 1;
            of_key.beliefs.forget(self.kind == Kind::GrantFreeze);
            of_key.ledger.lose();
        }
    }

    /// Records the start of a fault that callers may notice.
    pub(crate) fn trouble_begins(&self) {
        self.known().trouble.now += 1;
    }

    /// Records its end.
    pub(crate) fn trouble_ends(&self) {
        let since = self.time.now();
        let trouble = &mut self.known().trouble;
        trouble.now -= 1;
        trouble.since = since;
    }

    /// Ends the world if a rule is broken.
    pub(crate) fn check(&self, key: u32, holds: Result<(), Broken>) {
        self.check_known(&mut self.known(), key, holds);
    }

    pub(crate) fn check_known(&self, known: &mut Known, key: u32, holds: Result<(), Broken>) {
        if let Err(broken) = holds {
            self.end();
            known.broken.get_or_insert((broken, key));
        }
    }

    /// Returns the result of the run.
    pub(crate) fn outcome(&self) -> Outcome {
        let known = self.known();
        let broken = known.broken.as_ref().map(|(Broken { rule, how }, key)| {
            let of_key = known.keys.get(*key as usize).map(|of_key| &of_key.key);
            (*rule, format!("{rule}: {how}\nkey {key}: {of_key:?}\n{}", known.trace.report(*key)))
        });
        Outcome {
            hash: known.trace.hash(),
            operations: self.operations.load(Ordering::Relaxed).min(self.operations_max()),
            lasted: self.time.now(),
            tally: known.tally.clone(),
            broken,
        }
    }
}

impl Known {
    /// Returns the number of a key, in the order of their first events.
    pub(crate) fn number(&mut self, key: &Key) -> u32 {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = u32::try_from(self.keys.len()).expect("fewer keys than that");
        self.numbers.insert(key.clone(), number);
        self.keys.push(OfKey {
            key: key.clone(),
            references: Default::default(),
            losses: 0,
            beliefs: Beliefs::default(),
            released: None,
            ledger: Ledger::default(),
        });
        number
    }

    pub(crate) fn of(&mut self, number: u32) -> &mut OfKey {
        &mut self.keys[number as usize]
    }
}

impl Trouble {
    /// Returns true if there was no fault since then.
    pub(crate) fn calm_since(&self, then: Duration) -> bool {
        self.now == 0 && self.since <= then
    }
}
