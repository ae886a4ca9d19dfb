//! Runs a handler in its task: passes its response on as it comes, and completes it when its outcome is recorded.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Sleep, sleep, timeout};

use super::body::{Piece, ResponseBody, Sent};
use super::options::Settings;
use super::recorder::{Recorder, Run};
use crate::error::BoxError;
use crate::grant::Grant;
use crate::outcome::Outcome;
use crate::runs::Running;

/// Bytes that wait for a slow caller. More than the stored part of a response, so such a caller does not delay the
/// record.
const WINDOW: u32 = 256 << 10;

/// Bytes that each piece counts in addition to its data.
const PIECE: usize = 64;

/// Time after which a caller that reads nothing counts as disconnected.
const STALLED: Duration = Duration::from_secs(30);

type Reply<E> = oneshot::Sender<Result<Response<ResponseBody>, E>>;

/// The end of a run.
enum End {
    /// The time of the exchange is over.
    TimedOut,
    /// The caller has left, and the handler ends with it.
    Stopped,
    Panicked(Box<dyn Any + Send>),
}

/// Runs a handler to its end. The caller gets its response, or its error, by `reply`.
pub(crate) async fn run<B, E>(
    settings: Arc<Settings>,
    grant: Grant,
    running: Running,
    handler: impl Future<Output = Result<Response<B>, E>>,
    mut reply: Reply<E>,
) where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
    E: 'static,
{
    let _running = running;
    let run = Run::new(grant);
    let mut time = pin!(sleep(settings.exchange_max));
    let answered = match watched(&settings, &run.grant, pin!(handler), reply.closed(), time.as_mut()).await {
        Ok(answered) => answered,
        Err(end) => {
            // Dropped: its outcome is unknown, unless it has marked one.
            run.end(&settings, Outcome::Unknown).await;
            match end {
                End::Stopped => {}
                End::TimedOut => drop(reply.send(Ok(settings.timed_out()))),
                End::Panicked(panic) => resume_unwind(panic),
            }
            return;
        }
    };
    match answered {
        Ok(response) => respond(&settings, run, response, reply, time).await,
        Err(error) => {
            let is_harmless = settings.is_harmless(&error as &dyn Any);
            run.end(&settings, if is_harmless { Outcome::Failure } else { Outcome::Unknown }).await;
            drop(reply.send(Err(error)));
        }
    }
}

/// Polls a handler, and notices that its caller goes.
async fn watched<F: Future>(
    settings: &Settings,
    grant: &Grant,
    mut handler: Pin<&mut F>,
    gone: impl Future<Output = ()>,
    mut time: Pin<&mut Sleep>,
) -> Result<F::Output, End> {
    let mut gone = pin!(gone);
    let mut is_gone = false;
    loop {
        tokio::select! {
            biased;
            output = caught(handler.as_mut()) => return output.map_err(End::Panicked),
            () = gone.as_mut(), if !is_gone => {
                is_gone = true;
                grant.caller_left();
                if settings.stops_when_gone {
                    return Err(End::Stopped);
                }
            }
            () = time.as_mut() => return Err(End::TimedOut),
        }
    }
}

/// Passes a response on, and completes it when its outcome is recorded.
async fn respond<B, E>(settings: &Settings, run: Run, response: Response<B>, reply: Reply<E>, mut time: Pin<&mut Sleep>)
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut head, body) = response.into_parts();
    let mut body = pin!(body);
    let mut recorder = Recorder::new(settings, run, &mut head);
    let length = body.size_hint().exact();
    recorder.expect_length(length);
    let is_without_body =
        matches!(head.status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED);
    let mut caller = Caller { waiting: Some((head, reply)), length, live: None };
    let mut last = (Bytes::new(), None);
    let mut next = if is_without_body || body.is_end_stream() || recorder.is_full() { Next::End } else { Next::None };
    loop {
        match next {
            Next::None => {}
            Next::Data(data) => {
                recorder.data(&data);
                if !recorder.is_full() && !body.is_end_stream() {
                    caller.send(recorder.grant(), data).await;
                } else {
                    last.0 = data;
                    next = if body.is_end_stream() { None } else { at_once(&mut body).await }.unwrap_or(Next::None);
                    if let Next::Trailers(trailers) = &mut next {
                        recorder.trailers(trailers);
                        last.1 = Some(trailers.clone());
                    }
                    break;
                }
            }
            Next::Trailers(mut trailers) => {
                recorder.trailers(&mut trailers);
                last.1 = Some(trailers);
                next = Next::End;
                break;
            }
            Next::End => break,
            Next::Broken(error) => {
                recorder.broke().await;
                caller.fail(error);
                return;
            }
        }
        // The head of a response in one piece waits with its body. Any other head is sent once the handler has no
        // further part ready.
        let at_hand = if caller.waiting.is_some() { at_once(&mut body).await } else { None };
        next = if let Some(next) = at_hand {
            next
        } else {
            caller.begin();
            let (grant, gone) = (recorder.grant(), caller.gone());
            match watched(settings, grant, pin!(body.frame()), gone, time.as_mut()).await {
                Ok(frame) => Next::of(frame),
                Err(End::TimedOut) => Next::Broken("the response took too long".into()),
                Err(End::Stopped) => Next::Broken("the caller has left".into()),
                Err(End::Panicked(_)) => Next::Broken("the handler panicked".into()),
            }
        };
    }
    if is_without_body || recorder.has_length() {
        recorder.complete().await;
    } else {
        recorder.broke().await;
    }
    caller.complete(last);
    // The handler may do anything after its response.
    if !matches!(next, Next::End | Next::Broken(_)) && !body.is_end_stream() {
        let rest = async { while let Some(Ok(_)) = body.frame().await {} };
        tokio::select! {
            () = rest => {}
            () = time => {}
        }
    }
}

/// The next part of a body.
enum Next {
    /// Not asked yet.
    None,
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    Broken(BoxError),
}

impl Next {
    fn of<E: Into<BoxError>>(frame: Option<Result<Frame<Bytes>, E>>) -> Self {
        match frame {
            None => Self::End,
            Some(Err(error)) => Self::Broken(error.into()),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => Self::Data(data),
                Err(frame) => frame.into_trailers().map_or(Self::None, Self::Trailers),
            },
        }
    }
}

/// Returns the output of a future, or its panic: the outcome is recorded before the panic continues.
async fn caught<F: Future>(mut future: Pin<&mut F>) -> Result<F::Output, Box<dyn Any + Send>> {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Returns the next part of a body if it is ready.
async fn at_once<B>(body: &mut Pin<&mut B>) -> Option<Next>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let frame = pin!(body.frame());
    let mut frame = pin!(caught(frame));
    poll_fn(|cx| {
        Poll::Ready(match frame.as_mut().poll(cx) {
            Poll::Ready(Ok(frame)) => Some(Next::of(frame)),
            Poll::Ready(Err(_)) => Some(Next::Broken("the handler panicked".into())),
            Poll::Pending => None,
        })
    })
    .await
}

/// The caller of a response.
struct Caller<E> {
    /// Its head, while it was not sent.
    waiting: Option<(Parts, Reply<E>)>,
    length: Option<u64>,
    /// Nothing before the head, and after the caller has left.
    live: Option<Live>,
}

struct Live {
    pieces: mpsc::UnboundedSender<Sent>,
    window: Arc<Semaphore>,
}

impl<E> Caller<E> {
    /// Sends the head.
    fn begin(&mut self) {
        if let Some((head, reply)) = self.waiting.take() {
            let (pieces, taken) = mpsc::unbounded_channel();
            let response = Response::from_parts(head, ResponseBody::live(taken, self.length));
            let live = Live { pieces, window: Arc::new(Semaphore::new(WINDOW as usize)) };
            self.live = reply.send(Ok(response)).is_ok().then_some(live);
        }
    }

    /// Returns when a caller goes that has the head.
    async fn gone(&self) {
        match &self.live {
            Some(live) => live.pieces.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Sends a piece. A caller that reads nothing for long counts as disconnected: the record does not wait for it.
    async fn send(&mut self, grant: &Grant, data: Bytes) {
        self.begin();
        let Some(live) = &self.live else { return };
        let cost = u32::try_from(data.len() + PIECE).unwrap_or(WINDOW).min(WINDOW);
        let is_sent = match timeout(STALLED, Arc::clone(&live.window).acquire_many_owned(cost)).await {
            Ok(Ok(permit)) => live.pieces.send((Piece::Frame(Frame::data(data)), Some(permit))).is_ok(),
            _ => false,
        };
        if !is_sent {
            self.live = None;
            grant.caller_left();
        }
    }

    /// Sends what completes the response.
    fn complete(self, (data, trailers): (Bytes, Option<HeaderMap>)) {
        if let Some((head, reply)) = self.waiting {
            drop(reply.send(Ok(Response::from_parts(head, ResponseBody::whole(data, trailers)))));
        } else if let Some(live) = self.live {
            let data = Some(data).filter(|data| !data.is_empty()).map(Frame::data);
            for frame in data.into_iter().chain(trailers.map(Frame::trailers)) {
                // A caller that has left misses it.
                drop(live.pieces.send((Piece::Frame(frame), None)));
            }
            drop(live.pieces.send((Piece::End, None)));
        }
    }

    /// Breaks the response off.
    fn fail(mut self, error: BoxError) {
        self.begin();
        if let Some(live) = self.live {
            drop(live.pieces.send((Piece::Broken(error), None)));
        }
    }
}
