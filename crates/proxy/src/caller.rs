//! The caller of an exchange. It may read slowly, or may have left. It gets the response piece by piece, and the end
//! only if the response is complete.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

/// Bytes of a response that wait for a slow caller, beyond the bytes that are stored anyway.
pub(super) const BYTES_MAX: u32 = 64 << 10;

/// Bytes that a short piece counts as: it takes about as much besides its bytes.
const PIECE_BYTES: u32 = 64;

/// Pieces of a response that wait for a slow caller, if they are stored anyway.
const PIECES_MAX: usize = 16 << 10;

/// Time that a caller may leave a piece unread.
const READER_TIMEOUT: Duration = Duration::from_secs(30);

/// A part of the response on its way to the caller.
enum Part {
    Frame(Frame<Bytes>, Option<OwnedSemaphorePermit>),
    /// The response is complete. Without it the caller's response breaks off.
    End,
}

/// The sending half of the caller's response.
pub(super) struct Caller {
    /// `None` once the caller has left.
    parts: Option<mpsc::UnboundedSender<Part>>,
    room: Arc<Semaphore>,
    /// Room for pieces that are stored anyway.
    kept: Arc<Semaphore>,
    /// The last piece so far.
    held: Option<Frame<Bytes>>,
}

impl Caller {
    /// Returns the two halves.
    pub(super) fn new() -> (Self, Body) {
        let (sender, parts) = mpsc::unbounded_channel();
        let body = stream::unfold(Some(parts), async |parts| {
            let mut parts: mpsc::UnboundedReceiver<Part> = parts?;
            match parts.recv().await {
                Some(Part::Frame(frame, _room)) => Some((Ok(frame), Some(parts))),
                Some(Part::End) => None,
                None => Some((Err("the response broke off"), None)),
            }
        });
        let (room, kept) = [BYTES_MAX as usize, PIECES_MAX].map(|permits| Arc::new(Semaphore::new(permits))).into();
        let caller = Self { parts: Some(sender), room, kept, held: None };
        (caller, Body::new(StreamBody::new(body)))
    }

    /// Passes on the piece before this one. With `is_kept` the piece is in memory anyway, and nothing waits for the caller.
    /// A caller that does not read loses its response, otherwise, or if the pieces are too many.
    pub(super) async fn pass(&mut self, frame: Frame<Bytes>, is_kept: bool) {
        let before = self.held.replace(frame);
        let (Some(before), Some(_)) = (before, &self.parts) else { return };
        let room = if is_kept {
            self.kept.clone().try_acquire_owned().ok()
        } else {
            let bytes = before.data_ref().map_or(0, Bytes::len);
            let bytes = u32::try_from(bytes).unwrap_or(BYTES_MAX).clamp(PIECE_BYTES, BYTES_MAX);
            let room = timeout(READER_TIMEOUT, self.room.clone().acquire_many_owned(bytes)).await;
            room.ok().and_then(Result::ok)
        };
        match room {
            Some(room) => self.send(Part::Frame(before, Some(room))),
            None => self.parts = None,
        }
    }

    /// Passes on the last piece and the end; without `is_complete` the response breaks off there.
    pub(super) fn end(mut self, is_complete: bool) {
        if let Some(last) = self.held.take() {
            self.send(Part::Frame(last, None));
        }
        if is_complete {
            self.send(Part::End);
        }
    }

    fn send(&mut self, part: Part) {
        if self.parts.as_ref().is_some_and(|parts| parts.send(part).is_err()) {
            self.parts = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn piece(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn the_last_piece_is_held_until_the_end() {
        let (mut caller, mut body) = Caller::new();
        caller.pass(piece("a"), true).await;
        caller.pass(piece("b"), true).await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "a");
        assert!(futures_util::FutureExt::now_or_never(body.frame()).is_none());
        caller.end(true);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "b");
    }

    #[tokio::test]
    async fn a_response_that_is_not_ended_breaks_off() {
        for drop_it in [true, false] {
            let (mut caller, body) = Caller::new();
            caller.pass(piece("a"), true).await;
            if drop_it {
                drop(caller);
            } else {
                caller.end(false);
            }
            assert!(body.collect().await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_does_not_read_loses_its_response_and_delays_only_what_is_not_kept() {
        let (mut caller, body) = Caller::new();
        for _ in 0..100 {
            caller.pass(piece("kept"), true).await;
        }
        for _ in 0..=BYTES_MAX {
            caller.pass(piece("not kept"), false).await;
        }
        assert!(caller.parts.is_none(), "it is not waited for any longer");
        caller.end(true);
        assert!(body.collect().await.is_err());
    }
}
