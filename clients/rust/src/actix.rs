//! A wrapper for actix-web: a request with an `Idempotency-Key` runs once, and its repeats get the stored response.
//!
//! `App::wrap` runs the middleware that was registered last first. Register [`Idempotency`] before authentication and
//! compression: it must be inside of them.

mod body;

use std::any::Any;
use std::cell::RefCell;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::rc::Rc;

use ::actix_web::body::{EitherBody, MessageBody};
use ::actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use ::actix_web::error::{Error, InternalError, ResponseError};
use ::actix_web::http::header::HeaderMap as ActixHeaders;
use ::actix_web::{HttpMessage as _, HttpRequest, HttpResponse};
use futures_util::TryStreamExt as _;
use futures_util::stream::{self, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use self::body::FromActix;
pub use self::body::ResponseBody;
use crate::middleware::{Admission, Admitted, Claimed, Harmless, Idempotent, Seen, drain, receive, run};
use crate::traces;

/// Protects the unsafe methods of the services that it wraps. The options are those of [`Idempotent`].
pub type Idempotency = Idempotent<ServiceRequest>;

impl Idempotency {
    /// Declares errors of handlers that had no effect: the claim is released, and their response stays unchanged.
    pub fn nothing_happened_if<E: ResponseError + 'static>(
        self,
        is_harmless: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.harmless_if(move |error| {
            let error = error.downcast_ref::<Error>().and_then(Error::as_error::<E>);
            error.is_some_and(&is_harmless)
        })
    }
}

/// The service behind an [`Idempotency`].
pub struct IdempotencyService<S> {
    service: Rc<S>,
    rules: Idempotency,
}

type Answered<B> = Result<ServiceResponse<EitherBody<B, ResponseBody>>, Error>;

impl<S, B> Transform<S, ServiceRequest> for Idempotency
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B, ResponseBody>>;
    type Error = Error;
    type Transform = IdempotencyService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    /// # Panics
    ///
    /// If an option is wrong: see [`Idempotent::checked`].
    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(IdempotencyService { service: Rc::new(service), rules: self.expect_checked() }))
    }
}

impl<S, B> Service<ServiceRequest> for IdempotencyService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<EitherBody<B, ResponseBody>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Answered<B>>>>;

    ::actix_web::dev::forward_ready!(service);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let service = Rc::clone(&self.service);
        let (method, headers) = (method_of(&request), headers_of(request.headers()));
        let is_seen = request.extensions().contains::<Seen>();
        match self.rules.admit(&request, &method, &headers, is_seen) {
            Admission::Passed => Box::pin(pass(service, request)),
            Admission::Refused(response) => {
                let response = request.into_response(body::to_actix(response)).map_into_right_body();
                Box::pin(ready(Ok(response)))
            }
            Admission::Admitted(admitted) => Box::pin(protect(admitted, service, request, method, headers)),
        }
    }
}

async fn pass<S, B>(service: Rc<S>, request: ServiceRequest) -> Answered<B>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
{
    service.call(request).await.map(ServiceResponse::map_into_left_body)
}

async fn protect<S, B>(
    admitted: Admitted,
    service: Rc<S>,
    mut request: ServiceRequest,
    method: Method,
    headers: HeaderMap,
) -> Answered<B>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    let payload = StreamBody::new(request.take_payload().map_ok(Frame::data));
    let received = match receive(&headers, Box::pin(payload), admitted.settings.body_bytes).await {
        Ok(received) => received.data,
        Err(unread) => {
            if let Some(refused) = admitted.refuse(&unread.refusal) {
                drain(&headers, unread.rest).await;
                return Ok(request.into_response(body::to_actix(refused)).map_into_right_body());
            }
            let rest = unread.rest.into_data_stream();
            let stream = stream::once(ready(Ok(unread.begin))).chain(rest);
            request.set_payload(Payload::Stream { payload: Box::pin(stream) });
            return pass(service, request).await;
        }
    };
    request.extensions_mut().insert(Seen);
    let target = (request.uri().path(), request.uri().query());
    let claimed = admitted.claim(&method, target, &headers, &received).await;
    let whole = stream::once(ready(Ok(received)));
    request.set_payload(Payload::Stream { payload: Box::pin(whole) });
    let (grant, running) = match claimed {
        Claimed::Granted(grant, running) => (grant, running),
        Claimed::Passed => return pass(service, request).await,
        Claimed::Answered(response) => {
            return Ok(request.into_response(body::to_actix(response)).map_into_right_body());
        }
    };
    for name in ["accept-encoding", "range", "if-range"] {
        request.headers_mut().remove(name);
    }
    request.extensions_mut().insert(grant.clone());
    // The request comes back with its response: routers need the only reference to it.
    let returned = Rc::new(RefCell::new(None));
    let (reply, answer) = oneshot::channel::<Result<_, Error>>();
    let settings = std::sync::Arc::clone(&admitted.settings);
    let span = traces::run(&settings.operation, grant.degraded());
    let handler = {
        let returned = Rc::clone(&returned);
        async move {
            let (request, response) = service.call(request).await?.into_parts();
            *returned.borrow_mut() = Some(request);
            let is_harmless = response.error().is_some_and(|error| settings.is_harmless(error as &dyn Any));
            Ok(from_actix(response, is_harmless))
        }
        .instrument(span)
    };
    let running = ::actix_web::rt::spawn(run(admitted.settings, grant, running, handler, reply));
    match answer.await {
        Ok(answered) => answer_of(returned.take(), answered?),
        Err(_) => match running.await.map_err(tokio::task::JoinError::try_into_panic) {
            // As without the middleware.
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            _ => std::future::pending().await,
        },
    }
}

/// Returns the response to a request; an error with it, if the handler has kept the request.
fn answer_of<B>(request: Option<HttpRequest>, response: Response<crate::middleware::ResponseBody>) -> Answered<B> {
    let response = body::to_actix(response);
    match request {
        Some(request) => Ok(ServiceResponse::new(request, response).map_into_right_body()),
        None => Err(InternalError::from_response("no response", response.map_into_boxed_body()).into()),
    }
}

/// Returns the method in the types of `http` 1, which actix-web does not use.
fn method_of(request: &ServiceRequest) -> Method {
    Method::from_bytes(request.method().as_str().as_bytes()).unwrap_or_default()
}

fn headers_of(headers: &ActixHeaders) -> HeaderMap {
    let field =
        |name: &str, value: &[u8]| Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(value).ok()?));
    let mut converted = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter().filter_map(|(name, value)| field(name.as_str(), value.as_bytes())) {
        converted.append(name, value);
    }
    converted
}

fn from_actix<B: MessageBody + 'static>(response: HttpResponse<B>, is_harmless: bool) -> Response<FromActix> {
    let mut converted = Response::new(());
    *converted.status_mut() = http::StatusCode::from_u16(response.status().as_u16()).unwrap_or_default();
    *converted.headers_mut() = headers_of(response.headers());
    if let Some(outcome) = response.extensions().get::<crate::Outcome>() {
        converted.extensions_mut().insert(*outcome);
    }
    if is_harmless {
        converted.extensions_mut().insert(Harmless);
    }
    converted.map(|()| FromActix::new(response.into_body()))
}
