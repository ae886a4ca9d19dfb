//! Receives the bodies of requests with keys: whole, or as uploads if they are too long to be read before their key is claimed.

use std::collections::VecDeque;

use axum::body::HttpBody as _;
use axum::http::HeaderMap;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::Proxy;
use super::body::Resumed;
use super::upload::{self, Upload};
use crate::transport::Incoming;
use crate::web::problem::{Code, Problem};

/// The whole body of a request, or the reason why there is none.
pub(super) enum Read {
    Whole(Bytes),
    TooLarge(Resumed),
    Failed(Problem),
}

impl Proxy {
    /// Reads the whole body of a request.
    pub(super) async fn read(&self, mut body: Incoming) -> Read {
        let bytes_max = self.limits.body_bytes;
        let mut read = VecDeque::new();
        if body.size_hint().lower() > bytes_max as u64 {
            return Read::TooLarge(Resumed { read, rest: body });
        }
        let mut bytes = 0;
        let all = async {
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return Err(()) };
                let Ok(data) = frame.into_data() else { continue };
                bytes += data.len();
                read.push_back(data);
                if bytes > bytes_max {
                    break;
                }
            }
            Ok(())
        };
        match timeout(self.limits.body_read_timeout.0, all).await {
            Ok(Ok(())) if bytes > bytes_max => Read::TooLarge(Resumed { read, rest: body }),
            Ok(Ok(())) => Read::Whole(joined(read, bytes)),
            Ok(Err(())) => Read::Failed(Problem::invalid("The body broke off; send as many bytes as the head says.")),
            Err(_late) => {
                let within = self.limits.body_read_timeout;
                Read::Failed(Problem::invalid(format!("The body did not arrive within {within}; send it in one go.")))
            }
        }
    }

    /// Returns a body that is too long to be read before its key is claimed.
    pub(super) fn upload(&self, headers: &HeaderMap, body: Resumed) -> Result<Upload, Problem> {
        let bytes_max = self.limits.body_bytes;
        let detail = format!(
            "A body of more than {bytes_max} bytes needs its SHA-256 in `Content-Digest: sha-256=:…:` (RFC 9530)."
        );
        let digest = upload::digest_of(headers)?.ok_or_else(|| Problem::new(Code::BodyTooLarge, detail))?;
        Ok(Upload::new(body, digest))
    }
}

/// Returns the pieces in one.
fn joined(mut pieces: VecDeque<Bytes>, bytes: usize) -> Bytes {
    if pieces.len() <= 1 {
        return pieces.pop_front().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(bytes);
    for piece in &pieces {
        all.extend_from_slice(piece);
    }
    all.freeze()
}
