//! Callers of a service behind a proxy: each request has a new idempotency key. Some are repeated after the run, and the
//! service must have seen each key once.

use std::time::Instant;

use crate::{
    client::{Answer, Connection},
    ledger::Known,
    recorder::Label,
    scenario::{REQUEST, Stage, excerpt},
    upstream::{self, Counts},
    wire::Dialect,
};

impl Stage {
    /// Sends a request with a new key.
    pub(crate) async fn forward_new(&self, connection: &mut Connection, order: u64, due: Instant) {
        let (key, body) = (self.terms.idempotency_key(order), self.terms.order(order));
        let answer = match connection.post_with_key(upstream::ORDERS, &key, &body).await {
            Ok(answer) => answer,
            Err(why) => return self.recorder.ended(REQUEST, Label::Unanswered(why), due, 1),
        };
        let label = self.label(REQUEST, &answer);
        self.recorder.ended(REQUEST, label, due, 1);
        if !label.is_answer() {
            return;
        }
        let is_forwarded = is_response(&answer, &body) && !answer.is_replayed;
        self.ledger.check(is_forwarded, || {
            format!("order {order}: sent for the first time, but answered {} {}", answer.status, excerpt(&answer))
        });
        if is_forwarded && self.dialect != Dialect::Forwarding {
            self.ledger.know(order, Known::Succeeded);
        }
    }

    /// Repeats a request after the run. Returns false without a clear answer.
    pub(crate) async fn verify_replay(&self, connection: &mut Connection, order: u64) -> bool {
        let (key, body) = (self.terms.idempotency_key(order), self.terms.order(order));
        let Ok(answer) = connection.post_with_key(upstream::ORDERS, &key, &body).await else { return false };
        if !self.label(REQUEST, &answer).is_answer() {
            return false;
        }
        self.ledger.check(is_response(&answer, &body) && answer.is_replayed, || {
            format!(
                "order {order}: answered 201, but a repeat was not replayed: {} {}",
                answer.status,
                excerpt(&answer)
            )
        });
        true
    }

    /// Checks the counts of the service, after all repeats.
    pub(crate) async fn verify_counts(&self, service: &mut Connection) -> bool {
        let Ok(answer) = service.get(upstream::COUNTS).await else { return false };
        let Ok(Counts { requests, keys }) = serde_json::from_slice(answer.body) else { return false };
        let answered = self.recorder.totals().requests;
        self.ledger.check(requests == keys, || {
            format!("the upstream has seen {keys} keys in {requests} requests: some were forwarded twice")
        });
        self.ledger.check(keys >= answered, || {
            format!("the upstream has seen {keys} keys, but {answered} requests were answered")
        });
        true
    }
}

/// Reports whether this is the service's response to a request with this body.
fn is_response(answer: &Answer<'_>, body: &str) -> bool {
    answer.status == 201 && answer.body == body.as_bytes()
}
