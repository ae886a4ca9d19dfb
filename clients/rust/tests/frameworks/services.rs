//! The same service before axum and before actix-web, and a caller of it.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, Route, web};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, Uri};
use axum::routing::any;
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use oncegate_client::tower::IdempotencyLayer;
use oncegate_client::{Client, actix};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The response of `/whole`, `/declared` and `/streamed`.
pub(crate) const WHOLE: &str = "onetwothree";

/// Counts its runs. Every other path is answered with the number of the run and the body.
#[derive(Clone, Default)]
pub(crate) struct Shop(Arc<AtomicUsize>);

impl Shop {
    pub(crate) fn runs(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn run(&self, body: &[u8]) -> String {
        let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{number} {}", String::from_utf8_lossy(body))
    }

    pub(crate) fn router(&self) -> Router {
        let shop = self.clone();
        Router::new().fallback(any(async move |uri: Uri, body: Bytes| {
            let text = shop.run(&body);
            match uri.path() {
                "/whole" => Response::new(Body::from(WHOLE)),
                "/declared" => Response::builder()
                    .header("content-length", WHOLE.len())
                    .body(Body::from_stream(pieces()))
                    .expect("a response"),
                "/streamed" => Response::new(Body::from_stream(pieces())),
                _ => Response::new(Body::from(text)),
            }
        }))
    }

    /// Returns the handler of actix-web.
    pub(crate) fn route() -> Route {
        web::to(async |shop: web::Data<Self>, request: HttpRequest, body: Bytes| {
            let text = shop.run(&body);
            match request.path() {
                "/whole" => HttpResponse::Ok().body(WHOLE),
                "/declared" => HttpResponse::Ok().no_chunking(WHOLE.len() as u64).streaming(pieces()),
                "/streamed" => HttpResponse::Ok().streaming(pieces()),
                _ => HttpResponse::Ok().body(text),
            }
        })
    }
}

fn pieces() -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::iter(["one", "two", "three"].map(|piece| Ok(Bytes::from_static(piece.as_bytes()))))
}

/// The frameworks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framework {
    Axum,
    Actix,
}

pub(crate) const ALL: [Framework; 2] = [Framework::Axum, Framework::Actix];

impl Framework {
    /// Serves the shop behind a middleware with this client. `settle_within` limits the end of its responses.
    pub(crate) async fn serve(self, shop: &Shop, client: Client, settle_within: Option<Duration>) -> SocketAddr {
        match self {
            Self::Axum => {
                let layer = IdempotencyLayer::shared_keys(client, "frameworks.test");
                let layer = settle_within.into_iter().fold(layer, IdempotencyLayer::settle_within);
                on_axum(shop.router().layer(layer)).await
            }
            Self::Actix => {
                let rules = actix::Idempotency::shared_keys(client, "frameworks.test");
                let rules = settle_within.into_iter().fold(rules, actix::Idempotency::settle_within);
                let shop = web::Data::new(shop.clone());
                let app = move || App::new().app_data(shop.clone()).wrap(rules.clone()).default_service(Shop::route());
                on_actix(|listener| HttpServer::new(app).workers(1).listen(listener).expect("a server").run())
            }
        }
    }
}

pub(crate) async fn on_axum(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

pub(crate) fn on_actix(start: impl FnOnce(std::net::TcpListener) -> Server) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(start(listener));
    address
}

/// Waits for what a test expects, longer than anything takes on a busy machine.
pub(crate) async fn in_time<T>(what: &str, expected: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), expected).await.expect(what)
}

/// What a caller has received of its response.
#[derive(Clone, Default, Debug)]
pub(crate) struct Received {
    pub(crate) status: Option<u16>,
    pub(crate) fields: HeaderMap,
    pub(crate) text: String,
    pub(crate) is_complete: bool,
}

impl Received {
    pub(crate) fn is_replay(&self) -> bool {
        self.fields.contains_key("idempotent-replayed")
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.to_str().ok()
    }

    pub(crate) fn code(&self) -> String {
        let document: serde_json::Value = serde_json::from_str(&self.text).unwrap_or_default();
        document["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A caller that reads its response while it comes.
pub(crate) struct Caller(watch::Receiver<Received>);

impl Caller {
    /// Sends a request with this key.
    pub(crate) fn begin(address: SocketAddr, path: &str, key: &str, encoding: Option<&str>, body: &[u8]) -> Self {
        let mut request = Request::post(path).header("host", "shop").header("idempotency-key", key);
        if let Some(encoding) = encoding {
            request = request.header("content-encoding", encoding);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).expect("a request");
        let (received, reading) = watch::channel(Received::default());
        tokio::spawn(async move {
            let stream = TcpStream::connect(address).await.expect("a connection");
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("a connection");
            tokio::spawn(connection);
            let mut response = sender.send_request(request).await.expect("a response");
            received.send_modify(|received| {
                received.status = Some(response.status().as_u16());
                received.fields = response.headers().clone();
            });
            while let Some(frame) = response.frame().await {
                let data = frame.expect("a whole body").into_data().expect("data");
                received.send_modify(|received| received.text += std::str::from_utf8(&data).expect("text"));
            }
            received.send_modify(|received| received.is_complete = true);
        });
        Self(reading)
    }

    pub(crate) fn received(&self) -> Received {
        self.0.borrow().clone()
    }

    /// Waits until it has received this.
    pub(crate) async fn until(&mut self, what: &str, is_there: impl FnMut(&Received) -> bool) -> Received {
        in_time(what, self.0.wait_for(is_there)).await.expect(what).clone()
    }

    pub(crate) async fn complete(&mut self) -> Received {
        self.until("a whole response", |received| received.is_complete).await
    }
}

pub(crate) async fn post(address: SocketAddr, path: &str, key: &str) -> Received {
    Caller::begin(address, path, key, None, b"").complete().await
}
