//! A connection to one member, and the session on it. Requests are sent in the order of their arrival, and replies have
//! the same order. `session` and `batch` choose the member, and handle failures.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use oncegate_coordination::tls::with_tls_hint;
use oncegate_coordination::url::{Address, Url};
use oncegate_core::engine::Determinate;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::jute::Reader;
use super::proto::{self, Connected, Owner, Reply, Request};

/// Longest reply: the names of a folder's children, with room.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// Exchanges that wait to be written. The driver allows fewer.
const EXCHANGES_MAX: usize = 16;
/// Requests that wait for a reply, with or without a waiting caller. With more, nothing is written.
const PENDING_MAX: usize = 4096;
/// Maximum number of waiting events of watches. With more, the connection is closed, and its watches are set again.
const EVENTS_MAX: usize = 4096;
/// Longest session: marks that were seen in it are younger than records that may be deleted.
pub(super) const SESSION_MAX: Duration = Duration::from_secs(20);
/// Identifiers of requests begin again here.
const IDS_END: i32 = i32::MAX;

/// Values of a request that a server may refuse for its size, if its limit is far below the default.
const LARGE: usize = 16 << 10;

/// A stream to a member.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An open connection. It is closed when its last clone is dropped.
#[derive(Clone)]
pub(super) struct Client {
    exchanges: mpsc::Sender<Exchange>,
}

/// Requests that are sent together, and the receivers of their replies.
struct Exchange {
    requests: Vec<Request>,
    replies: Vec<oneshot::Sender<Reply>>,
}

/// A request that was written.
struct Pending {
    id: i32,
    request: Request,
    reply: oneshot::Sender<Reply>,
}

/// Paths of nodes that are watched and have changed.
pub(super) type Events = mpsc::Receiver<String>;

/// Opens a stream to a member.
pub(super) async fn dial(url: &Url, member: &Address) -> Result<Box<dyn Stream>, Determinate> {
    let down = |error: std::io::Error| Determinate::Unavailable(format!("no connection to {member}: {error}"));
    let stream = TcpStream::connect((member.host.as_str(), member.port)).await.map_err(down)?;
    stream.set_nodelay(true).map_err(down)?;
    Ok(match &url.tls {
        None => Box::new(stream),
        Some(certificates) => {
            let connected = certificates.connect(member, stream, None).await;
            Box::new(connected.map_err(|why| with_tls_hint(url, "zookeeper", why))?)
        }
    })
}

impl Client {
    /// Connects to a member, opens a session that lasts this long without a request, and authenticates if the URL has a user.
    pub(super) async fn connect(url: &Url, member: &Address, session: Duration) -> Result<(Self, Events), Determinate> {
        let down = |why: &str| Determinate::Unavailable(format!("{member} {why}"));
        let mut stream = dial(url, member).await?;
        let session_ms = i32::try_from(session.as_millis()).unwrap_or(i32::MAX);
        let hung_up = "ends the connection: it has no quorum, or too many connections from here (maxClientCnxns)";
        let plain = if url.tls.is_some() { "" } else { "; if its port speaks TLS only, write zookeepers://" };
        let hello = write_frame(&mut stream, &proto::connect(session_ms)).await;
        hello.map_err(|error| down(&format!("takes no request: {error}")))?;
        let reply = read_frame(&mut stream, &mut BytesMut::new(), 1 << 10).await;
        let reply = reply.map_err(|why| down(&format!("{hung_up}{plain} ({why})")))?;
        let granted = Connected::decode(reply);
        let granted = granted.ok_or_else(|| down(&format!("does not speak ZooKeeper's protocol{plain}")))?;
        let granted_ms = u64::try_from(granted.session_ms).unwrap_or_default();
        if granted_ms == 0 {
            return Err(down("grants no session"));
        }
        if granted.is_read_only {
            return Err(down("is a read-only server: it has no quorum"));
        }
        if Duration::from_millis(granted_ms) > SESSION_MAX {
            let why =
                format!("{member} grants no session below {granted_ms} ms; set its minSessionTimeout to 20000 or less");
            return Err(Determinate::Incompatible(why));
        }
        let mut received = BytesMut::new();
        if let Some(credentials) = &url.credentials {
            authenticate(&mut stream, &mut received, &credentials.user, &credentials.password).await?;
        }
        let has_user =
            url.credentials.is_some() || url.tls.as_ref().is_some_and(|tls| tls.client_certificate.is_some());
        let owner = if has_user { Owner::User } else { Owner::Anyone };
        Ok(Self::start(stream, received, owner))
    }

    /// Starts the two tasks of a connection. They end together: with it, or when the last clone of the client is dropped.
    fn start(stream: Box<dyn Stream>, received: BytesMut, owner: Owner) -> (Self, Events) {
        let (reader, writer) = tokio::io::split(stream);
        let (exchanges, outgoing) = mpsc::channel(EXCHANGES_MAX);
        let (written, pending) = mpsc::channel(PENDING_MAX);
        let (events, changed) = mpsc::channel(EVENTS_MAX);
        let ended = CancellationToken::new();
        let end = ended.clone();
        tokio::spawn(async move {
            end.run_until_cancelled(write(writer, outgoing, written, owner)).await;
            end.cancel();
        });
        tokio::spawn(async move {
            ended.run_until_cancelled(read(reader, received, pending, events)).await;
            ended.cancel();
        });
        (Self { exchanges }, changed)
    }

    /// Sends requests, and returns their replies. An abandoned request may still take effect.
    pub(super) async fn send(&self, requests: Vec<Request>) -> Result<Vec<Reply>, Failure> {
        let bytes = requests.iter().map(Request::value_bytes).max().unwrap_or_default();
        let lost = || Failure::lost(lost(bytes));
        let (replies, answers): (Vec<_>, Vec<_>) = requests.iter().map(|_| oneshot::channel()).unzip();
        self.exchanges.send(Exchange { requests, replies }).await.map_err(|_| lost())?;
        let mut all = Vec::with_capacity(answers.len());
        for answer in answers {
            all.push(answer.await.map_err(|_| lost())?);
        }
        Ok(all)
    }
}

/// Returns why a request with values of so many bytes has no answer.
fn lost(bytes: usize) -> String {
    let why = "the connection to ZooKeeper was lost before the answer arrived";
    if bytes < LARGE {
        return why.to_owned();
    }
    format!("{why}, to a request of {} KiB: a server with a smaller jute.maxbuffer ends the connection", bytes >> 10)
}

/// Sends the user and its password, and waits until they are accepted.
async fn authenticate(
    stream: &mut Box<dyn Stream>,
    received: &mut BytesMut,
    user: &str,
    password: &str,
) -> Result<(), Determinate> {
    let down = |why: String| Determinate::Unavailable(why);
    let (number, fields) = proto::digest(user, password);
    let mut message = BytesMut::new();
    put_request(&mut message, proto::AUTH, number, &fields);
    stream.write_all(&message).await.map_err(|error| down(error.to_string()))?;
    stream.flush().await.map_err(|error| down(error.to_string()))?;
    let refused = || Determinate::Incompatible("ZooKeeper refuses the user of the URL".into());
    let mut reply = Reader::new(read_frame(stream, received, 1 << 10).await.map_err(down)?);
    match (reply.int(), reply.long(), reply.int()) {
        (Some(proto::AUTH), Some(_), Some(proto::code::OK)) => Ok(()),
        _ => Err(refused()),
    }
}

/// Writes exchanges until the last client is dropped.
async fn write(
    mut stream: WriteHalf<Box<dyn Stream>>,
    mut exchanges: mpsc::Receiver<Exchange>,
    written: mpsc::Sender<Pending>,
    owner: Owner,
) {
    let mut id = 0;
    let mut buffer = BytesMut::new();
    let mut put = |request: &Request, buffer: &mut BytesMut| {
        id = if id >= IDS_END - 1 { 1 } else { id + 1 };
        let (number, fields) = request.encode(owner);
        put_request(buffer, id, number, &fields);
        id
    };
    while let Some(Exchange { requests, replies }) = exchanges.recv().await {
        for (request, reply) in requests.into_iter().zip(replies) {
            let id = put(&request, &mut buffer);
            if written.send(Pending { id, request, reply }).await.is_err() {
                return;
            }
        }
        if stream.write_all(&buffer).await.is_err() || stream.flush().await.is_err() {
            return;
        }
        buffer.clear();
    }
    // The member then ends the session now, and not after its timeout.
    put(&Request::Close, &mut buffer);
    drop(stream.write_all(&buffer).await);
    drop(stream.shutdown().await);
}

/// Reads replies until the connection is lost, or a reply does not fit its request. Requests without a reply have lost their connection then.
async fn read(
    mut stream: ReadHalf<Box<dyn Stream>>,
    mut received: BytesMut,
    mut pending: mpsc::Receiver<Pending>,
    events: mpsc::Sender<String>,
) {
    while let Ok(message) = read_frame(&mut stream, &mut received, REPLY_BYTES_MAX).await {
        let mut reader = Reader::new(message);
        match reader.int() {
            Some(proto::EVENT) => {
                let Some(path) = proto::event_path(reader) else { return };
                // A connection without watches has no receiver.
                if let Err(mpsc::error::TrySendError::Full(_)) = events.try_send(path) {
                    return;
                }
            }
            Some(id) => {
                let Ok(Pending { id: expected, request, reply }) = pending.try_recv() else { return };
                let Some(answer) = request.reply(reader).filter(|_| id == expected) else { return };
                // The caller may have dropped its call.
                drop(reply.send(answer));
            }
            None => return,
        }
    }
}

fn put_request(buffer: &mut BytesMut, id: i32, number: i32, fields: &[u8]) {
    buffer.put_u32(u32::try_from(fields.len() + 8).unwrap_or(u32::MAX));
    buffer.put_i32(id);
    buffer.put_i32(number);
    buffer.put_slice(fields);
}

async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> std::io::Result<()> {
    let mut frame = BytesMut::new();
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    stream.write_all(&frame).await?;
    stream.flush().await
}

/// Reads a message. What follows it stays in `received`.
async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut BytesMut,
    bytes_max: usize,
) -> Result<Bytes, String> {
    loop {
        if let Some(head) = received.get(..4) {
            let mut head = head;
            let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
            if length > bytes_max {
                return Err(format!("a message of {length} bytes is too long"));
            }
            if received.len() >= 4 + length {
                received.advance(4);
                return Ok(received.split_to(length).freeze());
            }
            received.reserve(4 + length - received.len());
        }
        match stream.read_buf(received).await {
            Ok(0) => return Err("it has hung up".into()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use tokio::net::TcpListener;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::jute::Writer;

    const SOON: Duration = Duration::from_secs(10);

    /// A server that grants a session of this length, and then answers nothing. Counts the requests that it reads.
    async fn silent(session_ms: i32) -> (Url, Address, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = BytesMut::new();
            read_frame(&mut stream, &mut received, 1 << 10).await.unwrap();
            let granted = Writer::default().int(0).int(session_ms).long(7).bytes(&[0; 16]).bool(false).finish();
            write_frame(&mut stream, &granted).await.unwrap();
            while read_frame(&mut stream, &mut received, 1 << 20).await.is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let url = crate::url::Url::parse(&format!("zookeeper://{address}")).unwrap().common;
        let member = url.members[0].clone();
        (url, member, requests)
    }

    #[tokio::test]
    async fn a_silent_member_holds_no_more_than_the_queue() {
        let (url, member, requests) = silent(6000).await;
        let (client, _events) = Client::connect(&url, &member, Duration::from_secs(6)).await.unwrap();
        timeout(SOON, async {
            for _ in 0..PENDING_MAX * 3 {
                // The caller gives up as soon as its call is queued, or there is no room.
                drop(client.send(vec![Request::Get("/a".into())]).now_or_never());
                tokio::task::yield_now().await;
            }
            while client.exchanges.capacity() > 0 {
                drop(client.send(vec![Request::Get("/a".into())]).now_or_never());
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the queue is full");
        sleep(Duration::from_millis(50)).await;
        let written = requests.load(Ordering::Relaxed);
        assert!(written <= PENDING_MAX + 2, "{written} requests wait for a reply");
    }

    #[tokio::test]
    async fn a_member_that_hangs_up_fails_what_was_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("zookeeper://{}", listener.local_addr().unwrap());
        let url = crate::url::Url::parse(&url).unwrap().common;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = BytesMut::new();
            read_frame(&mut stream, &mut received, 1 << 10).await.unwrap();
            let granted = Writer::default().int(0).int(6000).long(7).bytes(&[0; 16]).bool(false).finish();
            write_frame(&mut stream, &granted).await.unwrap();
            read_frame(&mut stream, &mut received, 1 << 20).await.unwrap();
        });
        let (client, _) = Client::connect(&url, &url.members[0], Duration::from_secs(6)).await.unwrap();
        for _ in 0..2 {
            let failed = timeout(SOON, client.send(vec![Request::Get("/a".into())])).await.unwrap();
            assert!(failed.is_err_and(|failure| failure.answer.is_uncertain() && failure.leaves));
        }
    }

    /// Returns a client of a server that grants a session, reads the first request, and answers it with these bytes.
    async fn answered_with(answer: Bytes) -> (Client, Events) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("zookeeper://{}", listener.local_addr().unwrap());
        let url = crate::url::Url::parse(&url).unwrap().common;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = BytesMut::new();
            read_frame(&mut stream, &mut received, 1 << 10).await.unwrap();
            let granted = Writer::default().int(0).int(6000).long(7).bytes(&[0; 16]).bool(false).finish();
            write_frame(&mut stream, &granted).await.unwrap();
            read_frame(&mut stream, &mut received, 1 << 20).await.unwrap();
            stream.write_all(&answer).await.unwrap();
            // It stays open: the client closes it.
            drop(read_frame(&mut stream, &mut received, 1 << 20).await);
        });
        Client::connect(&url, &url.members[0], Duration::from_secs(6)).await.unwrap()
    }

    #[tokio::test]
    async fn a_reply_that_is_garbage_or_of_another_request_closes_the_connection() {
        let frame = |message: Bytes| {
            let mut frame = BytesMut::new();
            frame.put_u32(u32::try_from(message.len()).unwrap());
            frame.put_slice(&message);
            frame.freeze()
        };
        let head = |id: i32| Writer::default().int(id).long(1).int(0).finish();
        for (what, answer) in [
            ("the second reply before the first", frame(head(2))),
            ("a reply to nothing", frame(head(77))),
            ("an answer to a ping that was not sent", frame(head(-2))),
            ("a reply that is cut off", frame(head(1))),
            ("no identifier", frame(Bytes::from_static(b"xx"))),
            ("an empty message", frame(Bytes::new())),
            ("an event without a path", frame(head(proto::EVENT))),
            ("a message of two gigabytes", Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff, 0])),
            ("a message of four gigabytes", Bytes::from_static(&[0xff; 16])),
        ] {
            let (client, _events) = answered_with(answer).await;
            let requests = vec![Request::Get("/a".into()), Request::Get("/b".into())];
            let failed = timeout(SOON, client.send(requests)).await.expect(what);
            assert!(failed.is_err_and(|failure| failure.answer.is_uncertain() && failure.leaves), "{what}");
        }
    }

    #[tokio::test]
    async fn a_session_that_is_too_long_or_none_is_refused() {
        for (session_ms, part) in [(0, "grants no session"), (30_000, "minSessionTimeout")] {
            let (url, member, _) = silent(session_ms).await;
            let refused = Client::connect(&url, &member, Duration::from_secs(6)).await.err().unwrap();
            assert!(refused.reason().contains(part), "{refused:?}");
        }
    }
}
