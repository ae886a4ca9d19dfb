//! Upstreams: the servers behind the proxy, with pools of connections for each use. A pool repeats only requests that it has
//! not started to send.

pub(super) mod connector;
pub(super) mod framing;
mod http2;
pub(super) mod names;
pub(super) mod pools;
mod preface;
mod streams;
mod unsent;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::{Body, HttpBody as _};
use axum::http::uri::{Authority, PathAndQuery, Scheme};
use axum::http::{HeaderValue, Method, Request, Response, Uri, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Error;
use oncegate_core::clock::Clock;

use self::connector::Connector;
use self::http2::Http2;
use self::pools::Pools;
pub(super) use self::streams::Received;
use self::streams::Streamed;
use self::unsent::Unsent;
use super::options::{UpstreamOptions, server_of};

/// Bytes that are buffered at most of a message on its way, in each direction.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Time for which a server is not used after a failed connection, unless no other server remains.
const REST: Duration = Duration::from_secs(5);

/// The servers behind some routes.
pub(super) struct Upstream {
    servers: Vec<Server>,
    clock: Arc<dyn Clock>,
    next: AtomicUsize,
    /// For requests with a key: a connection that has been idle for long may be closing.
    keyed: ArcSwap<Pools<Full<Bytes>>>,
    streaming: ArcSwap<Pools<Body>>,
    connector: Connector,
    pub(super) options: UpstreamOptions,
}

struct Server {
    scheme: Scheme,
    authority: Authority,
    /// Monotonic time at which the server could last not be connected to.
    failed_at: Mutex<Option<Duration>>,
    /// Its connection, if it speaks HTTP/2.
    http2: Option<Http2>,
}

/// Decides whether a request may be sent. A request that is sent without a claim may run a second time.
pub(super) trait Permission: Sync {
    /// Returns whether it may be sent to the first server, once there is a connection to it.
    fn may_be_sent(&self) -> bool;

    /// Returns the same for each further connection: much may have changed while the one before was tried.
    fn may_still_be_sent(&self) -> impl Future<Output = bool> + Send;
}

/// The permission of a request without a claim.
pub(super) struct Always;

impl Permission for Always {
    fn may_be_sent(&self) -> bool {
        true
    }

    async fn may_still_be_sent(&self) -> bool {
        true
    }
}

/// Returns whether a request may be sent over this connection; the first is 0.
async fn may_be_sent(permission: &impl Permission, connection: usize) -> bool {
    if connection == 0 { permission.may_be_sent() } else { permission.may_still_be_sent().await }
}

/// Reason why there is no response.
#[derive(Debug)]
pub(super) enum Failed {
    /// No server could be connected to: nothing was sent.
    NotConnected(String),
    /// The server has declared that it did nothing.
    Refused(String),
    /// The request was sent, or may have been.
    Broken(String),
}

impl Upstream {
    /// Returns the upstream of these options. `None` if they are not valid, which the configuration has excluded.
    pub(super) fn new(options: &UpstreamOptions, clock: Arc<dyn Clock>) -> Option<Self> {
        let connector = Connector::new(options.authorities().ok()?, options.connect_timeout.0, options.http2)?;
        let server = |url: &String| {
            let (scheme, authority) = server_of(url)?;
            let http2 = options.http2.then(|| Http2::new(options, connector.clone(), clock.clone()));
            Some(Server { scheme, authority, failed_at: Mutex::new(None), http2 })
        };
        Some(Self {
            servers: options.urls.iter().map(server).collect::<Option<_>>()?,
            next: AtomicUsize::new(0),
            clock,
            keyed: ArcSwap::from_pointee(Pools::new(&connector, options.idle.0)),
            streaming: ArcSwap::from_pointee(Pools::new(&connector, options.idle.0)),
            connector,
            options: options.clone(),
        })
    }

    /// Sends a request to the next server that accepts a connection. Asks before each server whether the request may still be sent
    /// once a connection to it is there. `None` if not: nothing was sent.
    pub(super) async fn send(
        &self,
        mut request: Request<Bytes>,
        permission: &impl Permission,
    ) -> Option<Result<Response<Received>, Failed>> {
        let mut why = String::new();
        let mut servers = self.in_turn().enumerate().peekable();
        while let Some((number, server)) = servers.next() {
            if !may_be_sent(permission, number).await {
                return None;
            }
            let this = if servers.peek().is_some() { request.clone() } else { std::mem::take(&mut request) };
            match self.send_to(server, this, permission).await? {
                Err(Failed::NotConnected(cause)) => why = self.rest(server, cause),
                sent => return Some(sent),
            }
        }
        Some(Err(Failed::NotConnected(why)))
    }

    async fn send_to(
        &self,
        server: &Server,
        mut request: Request<Bytes>,
        permission: &impl Permission,
    ) -> Option<Result<Response<Received>, Failed>> {
        let length = Some(request.body().len() as u64);
        server.prepare(&mut request, length);
        if let Some(http2) = &server.http2 {
            return Box::pin(http2.send(request.map(Body::from), permission)).await;
        }
        let sending = self.keyed.load().here().request(request.map(Full::new));
        Some(sending.await.map_err(|error| failed(&error)).and_then(|response| framed(response, false)).map(received))
    }

    /// Sends a request whose body is streamed, as [`send`](Self::send) does.
    pub(super) async fn forward(
        &self,
        request: Request<Body>,
        permission: &impl Permission,
    ) -> Option<Result<Response<Received>, Failed>> {
        let mut why = String::new();
        let mut unsent = Some(request);
        let mut servers = self.in_turn().enumerate().peekable();
        while let Some(((number, server), request)) = servers.next().zip(unsent.take()) {
            if !may_be_sent(permission, number).await {
                return None;
            }
            let (request, rest) = if servers.peek().is_some() {
                let (head, body) = request.into_parts();
                let (body, returned) = Unsent::new(body);
                (Request::from_parts(head.clone(), Body::new(body)), Some((head, returned)))
            } else {
                (request, None)
            };
            match self.forward_to(server, request, permission).await? {
                Err(Failed::NotConnected(cause)) => why = self.rest(server, cause),
                sent => return Some(sent),
            }
            unsent = rest.and_then(|(head, returned)| Some(Request::from_parts(head, returned.take()?)));
        }
        Some(Err(Failed::NotConnected(why)))
    }

    async fn forward_to(
        &self,
        server: &Server,
        mut request: Request<Body>,
        permission: &impl Permission,
    ) -> Option<Result<Response<Received>, Failed>> {
        let body = request.body();
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
        server.prepare(&mut request, length);
        if let Some(http2) = &server.http2 {
            return Box::pin(http2.send(request, permission)).await;
        }
        let offers_upgrade = request.headers().contains_key(header::UPGRADE);
        let sending = self.streaming.load().here().request(request);
        let sent = sending.await.map_err(|error| failed(&error));
        Some(sent.and_then(|response| framed(response, offers_upgrade)).map(received))
    }

    /// Lets further requests open new connections. Connections in use end with their requests.
    pub(super) fn reconnect(&self) {
        self.keyed.store(Arc::new(Pools::new(&self.connector, self.options.idle.0)));
        self.streaming.store(Arc::new(Pools::new(&self.connector, self.options.idle.0)));
        for http2 in self.servers.iter().filter_map(|server| server.http2.as_ref()) {
            http2.reconnect();
        }
    }

    /// Returns the names of its servers that are no addresses.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let hosts = self.servers.iter().map(|server| server.authority.host());
        let is_name = |host: &&str| host.trim_matches(['[', ']']).parse::<IpAddr>().is_err();
        hosts.filter(is_name).map(str::to_owned).collect()
    }

    /// Returns all servers, those first that are not resting, beginning with the next one.
    fn in_turn(&self) -> impl Iterator<Item = &Server> {
        let (count, next) = (self.servers.len(), self.next.fetch_add(1, Ordering::Relaxed));
        let in_order = move |place| &self.servers[(next.wrapping_add(place)) % count];
        let (up, resting): (Vec<_>, Vec<_>) = (0..count).map(in_order).partition(|server| !self.is_resting(server));
        up.into_iter().chain(resting)
    }

    fn is_resting(&self, server: &Server) -> bool {
        let failed_at = *server.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        failed_at.is_some_and(|at| self.clock.monotonic().saturating_sub(at) < REST)
    }

    /// Lets a server rest after a failure; returns the failure.
    fn rest(&self, server: &Server, cause: String) -> String {
        *server.failed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.monotonic());
        cause
    }
}

impl Server {
    /// Gives a request the target of this server, and the framing that the library leaves out. `length` is that of its body,
    /// if it is known.
    fn prepare<Body>(&self, request: &mut Request<Body>, length: Option<u64>) {
        *request.uri_mut() = self.uri(request.uri());
        let usually_has_body = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
        match length {
            // Some servers refuse a POST without a length (RFC 9110, 8.6).
            Some(0) if usually_has_body => {
                request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
            }
            // Without it the library sends no body of a GET.
            None if self.http2.is_none() => {
                request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            Some(_) | None => {}
        }
    }

    fn uri(&self, of: &Uri) -> Uri {
        let path = of.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let parts = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path);
        parts.build().unwrap_or_default()
    }
}

fn received(response: Response<Incoming>) -> Response<Received> {
    response.map(|body| Streamed::new(body, None))
}

/// Returns a response whose end is certain. The request was sent, so any other response is a broken exchange.
fn framed(response: Response<Incoming>, offers_upgrade: bool) -> Result<Response<Incoming>, Failed> {
    framing::checked(response, offers_upgrade).map_err(|why| Failed::Broken(why.to_owned()))
}

fn failed(error: &Error) -> Failed {
    if error.is_connect() { Failed::NotConnected(cause(error)) } else { Failed::Broken(cause(error)) }
}

/// Returns an error with its causes.
fn cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use oncegate_core::clock::Timestamp;
    use oncegate_core::clock::{ManualClock, SystemClock};

    use super::*;

    /// Permits the first server only.
    struct Once;

    impl Permission for Once {
        fn may_be_sent(&self) -> bool {
            true
        }

        async fn may_still_be_sent(&self) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_request_that_may_not_be_sent_any_more_is_not_sent_to_the_next_server() {
        // A bound socket that does not listen refuses connections, and keeps its port from other tests.
        let taken = tokio::net::TcpSocket::new_v4().unwrap();
        taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let dead = taken.local_addr().unwrap();
        let live = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = |address| format!("http://{address}");
        let of = |urls: &[String]| {
            let options = UpstreamOptions { urls: urls.to_vec(), ..toml::from_str("urls = []").unwrap() };
            Upstream::new(&options, Arc::new(SystemClock::new())).unwrap()
        };
        for is_streamed in [false, true] {
            let upstream = of(&[url(dead), url(live.local_addr().unwrap())]);
            let sending = async {
                if is_streamed {
                    upstream.forward(Request::new(Body::from("all")), &Once).await
                } else {
                    upstream.send(Request::new(Bytes::new()), &Once).await
                }
            };
            let sent = tokio::time::timeout(Duration::from_secs(5), sending).await;
            assert!(matches!(sent, Ok(None)), "{sent:?}");
        }
        assert!(live.accept().now_or_never().is_none(), "nothing has connected");
    }

    /// Answers each connection's first request, and counts them.
    async fn serve(listener: tokio::net::TcpListener, count: Arc<AtomicUsize>) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(answer).await;
        }
    }

    #[tokio::test]
    async fn a_server_that_accepts_no_connection_is_left_out_for_a_while_on_both_ways() {
        for is_streamed in [false, true] {
            let clock = Arc::new(ManualClock::at(Timestamp::default()));
            // It refuses connections until it listens.
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let live = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let urls =
                [socket.local_addr().unwrap(), live.local_addr().unwrap()].map(|address| format!("http://{address}"));
            let options = UpstreamOptions { urls: urls.to_vec(), ..toml::from_str("urls = []").unwrap() };
            let upstream = Upstream::new(&options, clock.clone()).unwrap();
            let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
            tokio::spawn(serve(live, counts[1].clone()));
            let send = async || {
                let sent = if is_streamed {
                    upstream.forward(Request::new(Body::from("all")), &Always).await
                } else {
                    upstream.send(Request::new(Bytes::new()), &Always).await
                };
                assert!(matches!(sent, Some(Ok(_))), "{sent:?}");
                counts.each_ref().map(|count| count.load(Ordering::SeqCst))
            };
            assert_eq!(send().await, [0, 1]);
            tokio::spawn(serve(socket.listen(8).unwrap(), counts[0].clone()));
            for number in 2..=4 {
                assert_eq!(send().await, [0, number], "streamed {is_streamed}: it rests");
            }
            clock.advance(REST);
            for _ in 0..2 {
                send().await;
            }
            assert_eq!(counts[0].load(Ordering::SeqCst), 1, "streamed {is_streamed}: it has a turn again");
        }
    }
}
