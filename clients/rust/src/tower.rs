//! A tower layer: a request with an `Idempotency-Key` runs once, and its repeats get the stored response.
//!
//! [`IdempotencyLayer`] stands innermost, behind authentication, limits of bodies and decompression. Layers outside of it, such as
//! compression, see replays as they see responses.

use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::sync::oneshot;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::error::BoxError;
use crate::middleware::{Admission, Admitted, Claimed, Idempotent, Seen, drain, for_handler, receive, run};
pub use crate::middleware::{RequestBody, ResponseBody};
use crate::traces;

/// Protects the unsafe methods of the services that it wraps. The options are those of [`Idempotent`].
pub type IdempotencyLayer = Idempotent<Parts>;

impl IdempotencyLayer {
    /// Declares errors of the service that had no effect: the claim is released, and the error stays unchanged. `E` is
    /// the error of the service, or one in its box. A handler of axum has no errors of its service: its response says
    /// it, by an [`Outcome`](crate::Outcome) in its extensions.
    pub fn nothing_happened_if<E: StdError + 'static>(
        self,
        is_harmless: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.harmless_if(move |error| {
            let boxed = || error.downcast_ref::<BoxError>().and_then(|error| error.downcast_ref::<E>());
            error.downcast_ref::<E>().or_else(boxed).is_some_and(&is_harmless)
        })
    }
}

/// A service behind an [`IdempotencyLayer`]. It gives [`RequestBody`] to the service. A service that takes bodies of
/// one other type needs a `MapRequestBodyLayer` of `tower-http` in between.
#[derive(Clone, Debug)]
pub struct Idempotency<S> {
    service: S,
    layer: IdempotencyLayer,
}

/// The future of an [`Idempotency`].
type Answering<E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, E>> + Send>>;

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    /// # Panics
    ///
    /// If an option is wrong: see [`Idempotent::checked`].
    fn layer(&self, service: S) -> Idempotency<S> {
        Idempotency { service, layer: self.expect_checked() }
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = Answering<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let ready = self.service.clone();
        // The ready service, and not its clone.
        let service = std::mem::replace(&mut self.service, ready);
        let (head, body) = request.into_parts();
        let is_seen = head.extensions.get::<Seen>().is_some();
        match self.layer.admit(&head, &head.method, &head.headers, is_seen) {
            Admission::Passed => Box::pin(pass(service, head, RequestBody::passed(Bytes::new(), body))),
            Admission::Refused(response) => Box::pin(async { Ok(response) }),
            Admission::Admitted(admitted) => Box::pin(protect(admitted, service, head, body)),
        }
    }
}

async fn pass<S, R>(mut service: S, head: Parts, body: RequestBody) -> Result<Response<ResponseBody>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<R>>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    Ok(service.call(Request::from_parts(head, body)).await?.map(ResponseBody::passed))
}

async fn protect<S, B, R>(
    admitted: Admitted,
    mut service: S,
    mut head: Parts,
    body: B,
) -> Result<Response<ResponseBody>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let received = match receive(&head.headers, Box::pin(body), admitted.settings.body_bytes).await {
        Ok(received) => received,
        Err(unread) => match admitted.refuse(&unread.refusal) {
            None => return pass(service, head, RequestBody::passed(unread.begin, unread.rest)).await,
            Some(refused) => {
                drain(&head.headers, unread.rest).await;
                return Ok(refused);
            }
        },
    };
    head.extensions.insert(Seen);
    let target = target(&head);
    let (grant, running) = match admitted.claim(&head.method, target, &head.headers, &received.data).await {
        Claimed::Granted(grant, running) => (grant, running),
        Claimed::Answered(response) => return Ok(response),
        Claimed::Passed => return pass(service, head, RequestBody::whole(received.data, received.trailers)).await,
    };
    for_handler(&mut head.headers);
    // The response of a handler that takes the connection could not be recorded.
    head.extensions.remove::<hyper::upgrade::OnUpgrade>();
    head.extensions.insert(grant.clone());
    let request = Request::from_parts(head, RequestBody::whole(received.data, received.trailers));
    let (reply, answer) = oneshot::channel();
    let span = traces::run(&admitted.settings.operation, grant.degraded());
    let handler = async move { Ok(service.call(request).await?.map(|body| body.map_err(Into::into))) }.instrument(span);
    // In the span of the request, although it may outlast it.
    let running = tokio::spawn(run(admitted.settings, grant, running, handler, reply).in_current_span());
    match answer.await {
        Ok(answer) => answer,
        Err(_) => match running.await.map_err(tokio::task::JoinError::try_into_panic) {
            // As without the middleware, for a layer that catches it.
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime stops, or the handler ended with its caller.
            _ => std::future::pending().await,
        },
    }
}

/// Returns path and query as they were sent, also inside of a nested router.
fn target(head: &Parts) -> (&str, Option<&str>) {
    #[cfg(feature = "axum")]
    if let Some(original) = head.extensions.get::<axum::extract::OriginalUri>() {
        return (original.0.path(), original.0.query());
    }
    (head.uri.path(), head.uri.query())
}
