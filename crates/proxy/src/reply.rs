//! The reply to the caller of a protected request. Its answer is noted for operators, also if the caller has hung up. A request that
//! waits learns that its caller has left.

use std::future::pending;
use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use oncegate_transport::CallerWatch;
use oncegate_web::recent::Recent;
use oncegate_web::recent::keys::KeyedRequest;
use tokio::sync::oneshot;

use super::dialect::{ProxyResult, Refusal};

/// What a caller gets, and its label in metrics.
pub(super) type ExchangeResult = Result<(ProxyResult, Response<Body>), Refusal>;

/// The answer for the caller of an exchange.
pub(super) struct Reply {
    sender: Option<oneshot::Sender<ExchangeResult>>,
    /// Notified once its request waits, with the end of its wait.
    waits: Option<oneshot::Sender<Over>>,
    noted: Option<KeyedRequest>,
    recent: Arc<Recent>,
}

/// Resolves when a wait is over.
type Over = oneshot::Receiver<()>;

/// The place where a reply arrives.
pub(super) struct Awaited {
    answer: oneshot::Receiver<ExchangeResult>,
    waits: oneshot::Receiver<Over>,
}

impl Awaited {
    /// Returns the answer. `None` if the exchange took too long. A request that waits is given up when its caller has left.
    pub(super) async fn answer(self, caller: &CallerWatch) -> Option<ExchangeResult> {
        let Self { answer, waits } = self;
        let left = async {
            let Ok(over) = waits.await else { return pending().await };
            tokio::select! {
                biased;
                _ = over => pending().await,
                () = caller.gone() => {}
            }
        };
        tokio::select! {
            biased;
            answer = answer => answer.ok(),
            () = left => Some(Err(Refusal::InProgress)),
        }
    }
}

impl Reply {
    /// Returns a reply, and where it arrives. `request` is noted with its answer.
    pub(super) fn new(request: Option<KeyedRequest>, recent: Arc<Recent>) -> (Self, Awaited) {
        let ((sender, answer), (waiting, waits)) = (oneshot::channel(), oneshot::channel());
        (Self { sender: Some(sender), waits: Some(waiting), noted: request, recent }, Awaited { answer, waits })
    }

    /// Sends the answer, if the caller is still there.
    pub(super) fn send(mut self, answer: ExchangeResult) {
        let (answered, status) = match &answer {
            Ok((answered, response)) => (*answered, Some(response.status())),
            Err(refusal) => (refusal.label(), None),
        };
        self.note(answered, status);
        if let Some(sender) = self.sender.take() {
            drop(sender.send(answer));
        }
    }

    /// Resolves when the caller has left. While this is polled, the request waits.
    pub(super) async fn closed(&mut self) {
        let (_waits, over) = oneshot::channel();
        self.waits.take().map(|waits| waits.send(over));
        if let Some(sender) = &mut self.sender {
            sender.closed().await;
        }
    }

    fn note(&mut self, answered: ProxyResult, status: Option<StatusCode>) {
        if let Some(request) = self.noted.take() {
            let (answer, status) = (answered.label(), status.map(|status| status.as_u16()));
            self.recent.note_request(KeyedRequest { answer, status, ..request });
        }
    }
}

impl Drop for Reply {
    /// Notes an exchange that took too long: its caller gets 504.
    fn drop(&mut self) {
        self.note(ProxyResult::Unavailable, None);
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::clock::{ManualClock, Timestamp};
    use oncegate_core::global_id::GlobalId;
    use oncegate_web::recent::keys::WantedKeys;

    use super::*;

    #[test]
    fn an_answer_is_noted_once_also_if_its_caller_has_hung_up() {
        let recent = Arc::new(Recent::new(Arc::new(ManualClock::at(Timestamp::from_micros(7)))));
        let reply = || {
            let (operation, app) = ("proxy:orders.create".parse().unwrap(), "shop".parse().unwrap());
            let request = KeyedRequest::new(operation, app, "key-1", GlobalId::from_bytes([1; 16]), None);
            Reply::new(Some(request), recent.clone())
        };
        let response = || Ok((ProxyResult::Forwarded, Response::builder().status(201).body(Body::empty()).unwrap()));
        let (sent, receiver) = reply();
        sent.send(response());
        let (hung_up, gone) = reply();
        drop(gone);
        hung_up.send(response());
        let (refused, _caller) = reply();
        refused.send(Err(Refusal::InProgress));
        let (too_long, _caller) = reply();
        drop(too_long);
        let noted = recent.find_requests(&WantedKeys::default(), 9);
        let answers: Vec<_> = noted.iter().map(|request| (request.answer, request.status)).collect();
        let expected =
            [("unavailable", None), ("in_progress", None), ("forwarded", Some(201)), ("forwarded", Some(201))];
        assert_eq!(answers, expected, "the newest first");
        drop(receiver);
    }
}
