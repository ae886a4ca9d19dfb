//! The first frame of an HTTP/2 server, its SETTINGS (RFC 9113, 3.4). A connection without it may be one to a server that speaks
//! something else, or none at all.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

/// Length of the head of a frame.
const HEAD_BYTES: usize = 9;

/// Type of a frame with settings.
const SETTINGS: u8 = 4;

/// A connection that notifies when the first frame of its server has arrived. If there is no such frame, it drops the notification.
pub(super) struct PrefaceWatch<Io> {
    io: Io,
    preface: Option<Preface>,
}

struct Preface {
    head: Vec<u8>,
    /// Bytes of the frame that are missing once its head is complete.
    missing: usize,
    arrived: oneshot::Sender<()>,
}

impl<Io> PrefaceWatch<Io> {
    /// Returns a connection, and the notification.
    pub(super) fn new(io: Io) -> (Self, oneshot::Receiver<()>) {
        let (arrived, notification) = oneshot::channel();
        let preface = Preface { head: Vec::with_capacity(HEAD_BYTES), missing: 0, arrived };
        (Self { io, preface: Some(preface) }, notification)
    }

    /// Looks at bytes that have arrived.
    fn look_at(&mut self, mut bytes: &[u8]) {
        let Some(preface) = &mut self.preface else { return };
        if let Some(missing) = HEAD_BYTES.checked_sub(preface.head.len()).filter(|missing| *missing > 0) {
            let (head, rest) = bytes.split_at(bytes.len().min(missing));
            preface.head.extend_from_slice(head);
            bytes = rest;
            let &[a, b, c, kind, ..] = &preface.head[..] else { return };
            if kind != SETTINGS {
                self.preface = None;
                return;
            }
            preface.missing = u32::from_be_bytes([0, a, b, c]) as usize;
        }
        preface.missing = preface.missing.saturating_sub(bytes.len());
        if preface.missing == 0 && preface.head.len() == HEAD_BYTES {
            let _ = self.preface.take().map(|preface| preface.arrived.send(()));
        }
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for PrefaceWatch<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        self.look_at(&buffer.filled()[before..]);
        read
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for PrefaceWatch<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, empty};
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[tokio::test]
    async fn only_whole_settings_are_a_preface_whatever_their_pieces() {
        let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 7];
        for piece in [1, 4, 9, 15] {
            let (mut watch, mut notification) = PrefaceWatch::new(empty());
            for (number, bytes) in settings.chunks(piece).enumerate() {
                assert_eq!(notification.try_recv(), Err(TryRecvError::Empty), "{piece}, {number}");
                watch.look_at(bytes);
            }
            watch.look_at(b"more");
            assert_eq!(notification.try_recv(), Ok(()), "{piece}");
        }
        let none = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        for (first, expected) in [
            (&none[..], Ok(())),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", Err(TryRecvError::Closed)),
            (&settings[..14], Err(TryRecvError::Empty)),
        ] {
            let (mut watch, mut notification) = PrefaceWatch::new(first);
            watch.read_to_end(&mut Vec::new()).await.unwrap();
            assert_eq!(notification.try_recv(), expected, "{first:?}");
        }
    }
}
