//! Scenarios of callers, and the answers that the contract requires. Each check is next to its call.

use std::time::Instant;

use serde::Deserialize;

use crate::{
    client::{Answer, CallError, Connection},
    ledger::{Known, Ledger},
    pace::Slot,
    recorder::{Label, Recorder},
    sizes::Sizes,
    wire::{self, BatchReply, CommandReply, Dialect, Reply, StartReply, Terms},
};

/// Keys claimed at the same time in a hot run …
const HOT_KEYS: u64 = 8;
/// … and how often each is claimed before the next ones follow.
const HOT_TIMES: u64 = 50;

/// Step of the callers of a service behind a proxy, in reports.
pub(crate) const REQUEST: &str = "request";

/// Behaviour of the callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scenario {
    /// Claims, each for another order
    Unique,
    /// A claim, then its success
    Settle,
    /// Many callers after few orders at once: each must have exactly one winner
    Hot,
    /// A hundred claims in one request
    Batch,
    /// A day in a shop: 70 % claim and success, 20 % repeats, 5 % claim and failure, 5 % lookups
    Mixed,
    /// A storm of retries: 5 % claim and success with a result of 1 KiB, 95 % repeats of them
    Storm,
    /// The same with results of 16 KiB
    LargeStorm,
    /// 5 % claims, 95 % repeats of them while they are in progress
    RunningStorm,
    /// Requests of 1 KiB to a service behind a proxy, each with a new idempotency key
    Proxied,
}

impl Scenario {
    /// Returns the first step of an operation; for the mixed scenario, the most frequent one.
    pub(crate) fn first_step(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Proxied => REQUEST,
            _ => "claim",
        }
    }

    /// Returns how many bytes of text are in the result of a success.
    pub(crate) fn result_bytes(self) -> usize {
        match self {
            Self::Storm => 1024,
            Self::LargeStorm => 16 * 1024,
            _ => 0,
        }
    }

    /// Returns what sets it apart from single claims, for the name of a row.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Batch => ", 100 per call",
            Self::Storm => ", 95 % repeats, 1 KiB",
            Self::LargeStorm => ", 95 % repeats, 16 KiB",
            Self::RunningStorm => ", 95 % repeats in progress",
            Self::Unique | Self::Settle | Self::Hot | Self::Mixed | Self::Proxied => "",
        }
    }
}

/// Runs operations, one at a time on each connection.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) scenario: Scenario,
    pub(crate) dialect: Dialect,
    pub(crate) sizes: Sizes,
    pub(crate) terms: Terms,
    pub(crate) ledger: Ledger,
    pub(crate) recorder: Recorder,
}

/// Result of a claim, after its general checks.
enum Claimed<'a> {
    Granted {
        attempt: String,
        global_id: String,
    },
    Duplicate(Reply<'a>),
    /// Refused, unanswered, or answered against the contract: no conclusion possible.
    Unclear,
}

impl Stage {
    pub(crate) async fn play(&self, connection: &mut Connection, slot: Slot) {
        let Slot { number, due } = slot;
        match self.scenario {
            Scenario::Unique => self.claim_new(connection, number, due).await,
            Scenario::Settle => self.claim_and_succeed(connection, number, due).await,
            Scenario::Hot => self.click(connection, number, due).await,
            Scenario::Batch => self.claim_many(connection, number, due).await,
            Scenario::Proxied => self.forward_new(connection, number, due).await,
            Scenario::Storm | Scenario::LargeStorm if number % 20 == 0 => {
                self.claim_and_succeed(connection, number, due).await;
            }
            Scenario::Storm | Scenario::LargeStorm => self.repeat(connection, number, due).await,
            Scenario::RunningStorm if number % 20 == 0 => self.claim_new(connection, number, due).await,
            Scenario::RunningStorm => self.repeat_running(connection, number, due).await,
            // The last two digits select the kind; 61 has no factor in common with 100, so the kinds are interleaved.
            Scenario::Mixed => match number * 61 % 100 {
                0..70 => self.claim_and_succeed(connection, number, due).await,
                70..90 => self.repeat(connection, number, due).await,
                90..95 => self.claim_and_fail(connection, number, due).await,
                _ => self.look_up(connection, number, due).await,
            },
        }
        self.recorder.operation_done();
    }

    async fn claim_new(&self, connection: &mut Connection, order: u64, due: Instant) {
        if self.claim_expecting_grant(connection, order, due).await.is_some() {
            self.ledger.know(order, Known::Held);
        }
    }

    async fn claim_and_succeed(&self, connection: &mut Connection, order: u64, due: Instant) {
        let Some((attempt, global_id)) = self.claim_expecting_grant(connection, order, due).await else { return };
        let path = format!("/v1/claims/{global_id}/outcome");
        let now = Instant::now();
        let answered = connection.post(&path, &wire::success(&attempt, order, self.sizes.result_bytes)).await;
        let Some((status, reply)) = self.read::<Reply<'_>>("success", answered, now, 0) else { return };
        let settled = status == 200 && reply.is_state("succeeded") && reply.late != Some(true);
        self.ledger
            .check(settled, || format!("order {order}: its holder's success was answered {status} {reply:?} (S2)"));
        self.check_is_about(order, &reply);
        if settled {
            self.ledger.know(order, Known::Succeeded);
        }
    }

    async fn claim_and_fail(&self, connection: &mut Connection, order: u64, due: Instant) {
        let Some((attempt, global_id)) = self.claim_expecting_grant(connection, order, due).await else { return };
        let path = format!("/v1/claims/{global_id}/outcome");
        let now = Instant::now();
        let answered = connection.post(&path, &wire::failure(&attempt)).await;
        let Some((status, reply)) = self.read::<Reply<'_>>("failure", answered, now, 0) else { return };
        let released = status == 200 && !reply.is_state("succeeded");
        self.ledger
            .check(released, || format!("order {order}: its holder's failure was answered {status} {reply:?} (S2)"));
        if released {
            self.ledger.know(order, Known::Released);
        }
    }

    /// Claims one of few keys that many callers claim at once.
    async fn click(&self, connection: &mut Connection, number: u64, due: Instant) {
        let order = number / (HOT_KEYS * HOT_TIMES) * HOT_KEYS + number % HOT_KEYS;
        let won = match self.claim(connection, order, due).await {
            Claimed::Granted { .. } => Some(true),
            Claimed::Duplicate(reply) => {
                self.ledger.check(reply.is_state("in_progress"), || {
                    format!("order {order}: held and never settled, but a repeat was answered {reply:?}")
                });
                Some(false)
            }
            Claimed::Unclear => None,
        };
        self.ledger.contested(order, won);
    }

    async fn claim_many(&self, connection: &mut Connection, number: u64, due: Instant) {
        let size = self.sizes.batch;
        let mut orders: Vec<u64> = (number * size..(number + 1) * size - 1).collect();
        orders.push(number * size);
        let answered = connection.post("/v1/claims/batch", &self.terms.batch(&orders)).await;
        let Some((status, batch)) = self.read::<BatchReply<'_>>("batch", answered, due, size) else { return };
        let complete = status == 200 && batch.items.len() == orders.len();
        self.ledger
            .check(complete, || format!("a batch of {size} was answered {status} with {} items", batch.items.len()));
        let first_status = batch.items.first().map_or(0, |item| item.status);
        for (place, (order, item)) in orders.iter().zip(&batch.items).enumerate() {
            let expected = if place + 1 < orders.len() { 201 } else { 409 };
            // An item that the store could not handle shows nothing about the others.
            let unclear = item.status == 503 || (expected == 409 && first_status != 201);
            self.ledger.check(unclear || item.status == expected, || {
                format!("order {order}, item {place} of its batch: answered {item:?}, not {expected} (S1, S4)")
            });
            if item.status == 201 {
                self.check_is_about(*order, item);
                self.ledger.know(*order, Known::Held);
            }
        }
    }

    /// Claims an order that has succeeded.
    async fn repeat(&self, connection: &mut Connection, number: u64, due: Instant) {
        let Some(order) = self.ledger.some_recent() else {
            return self.claim_and_succeed(connection, number, due).await;
        };
        let claimed = self.claim(connection, order, due).await;
        self.check_succeeded(order, &claimed);
    }

    /// Claims an order that is in progress.
    async fn repeat_running(&self, connection: &mut Connection, number: u64, due: Instant) {
        let Some(order) = self.ledger.some_recent() else { return self.claim_new(connection, number, due).await };
        let claimed = self.claim(connection, order, due).await;
        self.check_held(order, &claimed);
    }

    async fn look_up(&self, connection: &mut Connection, number: u64, due: Instant) {
        let Some(order) = self.ledger.some_recent() else {
            return self.claim_and_succeed(connection, number, due).await;
        };
        let answered = connection.get(&format!("/v1/claims/{}", self.terms.global_id(order))).await;
        let Some((status, reply)) = self.read::<Reply<'_>>("lookup", answered, due, 0) else { return };
        self.ledger.check(status == 200 && reply.is_state("succeeded"), || {
            format!("order {order}: succeeded, but a lookup was answered {status} {reply:?} (S3)")
        });
        self.ledger.check(reply.attempt.is_none(), || format!("order {order}: a lookup gave away the attempt"));
    }

    /// Claims an order again whose state is known, after the run. Returns false without a clear answer.
    pub(crate) async fn verify(&self, connection: &mut Connection, order: u64, known: Known) -> bool {
        if self.scenario == Scenario::Proxied {
            return self.verify_replay(connection, order).await;
        }
        let claimed = self.claim(connection, order, Instant::now()).await;
        match (known, &claimed) {
            (_, Claimed::Unclear) => return false,
            (Known::Succeeded, _) => self.check_succeeded(order, &claimed),
            (Known::Held, _) => self.check_held(order, &claimed),
            (Known::Released, Claimed::Granted { .. }) => self.ledger.check(true, String::new),
            (Known::Released, Claimed::Duplicate(reply)) => {
                self.ledger
                    .check(false, || format!("order {order}: released, but a repeat was answered {reply:?} (S4)"));
            }
        }
        true
    }

    async fn claim_expecting_grant(
        &self,
        connection: &mut Connection,
        order: u64,
        due: Instant,
    ) -> Option<(String, String)> {
        match self.claim(connection, order, due).await {
            Claimed::Granted { attempt, global_id } => Some((attempt, global_id)),
            Claimed::Duplicate(reply) => {
                self.ledger
                    .check(false, || format!("order {order}: never claimed before, but answered {reply:?} (S4)"));
                None
            }
            Claimed::Unclear => None,
        }
    }

    async fn claim<'a>(&self, connection: &'a mut Connection, order: u64, due: Instant) -> Claimed<'a> {
        if matches!(self.dialect, Dialect::Webdis | Dialect::Diom) {
            return self.command(connection, order, due).await;
        }
        let answered = connection.post("/v1/claims", &self.terms.claim(order)).await;
        let asked = self.read::<Reply<'_>>("claim", answered, due, 1);
        let Some((status, mut reply)) = asked else { return Claimed::Unclear };
        self.check_is_about(order, &reply);
        match (status, reply.attempt.take(), reply.global_id.take()) {
            (201, Some(attempt), Some(global_id)) => {
                self.ledger.check(!reply.repeated, || {
                    format!("order {order}: answered as a repeat, though every claim has its own nonce")
                });
                Claimed::Granted { attempt: attempt.to_owned(), global_id: global_id.to_owned() }
            }
            (409, None, _) if reply.known_code() == Some("duplicate") => Claimed::Duplicate(reply),
            (status, attempt, _) => {
                let attempt = if attempt.is_some() { "an" } else { "no" };
                self.ledger.check(false, || format!("order {order}: answered {status}, {attempt} attempt, {reply:?}"));
                Claimed::Unclear
            }
        }
    }

    /// Claims by a Redis command, or as a caller of Diom.
    async fn command<'a>(&self, connection: &'a mut Connection, order: u64, due: Instant) -> Claimed<'a> {
        let (command, attempt) = self.terms.command(order);
        let granted = if self.dialect == Dialect::Webdis {
            let answered = connection.post("/", &command).await;
            self.read("claim", answered, due, 1).map(|(_, reply): (_, CommandReply)| reply.is_grant())
        } else {
            let answered = connection.post("/api/v1.idempotency.start", &self.terms.start(order)).await;
            self.read("claim", answered, due, 1).map(|(_, reply)| matches!(reply, StartReply::Started))
        };
        match granted {
            None => Claimed::Unclear,
            Some(true) => Claimed::Granted { attempt, global_id: self.terms.global_id(order) },
            Some(false) => Claimed::Duplicate(Reply { state: Some("in_progress"), ..Reply::default() }),
        }
    }

    fn check_held(&self, order: u64, claimed: &Claimed<'_>) {
        match claimed {
            Claimed::Unclear => {}
            Claimed::Granted { .. } => {
                self.ledger.check(false, || format!("order {order}: granted again while another caller holds it (S1)"));
            }
            Claimed::Duplicate(reply) => self.ledger.check(reply.is_state("in_progress"), || {
                format!("order {order}: held and never settled, but a repeat was answered {reply:?}")
            }),
        }
    }

    fn check_succeeded(&self, order: u64, claimed: &Claimed<'_>) {
        match claimed {
            Claimed::Unclear => {}
            Claimed::Granted { .. } => {
                self.ledger.check(false, || format!("order {order}: succeeded, but was granted again (S1, S3)"));
            }
            Claimed::Duplicate(reply) => {
                let result = reply.result.as_ref().map(|it| &it["order"]);
                let replayed = reply.is_state("succeeded") && result.is_some_and(|it| *it == order);
                self.ledger
                    .check(replayed, || format!("order {order}: succeeded, but a repeat was answered {reply:?} (S3)"));
            }
        }
    }

    /// Checks the global ID, so that the answer to another request is noticed.
    fn check_is_about(&self, order: u64, reply: &Reply<'_>) {
        if let Some(global_id) = reply.global_id {
            self.ledger.check(self.terms.is_global_id(order, global_id), || {
                format!("order {order}: answered about {global_id}, not {} (S13)", self.terms.global_id(order))
            });
        }
    }

    /// Records the response, and parses it if it is one of the contract.
    fn read<'a, T: Deserialize<'a>>(
        &self,
        step: &'static str,
        answered: Result<Answer<'a>, CallError>,
        due: Instant,
        claims: u64,
    ) -> Option<(u16, T)> {
        let answer = match answered {
            Ok(answer) => answer,
            Err(why) => {
                self.recorder.ended(step, Label::Unanswered(why), due, claims);
                return None;
            }
        };
        let label = self.label(step, &answer);
        self.recorder.ended(step, label, due, claims);
        if !label.is_answer() {
            return None;
        }
        let reply = serde_json::from_slice(answer.body);
        self.ledger.check(reply.is_ok(), || format!("{step}: answered {} with {}", answer.status, excerpt(&answer)));
        reply.ok().map(|reply| (answer.status, reply))
    }

    pub(crate) fn label(&self, step: &'static str, answer: &Answer<'_>) -> Label {
        match answer.status {
            200 | 201 | 202 | 409 => Label::Status(answer.status),
            status @ (429 | 503) => {
                let code = serde_json::from_slice(answer.body).ok().and_then(|reply: Reply<'_>| reply.known_code());
                self.ledger
                    .check(code.is_some(), || format!("{step}: a {status} without a known code: {}", excerpt(answer)));
                Label::Refused(status, code.unwrap_or("without a code"))
            }
            status => {
                self.ledger.check(false, || format!("{step}: answered {status}: {}", excerpt(answer)));
                Label::Refused(status, "unexpected")
            }
        }
    }
}

pub(crate) fn excerpt(answer: &Answer<'_>) -> String {
    String::from_utf8_lossy(answer.body).chars().take(200).collect()
}
