//! The test application for actix-web, with the wrapper as its users write it.

use std::fmt;
use std::net::TcpListener;
use std::time::Duration;

use actix_web::body::SizedStream;
use actix_web::dev::ServiceRequest;
use actix_web::error::InternalError;
use actix_web::http::StatusCode;
use actix_web::middleware::{Compress, Condition};
use actix_web::{App, HttpMessage as _, HttpRequest, HttpResponse, HttpServer, ResponseError, web};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderName, Method};
use oncegate_client::actix::Idempotency;
use oncegate_client::middleware::{FingerprintPart, Meaning};
use oncegate_client::{Client, Grant, OnUnavailable, Options, Outcome};
use tokio::time::sleep;

use crate::steps::{self, Ending, Run, Runs, Steps};

#[derive(Debug)]
struct StockError;

impl fmt::Display for StockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of stock")
    }
}

impl std::error::Error for StockError {}

impl ResponseError for StockError {
    fn status_code(&self) -> StatusCode {
        StatusCode::CONFLICT
    }
}

/// Another error, with a declared one as its cause.
#[derive(Debug)]
struct Caused(StockError);

impl fmt::Display for Caused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no idea what happened")
    }
}

impl std::error::Error for Caused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl ResponseError for Caused {}

fn account(request: &ServiceRequest) -> Option<String> {
    request.headers().get("vector-user")?.to_str().ok().map(str::to_owned)
}

/// Serves the cases until the process is stopped.
pub(crate) async fn serve(port: u16) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::from_env(Options::default())?;
    let runs = Runs::default();
    let layer = |client: &Client, at: &str| {
        let layer = Idempotency::new(client.clone(), format!("vectors.{at}"), account);
        layer.lease(Duration::from_secs(3)).body_bytes(131_072)
    };
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let down = Client::new([format!("http://{closed}")], Options::default().claim_within(Duration::from_millis(300)))?;
    let with_json = [
        FingerprintPart::Method,
        FingerprintPart::Path,
        FingerprintPart::Query,
        FingerprintPart::ContentType,
        FingerprintPart::IfMatch,
        FingerprintPart::BodyJson,
    ];
    let layers = [
        ("plain", layer(&client, "plain")),
        ("required", layer(&client, "required").required()),
        ("put-only", layer(&client, "put-only").methods([Method::PUT])),
        ("json", layer(&client, "json").fingerprint(with_json)),
        ("wait", layer(&client, "wait").wait(Duration::from_secs(5))),
        ("harmless", layer(&client, "harmless").nothing_happened_if(|_: &StockError| true)),
        ("parsed", layer(&client, "parsed")),
        ("zip", layer(&client, "zip")),
        ("down", layer(&down, "down")),
        ("down-pass", layer(&down, "down-pass").on_unavailable(OnUnavailable::Proceed)),
        ("off", layer(&client, "off").enabled(false)),
        ("observe", layer(&client, "observe").observe()),
        ("short", layer(&client, "short").exchange_max(Duration::from_secs(1))),
        ("stop", layer(&client, "stop").stop_when_gone()),
        ("store", stores(layer(&client, "store"))),
    ];
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("lacks form behind trailers late gone");
    println!("listening {}", listener.local_addr()?);
    let server = HttpServer::new(move || {
        let mut app = App::new().app_data(web::Data::new(runs.clone())).route("/runs", web::get().to(of_case));
        for (at, layer) in &layers {
            let scope = web::scope(&format!("/{at}")).default_service(web::to(handle));
            app = app.service(scope.wrap(layer.clone()).wrap(Condition::new(*at == "zip", Compress::default())));
        }
        app
    });
    server.workers(2).listen(listener)?.run().await?;
    Ok(())
}

/// Options of the place `store`.
fn stores(layer: Idempotency) -> Idempotency {
    let (cookie, secret) = (HeaderName::from_static("set-cookie"), HeaderName::from_static("x-secret"));
    let layer = layer.store(["2xx", "403"]).on_5xx(Meaning::Store).store_private();
    layer.store_with([cookie]).store_without([secret])
}

async fn of_case(runs: web::Data<Runs>, query: web::Query<Vec<(String, String)>>) -> HttpResponse {
    let case =
        query.into_inner().into_iter().find(|(name, _)| name == "case").map(|(_, case)| case).unwrap_or_default();
    HttpResponse::Ok().json(runs.of_case(&case))
}

fn text<'h>(request: &'h HttpRequest, name: &str) -> Option<&'h str> {
    request.headers().get(name)?.to_str().ok()
}

async fn handle(request: HttpRequest, body: Bytes, runs: web::Data<Runs>) -> Result<HttpResponse, actix_web::Error> {
    let accept_encoding = text(&request, "accept-encoding").map(str::to_owned);
    let run = runs.begin(text(&request, "vector-case").unwrap_or_default(), accept_encoding.as_deref());
    let steps = Steps::read(text(&request, "vector-do"));
    let ending = Ending::of(&run);
    run.body(&body);
    let response = answer(&run, &steps, &request, &body).await?;
    if steps.get("stream").is_none() {
        ending.returned();
    } else {
        ending.later();
    }
    if steps.get("encode").is_some() && accept_encoding.is_some_and(|accepted| accepted.contains("gzip")) {
        return Ok(HttpResponse::Created().insert_header(("content-encoding", "gzip")).body("compressed"));
    }
    Ok(response)
}

/// Takes the steps.
async fn answer(
    run: &Run,
    steps: &Steps,
    request: &HttpRequest,
    body: &Bytes,
) -> Result<HttpResponse, actix_web::Error> {
    let grant = request.extensions().get::<Grant>().cloned();
    let mut value_of = None;
    for (step, value) in steps.iter() {
        match step {
            "sleep" => sleep(steps::millis(value)).await,
            "poll" => run.set("gone", steps::poll(grant.as_ref(), steps::millis(value)).await),
            "mark" => {
                let outcome = match value.as_str() {
                    Some("success") => Outcome::Success,
                    Some("failure") => Outcome::Failure,
                    _ => Outcome::Unknown,
                };
                if let Some(grant) = &grant {
                    grant.mark(outcome);
                }
            }
            "raise" if value == "stock" => return Err(StockError.into()),
            "raise" if value == "caused" => return Err(Caused(StockError).into()),
            "raise" if value == "http" => return Err(InternalError::new("sold out", StatusCode::CONFLICT).into()),
            // As an error that no handler answers: the connection breaks, and the server continues.
            "raise" => std::panic::resume_unwind(Box::new("another error")),
            "respond" => {
                let step = steps::response(value);
                return Ok(builder(step.status, &step.headers).body(step.body));
            }
            "stream" => return Ok(streamed(steps::rows(value), run)),
            "after" => {
                let (run, time) = (run.clone(), steps::millis(value));
                actix_web::rt::spawn(async move {
                    sleep(time).await;
                    run.set("after", "done");
                });
            }
            "fails" => {
                let (run, time) = (run.clone(), steps::millis(value));
                actix_web::rt::spawn(async move {
                    sleep(time).await;
                    run.set("after", "failed");
                    std::panic::resume_unwind(Box::new("the background work fails"));
                });
            }
            "parsed" => value_of = Some(serde_json::from_slice(body)?),
            _ => {}
        }
    }
    let mut answer = run.json();
    if let Some(value) = value_of {
        answer["value"] = value;
    }
    Ok(HttpResponse::Created().json(answer))
}

fn builder(status: u16, headers: &[(String, String)]) -> actix_web::HttpResponseBuilder {
    let mut builder = HttpResponse::build(StatusCode::from_u16(status).unwrap_or(StatusCode::CREATED));
    for (name, value) in headers {
        builder.append_header((name.as_str(), value.as_str()));
    }
    builder
}

fn streamed(step: steps::Rows, run: &Run) -> HttpResponse {
    let length =
        step.headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, length)| length.parse().ok());
    let headers: Vec<_> = step.headers.into_iter().filter(|(name, _)| name != "content-length").collect();
    let (every, breaks_after) = (step.every, step.breaks_after);
    let rows = stream::unfold((step.texts.into_iter().enumerate(), Ending::of(run)), move |state| async move {
        let (mut rows, mut ending) = state;
        let (at, row) = rows.next()?;
        if breaks_after == Some(at) {
            return Some((Err(std::io::Error::other("it breaks off")), (rows, ending)));
        }
        if at > 0 {
            sleep(every).await;
        }
        if rows.len() == 0 && breaks_after.is_none() {
            ending.set_returned();
        }
        Some((Ok(Bytes::from(row)), (rows, ending)))
    });
    let mut builder = builder(step.status, &headers);
    match length {
        Some(length) => builder.body(SizedStream::new(length, Box::pin(rows))),
        None => builder.streaming(Box::pin(rows)),
    }
}
