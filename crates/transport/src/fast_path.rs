//! The HTTP/1.1 fast path: reads and answers requests that arrive in one piece with a known length. Nearly all requests
//! do. The HTTP library would take more time for them than all else together. Leaves everything unusual to the library,
//! from its first byte on: see `docs/adr/0026-plain-requests.md`.

pub(super) mod request;
mod response;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::request::NotTaken;
use self::response::Date;
use super::incoming::Incoming;
use super::socket::TimedSocket;
use super::stop::stopped;

/// Longest request, head and body, that the fast path reads. All of it is in memory before its sender is known.
pub(super) const BYTES_MAX: usize = 64 << 10;

/// Time for the rest of a request, in all. Most callers send it in one piece, or its body right after its head.
const REST_TIMEOUT: Duration = Duration::from_millis(50);

/// Minimum number of bytes to read at once, on a connection whose requests have arrived in one piece of at most so
/// many. Most are shorter, and an idle connection keeps a buffer of this size.
const FIRST_READ_BYTES: usize = 1 << 10;

/// The same on any other connection.
const READ_BYTES: usize = 4 << 10;

/// Memory of a response that is kept for the next one.
const KEPT_BYTES: usize = 8 << 10;

/// End of the fast path on a connection.
pub(super) enum Ended {
    /// The connection is closed.
    Closed,
    /// The next request is for the library. It begins with these bytes.
    Unsupported(BytesMut),
}

/// Answers the requests of a connection until `stop`, or until a response closes it. A request that has arrived by then is
/// answered. `head_bytes_max` bounds the head of a request.
pub(super) async fn serve<Responding: Future<Output = Response>>(
    socket: &mut TimedSocket<impl AsyncRead + AsyncWrite + Unpin>,
    head_bytes_max: usize,
    stop: &CancellationToken,
    call: impl Fn(Request<Incoming>) -> Responding,
) -> io::Result<Ended> {
    let mut stopped = pin!(stopped(stop));
    let mut unread = BytesMut::new();
    let mut read_bytes = FIRST_READ_BYTES;
    let mut written = Vec::new();
    let mut date = Date::new();
    loop {
        let taken = match request::take(&mut unread, head_bytes_max) {
            Err(NotTaken::Incomplete(missing)) if !unread.is_empty() => {
                read_bytes = READ_BYTES;
                let rest = rest(socket, &mut unread, head_bytes_max, missing);
                timeout(REST_TIMEOUT, rest).await.unwrap_or(Ok(Err(NotTaken::Unsupported)))?
            }
            taken => taken,
        };
        let request = match taken {
            Ok(request) => request,
            Err(NotTaken::Unsupported) => return Ok(Ended::Unsupported(unread)),
            Err(NotTaken::Incomplete(_)) => {
                unread.reserve(read_bytes);
                tokio::select! {
                    biased;
                    read = socket.read_buf(&mut unread) => if read? == 0 { return Ok(Ended::Closed) },
                    () = stopped.as_mut() => return Ok(Ended::Closed),
                }
                continue;
            }
        };
        let response = {
            let mut call = pin!(call(request));
            poll_fn(|cx| {
                let response = call.as_mut().poll(cx);
                if response.is_pending() {
                    socket.watch_caller(cx);
                }
                response
            })
            .await
        };
        let stopping = stop.is_cancelled();
        let closes = response::write(response, stopping, &mut date, &mut written).await.map_err(io::Error::other)?;
        socket.write_all(&written).await?;
        socket.flush().await?;
        if closes {
            if !stopping || !unread.is_empty() {
                // The client may have sent its next request already.
                socket.progress().linger();
            }
            return socket.shutdown().await.map(|()| Ended::Closed);
        }
        written.clear();
        written.shrink_to(KEPT_BYTES);
    }
}

/// Returns the text of a response that closes its connection.
pub(super) async fn last_response(response: Response) -> Result<Vec<u8>, axum::Error> {
    let mut text = Vec::new();
    response::write(response, true, &mut Date::new(), &mut text).await?;
    Ok(text)
}

/// Reads until the request that `unread` begins with is complete. At least `missing` bytes of it are still to come.
async fn rest(
    socket: &mut (impl AsyncRead + Unpin),
    unread: &mut BytesMut,
    head_bytes_max: usize,
    mut missing: usize,
) -> io::Result<Result<Request<Incoming>, NotTaken>> {
    loop {
        unread.reserve(missing.max(READ_BYTES));
        if socket.read_buf(unread).await? == 0 {
            return Ok(Err(NotTaken::Unsupported));
        }
        match request::take(unread, head_bytes_max) {
            Err(NotTaken::Incomplete(more)) => missing = more,
            taken => return Ok(taken),
        }
    }
}
