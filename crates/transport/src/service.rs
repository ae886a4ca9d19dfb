//! Interface of a listener to the program above it: the program gives a response to every request, and to input that
//! the listener rejects before it is a request.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::Request;
use axum::response::Response;

use super::caller_watch::CallerWatch;
use super::incoming::Incoming;

/// The program behind a listener.
pub trait HttpService: Clone + Send + Sync + Unpin + 'static {
    /// Set if responses may have bodies that arrive in pieces or are too long for memory. Then the HTTP library serves every
    /// request, and [`Peer`] is an extension of it.
    const STREAMS: bool = false;

    /// State of a connection that the service keeps from request to request.
    type Connection: ConnectionState + Default + 'static;

    /// Returns the response to a request.
    fn call(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Self::Connection>,
    ) -> impl Future<Output = Response> + Send;

    /// Returns the response to a client that gets no further. Its connection is closed afterwards.
    fn reject(&self, rejection: Rejection) -> Response;
}

/// The client of a connection, an extension of its requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// SHA-256 of its TLS certificate, which was verified.
    pub certificate: Option<[u8; 32]>,
}

/// State of a connection that a service keeps.
pub trait ConnectionState: Send + Sync {
    /// Returns the account that the connection's unread responses are charged to; `None` is an account too.
    fn account(&self) -> Option<Arc<str>>;

    /// Returns the watch that notifies the service when its caller disconnects, if the service wants one.
    fn caller(&self) -> Option<&CallerWatch> {
        None
    }
}

impl ConnectionState for () {
    fn account(&self) -> Option<Arc<str>> {
        None
    }
}

/// All of its unread responses are charged to one account.
impl ConnectionState for CallerWatch {
    fn account(&self) -> Option<Arc<str>> {
        None
    }

    fn caller(&self) -> Option<&CallerWatch> {
        Some(self)
    }
}

/// Reason why a listener rejects a connection or a message without its service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejection {
    /// All connection permits are taken.
    TooManyConnections,
    /// The client sent HTTP without TLS to a port that requires TLS.
    TlsRequired,
    /// The head has too many fields or bytes.
    HeadTooLarge,
    /// The head has a transfer coding that does not end in `chunked`.
    UnknownTransferCoding,
    /// The head has a length and a transfer coding.
    TwoFramings,
    /// The client speaks HTTP/2 from the beginning of the connection.
    Http2,
    /// The head is not HTTP/1.1.
    MalformedHead,
}
