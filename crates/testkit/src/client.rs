//! A client of the gateway. Checks every response against `openapi.yaml`.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::http::response::Parts;
use hyper::{HeaderMap, Request};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use oncegate_core::hex;
use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::connector::Connector;
use crate::fresh;
use crate::openapi::Spec;
use crate::wait::until;

/// Time after which an idle connection is not used again: less than the gateway's `idle_timeout`.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Returns the global ID of an operation of `default`, the open app.
pub fn global_id(operation: &str, canonical: &str) -> String {
    use md5::{Digest as _, Md5};
    hex::encode(&Md5::digest(format!("default\n{operation}\n{canonical}")))
}

/// A client with its own connections.
#[derive(Clone)]
pub struct Client {
    http: HttpClient<Connector, Full<Bytes>>,
    base: String,
    credential: Option<String>,
}

/// A response that has passed the check.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
    pub text: String,
}

impl Client {
    /// Creates a client of the gateway at this address.
    pub fn new(address: SocketAddr) -> Self {
        Self::over(Connector::default(), format!("http://{address}"))
    }

    /// Creates a client over TLS.
    pub fn over_tls(address: SocketAddr, tls: Arc<ClientConfig>) -> Self {
        Self::over(Connector(Some(tls)), format!("https://{address}"))
    }

    fn over(connector: Connector, base: String) -> Self {
        // Before the gateway closes it, which could happen while a request is sent.
        let http = HttpClient::builder(TokioExecutor::new()).pool_idle_timeout(IDLE_MAX).build(connector);
        Self { http, base, credential: None }
    }

    /// Sets its credential, `<app>.<secret>`.
    #[must_use]
    pub fn with_credential(mut self, credential: &str) -> Self {
        self.credential = Some(credential.to_owned());
        self
    }

    /// Sends a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_raw(path, body.to_string()).await
    }

    /// Sends these bytes with the content type of JSON.
    pub async fn post_raw(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    /// Sends any request. Panics if there is no response, or if it does not match the document.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.try_send(method, path, headers, body).await.expect("the gateway responds")
    }

    /// Sends any request. Returns an error if the connection fails.
    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, String> {
        let (head, body) = self.exchange(method, path, headers, body).await?;
        let content_type = head.headers.get("content-type").map(|value| value.to_str().expect("text").to_owned());
        if method != "HEAD" {
            Spec::load()
                .check_response(method, path, head.status.as_u16(), content_type.as_deref(), &body)
                .unwrap_or_else(|why| panic!("the response does not match openapi.yaml: {why}"));
        }
        assert!(head.headers.contains_key("x-request-id"), "every response has a request ID");
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            text: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<(Parts, Bytes), String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(credential) = &self.credential {
            request = request.header("authorization", format!("Bearer {credential}"));
        }
        let request = request.body(Full::new(body.into())).expect("a request");
        let answer =
            self.http.request(request).await.map_err(|failure| format!("{failure}: {:?}", failure.source()))?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|failure| failure.to_string())?.to_bytes();
        Ok((head, body))
    }

    /// Sends any request to a page of the console, which the documents do not have.
    pub async fn page(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let (head, body) = self.exchange(method, path, headers, body).await.expect("the gateway responds");
        let text = String::from_utf8_lossy(&body).into_owned();
        Answer { status: head.status.as_u16(), headers: head.headers, body: Value::Null, text }
    }

    /// Sends a JSON body and returns the text of the response, without a check: for responses that are too long for it.
    pub async fn post_unchecked(&self, path: &str, body: &Value) -> String {
        let headers = [("content-type", "application/json")];
        let (_, body) = self.exchange("POST", path, &headers, body.to_string()).await.expect("the gateway responds");
        String::from_utf8(body.into()).expect("UTF-8")
    }

    /// Sends these bytes and returns the status only, for very many requests.
    pub async fn post_status(&self, path: &str, body: impl Into<Bytes>) -> Result<u16, String> {
        let (head, _) = self.exchange("POST", path, &[("content-type", "application/json")], body).await?;
        Ok(head.status.as_u16())
    }

    /// Makes a claim call with these contents.
    pub async fn claim(&self, contents: Value) -> Answer {
        self.post("/v1/claims", &json!({ "contents": contents })).await
    }

    /// Makes a claim call with these fields, again and again until its store has answered in time: the same nonce, which is a new
    /// one if the fields have none, gets the same grant. Panics if the claim is not granted.
    pub async fn granted(&self, fields: &Value) -> Answer {
        let mut claim = fields.clone();
        if claim.get("attempt_nonce").is_none() {
            claim["attempt_nonce"] = format!("{:016x}", fresh::number()).into();
        }
        let mut answer = self.post("/v1/claims", &claim).await;
        until("the store answers", Duration::from_secs(10), async || {
            if answer.status == 503 {
                answer = self.post("/v1/claims", &claim).await;
            }
            answer.status != 503
        })
        .await;
        answer.expect(201)
    }

    /// Makes an outcome call for a granted claim.
    pub async fn settle(&self, granted: &Answer, outcome: &str) -> Answer {
        self.report(granted, json!({ "outcome": outcome })).await
    }

    /// Makes an outcome call for a granted claim, with these fields and the attempt.
    pub async fn report(&self, granted: &Answer, fields: Value) -> Answer {
        let mut body = fields;
        body["attempt"] = granted.body["attempt"].clone();
        self.post(&granted.path("/outcome"), &body).await
    }

    /// Renews a granted claim.
    pub async fn renew(&self, granted: &Answer, lease: Option<&str>) -> Answer {
        let body = json!({ "attempt": granted.body["attempt"], "lease": lease });
        self.post(&granted.path("/renewal"), &body).await
    }
}

impl Answer {
    /// Returns the path of the claim in this response.
    pub fn path(&self, rest: &str) -> String {
        format!("/v1/claims/{}{rest}", self.body["global_id"].as_str().expect("the response names a claim"))
    }

    /// Returns the status, and the code of a problem.
    pub fn code(&self) -> (u16, &str) {
        (self.status, self.body["code"].as_str().unwrap_or(""))
    }

    /// Panics unless it has this status. Returns itself.
    #[track_caller]
    #[expect(clippy::return_self_not_must_use, reason = "most callers want the check only")]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }
}
