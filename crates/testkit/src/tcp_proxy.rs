//! A TCP proxy on the loopback interface between a client and a server, which breaks connections, directions, single bytes or
//! single replies, and heals again. The end of a Redis reply is the only thing that it knows of a protocol.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::fresh;

/// Treatment of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Forward them.
    Pass,
    /// Forward them after a delay.
    Delay(Duration),
    /// Forward requests, and hold replies.
    HalfOpen,
    /// Hold requests, and forward replies.
    Unheard,
    /// Hold everything, and keep connections open.
    Blackhole,
}

/// Treatment of all connections, and of those from some addresses or members.
#[derive(Clone)]
struct Modes {
    all: Mode,
    from: BTreeMap<IpAddr, Mode>,
    from_members: BTreeMap<String, Mode>,
}

impl Modes {
    fn all(mode: Mode) -> Self {
        Self { all: mode, from: BTreeMap::new(), from_members: BTreeMap::new() }
    }

    fn of(&self, peer: &Peer) -> Mode {
        let member = peer.member.lock().expect("no panic");
        let of_member = member.as_ref().and_then(|member| self.from_members.get(member));
        of_member.or_else(|| self.from.get(&peer.address)).copied().unwrap_or(self.all)
    }
}

/// The field in which a member of etcd names itself to the others.
const MEMBER: &[u8] = b"X-Server-From: ";

/// The client of a connection.
struct Peer {
    address: IpAddr,
    /// The member of etcd that it is, once it has said so.
    member: Mutex<Option<String>>,
}

impl Peer {
    /// Reads the name of the member in a part of a request.
    fn hear(&self, request: &[u8]) {
        let Some(at) = request.windows(MEMBER.len()).position(|part| part == MEMBER) else { return };
        let name = request[at + MEMBER.len()..].split(|byte| *byte == b'\r').next().unwrap_or_default();
        *self.member.lock().expect("no panic") = Some(String::from_utf8_lossy(name).into_owned());
    }
}

/// Faults that happen once, on the first connection that reaches them.
#[derive(Default)]
struct Faults {
    /// Number of replies to forward before one is swallowed.
    swallow: Option<usize>,
    /// Number of replies to forward before the connection is closed instead of one.
    lose: Option<usize>,
    /// Number of bytes of requests to forward before the connection is cut.
    cut: Option<usize>,
    /// A text in requests, and the number of those whose connections are closed instead of a reply.
    lose_of: Option<(&'static str, usize)>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    modes: watch::Sender<Modes>,
    /// Incremented to drop all connections.
    epoch: watch::Sender<u64>,
    faults: Mutex<Faults>,
    accepted: AtomicUsize,
    /// Accept no more connections once the replies to some requests have been lost.
    refuses_after: AtomicBool,
    /// Separate replies by the protocol of Redis. Otherwise the bytes of one read count as one reply.
    is_redis: bool,
}

/// Listens at a free port. Another process may take a port first.
async fn listen() -> TcpListener {
    for _ in 0..10 {
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, fresh::port())).await {
            return listener;
        }
    }
    panic!("no free port");
}

/// A proxy in front of one server.
pub struct TcpProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl TcpProxy {
    /// Starts a proxy in front of a Redis server, which forwards everything.
    pub async fn start(server: SocketAddr) -> Self {
        Self::start_before(server, true).await
    }

    /// Starts a proxy in front of any other server, which forwards everything.
    pub async fn start_any(server: SocketAddr) -> Self {
        Self::start_before(server, false).await
    }

    async fn start_before(server: SocketAddr, is_redis: bool) -> Self {
        // While it refuses connections, nothing else may take its port.
        let listener = listen().await;
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            modes: watch::Sender::new(Modes::all(Mode::Pass)),
            epoch: watch::Sender::new(0),
            faults: Mutex::default(),
            accepted: AtomicUsize::new(0),
            refuses_after: AtomicBool::new(false),
            is_redis,
        });
        let accepting = Some(tokio::spawn(accept(listener, shared.clone())));
        Self { address, shared, accepting }
    }

    /// Returns the address of its listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections it has accepted.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Sets the mode of all connections, for open ones as well.
    pub fn set(&self, mode: Mode) {
        self.shared.modes.send_replace(Modes::all(mode));
    }

    /// Sets the mode of connections from this address, for open ones as well.
    pub fn set_from(&self, peer: IpAddr, mode: Mode) {
        self.shared.modes.send_modify(|modes| _ = modes.from.insert(peer, mode));
    }

    /// Sets the mode of connections from this member of an etcd cluster, for open ones as well.
    pub fn set_from_member(&self, member: &str, mode: Mode) {
        self.shared.modes.send_modify(|modes| _ = modes.from_members.insert(member.to_owned(), mode));
    }

    /// Closes all connections, and forwards new ones to another server.
    pub fn redirect_to(&self, server: SocketAddr) {
        *self.shared.server.lock().expect("no panic") = server;
        self.drop_connections();
    }

    /// Closes all connections.
    pub fn drop_connections(&self) {
        self.shared.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Closes all connections and its listener: new connections are refused.
    pub async fn refuse(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            let _ = accepting.await;
        }
        self.drop_connections();
    }

    /// Accepts connections again, at the same address, and forwards everything.
    pub async fn heal(&mut self) {
        self.set(Mode::Pass);
        *self.faults() = Faults::default();
        if self.accepting.is_none() {
            let listener = TcpListener::bind(self.address).await.expect("its port is still free");
            self.accepting = Some(tokio::spawn(accept(listener, self.shared.clone())));
        }
    }

    /// Swallows one reply, after forwarding this many. The connection stays open.
    pub fn swallow_reply_after(&self, replies: usize) {
        self.faults().swallow = Some(replies);
    }

    /// Returns true once the reply has been swallowed.
    pub fn has_swallowed(&self) -> bool {
        self.faults().swallow.is_none()
    }

    /// Forwards requests, and closes the connection instead of the next bytes of a reply.
    pub fn lose_next_reply(&self) {
        self.lose_reply_after(0);
    }

    /// The same, after forwarding this many replies. The bytes of one read count as one reply.
    pub fn lose_reply_after(&self, replies: usize) {
        self.faults().lose = Some(replies);
    }

    /// Closes the connection instead of a reply to each of the next requests that contain this text. After the last one, closes all
    /// connections and accepts no others if `then_refuse` is true.
    pub fn lose_replies_to(&self, text: &'static str, requests: usize, then_refuse: bool) {
        self.faults().lose_of = Some((text, requests));
        self.shared.refuses_after.store(then_refuse, Ordering::SeqCst);
    }

    /// Returns true once these replies have been lost.
    pub fn has_lost_replies(&self) -> bool {
        self.faults().lose_of.is_none_or(|(_, left)| left == 0)
    }

    /// Closes the connection after this many more bytes of requests.
    pub fn cut_after(&self, bytes: usize) {
        self.faults().cut = Some(bytes);
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.shared.faults.lock().expect("no panic")
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
    while let Ok((client, peer)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let has_lost = shared.faults.lock().expect("no panic").lose_of.is_some_and(|(_, left)| left == 0);
        if has_lost && shared.refuses_after.load(Ordering::SeqCst) {
            continue;
        }
        tokio::spawn(forward(client, peer.ip(), shared.clone(), shared.epoch.subscribe()));
    }
}

/// Forwards one connection until either side or a fault closes it, or all are dropped.
async fn forward(client: TcpStream, peer: IpAddr, shared: Arc<Shared>, mut epoch: watch::Receiver<u64>) {
    let mut modes = shared.modes.subscribe();
    let peer = Peer { address: peer, member: Mutex::default() };
    let forwarding = async {
        let _ = modes.wait_for(|modes| modes.of(&peer) != Mode::Blackhole).await;
        let server = *shared.server.lock().expect("no panic");
        let Ok(server) = TcpStream::connect(server).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let is_doomed = AtomicBool::new(false);
        tokio::select! {
            () = requests(from_client, to_server, &peer, &shared, &is_doomed) => {}
            () = replies(from_server, to_client, &peer, &shared, &is_doomed) => {}
        }
    };
    tokio::select! {
        () = forwarding => {}
        _ = epoch.changed() => {}
    }
}

/// Forwards requests. Sets `is_doomed` if the reply to a request must be lost.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    peer: &Peer,
    shared: &Shared,
    is_doomed: &AtomicBool,
) {
    let mut modes = shared.modes.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if !shared.is_redis {
            peer.hear(&buffer[..count]);
        }
        pause(&mut modes, peer, |mode| !matches!(mode, Mode::Blackhole | Mode::Unheard)).await;
        let (pass, cut) = {
            let mut faults = shared.faults.lock().expect("no panic");
            if let Some((text, left @ 1..)) = &mut faults.lose_of
                && buffer[..count].windows(text.len()).any(|part| part == text.as_bytes())
            {
                *left -= 1;
                is_doomed.store(true, Ordering::SeqCst);
            }
            match faults.cut {
                Some(left) if left <= count => {
                    faults.cut = None;
                    (left, true)
                }
                Some(left) => {
                    faults.cut = Some(left - count);
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

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    peer: &Peer,
    shared: &Shared,
    is_doomed: &AtomicBool,
) {
    let mut modes = shared.modes.subscribe();
    // Large enough to read with one call what was sent with one call.
    let mut pending = Vec::with_capacity(64 * 1024);
    while let Ok(1..) = from.read_buf(&mut pending).await {
        pause(&mut modes, peer, |mode| !matches!(mode, Mode::Blackhole | Mode::HalfOpen)).await;
        if is_doomed.load(Ordering::SeqCst) {
            let has_lost = shared.faults.lock().expect("no panic").lose_of.is_none_or(|(_, left)| left == 0);
            if has_lost && shared.refuses_after.load(Ordering::SeqCst) {
                shared.epoch.send_modify(|epoch| *epoch += 1);
            }
            return;
        }
        if counts_down(&mut shared.faults.lock().expect("no panic").lose) {
            return;
        }
        while let Some(end) = if shared.is_redis { reply_end(&pending) } else { all_of(&pending) } {
            let reply: Vec<u8> = pending.drain(..end).collect();
            if !is_swallowed(shared) && to.write_all(&reply).await.is_err() {
                return;
            }
        }
    }
}

fn is_swallowed(shared: &Shared) -> bool {
    counts_down(&mut shared.faults.lock().expect("no panic").swallow)
}

/// Counts down to a fault that happens once. Returns true if it is due.
fn counts_down(after: &mut Option<usize>) -> bool {
    let is_now = *after == Some(0);
    *after = after.and_then(|left| left.checked_sub(1));
    is_now
}

async fn pause(modes: &mut watch::Receiver<Modes>, peer: &Peer, passes: impl Fn(Mode) -> bool) {
    if let Ok(mode) = modes.wait_for(|modes| passes(modes.of(peer))).await.map(|modes| modes.of(peer))
        && let Mode::Delay(delay) = mode
    {
        tokio::time::sleep(delay).await;
    }
}

fn all_of(bytes: &[u8]) -> Option<usize> {
    (!bytes.is_empty()).then_some(bytes.len())
}

/// Returns the end of the first reply, if it is complete. Bytes in another protocol count as one reply.
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
