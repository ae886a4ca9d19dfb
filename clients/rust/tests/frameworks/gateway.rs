//! A gateway of the test itself: it gives one answer to each claim, and can hold back its answers to outcomes.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::any;
use oncegate_client::{Client, Contents, Options, global_id};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::services::in_time;

#[derive(Clone)]
pub(crate) struct Gateway {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    /// Status of the answer to a claim, and the members that it has as well as those of a grant.
    claimed: (StatusCode, Value),
    /// Outcomes that were received, each with the ID of its path.
    outcomes: watch::Sender<Vec<(String, Value)>>,
    is_answering: watch::Sender<bool>,
}

impl Gateway {
    /// Starts a gateway that answers each claim with this status and these members, and each outcome at once.
    pub(crate) async fn start(status: u16, members: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let claimed = (StatusCode::from_u16(status).expect("a status"), members);
        let shared =
            Arc::new(Shared { claimed, outcomes: watch::Sender::default(), is_answering: watch::Sender::new(true) });
        let router = Router::new().fallback(any(answer)).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, shared }
    }

    /// Starts a gateway that receives outcomes and does not answer them yet.
    pub(crate) async fn holding() -> Self {
        let gateway = Self::start(201, json!({})).await;
        gateway.shared.is_answering.send_replace(false);
        gateway
    }

    pub(crate) fn client(&self, options: Options) -> Client {
        Client::new([&self.url], options).expect("a client")
    }

    pub(crate) fn outcomes(&self) -> Vec<(String, Value)> {
        self.shared.outcomes.borrow().clone()
    }

    /// Waits until an outcome was received.
    pub(crate) async fn until_reported(&self) {
        let mut outcomes = self.shared.outcomes.subscribe();
        in_time("an outcome", outcomes.wait_for(|all| !all.is_empty())).await.expect("a gateway");
    }

    /// Answers the outcomes.
    pub(crate) fn answer(&self) {
        self.shared.is_answering.send_replace(true);
    }
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, body: String) -> (StatusCode, String) {
    let request: Value = serde_json::from_str(&body).expect("JSON");
    let parts: Vec<_> = uri.path().split('/').skip(1).collect();
    let (status, document) = match parts[..] {
        ["v1", "claims"] => {
            let contents = Contents::json(request["contents"].to_string());
            let operation = request["operation"].as_str().expect("an operation");
            let id = global_id("default", operation, &contents).expect("contents");
            let mut document = json!({ "global_id": id, "attempt": "1-a", "lease_ms": 30_000 });
            for (name, value) in shared.claimed.1.as_object().into_iter().flatten() {
                document[name] = value.clone();
            }
            (shared.claimed.0, document)
        }
        ["v1", "claims", id, "outcome"] => {
            shared.outcomes.send_modify(|all| all.push((id.to_owned(), request)));
            let mut answering = shared.is_answering.subscribe();
            answering.wait_for(|is_answering| *is_answering).await.expect("a test");
            (StatusCode::OK, json!({ "global_id": id, "state": "succeeded" }))
        }
        _ => (StatusCode::NOT_FOUND, json!({ "code": "not_found" })),
    };
    (status, document.to_string())
}
