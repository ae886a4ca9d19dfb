//! A TCP proxy on the loopback interface, to stand between a client and a server and break what passes: connections,
//! directions, single bytes, single replies. Heals again. Knows where a reply of Redis ends, but speaks no protocol.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// They pass.
    Pass,
    /// They pass later.
    Delay(Duration),
    /// Requests pass, replies are held back.
    HalfOpen,
    /// Nothing passes, and nobody is told.
    Blackhole,
}

/// What happens once, to whichever connection meets it first.
#[derive(Default)]
struct Accidents {
    /// How many replies to let pass before one is swallowed.
    swallow: Option<usize>,
    /// How many replies to let pass before the connection is closed in the place of one.
    lose: Option<usize>,
    /// How many bytes of requests to let pass before the connection is cut.
    cut: Option<usize>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    mode: watch::Sender<Mode>,
    /// Counted up to drop all connections.
    epoch: watch::Sender<u64>,
    accidents: Mutex<Accidents>,
    accepted: AtomicUsize,
    /// Whether replies are told apart, as Redis writes them. Else what comes at once counts as one.
    replies_of_redis: bool,
}

/// A proxy in front of one server.
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl TcpProxy {
    /// Starts a proxy in front of this server, passing everything.
    pub async fn start(server: SocketAddr) -> Self {
        Self::start_before(server, true).await
    }

    /// Starts a proxy in front of a server that is not Redis.
    pub async fn start_plain(server: SocketAddr) -> Self {
        Self::start_before(server, false).await
    }

    async fn start_before(server: SocketAddr, replies_of_redis: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            mode: watch::Sender::new(Mode::Pass),
            epoch: watch::Sender::new(0),
            accidents: Mutex::default(),
            accepted: AtomicUsize::new(0),
            replies_of_redis,
        });
        let accepting = Some(tokio::spawn(accept(listener, shared.clone())));
        Self { address, shared, accepting }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections it has taken so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// From now on, and for connections that stand as well.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// Closes all connections, and leads new ones to another server.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock().expect("no panic") = server;
        self.drop_connections();
    }

    /// Closes all connections.
    pub fn drop_connections(&self) {
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Closes all connections and takes no new ones: whoever tries is refused.
    pub async fn refuse(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            let _ = accepting.await;
        }
        self.drop_connections();
    }

    /// Takes connections again, at the same address, and lets everything pass.
    pub async fn heal(&mut self) {
        self.set(Mode::Pass);
        *self.accidents() = Accidents::default();
        if self.accepting.is_none() {
            let listener = TcpListener::bind(self.address).await.expect("its port is still free");
            self.accepting = Some(tokio::spawn(accept(listener, self.shared.clone())));
        }
    }

    /// Swallows one reply, after letting that many pass. The connection stays open.
    pub fn swallow_reply_after(&self, replies: usize) {
        self.accidents().swallow = Some(replies);
    }

    /// Whether the reply that was to be swallowed has been.
    pub fn has_swallowed(&self) -> bool {
        self.accidents().swallow.is_none()
    }

    /// Lets requests pass, and closes the connection in the place of the next bytes of a reply.
    pub fn lose_next_reply(&self) {
        self.lose_reply_after(0);
    }

    /// The same, after letting that many replies pass; what comes at once counts as one.
    pub fn lose_reply_after(&self, replies: usize) {
        self.accidents().lose = Some(replies);
    }

    /// Closes the connection once that many more bytes of requests have passed.
    pub fn cut_after(&self, bytes: usize) {
        self.accidents().cut = Some(bytes);
    }

    fn accidents(&self) -> std::sync::MutexGuard<'_, Accidents> {
        self.shared.accidents.lock().expect("no panic")
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
        self.drop_connections();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(carry(client, shared.clone(), shared.epoch.subscribe()));
    }
}

/// Carries one connection until either side closes it, an accident does, or all are dropped.
async fn carry(client: TcpStream, shared: Arc<Shared>, mut epoch: watch::Receiver<u64>) {
    let mut mode = shared.mode.subscribe();
    let carrying = async {
        let _ = mode.wait_for(|mode| *mode != Mode::Blackhole).await;
        let server = *shared.server.lock().expect("no panic");
        let Ok(server) = TcpStream::connect(server).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            () = requests(from_client, to_server, &shared) => {}
            () = replies(from_server, to_client, &shared) => {}
        }
    };
    tokio::select! {
        () = carrying => {}
        _ = epoch.changed() => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let mut mode = shared.mode.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        pause(&mut mode, |mode| mode != Mode::Blackhole).await;
        let (pass, cut) = {
            let mut accidents = shared.accidents.lock().expect("no panic");
            match accidents.cut {
                Some(left) if left <= count => {
                    accidents.cut = None;
                    (left, true)
                }
                Some(left) => {
                    accidents.cut = Some(left - count);
                    (count, false)
                }
                None => (count, false),
            }
        };
        if to.write_all(&buffer[..pass]).await.is_err() || cut {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let mut mode = shared.mode.subscribe();
    // Room enough that what was sent at once is read at once.
    let mut pending = Vec::with_capacity(64 * 1024);
    while let Ok(1..) = from.read_buf(&mut pending).await {
        pause(&mut mode, |mode| !matches!(mode, Mode::Blackhole | Mode::HalfOpen)).await;
        if counts_down(&mut shared.accidents.lock().expect("no panic").lose) {
            return;
        }
        while let Some(end) = if shared.replies_of_redis { reply_end(&pending) } else { all_of(&pending) } {
            let reply: Vec<u8> = pending.drain(..end).collect();
            if !is_swallowed(shared) && to.write_all(&reply).await.is_err() {
                return;
            }
        }
    }
}

fn is_swallowed(shared: &Shared) -> bool {
    counts_down(&mut shared.accidents.lock().expect("no panic").swallow)
}

/// Whether it is time now, of something that is to happen once, after so many others.
fn counts_down(after: &mut Option<usize>) -> bool {
    let is_now = *after == Some(0);
    *after = after.and_then(|left| left.checked_sub(1));
    is_now
}

async fn pause(mode: &mut watch::Receiver<Mode>, passes: impl Fn(Mode) -> bool) {
    if let Ok(mode) = mode.wait_for(|mode| passes(*mode)).await.map(|mode| *mode)
        && let Mode::Delay(delay) = mode
    {
        tokio::time::sleep(delay).await;
    }
}

fn all_of(bytes: &[u8]) -> Option<usize> {
    (!bytes.is_empty()).then_some(bytes.len())
}

/// Where the first reply ends, if all of it is there. What is not written as Redis does has no replies, and passes as
/// it comes.
fn reply_end(bytes: &[u8]) -> Option<usize> {
    let line_end = || bytes.windows(2).position(|pair| pair == b"\r\n").map(|at| at + 2);
    let number = |end: usize| std::str::from_utf8(&bytes[1..end - 2]).ok().and_then(|text| text.parse::<i64>().ok());
    match bytes.first()? {
        b'+' | b'-' | b':' => line_end(),
        b'$' => {
            let end = line_end()?;
            let end = usize::try_from(number(end)?).map_or(end, |length| end + length + 2);
            (bytes.len() >= end).then_some(end)
        }
        b'*' => {
            let mut end = line_end()?;
            for _ in 0..number(end)?.max(0) {
                end += reply_end(&bytes[end..])?;
            }
            Some(end)
        }
        _ => Some(bytes.len()),
    }
}
