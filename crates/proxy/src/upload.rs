//! Request bodies that are too long to be read before their key is claimed. Their `Content-Digest` (RFC 9530) replaces them in the
//! fingerprint, and is verified while they are sent on.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::HttpBody;
use axum::http::{HeaderMap, HeaderName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use oncegate_web::problem::Problem;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::timeout;

use super::body::Arriving;
use super::fields::items;
use super::torn::{Torn, broken_off};

static CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// A body that is not read yet, and its digest as its sender says.
pub(super) struct Upload<Body = Arriving> {
    body: Body,
    digest: [u8; 32],
    /// The digest of the bytes so far.
    sha256: Sha256,
    progress: Arc<Progress>,
}

/// Progress of an upload.
#[derive(Default)]
pub(super) struct Progress {
    /// Pieces that were taken.
    pub(super) pieces: AtomicU64,
    torn: Torn,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Running,
    /// Read to its end, with its digest.
    Verified,
    /// Read to its end, with another digest.
    Mismatch,
    /// Not read to its end.
    Broken,
}

impl Progress {
    /// Reports whether the body was read to its end, and has another digest.
    pub(super) fn is_mismatch(&self) -> bool {
        *self.state.borrow() == State::Mismatch
    }

    /// Waits until the body is read or given up. Returns whether it has its digest.
    pub(super) async fn verified(&self) -> bool {
        let mut state = self.state.subscribe();
        state.wait_for(|state| *state != State::Running).await.is_ok_and(|state| *state == State::Verified)
    }

    fn end(&self, state: State) {
        self.state.send_if_modified(|current| {
            let is_running = *current == State::Running;
            if is_running {
                *current = state;
            }
            is_running
        });
    }

    /// Returns the problem that ended the body early, if there is one.
    pub(super) fn problem(&self) -> Option<Problem> {
        if self.is_mismatch() { Some(mismatch()) } else { self.torn.problem() }
    }
}

/// Returns the SHA-256 that a request says its body has. `None` if it says none.
///
/// # Errors
/// There are several, or it is none.
pub(super) fn digest_of(headers: &HeaderMap) -> Result<Option<[u8; 32]>, Problem> {
    let mut digests = items(headers, &CONTENT_DIGEST).filter_map(|member| member.strip_prefix(b"sha-256="));
    let Some(value) = digests.next() else { return Ok(None) };
    let value = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let base64 = value.strip_prefix(b":").and_then(|value| value.strip_suffix(b":"));
    let digest = base64.and_then(|base64| STANDARD.decode(base64).ok()?.try_into().ok());
    match digest.filter(|_| digests.next().is_none()) {
        Some(digest) => Ok(Some(digest)),
        None => Err(Problem::invalid(
            "`Content-Digest` needs one SHA-256 in Base64 between colons: `sha-256=:…:` (RFC 9530).",
        )),
    }
}

/// Returns the problem of a body that has another digest than its sender says.
pub(super) fn mismatch() -> Problem {
    Problem::invalid(
        "The body does not have the SHA-256 in its `Content-Digest`, so its end was not forwarded. Whether the upstream has done \
         something is not known: look up the effect, and send the body with its own digest and a fresh key.",
    )
}

impl<Body: HttpBody<Data = Bytes, Error = axum::Error> + Unpin> Upload<Body> {
    pub(super) fn new(body: Body, digest: [u8; 32], torn: Torn) -> Self {
        let progress = Arc::new(Progress { torn, ..Progress::default() });
        Self { body, digest, sha256: Sha256::new(), progress }
    }

    pub(super) fn digest(&self) -> [u8; 32] {
        self.digest
    }

    pub(super) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Returns the body, which breaks off instead of its last piece if it has another digest.
    pub(super) fn verified(self) -> Verified<Body> {
        Verified { upload: self, held: None }
    }

    /// Reads and discards the body of a repeat, with this time limit for each piece.
    ///
    /// # Errors
    /// It breaks off, takes too long, or has another digest.
    pub(super) async fn verify(self, limit: Duration) -> Result<(), Problem> {
        let progress = self.progress();
        let mut body = self.verified();
        loop {
            match timeout(limit, body.frame()).await {
                Ok(None) => return Ok(()),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(_))) => {
                    return Err(progress.problem().unwrap_or_else(broken_off));
                }
                Err(_late) => return Err(Problem::invalid("The body stopped arriving; send it in one go.")),
            }
        }
    }
}

impl Upload {
    /// Releases the memory of the bytes that were read, for a request that is only verified from now on.
    pub(super) fn keep_digest(&mut self) {
        for piece in self.body.give_up_read() {
            self.sha256.update(&piece);
        }
    }
}

impl<Body> Drop for Verified<Body> {
    fn drop(&mut self) {
        self.upload.progress.end(State::Broken);
    }
}

/// A body whose last piece is held until the digest is verified. Trailers are left out.
pub(super) struct Verified<Body> {
    upload: Upload<Body>,
    held: Option<Bytes>,
}

impl<Body: HttpBody<Data = Bytes, Error = axum::Error> + Unpin> HttpBody for Verified<Body> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let progress = this.upload.progress.clone();
        loop {
            let Some(frame) = ready!(Pin::new(&mut this.upload.body).poll_frame(cx)?) else { break };
            progress.pieces.fetch_add(1, Ordering::Relaxed);
            let Ok(data) = frame.into_data() else { continue };
            if data.is_empty() {
                continue;
            }
            this.upload.sha256.update(&data);
            if let Some(before) = this.held.replace(data) {
                return Poll::Ready(Some(Ok(Frame::data(before))));
            }
        }
        let last = this.held.take();
        let is_right = this.upload.sha256.finalize_reset()[..] == this.upload.digest;
        progress.end(if is_right { State::Verified } else { State::Mismatch });
        if progress.is_mismatch() {
            return Poll::Ready(Some(Err(axum::Error::new("the body has another digest"))));
        }
        Poll::Ready(last.map(|last| Ok(Frame::data(last))))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.upload.body.is_end_stream() && !self.upload.progress.is_mismatch()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.held.as_ref().map_or(0, |held| held.len() as u64);
        self.upload.body.size_hint() + SizeHint::with_exact(held)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::http::HeaderValue;
    use futures_util::stream;

    use super::*;

    fn upload(pieces: &'static [&'static str], of: &str) -> Upload<Body> {
        let body = Body::from_stream(stream::iter(pieces.iter().map(|piece| Ok::<_, Infallible>(*piece))));
        Upload::new(body, Sha256::digest(of).into(), Torn::default())
    }

    #[tokio::test]
    async fn the_last_piece_is_passed_on_only_if_the_digest_is_right() {
        let right = upload(&["a", "b", "c"], "abc").verified().collect().await.unwrap();
        assert_eq!(right.to_bytes(), "abc");
        let wrong = upload(&["a", "b", "", "c"], "abd");
        let (progress, mut body) = (wrong.progress(), wrong.verified());
        for passed in ["a", "b"] {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), passed);
        }
        for _ in 0..2 {
            assert!(body.frame().await.unwrap().is_err(), "it never looks complete");
        }
        assert!(progress.is_mismatch() && progress.pieces.load(Ordering::Relaxed) == 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_body_of_a_repeat_is_read_to_its_end() {
        let second = Duration::from_secs(1);
        assert!(upload(&["a", "b"], "ab").verify(second).await.is_ok());
        assert_eq!(upload(&["a", "b"], "a").verify(second).await.unwrap_err().detail, mismatch().detail);
        let stalls = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        assert!(
            Upload::new(stalls, [0; 32], Torn::default()).verify(second).await.unwrap_err().detail.contains("stopped")
        );
    }

    #[test]
    fn the_digest_is_found_among_others() {
        let of = |lines: &[&str]| {
            let lines = lines.iter().map(|line| (CONTENT_DIGEST.clone(), HeaderValue::from_str(line).unwrap()));
            digest_of(&lines.collect()).map_err(|problem| problem.detail)
        };
        let abc = "sha-256=:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=:";
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["sha-512=:AAAA:"]), Ok(None));
        for lines in [&[abc][..], &[&format!("sha-512=:AAAA:, {abc};x=1")], &["md5=:AA==:", abc]] {
            assert_eq!(of(lines), Ok(Some(Sha256::digest("abc").into())), "{lines:?}");
        }
        for lines in [&["sha-256=abc"][..], &["sha-256=:AAAA:"], &["sha-256=:!:"], &["sha-256="], &[abc, abc]] {
            assert!(of(lines).is_err(), "{lines:?}");
        }
    }
}
