//! The reply to the caller of a protected request. Its answer is noted for operators, also if the caller has hung up.

use std::sync::Arc;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use oncegate_web::recent::Recent;
use oncegate_web::recent::keys::KeyedRequest;
use tokio::sync::oneshot;

use super::dialect::{Answered, Refusal};

/// What a caller gets, and its label in metrics.
pub(super) type Answer = Result<(Answered, Response<Body>), Refusal>;

/// The answer for the caller of an exchange.
pub(super) struct Reply {
    sender: Option<oneshot::Sender<Answer>>,
    noted: Option<KeyedRequest>,
    recent: Arc<Recent>,
}

impl Reply {
    /// Returns a reply, and where it arrives. `request` is noted with its answer.
    pub(super) fn new(request: Option<KeyedRequest>, recent: Arc<Recent>) -> (Self, oneshot::Receiver<Answer>) {
        let (sender, answer) = oneshot::channel();
        (Self { sender: Some(sender), noted: request, recent }, answer)
    }

    /// Sends the answer, if the caller is still there.
    pub(super) fn send(mut self, answer: Answer) {
        let (answered, status) = match &answer {
            Ok((answered, response)) => (*answered, Some(response.status())),
            Err(refusal) => (refusal.label(), None),
        };
        self.note(answered, status);
        if let Some(sender) = self.sender.take() {
            drop(sender.send(answer));
        }
    }

    /// Resolves when the caller has left.
    pub(super) async fn closed(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.closed().await;
        }
    }

    fn note(&mut self, answered: Answered, status: Option<StatusCode>) {
        if let Some(request) = self.noted.take() {
            let (answer, status) = (answered.label(), status.map(|status| status.as_u16()));
            self.recent.note_request(KeyedRequest { answer, status, ..request });
        }
    }
}

impl Drop for Reply {
    /// Notes an exchange that took too long: its caller gets 504.
    fn drop(&mut self) {
        self.note(Answered::Unavailable, None);
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
        let response = || Ok((Answered::Forwarded, Response::builder().status(201).body(Body::empty()).unwrap()));
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
