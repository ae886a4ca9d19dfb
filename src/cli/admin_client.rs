//! What commands speak to a gateway's admin listener with: where it is, the token, one request and its answer, and
//! problems told as errors. Here is also where the connection is made.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Settings;
use super::tls::TlsArgs;
use crate::config::TOKEN_VARIABLE;

/// Longer than a gateway waits for its store and its disk.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An answer may be this long: a page of the longest records.
const ANSWER_BYTES_MAX: usize = 64 << 20;

const WRITTEN: &str = "a URL is written as http://127.0.0.1:9464 or https://gateway.example:9464";

/// Which gateway to ask, and who asks.
#[derive(Args, Clone, Debug)]
pub(super) struct AdminArgs {
    /// The admin listener [default: http:// or https:// and what the configuration has as `server.admin_listen`]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// File that holds the token [default: the token itself from `ONCEGATE_ADMIN_TOKEN` in the environment]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = super::CONFIG_HELP)]
    config: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
}

/// A gateway's admin API, as one operator.
pub(super) struct AdminClient {
    url: String,
    tls: TlsArgs,
    token: String,
}

/// A problem that the gateway answered with.
#[derive(Debug, Deserialize, thiserror::Error)]
#[error("{detail} ({code}, request {request_id})")]
pub(super) struct Refusal {
    status: u16,
    code: String,
    detail: String,
    request_id: String,
}

impl AdminArgs {
    /// Whether a gateway is named.
    pub(super) fn is_named(&self) -> bool {
        self.admin.is_some()
    }

    /// The configuration that the command goes by.
    pub(super) fn settings(&self) -> Settings {
        Settings { config: self.config.clone(), ..Settings::default() }
    }
}

impl Refusal {
    /// Whether the request was good, and only what it found was not as it has to be: nothing there, or something else.
    pub(super) fn is_about_what_stands(&self) -> bool {
        [404, 409].contains(&self.status)
    }
}

impl AdminClient {
    /// The client that these arguments and the environment ask for. Asks nobody yet.
    pub(super) fn new(args: AdminArgs) -> anyhow::Result<Self> {
        let token = match &args.token_file {
            Some(path) => read_token(path)?,
            None => token_variable()?,
        };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("the token is empty, or no token: it is one line of visible ASCII characters");
        }
        let url = match args.admin {
            Some(url) => url,
            None => url_of(Settings { config: args.config, ..Settings::default() })?,
        };
        Ok(Self { url, tls: args.tls, token })
    }

    /// What stands at a path.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, None)
    }

    /// Sends a body to a path.
    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, Some(body))
    }

    fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(AUTHORIZATION, format!("Bearer {}", self.token));
        let body = match body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                body.to_string()
            }
            None => String::new(),
        };
        let answer = ask(&self.url, &self.tls, request.body(Full::new(body.into()))?, TIMEOUT);
        let answer = answer.with_context(|| format!("the gateway at {} could not be asked", self.url))?;
        if answer.is_success() {
            let not_ours = || format!("what answers at {} is no gateway's admin listener", self.url);
            return serde_json::from_slice(&answer.body).with_context(not_ours);
        }
        Err(match serde_json::from_slice::<Refusal>(&answer.body) {
            Ok(refusal) => refusal.into(),
            Err(_) => {
                anyhow::anyhow!("{} answered {}, and not as a gateway's admin listener does", self.url, answer.status)
            }
        })
    }
}

/// The URL of the admin listener that a configuration has.
pub(super) fn url_of(settings: Settings) -> anyhow::Result<String> {
    let server = settings.load()?.server;
    let scheme = if server.admin_tls.is_on() { "https" } else { "http" };
    Ok(format!("{scheme}://{}", reachable(server.admin_listen)))
}

/// Where a listener that listens everywhere can be reached from here.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => listen.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    listen
}

fn read_token(path: &Path) -> anyhow::Result<String> {
    let token = std::fs::read_to_string(path);
    let token = token.with_context(|| format!("cannot read the token from {}", path.display()))?;
    Ok(token.trim_end_matches(['\r', '\n']).to_owned())
}

#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
fn token_variable() -> anyhow::Result<String> {
    let hint = || format!("no token; put it into {TOKEN_VARIABLE}, or name a file that holds it with --token-file");
    std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()).with_context(hint)
}

/// What was answered.
pub(super) struct Answer {
    /// The status, and what it is called.
    pub(super) status: String,
    is_success: bool,
    body: Bytes,
}

impl Answer {
    /// Whether the request was done.
    pub(super) fn is_success(&self) -> bool {
        self.is_success
    }
}

/// Sends one request to the listener of a URL and waits for the whole answer.
pub(super) fn ask(
    url: &str,
    tls: &TlsArgs,
    request: Request<Full<Bytes>>,
    timeout: Duration,
) -> anyhow::Result<Answer> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let asked = async { tokio::time::timeout(timeout, exchange(url, tls, request)).await };
    match runtime.context("cannot start the runtime")?.block_on(asked) {
        Ok(answer) => answer,
        Err(_) => bail!("no answer in {} s", timeout.as_secs()),
    }
}

async fn exchange(url: &str, tls: &TlsArgs, mut request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
    let url: Uri = url.parse().context(WRITTEN)?;
    let port = match url.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => bail!(WRITTEN),
    };
    let authority = url.authority().context(WRITTEN)?;
    request.headers_mut().insert(HOST, authority.as_str().try_into()?);
    // The brackets of an IPv6 address belong to the URL, not to the address.
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(port))).await?;
    match port {
        443 => converse(tls.connect(host, stream).await?, request).await,
        _ => converse(stream, request).await,
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Answer> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection only moves while it is polled; it ends with the runtime.
    drop(tokio::spawn(connection));
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| anyhow::anyhow!(error))?;
    Ok(Answer { status: head.status.to_string(), is_success: head.status.is_success(), body: body.to_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_everywhere_is_asked_on_loopback() {
        for (listen, asked) in
            [("0.0.0.0:9464", "127.0.0.1:9464"), ("[::]:9464", "[::1]:9464"), ("10.0.0.1:9464", "10.0.0.1:9464")]
        {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }
}
