//! Order service. Two things must happen once: an order of a customer, and the sale of an item. `place_naively` checks
//! before it acts; `place` also claims at the gateway, and is otherwise the same; `place_with_locks` checks and acts while it
//! holds locks.

use std::{
    collections::HashSet,
    future::pending,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use oncegate_client::{Claimed, Client, Error, Grant, State as ClaimState, Terms};
use serde_json::{Value, json};
use tokio::{sync::Semaphore, time::sleep};

use crate::{
    locks::{Lock, Locks, Unavailable},
    records::{Order, Records},
};

const ITEM: &str = "console";
/// Duration of a payment. For some customers the bank is slow.
const PAYMENT: Duration = Duration::from_millis(5);
const SLOW_PAYMENT: Duration = Duration::from_millis(200);
/// Lease: longer than the work takes, and short enough to wait for after a crash.
const LEASE: Duration = Duration::from_secs(2);
/// Retention: longer than any customer retries.
const RETENTION: Duration = Duration::from_hours(24);
/// Orders that a shop works on at once; the others queue.
const WORKERS: usize = 24;

/// Guard of a shop against doing things twice.
pub(crate) enum Guard {
    None,
    Claims {
        gateway: Client,
        /// Time that a request waits for the same order of another one.
        wait: Option<Duration>,
    },
    Locks {
        locks: Locks,
        /// Time that a request waits for the same order of another one.
        wait: Duration,
    },
}

pub(crate) struct Shop {
    records: Arc<Records>,
    guard: Guard,
    workers: Arc<Semaphore>,
    /// Customers whose worker in this shop has crashed; the next one survives.
    died: Mutex<HashSet<u32>>,
    pub(crate) counters: Counters,
}

/// Counters for the summary.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) requests: AtomicU64,
    pub(crate) crashes: AtomicU64,
    pub(crate) asked_to_wait: AtomicU64,
    pub(crate) replayed: AtomicU64,
    pub(crate) units_held: AtomicU64,
    pub(crate) found_done: AtomicU64,
}

/// Reply to a customer.
enum Reply {
    Ordered {
        unit: u32,
    },
    SoldOut,
    /// Try again later.
    Wait,
}

/// Reason why there is no useful reply.
enum Trouble {
    /// No gateway answered, so the order is not placed.
    Unavailable,
    /// The worker crashed.
    Died,
}

impl From<Error> for Trouble {
    fn from(_: Error) -> Self {
        Self::Unavailable
    }
}

impl From<Unavailable> for Trouble {
    fn from(_: Unavailable) -> Self {
        Self::Unavailable
    }
}

/// Result of looking for an item.
enum Taken<T> {
    Unit {
        unit: u32,
        claim: T,
    },
    /// All remaining items are held. If a holder has crashed, its item comes back.
    NoneFree,
    SoldOut,
}

/// Points at which a worker can crash.
#[derive(Clone, Copy, PartialEq)]
enum CrashPoint {
    BeforeTheOrder,
    AfterTheOrder,
}

pub(crate) fn router(shop: Arc<Shop>) -> Router {
    Router::new().route("/orders", post(submit)).with_state(shop)
}

async fn submit(State(shop): State<Arc<Shop>>, Json(order): Json<Value>) -> (StatusCode, Json<Value>) {
    let customer = order["customer"].as_u64().and_then(|it| u32::try_from(it).ok()).unwrap_or_default();
    count(&shop.counters.requests);
    let Ok(worker) = Arc::clone(&shop.workers).acquire_owned().await else { return not_now() };
    // In a separate task: a customer who disconnects must not leave an order half placed.
    let placing = tokio::spawn(async move {
        let _busy_until_done = worker;
        match &shop.guard {
            Guard::None => shop.place_naively(customer).await,
            Guard::Claims { gateway, wait } => shop.place(gateway, *wait, customer).await,
            Guard::Locks { locks, wait } => shop.place_with_locks(locks, *wait, customer).await,
        }
    });
    match placing.await {
        Ok(Ok(Reply::Wait) | Err(Trouble::Unavailable)) | Err(_) => not_now(),
        // A crashed worker sends no reply: the customer waits until the timeout.
        Ok(Err(Trouble::Died)) => pending().await,
        Ok(Ok(reply)) => (StatusCode::OK, Json(reply.to_json())),
    }
}

fn not_now() -> (StatusCode, Json<Value>) {
    (StatusCode::SERVICE_UNAVAILABLE, Json(Value::Null))
}

impl Shop {
    pub(crate) fn new(records: Arc<Records>, guard: Guard) -> Arc<Self> {
        Arc::new(Self {
            records,
            guard,
            workers: Arc::new(Semaphore::new(WORKERS)),
            died: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// Checks whether the customer has an order, at the same time as other requests do.
    async fn place_naively(&self, customer: u32) -> Result<Reply, Trouble> {
        if let Some(Order { unit, .. }) = self.records.order_of(customer).await {
            return Ok(Reply::Ordered { unit });
        }
        let Some(unit) = self.records.next_unit().await else { return Ok(Reply::SoldOut) };
        take_payment(customer).await;
        self.may_crash(customer, CrashPoint::BeforeTheOrder)?;
        self.records.append(Order { customer, unit }).await;
        self.may_crash(customer, CrashPoint::AfterTheOrder)?;
        Ok(Reply::Ordered { unit })
    }

    async fn place(&self, gateway: &Client, wait: Option<Duration>, customer: u32) -> Result<Reply, Trouble> {
        // The contents define what makes two requests the same: the customer and the item, not the click or the
        // connection.
        let terms = terms().wait(wait.unwrap_or_default());
        let contents = json!({ "customer": customer, "item": ITEM });
        let claim = match gateway.claim_with("order.submit", contents, terms).await? {
            Claimed::Grant(claim) => claim,
            Claimed::Duplicate(duplicate) if duplicate.state == ClaimState::Succeeded => {
                count(&self.counters.replayed);
                return Ok(Reply::from_json(
                    &duplicate.decode().ok().and_then(|stored| stored.result).unwrap_or_default(),
                ));
            }
            Claimed::Duplicate(_) | Claimed::Mismatch(_) => {
                count(&self.counters.asked_to_wait);
                return Ok(Reply::Wait);
            }
        };

        // An earlier holder of this claim may have placed the order and crashed before it reported. The shop's own
        // records know. This is the same check as above, but no other request can come between it and the order now:
        // the claim is ours.
        if let Some(Order { unit, .. }) = self.records.order_of(customer).await {
            count(&self.counters.found_done);
            return Ok(settled(claim, Reply::Ordered { unit }).await);
        }

        let (unit, unit_claim) = match self.take_unit(gateway).await? {
            Taken::Unit { unit, claim } => (unit, claim),
            // "Sold out" is also a final answer: a success for the gateway.
            Taken::SoldOut => return Ok(settled(claim, Reply::SoldOut).await),
            Taken::NoneFree => {
                // If no gateway accepts it, the lease ends.
                let _ = claim.fail().await;
                return Ok(Reply::Wait);
            }
        };
        take_payment(customer).await;
        self.may_crash(customer, CrashPoint::BeforeTheOrder)?;

        // The bank may have taken longer than the lease. Then another attempt may have started: leave it to that. (A
        // payment is made under the customer's name, so the other attempt finds ours.)
        if !claim.is_live() || !unit_claim.is_live() {
            return Ok(Reply::Wait);
        }
        self.records.append(Order { customer, unit }).await;
        self.may_crash(customer, CrashPoint::AfterTheOrder)?;

        settle(&unit_claim, json!({ "customer": customer })).await;
        Ok(settled(claim, Reply::Ordered { unit }).await)
    }

    /// Finds an item that no other order is buying. The records hand out numbers naively; the claim on the number
    /// decides.
    async fn take_unit(&self, gateway: &Client) -> Result<Taken<Grant>, Error> {
        while let Some(unit) = self.records.next_unit().await {
            if let Some(claim) = self.claim_unit(gateway, unit).await? {
                return Ok(Taken::Unit { unit, claim });
            }
        }
        // All numbers were handed out, some to workers that crashed. Those items come back when the leases end. Pick
        // one at random, so that the remaining customers do not all try the same.
        let unsold = self.records.unsold().await;
        if unsold.is_empty() {
            return Ok(Taken::SoldOut);
        }
        let unit = unsold[rand::random_range(0..unsold.len())];
        let claim = self.claim_unit(gateway, unit).await?;
        Ok(claim.map_or(Taken::NoneFree, |claim| Taken::Unit { unit, claim }))
    }

    async fn claim_unit(&self, gateway: &Client, unit: u32) -> Result<Option<Grant>, Error> {
        match gateway.claim_with("stock.take", json!({ "item": ITEM, "unit": unit }), terms()).await? {
            // As with orders: granted, but an earlier holder may have sold it and crashed.
            Claimed::Grant(claim) if self.records.is_sold(unit).await => {
                settle(&claim, Value::Null).await;
                Ok(None)
            }
            Claimed::Grant(claim) => Ok(Some(claim)),
            Claimed::Duplicate(_) | Claimed::Mismatch(_) => {
                count(&self.counters.units_held);
                Ok(None)
            }
        }
    }

    /// Checks and acts under two locks, one for the customer and one for the item. Nothing is remembered but in the shop's
    /// own records, so each request asks them again.
    async fn place_with_locks(&self, locks: &Locks, wait: Duration, customer: u32) -> Result<Reply, Trouble> {
        let Some(order) = locks.acquire(format!("order-{customer}"), Some(wait)).await? else {
            count(&self.counters.asked_to_wait);
            return Ok(Reply::Wait);
        };
        if let Some(Order { unit, .. }) = self.records.order_of(customer).await {
            locks.release(order).await;
            count(&self.counters.replayed);
            return Ok(Reply::Ordered { unit });
        }
        let (unit, item) = match self.lock_unit(locks).await? {
            Taken::Unit { unit, claim } => (unit, claim),
            other => {
                locks.release(order).await;
                return Ok(if matches!(other, Taken::SoldOut) { Reply::SoldOut } else { Reply::Wait });
            }
        };
        take_payment(customer).await;
        self.may_crash(customer, CrashPoint::BeforeTheOrder)?;
        // A lock cannot stop a holder whose lease has ended: it must look itself, and a real database would refuse its fence.
        if !order.is_still_ours() || !item.is_still_ours() {
            return Ok(Reply::Wait);
        }
        self.records.append(Order { customer, unit }).await;
        self.may_crash(customer, CrashPoint::AfterTheOrder)?;
        locks.release(item).await;
        locks.release(order).await;
        Ok(Reply::Ordered { unit })
    }

    /// Finds an item that is not sold and that no other order is buying, as [`Self::take_unit`] does.
    async fn lock_unit(&self, locks: &Locks) -> Result<Taken<Lock>, Unavailable> {
        loop {
            let next = self.records.next_unit().await;
            let unit = if let Some(unit) = next {
                unit
            } else {
                let unsold = self.records.unsold().await;
                if unsold.is_empty() {
                    return Ok(Taken::SoldOut);
                }
                unsold[rand::random_range(0..unsold.len())]
            };
            match locks.acquire(format!("unit-{unit}"), None).await? {
                Some(claim) if !self.records.is_sold(unit).await => return Ok(Taken::Unit { unit, claim }),
                Some(sold) => locks.release(sold).await,
                None => count(&self.counters.units_held),
            }
            if next.is_none() {
                return Ok(Taken::NoneFree);
            }
        }
    }

    /// Lets a few workers crash, once for a customer in each shop.
    fn may_crash(&self, customer: u32, point: CrashPoint) -> Result<(), Trouble> {
        let doomed = match customer % 40 {
            7 => point == CrashPoint::BeforeTheOrder,
            23 => point == CrashPoint::AfterTheOrder,
            _ => false,
        };
        if doomed && self.died.lock().unwrap_or_else(PoisonError::into_inner).insert(customer) {
            count(&self.counters.crashes);
            return Err(Trouble::Died);
        }
        Ok(())
    }
}

/// Settles the order's claim as done, so that repeats get the same reply.
async fn settled(claim: Grant, reply: Reply) -> Reply {
    settle(&claim, reply.to_json()).await;
    reply
}

/// Settles a claim as done. If no gateway accepts the outcome, the lease ends, and the next attempt checks the records.
async fn settle(claim: &Grant, result: Value) {
    let _ = claim.succeed(result).await;
}

fn terms() -> Terms {
    Terms::new().lease(LEASE).retention(RETENTION)
}

async fn take_payment(customer: u32) {
    sleep(if customer.is_multiple_of(5) { SLOW_PAYMENT } else { PAYMENT }).await;
}

impl Reply {
    fn to_json(&self) -> Value {
        match self {
            Self::Ordered { unit } => json!({ "unit": unit }),
            Self::SoldOut | Self::Wait => json!({ "sold_out": true }),
        }
    }

    fn from_json(result: &Value) -> Self {
        match result["unit"].as_u64().and_then(|unit| u32::try_from(unit).ok()) {
            Some(unit) => Self::Ordered { unit },
            None => Self::SoldOut,
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
