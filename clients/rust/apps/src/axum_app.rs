//! The test application for axum, with the layer as its users write it.

use std::io::{self, Write as _};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest as _, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use oncegate_client::middleware::{FingerprintPart, Meaning};
use oncegate_client::tower::IdempotencyLayer;
use oncegate_client::{Client, Grant, OnUnavailable, Options, Outcome};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::steps::{self, Ending, Run, Runs, Steps};

/// Parts of the application that need more than axum.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    /// Compression outside of a router.
    pub(crate) zip: fn(Router) -> Router,
    /// Compresses a body with gzip.
    pub(crate) gzip: fn(&[u8]) -> Vec<u8>,
    /// Fields and files of a form.
    pub(crate) form: fn(Request) -> Form,
    pub(crate) lacks: &'static str,
}

pub(crate) type Form = std::pin::Pin<Box<dyn Future<Output = Result<(Value, Value), Response>> + Send>>;

#[derive(Clone)]
struct Shop {
    runs: Runs,
    extras: Extras,
    /// The error of the stock means that nothing happened.
    is_harmless: bool,
}

/// An error of the service, with the response that axum answers for it.
struct StockError {
    is_harmless: bool,
}

impl IntoResponse for StockError {
    fn into_response(self) -> Response {
        let mut response = (StatusCode::CONFLICT, "out of stock").into_response();
        if self.is_harmless {
            response.extensions_mut().insert(Outcome::Failure);
        }
        response
    }
}

fn account(head: &Parts) -> Option<String> {
    head.headers.get("vector-user")?.to_str().ok().map(str::to_owned)
}

/// Serves the cases until the process is stopped.
pub(crate) async fn serve(port: u16, extras: Extras) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env(Options::default())?;
    let runs = Runs::default();
    let layer = |at: &str| {
        let layer = IdempotencyLayer::new(client.clone(), format!("vectors.{at}"), account);
        layer.lease(Duration::from_secs(3)).body_bytes(131_072)
    };
    let down = Client::new([closed_url().await?], Options::default())?;
    let down = |at: &str| {
        let layer = IdempotencyLayer::new(down.clone(), format!("vectors.{at}"), account);
        layer.lease(Duration::from_secs(3)).body_bytes(131_072).claim_within(Duration::from_millis(300))
    };
    let with_json = [
        FingerprintPart::Method,
        FingerprintPart::Path,
        FingerprintPart::Query,
        FingerprintPart::ContentType,
        FingerprintPart::IfMatch,
        FingerprintPart::BodyJson,
    ];
    let layers = [
        ("plain", layer("plain")),
        ("required", layer("required").required()),
        ("put-only", layer("put-only").methods([Method::PUT])),
        ("json", layer("json").fingerprint(with_json)),
        ("wait", layer("wait").wait(Duration::from_secs(5))),
        ("harmless", layer("harmless")),
        ("parsed", layer("parsed")),
        ("form", layer("form")),
        ("zip", layer("zip")),
        ("down", down("down")),
        ("down-pass", down("down-pass").on_unavailable(OnUnavailable::Proceed)),
        ("off", layer("off").enabled(false)),
        ("observe", layer("observe").observe()),
        ("short", layer("short").exchange_max(Duration::from_secs(1))),
        ("stop", layer("stop").stop_when_gone()),
        ("store", stores(layer("store"))),
    ];
    let of_case = async |State(runs): State<Runs>, uri: Uri| {
        Json(runs.of_case(uri.query().and_then(|query| query.strip_prefix("case=")).unwrap_or_default()))
    };
    let mut app = Router::new().route("/runs", get(of_case).with_state(runs.clone()));
    for (at, layer) in layers {
        let shop = Shop { runs: runs.clone(), extras, is_harmless: at == "harmless" };
        let protected = Router::new().fallback(any(handle)).with_state(shop).layer(layer.checked()?);
        let protected = if at == "zip" { (extras.zip)(protected) } else { protected };
        app = app.nest(&format!("/{at}"), protected);
    }
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    writeln!(io::stdout(), "lacks {}\nlistening {}", extras.lacks, listener.local_addr()?)?;
    axum::serve(listener, app).await?;
    Ok(())
}

/// Options of the place `store`.
fn stores(layer: IdempotencyLayer) -> IdempotencyLayer {
    let (cookie, secret) = (HeaderName::from_static("set-cookie"), HeaderName::from_static("x-secret"));
    let layer = layer.store(["2xx", "403"]).on_5xx(Meaning::Store).store_private();
    layer.store_with([cookie]).store_without([secret])
}

/// Returns the URL of a port without a listener.
async fn closed_url() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    Ok(format!("http://{}", listener.local_addr()?))
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

async fn handle(State(shop): State<Shop>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let accept_encoding = text(&head.headers, "accept-encoding").map(str::to_owned);
    let run = shop.runs.begin(text(&head.headers, "vector-case").unwrap_or_default(), accept_encoding.as_deref());
    let steps = Steps::read(text(&head.headers, "vector-do"));
    let ending = Ending::of(&run);
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    run.body(&body);
    let response = match answer(&shop, &run, &steps, &head, body).await {
        Ok(response) => response,
        Err(response) => return response,
    };
    if steps.get("stream").is_none() {
        ending.returned();
    } else {
        ending.later();
    }
    match accept_encoding {
        Some(accepted) if steps.get("encode").is_some() && accepted.contains("gzip") => {
            let (mut head, body) = response.into_parts();
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            head.headers.insert("content-encoding", HeaderValue::from_static("gzip"));
            Response::from_parts(head, Body::from((shop.extras.gzip)(&body)))
        }
        _ => response,
    }
}

/// Takes the steps. The response of axum to an error of the handler.
async fn answer(shop: &Shop, run: &Run, steps: &Steps, head: &Parts, body: Bytes) -> Result<Response, Response> {
    let grant = head.extensions.get::<Grant>();
    let mut document = None;
    for (step, value) in steps.iter() {
        match step {
            "sleep" => sleep(steps::millis(value)).await,
            "poll" => run.set("gone", steps::poll(grant, steps::millis(value)).await),
            "mark" => {
                let outcome = match value.as_str() {
                    Some("success") => Outcome::Success,
                    Some("failure") => Outcome::Failure,
                    _ => Outcome::Unknown,
                };
                if let Some(grant) = grant {
                    grant.mark(outcome);
                }
            }
            "raise" if value == "stock" => return Err(StockError { is_harmless: shop.is_harmless }.into_response()),
            "raise" if value == "http" => return Err((StatusCode::CONFLICT, "sold out").into_response()),
            // As an error that no handler answers: the connection breaks, and the server continues.
            "raise" => std::panic::resume_unwind(Box::new("another error")),
            "respond" => return Ok(of_step(steps::response(value))),
            "stream" => return Ok(streamed(steps::rows(value), run)),
            "after" => {
                let (run, time) = (run.clone(), steps::millis(value));
                tokio::spawn(async move {
                    sleep(time).await;
                    run.set("after", "done");
                });
            }
            "fails" => {
                let (run, time) = (run.clone(), steps::millis(value));
                tokio::spawn(async move {
                    sleep(time).await;
                    run.set("after", "failed");
                    std::panic::resume_unwind(Box::new("the background work fails"));
                });
            }
            "parsed" => {
                let request = Request::from_parts(head.clone(), Body::from(body.clone()));
                let Json(parsed) =
                    Json::<Value>::from_request(request, &()).await.map_err(IntoResponse::into_response)?;
                document = Some(vec![("value", parsed)]);
            }
            "form" => {
                let request = Request::from_parts(head.clone(), Body::from(body.clone()));
                let (fields, files) = (shop.extras.form)(request).await?;
                document = Some(vec![("fields", fields), ("files", files)]);
            }
            _ => {}
        }
    }
    let mut answer = run.json();
    for (name, value) in document.into_iter().flatten() {
        answer[name] = value;
    }
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

fn of_step(step: steps::Response) -> Response {
    let mut response = Response::new(Body::from(step.body));
    *response.status_mut() = StatusCode::from_u16(step.status).unwrap_or_default();
    for (name, value) in step.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

fn streamed(step: steps::Rows, run: &Run) -> Response {
    type Frame = http_body_util::combinators::UnsyncBoxBody<Bytes, io::Error>;
    let mut trailers = HeaderMap::new();
    for (name, value) in &step.trailers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
            trailers.append(name, value);
        }
    }
    let rows = stream::unfold(
        (step.texts.into_iter().enumerate(), Some(trailers), Ending::of(run)),
        move |state| async move {
            let (mut rows, mut trailers, mut ending) = state;
            let Some((at, row)) = rows.next() else {
                let last = trailers.take().filter(|trailers| !trailers.is_empty())?;
                return Some((Ok(hyper::body::Frame::trailers(last)), (rows, None, ending)));
            };
            if step.breaks_after == Some(at) {
                return Some((Err(io::Error::other("it breaks off")), (rows, None, ending)));
            }
            if at > 0 {
                sleep(step.every).await;
            }
            if rows.len() == 0 && step.breaks_after.is_none() {
                ending.set_returned();
            }
            Some((Ok(hyper::body::Frame::data(Bytes::from(row))), (rows, trailers, ending)))
        },
    );
    let body: Frame = StreamBody::new(rows).boxed_unsync();
    let mut response = of_step(steps::Response { status: step.status, headers: step.headers, body: Vec::new() });
    *response.body_mut() = Body::new(body);
    response
}
