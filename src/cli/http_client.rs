//! HTTP client of commands, with or without TLS, and the secrets that it needs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::failure::usage;
use super::listener::Listener;
use super::output::escaped;
use super::tls::TlsArgs;

/// Longest body of a response: a page of the longest records.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Client of a listener: sends each request over a new connection.
pub(super) struct HttpClient {
    pub(super) listener: Listener,
    pub(super) url: String,
    pub(super) tls: TlsArgs,
    /// Credential for `Authorization: Bearer …`.
    pub(super) token: Option<String>,
}

impl HttpClient {
    /// Sends one request and waits for the whole response, in a runtime for this request only.
    pub(super) fn send_alone(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        timeout: Duration,
    ) -> anyhow::Result<Response<Bytes>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("cannot start the runtime")?.block_on(self.send(method, path, body, timeout))
    }

    /// Sends one request and waits for the whole response.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        timeout: Duration,
    ) -> anyhow::Result<Response<Bytes>> {
        within(timeout, async {
            let (head, body) = self.begin(method, path, body).await?.into_parts();
            Ok(Response::from_parts(head, collected(body).await?))
        })
        .await
    }

    /// Sends a POST request, and returns the response as soon as it begins. Its connection lasts as long as the runtime.
    pub(super) async fn post_streaming(
        &self,
        path: &str,
        body: String,
        timeout: Duration,
    ) -> anyhow::Result<Response<Incoming>> {
        within(timeout, self.begin(Method::POST, path, Some(body))).await
    }

    /// Sends one request over a new connection, and returns the response as soon as it begins.
    async fn begin(&self, method: Method, path: &str, body: Option<String>) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let mut request: Request<Full<Bytes>> = request.body(body.unwrap_or_default().into())?;
        let wrong_url = || {
            let example = self.listener.example();
            usage(format!(
                "`{}` is not a URL of a gateway: it has a scheme, a host and a port, such as {example}",
                escaped(&self.url)
            ))
        };
        let parsed: Uri = self.url.parse().map_err(|_| wrong_url())?;
        let port = match parsed.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err(wrong_url()),
        };
        let authority = parsed.authority().filter(|_| parsed.path_and_query().is_none_or(|path| path == "/"));
        let authority = authority.ok_or_else(wrong_url)?;
        request.headers_mut().insert(HOST, authority.as_str().try_into()?);
        // The brackets of an IPv6 address belong to the URL, not to the address.
        let host = authority.host().trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(port))).await?;
        match port {
            443 => exchange(self.tls.connect(host, stream).await?, request).await,
            _ => exchange(stream, request).await,
        }
    }
}

async fn within<T>(timeout: Duration, call: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let late = || anyhow!("no response within {} ms", timeout.as_millis());
    tokio::time::timeout(timeout, call).await.map_err(|_| late())?
}

/// Reads a secret from the file that `flag` names: `what` is a token or a credential.
pub(super) fn read_secret(what: &str, flag: &str, path: &Path) -> anyhow::Result<String> {
    let secret = std::fs::read_to_string(path);
    let secret =
        secret.with_context(|| format!("cannot read the {what} from {}, which {flag} names", path.display()))?;
    Ok(secret.trim_end_matches(['\r', '\n']).to_owned())
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection only moves while it is polled; it ends with the runtime.
    drop(tokio::spawn(connection));
    Ok(sender.send_request(request).await?)
}

/// Returns a whole body.
pub(super) async fn collected(body: Incoming) -> anyhow::Result<Bytes> {
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
    Ok(body.map_err(|error| anyhow!(error))?.to_bytes())
}
