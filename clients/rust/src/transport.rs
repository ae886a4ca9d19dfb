//! HTTP/1.1 to one gateway, over connections that are kept.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};

use crate::answer::Body;
use crate::error::{Cause, Error, Kind};

/// Less than the gateway's own limit, 75 seconds by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
const IDLE_MAX: usize = 64;
/// More than any answer of a gateway has by its default limits.
const ANSWER_BYTES_MAX: usize = 16 << 20;

#[cfg(feature = "tls")]
pub(crate) type TlsConfig = std::sync::Arc<rustls::ClientConfig>;

/// One gateway.
pub(crate) struct Server {
    pub(crate) url: String,
    host: String,
    port: u16,
    /// Path of the URL, without a slash at its end.
    prefix: String,
    authority: HeaderValue,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    idle: Mutex<Vec<Idle>>,
    /// A gateway in memory, and the app of its calls.
    #[cfg(feature = "testing")]
    memory: Option<(crate::testing::MemoryGateway, String)>,
}

#[cfg(feature = "tls")]
struct Tls {
    connector: tokio_rustls::TlsConnector,
    name: rustls::pki_types::ServerName<'static>,
}

struct Idle {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// A failure before an answer, without the URL.
type Failed = (Kind, String);

impl Server {
    pub(crate) fn new(url: &str, #[cfg(feature = "tls")] tls: Option<&TlsConfig>) -> Result<Self, Error> {
        let wrong = || {
            Error::Argument(format!(
                "not the URL of a gateway: {url:?}; expected http://HOST:PORT or https://HOST:PORT"
            ))
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(wrong()) };
        let is_tls = scheme == "https";
        if (!is_tls && scheme != "http") || authority.host().is_empty() {
            return Err(wrong());
        }
        if authority.as_str().contains('@') || uri.query().is_some() || url.contains('#') {
            let detail = "the URL of a gateway has no user, query or fragment: use Options::credential";
            return Err(Error::Argument(detail.to_owned()));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        #[cfg(feature = "tls")]
        let tls = match tls {
            Some(config) if is_tls => {
                Some(Tls { connector: config.clone().into(), name: host.clone().try_into().map_err(|_| wrong())? })
            }
            _ => None,
        };
        #[cfg(not(feature = "tls"))]
        if is_tls {
            let detail = "https needs the feature `tls` of oncegate-client, which is switched off";
            return Err(Error::Argument(detail.to_owned()));
        }
        Ok(Self {
            url: url.to_owned(),
            port: authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| wrong())?,
            #[cfg(feature = "tls")]
            tls,
            idle: Mutex::default(),
            #[cfg(feature = "testing")]
            memory: None,
            host,
        })
    }

    #[cfg(feature = "testing")]
    pub(crate) fn in_memory(self, gateway: Option<crate::testing::MemoryGateway>, app: &str) -> Self {
        Self { memory: gateway.map(|gateway| (gateway, app.to_owned())), ..self }
    }

    /// Makes one HTTP call. On a cause it is not known if a gateway has acted on it.
    pub(crate) async fn send(
        &self,
        timeout: Duration,
        method: Method,
        path: &str,
        mut headers: HeaderMap,
        body: Bytes,
        genuine: impl Fn(&Body) -> bool,
    ) -> Result<(u16, Body, Bytes), Cause> {
        #[cfg(feature = "testing")]
        if let Some((gateway, app)) = &self.memory {
            let calling = tokio::time::timeout(timeout, gateway.call(app, &method, path, &body)).await;
            let late = |_| Err(Cause::of(&self.url, Kind::Timeout, format!("no answer within {timeout:?}")));
            let (status, text) = calling.unwrap_or_else(late)?;
            let body = serde_json::from_slice(&text).unwrap_or_default();
            return Ok((status, body, text));
        }
        headers.insert(HOST, self.authority.clone());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        *request.uri_mut() = format!("{}{path}", self.prefix)
            .parse()
            .map_err(|error| Cause::of(&self.url, Kind::Connection, format!("not a path: {error}")))?;
        let exchanged = tokio::time::timeout(timeout, self.exchange(request)).await;
        let exchanged = exchanged.unwrap_or_else(|_| Err((Kind::Timeout, format!("no answer within {timeout:?}"))));
        let (status, kind, text) = exchanged.map_err(|(kind, detail)| {
            if kind == Kind::Connection {
                // The others are of the same age.
                self.close_idle();
            }
            Cause::of(&self.url, kind, detail)
        })?;
        match serde_json::from_slice::<Body>(&text) {
            Ok(body) if (status >= 300 && body.code.is_some()) || (status < 300 && genuine(&body)) => {
                Ok((status, body, text))
            }
            _ => Err(Cause::of(&self.url, Kind::NotAGateway, format!("answered {status}, {kind:.100}"))),
        }
    }

    pub(crate) fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(u16, String, Bytes), Failed> {
        let broken = |error: hyper::Error| (Kind::Connection, describe(&error));
        let mut sender = match self.kept().await {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status().as_u16();
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or("without a content type").to_owned();
        let mut body = response.into_body();
        let mut text = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                if text.len() + data.len() > ANSWER_BYTES_MAX {
                    return Err((Kind::NotAGateway, format!("answered more than {ANSWER_BYTES_MAX} bytes")));
                }
                text.extend_from_slice(&data);
            }
        }
        if !sender.is_closed() {
            let idle = Idle { sender, since: Instant::now() };
            let mut kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() < IDLE_MAX {
                kept.push(idle);
            }
        }
        Ok((status, kind, text.freeze()))
    }

    /// Returns a connection that was kept and is still open.
    async fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        loop {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if idle.since.elapsed() < IDLE_TIMEOUT && idle.sender.ready().await.is_ok() {
                return Some(idle.sender);
            }
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Failed> {
        let addresses =
            lookup_host((self.host.as_str(), self.port)).await.map_err(|error| (Kind::Dns, error.to_string()))?;
        let mut last = (Kind::Dns, "the name has no address".to_owned());
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Calls are short, and each waits for its answer.
                    let _ = stream.set_nodelay(true);
                    return self.over(stream).await;
                }
                Err(error) => last = (kind_of(&error), format!("{address}: {error}")),
            }
        }
        Err(last)
    }

    async fn over(&self, stream: TcpStream) -> Result<SendRequest<Full<Bytes>>, Failed> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            let secured = tls.connector.connect(tls.name.clone(), stream).await;
            let secured = secured.map_err(|error| {
                let kind = if is_tls(&error) { Kind::Tls } else { Kind::Connection };
                (kind, error.to_string())
            })?;
            return start(TokioIo::new(secured)).await;
        }
        start(TokioIo::new(stream)).await
    }
}

async fn start(io: impl Read + Write + Unpin + Send + 'static) -> Result<SendRequest<Full<Bytes>>, Failed> {
    let (sender, connection) = handshake(io).await.map_err(|error| (Kind::Connection, describe(&error)))?;
    // Its errors are returned by the call on this connection.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

fn kind_of(error: &io::Error) -> Kind {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Kind::Refused,
        io::ErrorKind::TimedOut => Kind::Timeout,
        _ => Kind::Connection,
    }
}

#[cfg(feature = "tls")]
fn is_tls(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(inner) if inner.is::<rustls::Error>())
}

/// Returns an error with its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// Returns a configuration with the certificates of the system. Without any, each call says that the issuer is unknown.
#[cfg(feature = "tls")]
pub(crate) fn system_tls() -> Result<TlsConfig, Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::Argument(format!("https: {error}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth().into())
}
