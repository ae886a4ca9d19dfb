//! HTTP/1.1 connection to a server, with reused buffers: no pool, no redirects, no retries. Retries would hide
//! failures, and an expensive generator would take the CPU time that it measures.

mod stream;
mod streams;
mod waiting;

use std::{
    fmt::{self, Display},
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    time::{sleep, timeout},
};

use self::stream::Security;
pub(crate) use self::stream::Stream;

/// Longer than any deadline of the gateway.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a failed connection. It protects a gateway that is down from a flood.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Larger than the number of header fields that any of the servers sends.
const FIELDS: usize = 32;

/// Buffer size for a usual response. A read that does not fill it saves a second system call.
const READ_BYTES: usize = 16 * 1024;

/// Address and credential of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    address: SocketAddr,
    /// Header fields of every request, with their line ends.
    fields: String,
    /// App key, which is part of every global ID.
    pub(crate) app: String,
    /// Nothing for plain HTTP.
    security: Option<Security>,
}

impl Target {
    pub(crate) fn parse(url: &str, credential: Option<&str>, allow_remote: bool) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("the URL must begin with http://")?;
        Self::at(rest, credential, allow_remote)
    }

    /// Returns a server that speaks TLS, with a certificate of the authority in this file.
    pub(crate) fn secured(
        url: &str,
        credential: Option<&str>,
        allow_remote: bool,
        authority: &Path,
    ) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("https://").context("the URL must begin with https:// if there is an authority")?;
        let name = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
        let security = Some(Security::trusting(authority, name)?);
        Ok(Self { security, ..Self::at(rest, credential, allow_remote)? })
    }

    fn at(rest: &str, credential: Option<&str>, allow_remote: bool) -> anyhow::Result<Self> {
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        ensure!(!authority.contains('/'), "the URL is http://HOST:PORT, without a path: {rest}");
        let address = authority
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve {authority:?}; the URL is http://HOST:PORT"))?
            .next()
            .with_context(|| format!("{authority} has no address"))?;
        if !address.ip().is_loopback() && !allow_remote {
            bail!("{address} is not on this machine: load it only if it is yours, with --allow-remote");
        }
        let authorization = credential.map_or(String::new(), |it| format!("Authorization: Bearer {it}\r\n"));
        let is_plain = credential.is_none_or(|it| it.bytes().all(|byte| byte.is_ascii_graphic()));
        ensure!(is_plain, "the credential contains a character that is not valid in a header");
        let fields = format!("Host: {authority}\r\n{authorization}");
        let app = credential.and_then(|it| it.rsplit_once('.')).map_or("default", |(app, _)| app);
        Ok(Self { address, fields, app: app.to_owned(), security: None })
    }

    /// Opens a connection, and sends nothing.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        Stream::over(TcpStream::connect(self.address).await?, self.security.as_ref()).await
    }
}

/// Complete response, in the connection's buffer until the next request.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    /// True if it is the stored response to an earlier request with the same key.
    pub(crate) is_replayed: bool,
    pub(crate) body: &'a [u8],
}

/// No response. The request may have taken effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallError {
    /// No connection: the request certainly had no effect.
    NotConnected,
    /// The connection broke before the response was complete.
    Broken,
    /// Not an HTTP response with a length.
    Unreadable,
    /// No response within [`CALL_TIMEOUT`], or the longest time of a connection for calls that wait.
    TimedOut,
}

impl Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotConnected => "no connection",
            Self::Broken => "connection broke",
            Self::Unreadable => "response without a length",
            Self::TimedOut => "no response in time",
        })
    }
}

/// Connection that is opened when first needed, and again after it broke.
#[derive(Debug)]
pub(crate) struct Connection {
    target: Arc<Target>,
    stream: Option<Stream>,
    /// Longest time to a response.
    longest: Duration,
    sent: Vec<u8>,
    received: Vec<u8>,
}

/// Head of a response.
#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    /// Start and end of the body.
    begins: usize,
    ends: usize,
    /// True if the server closes the connection after it.
    is_last: bool,
    is_replayed: bool,
}

impl Connection {
    pub(crate) fn new(target: Arc<Target>) -> Self {
        let received = Vec::with_capacity(READ_BYTES);
        Self { target, stream: None, longest: CALL_TIMEOUT, sent: Vec::new(), received }
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Result<Answer<'_>, CallError> {
        self.call("POST", path, "", body).await
    }

    /// Sends a request with an idempotency key.
    pub(crate) async fn post_with_key(&mut self, path: &str, key: &str, body: &str) -> Result<Answer<'_>, CallError> {
        self.call("POST", path, key, body).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Answer<'_>, CallError> {
        self.call("GET", path, "", "").await
    }

    /// Sends a request, or half of one, and leaves without reading the answer.
    pub(crate) async fn leave(&mut self, path: &str, body: &str, is_whole: bool) {
        let Ok(mut stream) = self.ready().await else { return };
        self.write_head("POST", path, "", body.len());
        self.sent.extend_from_slice(body.as_bytes());
        let end = if is_whole { self.sent.len() } else { self.sent.len() - body.len() / 2 };
        // Fails only if the server has hung up first.
        let _ = stream.send(&self.sent[..end]).await;
    }

    async fn call(&mut self, method: &str, path: &str, key: &str, body: &str) -> Result<Answer<'_>, CallError> {
        let mut stream = self.ready().await?;
        self.write_head(method, path, key, body.len());
        self.sent.extend_from_slice(body.as_bytes());
        let longest = self.longest;
        let head = timeout(longest, self.exchange(&mut stream)).await.map_err(|_| CallError::TimedOut)??;
        Ok(self.completed(stream, &head))
    }

    /// Keeps the connection for the next request, which it is used for only after a complete response.
    fn completed(&mut self, stream: Stream, head: &Head) -> Answer<'_> {
        self.stream = (!head.is_last).then_some(stream);
        Answer { status: head.status, is_replayed: head.is_replayed, body: &self.received[head.begins..head.ends] }
    }

    /// Takes the connection, or opens one if there is none or the server has closed it.
    async fn ready(&mut self) -> Result<Stream, CallError> {
        if let Some(mut stream) = self.stream.take()
            && stream.is_idle()
        {
            return Ok(stream);
        }
        if let Ok(Ok(stream)) = timeout(CALL_TIMEOUT, self.target.connect()).await {
            return Ok(stream);
        }
        sleep(RECONNECT_PAUSE).await;
        Err(CallError::NotConnected)
    }

    /// Writes the head of a request with a body of this length; without a key if that is empty.
    fn write_head(&mut self, method: &str, path: &str, key: &str, length: impl Display) {
        self.sent.clear();
        let mut put = |text: &str| self.sent.extend_from_slice(text.as_bytes());
        [method, " ", path, " HTTP/1.1\r\n", &self.target.fields].into_iter().for_each(&mut put);
        if !key.is_empty() {
            ["Idempotency-Key: ", key, "\r\n"].into_iter().for_each(&mut put);
        }
        if method == "POST" {
            put("Content-Type: application/json\r\nContent-Length: ");
            put(&length.to_string());
            put("\r\n");
        }
        put("\r\n");
    }

    async fn exchange(&mut self, stream: &mut Stream) -> Result<Head, CallError> {
        stream.send(&self.sent).await.map_err(|_| CallError::Broken)?;
        Self::receive(&mut self.received, stream).await
    }

    async fn receive(received: &mut Vec<u8>, stream: &mut Stream) -> Result<Head, CallError> {
        received.clear();
        let mut head = None;
        loop {
            match stream.read_buf(received).await {
                Ok(0) | Err(_) => return Err(CallError::Broken),
                Ok(_) => {}
            }
            if head.is_none() {
                head = Head::read(received).map_err(|()| CallError::Unreadable)?;
            }
            if let Some(head) = head.take_if(|head| head.ends <= received.len()) {
                return Ok(head);
            }
            received.reserve(READ_BYTES);
        }
    }
}

impl Head {
    /// Parses a head; nothing if it is incomplete.
    fn read(received: &[u8]) -> Result<Option<Self>, ()> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut answer = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(begins) = answer.parse(received).map_err(|_| ())? else { return Ok(None) };
        let (mut length, mut is_last, mut is_replayed) = (None, false, false);
        for field in answer.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                length = std::str::from_utf8(field.value).ok().and_then(|it| it.parse::<usize>().ok());
            } else if field.name.eq_ignore_ascii_case("connection") {
                is_last = field.value.eq_ignore_ascii_case(b"close");
            } else if field.name.eq_ignore_ascii_case("idempotent-replayed") {
                is_replayed = field.value == b"true";
            }
        }
        let (Some(status), Some(length)) = (answer.code, length) else { return Err(()) };
        Ok(Some(Self { status, begins, ends: begins + length, is_last, is_replayed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_parsed_once_its_head_is_complete() {
        let answer = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
        let (head, body) = answer.split_at(answer.len() - 2);
        assert_eq!(Head::read(&head[..20]), Ok(None));
        let read = Head { status: 201, begins: head.len(), ends: answer.len(), is_last: true, is_replayed: false };
        assert_eq!(Head::read(head), Ok(Some(read)));
        assert_eq!(body, b"{}");
    }

    #[test]
    fn a_response_without_a_length_is_an_error() {
        assert_eq!(Head::read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), Err(()));
        assert_eq!(Head::read(b"SSH-2.0-OpenSSH_9.2\r\n"), Err(()));
    }
}
