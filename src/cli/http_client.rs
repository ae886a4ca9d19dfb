//! HTTP client of commands: one request over a new connection, with or without TLS.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::failure::usage;
use super::output::escaped;
use super::tls::TlsArgs;

/// Longest body of a response: a page of the longest records.
const BODY_BYTES_MAX: usize = 64 << 20;

const URL_EXAMPLE: &str = "a URL is written as http://127.0.0.1:9464 or https://gateway.example:9464";

/// Sends one request to the listener of a URL and waits for the whole response, in a runtime for this request only.
pub(super) fn send(
    url: &str,
    tls: &TlsArgs,
    request: Request<Full<Bytes>>,
    timeout: Duration,
) -> anyhow::Result<Response<Bytes>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(send_within(url, tls, request, timeout))
}

/// Sends one request to the listener of a URL and waits for the whole response.
pub(super) async fn send_within(
    url: &str,
    tls: &TlsArgs,
    request: Request<Full<Bytes>>,
    timeout: Duration,
) -> anyhow::Result<Response<Bytes>> {
    match tokio::time::timeout(timeout, connect(url, tls, request)).await {
        Ok(response) => response,
        Err(_) => bail!("no response within {} ms", timeout.as_millis()),
    }
}

async fn connect(url: &str, tls: &TlsArgs, mut request: Request<Full<Bytes>>) -> anyhow::Result<Response<Bytes>> {
    let wrong_url = || usage(format!("`{}` is not a URL of a gateway: {URL_EXAMPLE}", escaped(url)));
    let parsed: Uri = url.parse().map_err(|_| wrong_url())?;
    let port = match parsed.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return Err(wrong_url()),
    };
    let authority = parsed.authority().ok_or_else(wrong_url)?;
    request.headers_mut().insert(HOST, authority.as_str().try_into()?);
    // The brackets of an IPv6 address belong to the URL, not to the address.
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(port))).await?;
    match port {
        443 => exchange(tls.connect(host, stream).await?, request).await,
        _ => exchange(stream, request).await,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Bytes>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection only moves while it is polled; it ends with the runtime.
    drop(tokio::spawn(connection));
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| anyhow!(error))?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
