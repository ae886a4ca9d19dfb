//! Receives the bodies of requests with keys: whole, or as uploads if they are too long to be read before their key is claimed.

use std::collections::VecDeque;
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
        let (mut read, mut bytes) = (VecDeque::new(), 0);
        let all = async {
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return Err(broken_off()) };
                let Ok(data) = frame.into_data() else { continue };
                let taken = bytes.max(declared);
                bytes += data.len();
                if bytes > taken && !share.grow(bytes - taken) {
                    return Err(no_memory());
                }
                read.push_back(data);
                if bytes > bytes_max {
                    break;
                }
            }
            Ok(())
        };
        match timeout(self.limits.body_read_timeout.0, all).await {
            Ok(Ok(())) if bytes > bytes_max => Read::TooLarge(Arriving::resumed(read, body, share)),
            Ok(Ok(())) => Read::Whole(Bytes::from_owner(Held { bytes: joined(read, bytes), _share: share })),
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
        let (body, too_slow) = body.bounded(memory, &self.clock, &self.body_rate)?;
        Ok(Upload::new(body, digest, too_slow))
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

fn broken_off() -> Problem {
    Problem::invalid("The body broke off; send as many bytes as the head says.")
}

/// Returns the pieces in one. Each is freed when it is copied.
fn joined(mut pieces: VecDeque<Bytes>, bytes: usize) -> Bytes {
    if pieces.len() <= 1 {
        return pieces.pop_front().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(bytes);
    while let Some(piece) = pieces.pop_front() {
        all.extend_from_slice(&piece);
    }
    all.freeze()
}
