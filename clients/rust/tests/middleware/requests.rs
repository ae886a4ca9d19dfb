//! Requests as strangers send them, and the services around the layer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Frame;
use oncegate_client::tower::RequestBody;
use tower::{ServiceExt as _, service_fn};
use tower_layer::Layer as _;

use crate::shop::{Shop, key, layer, offline, post, request, send};

const ALICE: (&str, &str) = ("authorization", "alice");

#[tokio::test]
async fn two_mount_points_are_two_requests() {
    let layer = layer();
    let shop = Shop::new();
    let mounted = |path: &str| Router::new().nest(path, shop.router().layer(layer.clone()));
    let (one, other, key) = (mounted("/one"), mounted("/other"), key("mount"));
    assert_eq!(post(&one, "/one/201", &key, "").await.status, 201);
    assert_eq!(post(&other, "/other/201", &key, "").await.code(), "fingerprint_mismatch");
    assert!(post(&one, "/one/201", &key, "").await.is_replay);
}

#[tokio::test]
async fn of_two_layers_the_inner_one_passes() {
    let layer = layer();
    let shop = Shop::new();
    let router = shop.router().layer(layer.clone()).layer(layer.required());
    let key = key("twice");
    assert_eq!(post(&router, "/201", &key, "").await.status, 201);
    let repeat = post(&router, "/201", &key, "").await;
    assert_eq!((repeat.status, repeat.is_replay, shop.runs()), (201, true, 1));
}

#[tokio::test]
async fn a_request_that_cannot_be_protected_is_refused_before_its_claim() {
    let shop = Shop::new();
    let router = shop.router().layer(offline());
    let keyed = ("idempotency-key", "k");
    for (fields, body, code) in [
        (&[keyed][..], "", "principal_missing"),
        (&[("authorization", ""), keyed], "", "principal_missing"),
        (&[ALICE, keyed, keyed], "", "idempotency_key_invalid"),
        (&[ALICE, keyed, ("content-length", "9")], "short", "invalid_request"),
        (&[ALICE, keyed, ("upgrade", "h2c, WebSocket")], "", "not_supported"),
        (&[ALICE, keyed, ("content-type", "Application/gRPC+proto")], "", "not_supported"),
        // A client that offers another protocol does not need it.
        (&[ALICE, keyed, ("upgrade", "h2c")], "", "store_unavailable"),
    ] {
        let answer = send(&router, request("/201", fields, body)).await;
        assert_eq!(answer.code(), code, "{fields:?}");
        assert_eq!(answer.fields["content-type"], "application/problem+json");
    }
    assert_eq!(shop.runs(), 0);
}

#[tokio::test]
async fn a_limit_outside_of_the_layer_is_413() {
    let layered = offline().layer(Shop::new().router());
    let limited =
        service_fn(move |request: Request<Body>| layered.clone().oneshot(request.map(|body| Limited::new(body, 4))));
    let request = request("/201", &[ALICE, ("idempotency-key", "k")], "longer than 4");
    let response = limited.oneshot(request).await.expect("an answer");
    assert_eq!(response.status(), 413);
}

#[tokio::test]
async fn bodies_of_any_type_pass() {
    /// A body that no bytes convert into.
    struct Countdown(u8);

    impl hyper::body::Body for Countdown {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0 = self.0.saturating_sub(1);
            Poll::Ready((self.0 > 0).then(|| Ok(Frame::data(Bytes::from(vec![b'0' + self.0])))))
        }
    }

    let layer = layer();
    let service = layer.layer(service_fn(async |request: Request<RequestBody>| {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        Ok::<_, Infallible>(Response::new(Countdown(body[0] - b'0')))
    }));
    let key = key("types");
    for is_replay in [false, true] {
        let request = request("/", &[ALICE, ("idempotency-key", &*key)], "5");
        let response = service.clone().oneshot(request).await.expect("an answer");
        assert_eq!(response.headers().contains_key("idempotent-replayed"), is_replay);
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "4321");
    }
    let unprotected = service.oneshot(request("/", &[ALICE], "3")).await.expect("an answer");
    assert_eq!(unprotected.into_body().collect().await.expect("a body").to_bytes(), "21");
}
