//! Plain HTTP/1.1, which is nearly all there is: requests that come in one go, whose length their head tells. They are read
//! and answered here, since the library takes more time for that than all else together takes to decide about a claim.
//! What is the least bit unusual is left to the library, from its first byte on: see `docs/adr/0026-fast-path.md`.

mod answer;
mod head;

use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::http::Request;
use axum::response::Response;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::answer::Date;
use self::head::Not;
use super::connection::TimedIo;
use super::incoming::Incoming;
use super::listener::stopped;

/// How long a request is, with its body, that is read here. It is kept until all of it has come, before anyone has looked at
/// who sends it.
pub(super) const BYTES_MAX: usize = 64 << 10;

/// How long the rest of a request is waited for here, in all. Most callers send it in one go, or its body right behind its head.
const PAUSE: Duration = Duration::from_millis(50);

/// How much is read at once, at least.
const READ_BYTES: usize = 4 << 10;

/// How much an answer may have taken for its memory to be kept for the next.
const KEPT_BYTES: usize = 8 << 10;

/// How a plain conversation ended.
pub(super) enum Ended {
    /// With the connection.
    Closed,
    /// With something else, which starts with this.
    NotPlain(BytesMut),
}

/// Answers the plain requests of a connection, until `stop` or an answer that closes it. A request that is there by then is
/// answered. No head may be longer than `head_bytes_max`.
///
/// # Errors
/// The connection's.
pub(super) async fn converse<Answered: Future<Output = Response>>(
    io: &mut TimedIo<impl AsyncRead + AsyncWrite + Unpin>,
    head_bytes_max: usize,
    stop: &CancellationToken,
    serve: impl Fn(Request<Incoming>) -> Answered,
) -> io::Result<Ended> {
    let mut stopped = pin!(stopped(stop));
    let mut unread = BytesMut::new();
    let mut written = Vec::new();
    let mut date = Date::new();
    loop {
        let taken = match head::take(&mut unread, head_bytes_max) {
            Err(Not::Whole(missing)) if !unread.is_empty() => {
                timeout(PAUSE, rest(io, &mut unread, head_bytes_max, missing)).await.unwrap_or(Ok(Err(Not::Plain)))?
            }
            taken => taken,
        };
        let request = match taken {
            Ok(request) => request,
            Err(Not::Plain) => return Ok(Ended::NotPlain(unread)),
            Err(Not::Whole(_)) => {
                unread.reserve(READ_BYTES);
                tokio::select! {
                    biased;
                    read = io.read_buf(&mut unread) => if read? == 0 { return Ok(Ended::Closed) },
                    () = stopped.as_mut() => return Ok(Ended::Closed),
                }
                continue;
            }
        };
        let answer = serve(request).await;
        let stopping = stop.is_cancelled();
        let closes = answer::write(answer, stopping, &mut date, &mut written).await.map_err(io::Error::other)?;
        io.write_all(&written).await?;
        io.flush().await?;
        if closes {
            if !stopping || !unread.is_empty() {
                // The client may have sent its next request already.
                io.progress().linger();
            }
            return io.shutdown().await.map(|()| Ended::Closed);
        }
        written.clear();
        written.shrink_to(KEPT_BYTES);
    }
}

/// Reads on until the request that `unread` begins with is there, whose next bytes are `missing`. What breaks off is not plain.
async fn rest(
    io: &mut (impl AsyncRead + Unpin),
    unread: &mut BytesMut,
    head_bytes_max: usize,
    mut missing: usize,
) -> io::Result<Result<Request<Incoming>, Not>> {
    loop {
        unread.reserve(missing.max(READ_BYTES));
        if io.read_buf(unread).await? == 0 {
            return Ok(Err(Not::Plain));
        }
        match head::take(unread, head_bytes_max) {
            Err(Not::Whole(more)) => missing = more,
            taken => return Ok(taken),
        }
    }
}
