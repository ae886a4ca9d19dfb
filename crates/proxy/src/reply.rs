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
