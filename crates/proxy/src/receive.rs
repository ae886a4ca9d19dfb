//! Receives the bodies of requests with keys: whole, or as uploads if they are too long to be read before their key is claimed.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::body::HttpBody as _;
use axum::http::HeaderMap;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use oncegate_transport::Incoming;
use oncegate_web::problem::{Code, Problem};
use tokio::time::timeout;

use super::Proxy;
use super::body::{Arriving, no_memory};
use super::shares::{Account, Share};
use super::torn::broken_off;
use super::upload::{self, Upload};

/// The whole body of a request, or the reason why there is none.
pub(super) enum Read {
    Whole(Bytes),
    TooLarge(Arriving),
    Failed(Problem),
}

impl Proxy {
    /// Reads the whole body of a request, within the memory of its app.
    pub(super) async fn read(&self, mut body: Incoming, memory: &Arc<Account>) -> Read {
        let bytes_max = self.limits.body_bytes;
        if body.is_end_stream() {
            return Read::Whole(Bytes::new());
        }
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if declared > bytes_max {
            return Read::TooLarge(body.into());
        }
        let Some(mut share) = memory.take(declared) else { return Read::Failed(no_memory()) };
        let (mut read, mut bytes) = (Blocks::new(declared), 0);
        let all = async {
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return Err(broken_off()) };
                let Ok(data) = frame.into_data() else { continue };
                let taken = bytes.max(declared);
                bytes += data.len();
                if bytes > taken && !share.grow(bytes - taken) {
                    return Err(no_memory());
                }
                if body.is_end_stream() && read.is_empty() {
                    read.all_at_once(data);
                    break;
                }
                read.push(&data);
                if bytes > bytes_max {
                    break;
                }
            }
            Ok(())
        };
        match timeout(self.limits.body_read_timeout.0, all).await {
            Ok(Ok(())) if bytes > bytes_max => Read::TooLarge(Arriving::resumed(read.into_pieces(), body, share)),
            Ok(Ok(())) => Read::Whole(Bytes::from_owner(Held { bytes: read.joined(bytes), _share: share })),
            Ok(Err(problem)) => Read::Failed(problem),
            Err(_late) => {
                let within = self.limits.body_read_timeout;
                Read::Failed(Problem::invalid(format!("The body did not arrive within {within}; send it in one go.")))
            }
        }
    }

    /// Returns a body that is too long to be read before its key is claimed.
    pub(super) fn upload(&self, headers: &HeaderMap, body: Arriving, memory: &Arc<Account>) -> Result<Upload, Problem> {
        let bytes_max = self.limits.body_bytes;
        let detail = format!(
            "A body of more than {bytes_max} bytes needs its SHA-256 in `Content-Digest: sha-256=:…:` (RFC 9530)."
        );
        let digest = upload::digest_of(headers)?.ok_or_else(|| Problem::new(Code::BodyTooLarge, detail))?;
        let (body, torn) = body.bounded(memory, &self.clock, &self.body_rate)?;
        Ok(Upload::new(body, digest, torn))
    }
}

/// A body in memory, and its share of the memory.
struct Held {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The bytes of a body so far, copied into blocks. A body may come in pieces of one byte: each piece would take far more memory
/// than its byte, and keep the buffer that it was read into.
struct Blocks {
    /// Announced length of the body, or 0. The first block has this size.
    announced: usize,
    full: VecDeque<Bytes>,
    last: BytesMut,
}

/// Smallest and largest size of a block of a body that has not announced its length.
const BLOCK_BYTES: RangeInclusive<usize> = (4 << 10)..=(64 << 10);

impl Blocks {
    /// Returns the blocks of a body that has announced this length, or 0. Takes no memory yet: most bodies come in one piece.
    fn new(announced: usize) -> Self {
        Self { announced, full: VecDeque::new(), last: BytesMut::new() }
    }

    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.last.is_empty()
    }

    /// Keeps a whole body that came in one piece.
    fn all_at_once(&mut self, body: Bytes) {
        self.full.push_back(body);
    }

    fn push(&mut self, piece: &[u8]) {
        let room = self.last.capacity() - self.last.len();
        let (fits, rest) = piece.split_at(piece.len().min(room));
        self.last.extend_from_slice(fits);
        if !rest.is_empty() {
            let so_far = self.full.iter().map(Bytes::len).sum::<usize>() + self.last.len();
            let size = match self.announced.saturating_sub(so_far) {
                0 => so_far.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end()),
                missing => missing,
            };
            let block = BytesMut::with_capacity(size.max(rest.len()));
            let before = std::mem::replace(&mut self.last, block);
            if !before.is_empty() {
                self.full.push_back(before.freeze());
            }
            self.last.extend_from_slice(rest);
        }
    }

    fn into_pieces(mut self) -> VecDeque<Bytes> {
        if !self.last.is_empty() {
            self.full.push_back(self.last.freeze());
        }
        self.full
    }

    /// Returns all bytes in one piece. Each block is freed when it is copied.
    fn joined(self, bytes: usize) -> Bytes {
        let mut blocks = self.into_pieces();
        if blocks.len() <= 1 {
            return blocks.pop_front().unwrap_or_default();
        }
        let mut all = BytesMut::with_capacity(bytes);
        while let Some(block) = blocks.pop_front() {
            all.extend_from_slice(&block);
        }
        all.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_takes_as_many_blocks_as_its_length_needs_whatever_its_pieces() {
        for (declared, piece, blocks) in [(0, 1, 6), (0, 7, 6), (100_000, 1, 1), (100_000, 99_999, 1), (0, 100_000, 1)]
        {
            let body: Vec<u8> = (0..100_000_u32).map(|at| at.to_le_bytes()[0]).collect();
            let fill = || {
                let mut read = Blocks::new(declared);
                body.chunks(piece).for_each(|piece| read.push(piece));
                read
            };
            let pieces = fill().into_pieces();
            assert_eq!(pieces.len(), blocks, "{declared} {piece}");
            assert_eq!(pieces.iter().flatten().copied().collect::<Vec<_>>(), body);
            assert_eq!(fill().joined(body.len()), body);
        }
        assert_eq!(Blocks::new(7).joined(0), Bytes::new());
    }
}
