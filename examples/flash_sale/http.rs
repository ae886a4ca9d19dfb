//! JSON over HTTP, for the shop's calls to the gateway and the customers' calls to the shop.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, header::CONTENT_TYPE};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tokio::time::timeout;

/// A client that keeps its connections open.
#[derive(Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

/// Nothing came back in time. What was asked for may have happened all the same.
#[derive(Debug)]
pub(crate) struct NoAnswer;

impl Http {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        // Otherwise small requests wait for each other's acknowledgements.
        connector.set_nodelay(true);
        Self(Client::builder(TokioExecutor::new()).build(connector))
    }

    pub(crate) async fn post(&self, url: &str, body: &Value, within: Duration) -> Result<(u16, Value), NoAnswer> {
        let request = Request::post(url).header(CONTENT_TYPE, "application/json").body(body.to_string().into());
        self.send(request.map_err(|_| NoAnswer)?, within).await
    }

    pub(crate) async fn get(&self, url: &str, within: Duration) -> Result<(u16, Value), NoAnswer> {
        let request = Request::get(url).body(Full::default());
        self.send(request.map_err(|_| NoAnswer)?, within).await
    }

    async fn send(&self, request: Request<Full<Bytes>>, within: Duration) -> Result<(u16, Value), NoAnswer> {
        timeout(within, async {
            let response = self.0.request(request).await.map_err(|_| NoAnswer)?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map_err(|_| NoAnswer)?.to_bytes();
            Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
        })
        .await
        .unwrap_or(Err(NoAnswer))
    }
}
