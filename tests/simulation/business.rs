//! The apps of a world with their terms, and the operations that its callers claim, some of them many callers at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_core::canonical::{Canonical, canonicalize};
use oncegate_core::global_id::GlobalId;
use oncegate_core::record::{ClaimId, Key};
use oncegate_core::tenant::Operation;
use oncegate_core::terms::{ClaimOnOutage, LeaseEnd, Mode, OutcomeOnOutage, Retention, Terms};
use oncegate_gateway::Gateway;
use oncegate_gateway::tenants::{App, OperationTerms};

use crate::ledger::Choice;
use crate::world::{Habits, World};

/// Number of operations that all callers claim, at any time.
const HOT: u64 = 9;

/// Seconds until these are replaced by others: a success without an end would block them forever.
const HOT_FOR_SECS: u64 = 20;

/// The same for crowding callers.
const CROWDED: u64 = 6;
const CROWDED_FOR_SECS: u64 = 5;

/// The apps, and their operations.
pub(crate) struct Business {
    world: Arc<World>,
    /// Each with its operations, in a fixed order.
    apps: Vec<(Arc<App>, Vec<Operation>)>,
    /// Number of operations that only one caller claims.
    own: AtomicU64,
    /// All chosen operations, by number.
    chosen: Mutex<Vec<Target>>,
}

/// Outage policies for claims and outcomes.
type Policies = (ClaimOnOutage, OutcomeOnOutage);

/// An operation to claim.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) app: Arc<App>,
    pub(crate) operation: Operation,
    pub(crate) contents: Canonical,
    pub(crate) global_id: GlobalId,
    /// Its number in the world.
    pub(crate) number: u32,
}

impl Business {
    pub(crate) fn new(world: Arc<World>) -> Arc<Self> {
        use ClaimOnOutage::{FailClosed, FailOpen, Local};
        use OutcomeOnOutage::{FailClosed as Closed, Spool};
        let chosen = world.kind.has_policies();
        let app = |key, operations: &[(&str, Terms, u64, Policies)]| app(key, operations, chosen);
        let apps = vec![
            app(
                "shop",
                &[
                    ("order.submit", terms(2_000, Some(30), 20, LeaseEnd::Release), 1_000, (Local, Spool)),
                    ("coupon.redeem", terms(1_000, None, 20, LeaseEnd::Release), 1_000, (FailOpen, Spool)),
                    ("mail.send", terms(800, Some(20), 10, LeaseEnd::Unknown), 1_000, (Local, Closed)),
                ],
            ),
            app(
                "bank",
                &[
                    ("transfer", terms(5_000, Some(3_600), 60, LeaseEnd::Unknown), 2_000, (FailClosed, Spool)),
                    ("statement", terms(10_000, Some(2), 5, LeaseEnd::Release), 500, (FailOpen, Spool)),
                ],
            ),
            app("tiny", &[("default", terms(500, Some(1), 1, LeaseEnd::Release), 150, (FailClosed, Closed))]),
        ];
        Arc::new(Self { world, apps, own: AtomicU64::new(0), chosen: Mutex::default() })
    }

    /// Chooses an operation, often one that others claim too.
    pub(crate) fn choose(&self) -> Target {
        let rng = &self.world.rng;
        let wanted = if self.world.habits == Habits::Crowding && rng.percent(80) {
            // The operations of the first app, one after another. Policies grant all of them.
            let now = self.world.time.now().as_secs() / CROWDED_FOR_SECS;
            (now * CROWDED + rng.between(0, CROWDED - 1)) * self.apps.len() as u64
        } else if rng.percent(50) {
            let now = self.world.time.now().as_secs() / HOT_FOR_SECS;
            now * HOT + rng.between(0, HOT - 1)
        } else if rng.percent(30) {
            // An operation that was chosen before.
            (1 << 32) + self.own.load(Ordering::Relaxed).saturating_sub(rng.between(0, 50))
        } else {
            (1 << 32) + self.own.fetch_add(1, Ordering::Relaxed)
        };
        // Apps claim the same contents, which must have no effect on each other.
        let apps = self.apps.len() as u64;
        let (app, operations) = &self.apps[usize::try_from(wanted % apps).expect("64 bits")];
        let (app, wanted) = (app.clone(), wanted / apps);
        let operation = operations[usize::try_from(wanted).expect("64 bits") % operations.len()].clone();
        let contents = canonicalize(format!("{{\"number\":\"{wanted}\"}}").as_bytes()).expect("JSON");
        let global_id = Gateway::global_id(&app, &operation, &contents);
        let (number, is_new) = {
            let known = &mut *self.world.known();
            let number = known.number(&Key::new(&app.key, ClaimId::of_api(global_id)));
            let spools = operations.iter().any(|own| app.terms_of(own).outcome_on_outage == OutcomeOnOutage::Spool);
            let choice = Choice { claims: app.terms_of(&operation).claim_on_outage, spools };
            (number, known.of(number).ledger.choice.replace(choice).is_none())
        };
        let target = Target { app, operation, contents, global_id, number };
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        if is_new {
            chosen.push(target.clone());
        }
        target
    }

    /// Returns the last chosen operation.
    pub(crate) fn newest(&self, most: usize) -> Vec<Target> {
        let chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        chosen[chosen.len().saturating_sub(most)..].to_vec()
    }
}

impl Target {
    /// Returns its terms.
    pub(crate) fn terms(&self) -> &OperationTerms {
        self.app.terms_of(&self.operation)
    }
}

fn terms(lease_ms: u64, retention_secs: Option<u64>, unknown_secs: u64, on_lease_end: LeaseEnd) -> Terms {
    let retention = retention_secs.map_or(Retention::Forever, |secs| Retention::For(Duration::from_secs(secs)));
    let unknown_retention = Retention::For(Duration::from_secs(unknown_secs));
    Terms { lease: Duration::from_millis(lease_ms), retention, unknown_retention, on_lease_end }
}

/// Creates an app, with or without its policies.
fn app(key: &str, operations: &[(&str, Terms, u64, Policies)], chosen: bool) -> (Arc<App>, Vec<Operation>) {
    let own = |(name, terms, deadline_ms, policies): &(&str, Terms, u64, Policies)| {
        // No part of it equals the deadline of a delivery: deliveries are recognised by theirs.
        let deadline = Duration::from_millis(*deadline_ms + u64::from(chosen)) + Duration::from_micros(7);
        let (claim_on_outage, outcome_on_outage) = if chosen { *policies } else { Policies::default() };
        let own = OperationTerms {
            terms: *terms,
            mode: Mode::Enforce,
            accept_loss: false,
            contents_stored_bytes: 1024,
            deadline,
            claim_on_outage,
            outcome_on_outage,
        };
        (name.parse().expect("an operation"), own)
    };
    let operations: Vec<(Operation, OperationTerms)> = operations.iter().map(own).collect();
    let names = operations.iter().map(|(name, _)| name.clone()).collect();
    let OperationTerms { terms, deadline, .. } = operations[0].1;
    let app = App {
        terms: operations[0].1,
        operations: operations.into_iter().collect(),
        ..App::for_tests(key, &[], terms, deadline)
    };
    (Arc::new(app), names)
}
