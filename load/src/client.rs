//! One HTTP/1.1 connection to the gateway, on bare hyper: no pool, no redirects, no retries. A generator that retried would
//! hide what it is there to show.

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request,
    client::conn::http1::{self, SendRequest},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

/// Longer than any deadline of the gateway: whatever takes this long was not answered.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// After a failed connection, so that a gateway that is down is not hammered.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Where the gateway is, and as whom to call it.
#[derive(Debug)]
pub(crate) struct Target {
    address: SocketAddr,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    /// The app key a caller needs to compute a global ID.
    pub(crate) app: String,
}

impl Target {
    pub(crate) fn parse(url: &str, credential: Option<&str>, allow_remote: bool) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("the URL must begin with http://")?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        ensure!(!authority.contains('/'), "the URL is http://HOST:PORT, without a path: {url}");
        let address = authority
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {authority:?}; the URL is http://HOST:PORT"))?
            .next()
            .with_context(|| format!("{authority} has no address"))?;
        if !address.ip().is_loopback() && !allow_remote {
            bail!("{address} is not on this machine: load it only if it is yours, with --allow-remote");
        }
        let app = credential.and_then(|it| it.rsplit_once('.')).map_or("default", |(app, _)| app);
        let authorization = credential.map(|it| HeaderValue::try_from(format!("Bearer {it}"))).transpose();
        Ok(Self {
            address,
            host: HeaderValue::try_from(authority).context("not a host name")?,
            authorization: authorization.context("the credential holds a character that no header may")?,
            app: app.to_owned(),
        })
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

/// No answer. The request may have been carried out all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unanswered {
    /// No connection, so certainly not carried out.
    NotConnected,
    /// The connection broke before the answer was complete.
    Broken,
    /// No answer within [`CALL_TIMEOUT`].
    TimedOut,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConnected => "no connection",
            Self::Broken => "connection broke",
            Self::TimedOut => "no answer in time",
        })
    }
}

/// A connection that is opened when first needed, and again after it broke.
#[derive(Debug)]
pub(crate) struct Connection {
    target: Arc<Target>,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    pub(crate) fn new(target: Arc<Target>) -> Self {
        Self { target, sender: None }
    }

    pub(crate) async fn post(&mut self, path: &str, body: String) -> Result<Answer, Unanswered> {
        self.call(Method::POST, path, body.into()).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Answer, Unanswered> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    async fn call(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answer, Unanswered> {
        let mut sender = self.ready().await?;
        let request = self.request(method, path, body);
        let answered = timeout(CALL_TIMEOUT, async {
            let response = sender.send_request(request).await.ok()?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.ok()?.to_bytes();
            Some(Answer { status, body })
        })
        .await;
        match answered {
            Ok(Some(answer)) => {
                self.sender = Some(sender);
                Ok(answer)
            }
            Ok(None) => Err(Unanswered::Broken),
            Err(_) => Err(Unanswered::TimedOut),
        }
    }

    /// Takes the connection; only a complete answer puts it back.
    async fn ready(&mut self) -> Result<SendRequest<Full<Bytes>>, Unanswered> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let connecting = timeout(CALL_TIMEOUT, connect(self.target.address)).await;
        let Ok(Ok(sender)) = connecting else {
            sleep(RECONNECT_PAUSE).await;
            return Err(Unanswered::NotConnected);
        };
        Ok(sender)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
        let has_body = !body.is_empty();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("paths are built of hex digits and letters");
        let headers = request.headers_mut();
        headers.insert(HOST, self.target.host.clone());
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(authorization) = &self.target.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        request
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends when the sender is dropped; what it fails of, the sender fails of too.
    tokio::spawn(connection);
    Ok(sender)
}
