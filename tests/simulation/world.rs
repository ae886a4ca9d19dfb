//! A simulated world: its time, its random numbers, its trace, what must hold of every key, and the first promise that
//! was broken.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate::domain::overlap::{Overlap, Overlaps as _};
use oncegate::domain::record::Key;
use oncegate::domain::spool::Spool as _;
use oncegate::resilience::degrade::OutageJournal;
use oncegate::resilience::journal::Bounds;

use crate::clock::{StoreClock, Time};
use crate::ledger::Ledger;
use crate::oracle::{Beliefs, Open};
use crate::reference::{Broken, Reference, hold};
use crate::rng::Rng;
use crate::stack::Host;
use crate::switches::Switches;
use crate::trace::{Event, NO_KEY, Name, Place, Trace};

/// What a world is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One store, and nobody answers in its place.
    Plain,
    /// One store, and policies that answer in its place.
    Policies,
    /// Two stores, between which operators switch.
    Switched,
    /// Two stores, between which operators switch, and policies that answer in the place of the one in use.
    PoliciesAndSwitches,
    /// One store, and nothing is granted for a while after it has lost its data.
    Holding,
}

impl Kind {
    /// Whether policies answer where the store does not.
    pub(crate) fn has_policies(self) -> bool {
        matches!(self, Self::Policies | Self::PoliciesAndSwitches)
    }

    /// How many stores there are.
    pub(crate) fn stores(self) -> u16 {
        if matches!(self, Self::Switched | Self::PoliciesAndSwitches) { 2 } else { 1 }
    }
}

/// What callers do more often than they usually would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Habits {
    /// Nothing.
    Usual,
    /// They crowd around few keys, make a claim at two gateways at once, renew it for long, and fail.
    Crowding,
}

/// How many stores a world has at most.
pub(crate) const STORES_MAX: usize = 2;

/// What all in a world share.
pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) habits: Habits,
    pub(crate) time: Time,
    pub(crate) rng: Rng,
    pub(crate) store_clock: Arc<StoreClock>,
    /// How much the journal of each gateway takes.
    pub(crate) journal_bounds: Bounds,
    /// Operations begun.
    operations: AtomicU64,
    operations_max: AtomicU64,
    /// Everybody stops: all has been done, or something is broken.
    over: AtomicBool,
    known: Mutex<Known>,
}

/// What is known of all that has happened.
pub(crate) struct Known {
    pub(crate) trace: Trace,
    numbers: HashMap<Key, u32>,
    pub(crate) keys: Vec<OfKey>,
    /// Calls that callers wait for.
    pub(crate) open: HashMap<(u16, &'static str, Name), Open>,
    /// Attempts that somebody has reported or released. Nothing else ends a claim.
    pub(crate) reported: HashSet<Name>,
    /// How often what callers could rely on was lost: the store's data, or the store that was in use.
    pub(crate) losses: u64,
    pub(crate) trouble: Trouble,
    pub(crate) switches: Switches,
    /// Until when the disk of a gateway was such that nobody can tell what it has of what it was last given.
    pub(crate) disks_unsure_until: HashMap<u16, Duration>,
    /// Which marks of policies' grants are in which store: of which claim, and by whose nonce.
    pub(crate) marks: HashSet<(u16, String, u64)>,
    /// Nothing keeps anybody from being served at once, where nothing is wrong.
    pub(crate) serves: bool,
    /// How often each answer was given, to callers.
    pub(crate) tally: BTreeMap<(&'static str, &'static str), u64>,
    broken: Option<(Broken, u32)>,
}

/// What is known of a key.
pub(crate) struct OfKey {
    pub(crate) key: Key,
    /// What each store must hold.
    pub(crate) references: [Reference; STORES_MAX],
    /// What callers have been told.
    pub(crate) beliefs: Beliefs,
    /// The last attempt whose failure has released the claim, and when.
    pub(crate) released: Option<(Name, Duration)>,
    /// What was answered by policies.
    pub(crate) ledger: Ledger,
}

/// Whether anything is wrong that callers may feel.
#[derive(Default)]
pub(crate) struct Trouble {
    now: u32,
    since: Duration,
}

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) hash: u64,
    pub(crate) operations: u64,
    /// How long the world has gone on.
    pub(crate) lasted: Duration,
    pub(crate) tally: BTreeMap<(&'static str, &'static str), u64>,
    /// The rule that was broken first, and the report.
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
            reported: HashSet::new(),
            losses: 0,
            trouble: Trouble::default(),
            switches: Switches::default(),
            disks_unsure_until: HashMap::new(),
            marks: HashSet::new(),
            serves: matches!(kind, Kind::Plain | Kind::Policies),
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

    /// What is known. Never held while anybody waits.
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was wrong is over, and so is what it has led to: from now on everybody is served.
    pub(crate) fn settles_down(&self) {
        self.known().serves = true;
    }

    /// That what policies have answered has come to what they promise.
    pub(crate) fn audit(&self, hosts: &[Host]) {
        let journals: Vec<_> = hosts.iter().filter_map(Host::gateway).map(|running| running.journal).collect();
        let waiting: usize = journals.iter().map(|journal| journal.waiting()).sum();
        self.check(NO_KEY, hold(waiting == 0, "spool", || format!("{waiting} entries wait and wait")));
        let mut overlaps: HashMap<Key, Vec<(u16, Overlap)>> = HashMap::new();
        for (gateway, host) in (0..).zip(hosts) {
            let journal = host.gateway().map(|running| running.journal);
            for overlap in journal.iter().flat_map(|journal| journal.newest(None, None, usize::MAX)) {
                let key = Key { app: overlap.app.clone(), global_id: overlap.global_id };
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

    /// That what waits in a gateway has not outgrown its journal.
    pub(crate) fn measure(&self, journal: &OutageJournal) {
        let (bytes, bounds) = (journal.status().bytes, self.journal_bounds);
        self.check(NO_KEY, hold(bytes <= bounds.bytes, "L4", || format!("{bytes} bytes wait, of {bounds:?}")));
    }

    /// Counts an operation; false once there have been enough.
    pub(crate) fn count(&self) -> bool {
        !self.is_over() && self.operations.fetch_add(1, Ordering::Relaxed) < self.operations_max()
    }

    /// So many operations more are begun, although there have been enough.
    pub(crate) fn extend(&self, operations: u64) {
        let begun = self.operations.load(Ordering::Relaxed).min(self.operations_max());
        self.operations.store(begun, Ordering::Relaxed);
        self.operations_max.store(begun + operations, Ordering::Relaxed);
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

    /// Everybody stops.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Adds to the trace.
    pub(crate) fn note(&self, event: Event) {
        self.known().trace.add(self.time.now(), event);
    }

    /// Adds to the trace what concerns all keys.
    pub(crate) fn announce(&self, place: Place, what: &'static str, number: u64) {
        let nobody = Name::default();
        self.note(Event { place, key: NO_KEY, what, whose: nobody, answer: "", other: nobody, number });
    }

    /// What callers could rely on is lost. What somebody was granted may go on, where nobody is granted anything meanwhile.
    pub(crate) fn lost(&self) {
        let known = &mut *self.known();
        known.losses += 1;
        known.switches.lost_at = Some(self.time.now());
        for of_key in &mut known.keys {
            of_key.beliefs.forget(self.kind == Kind::Holding);
            of_key.ledger.lose();
        }
    }

    /// Something callers may feel begins.
    pub(crate) fn trouble_begins(&self) {
        self.known().trouble.now += 1;
    }

    /// It is over.
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

    /// What the run came to.
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
    /// The number of a key, in the order in which keys turned up.
    pub(crate) fn number(&mut self, key: &Key) -> u32 {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = u32::try_from(self.keys.len()).expect("fewer keys than that");
        self.numbers.insert(key.clone(), number);
        self.keys.push(OfKey {
            key: key.clone(),
            references: Default::default(),
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
    /// Whether nothing has been wrong since then.
    pub(crate) fn calm_since(&self, then: Duration) -> bool {
        self.now == 0 && self.since <= then
    }
}
