//! A plain HTTP client for the crowd and for readiness.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::{Request, body::Bytes, header::CONTENT_TYPE};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use tokio::time::timeout;

#[derive(Clone)]
pub(crate) struct Http(Client<HttpConnector, Full<Bytes>>);

impl Http {
    pub(crate) fn new() -> Self {
        let mut connector = HttpConnector::new();
        // Otherwise small requests wait for each other's acknowledgements.
        connector.set_nodelay(true);
        Self(Client::builder(TokioExecutor::new()).build(connector))
    }

    pub(crate) async fn post(&self, url: &str, body: &Value, within: Duration) -> anyhow::Result<(u16, Value)> {
        let request = Request::post(url).header(CONTENT_TYPE, "application/json").body(body.to_string().into())?;
        timeout(within, self.send(request)).await?
    }

    pub(crate) async fn get(&self, url: &str, within: Duration) -> anyhow::Result<(u16, Value)> {
        timeout(within, self.send(Request::get(url).body(Full::default())?)).await?
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> anyhow::Result<(u16, Value)> {
        let response = self.0.request(request).await?;
        let status = response.status().as_u16();
        Ok((status, serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?))
    }
}
