//! Compressed bodies: the fingerprint is that of the bytes that the middleware gets.

use std::io::Write as _;
use std::net::SocketAddr;

use actix_web::dev::{Decompress, Payload, Service as _};
use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderName};
use actix_web::{App, HttpMessage as _, HttpServer, web};
use flate2::Compression;
use flate2::write::GzEncoder;
use oncegate_client::testing::MemoryGateway;
use oncegate_client::tower::IdempotencyLayer;
use oncegate_client::{Options, actix};
use tower_http::decompression::RequestDecompressionLayer;

use crate::services::{Caller, Received, Shop, on_actix, on_axum};

const TEXT: &str = "hello hello hello";

fn gzip(text: &str, level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

async fn send(address: SocketAddr, encoding: Option<&str>, body: &[u8]) -> Received {
    Caller::begin(address, "/text", "k", encoding, body).complete().await
}

/// Sends a text and its repeats to a service whose middleware gets the text.
async fn check_decompressed_outside(address: SocketAddr) {
    let first = send(address, Some("gzip"), &gzip(TEXT, 9)).await;
    assert_eq!((first.status, &*first.text, first.is_replay()), (Some(200), "1 hello hello hello", false));
    // The same text, compressed in another way, and not at all.
    for (encoding, body) in [(Some("gzip"), gzip(TEXT, 9)), (Some("gzip"), gzip(TEXT, 0)), (None, TEXT.into())] {
        let repeat = send(address, encoding, &body).await;
        assert_eq!((repeat.status, &*repeat.text, repeat.is_replay()), (Some(200), &*first.text, true));
    }
    let other = send(address, Some("gzip"), &gzip("hello hello help!", 9)).await;
    assert_eq!((other.status, &*other.code()), (Some(422), "fingerprint_mismatch"));
}

#[tokio::test]
async fn a_layer_outside_decompresses_what_is_compared() {
    let client = MemoryGateway::new().client(Options::default());
    let layer = IdempotencyLayer::shared_keys(client, "frameworks.test");
    let shop = Shop::default();
    let address = on_axum(shop.router().layer(layer).layer(RequestDecompressionLayer::new())).await;
    check_decompressed_outside(address).await;
    assert_eq!(shop.runs(), 1);
}

/// Serves the shop on actix-web behind a middleware that decompresses, and removes these fields.
fn behind_decompression(shop: &web::Data<Shop>, removed: &'static [HeaderName]) -> SocketAddr {
    let client = MemoryGateway::new().client(Options::default());
    let (rules, shop) = (actix::Idempotency::shared_keys(client, "frameworks.test"), shop.clone());
    let app = move || {
        let app = App::new().app_data(shop.clone()).default_service(Shop::route()).wrap(rules.clone());
        app.wrap_fn(move |mut request, next| {
            let payload = Decompress::from_headers(request.take_payload(), request.headers());
            request.set_payload(Payload::Stream { payload: Box::pin(payload) });
            for name in removed {
                request.headers_mut().remove(name);
            }
            next.call(request)
        })
    };
    on_actix(|listener| HttpServer::new(app).workers(1).listen(listener).expect("a server").run())
}

#[tokio::test]
async fn a_middleware_of_actix_outside_decompresses_what_is_compared() {
    let shop = web::Data::new(Shop::default());
    check_decompressed_outside(behind_decompression(&shop, &[CONTENT_ENCODING, CONTENT_LENGTH])).await;
    assert_eq!(shop.runs(), 1);
    // A length of other bytes is that of a body that was cut off.
    let address = behind_decompression(&shop, &[CONTENT_ENCODING]);
    let refused = send(address, Some("gzip"), &gzip(TEXT, 9)).await;
    assert_eq!((refused.status, &*refused.code(), shop.runs()), (Some(400), "invalid_request", 1));
}

#[tokio::test]
async fn extractors_of_actix_decompress_behind_the_middleware() {
    let client = MemoryGateway::new().client(Options::default());
    let rules = actix::Idempotency::shared_keys(client, "frameworks.test");
    let shop = web::Data::new(Shop::default());
    let of_app = shop.clone();
    let app = move || App::new().app_data(of_app.clone()).wrap(rules.clone()).default_service(Shop::route());
    let address = on_actix(|listener| HttpServer::new(app).workers(1).listen(listener).expect("a server").run());
    for is_replay in [false, true] {
        let answer = send(address, Some("gzip"), &gzip(TEXT, 9)).await;
        let got = (answer.status, &*answer.text, answer.is_replay());
        assert_eq!(got, (Some(200), "1 hello hello hello", is_replay));
    }
    for body in [gzip("hello hello help!", 9), gzip(TEXT, 0)] {
        let other = send(address, Some("gzip"), &body).await;
        assert_eq!((other.status, &*other.code()), (Some(422), "fingerprint_mismatch"));
    }
    assert_eq!(shop.runs(), 1);
}
