//! An upstream in its own process, which can be killed. An effect is a line of a file, so it outlives the process.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncegate_testkit::fresh;
use oncegate_testkit::wait::until;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::read_head;
use crate::proxy::SOON;

/// Variables of the process: the address to listen on, and the file of effects.
const LISTEN: &str = "ONCEGATE_TEST_SHOP_LISTEN";
const EFFECTS: &str = "ONCEGATE_TEST_SHOP_EFFECTS";

/// The next misbehaviour: each has its turn.
const TURNS: usize = 10;

/// Time between an effect and its response. The process may be killed in it.
const WORK: Duration = Duration::from_millis(5);

/// The process.
pub(super) struct Shop {
    folder: TempDir,
    address: SocketAddr,
    child: Child,
}

impl Shop {
    pub(super) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let unused = (Ipv4Addr::LOCALHOST, fresh::port()).into();
        File::create(folder.path().join("effects")).unwrap();
        let child = launch(unused, folder.path().join("effects"));
        let shop = Self { folder, address: unused, child };
        shop.is_listening().await;
        shop
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) async fn restart(&mut self) {
        self.child = launch(self.address, self.file());
        self.is_listening().await;
    }

    async fn is_listening(&self) {
        until("the upstream listens", SOON, async || TcpStream::connect(self.address).await.is_ok()).await;
    }

    /// Returns the number of effects so far.
    pub(super) fn effects(&self) -> usize {
        std::fs::read_to_string(self.file()).unwrap().lines().count()
    }

    pub(super) fn effects_by_key(&self) -> HashMap<String, Vec<String>> {
        let mut effects: HashMap<_, Vec<_>> = HashMap::new();
        for line in std::fs::read_to_string(self.file()).unwrap().lines() {
            let (key, effect) = line.split_once(' ').unwrap();
            effects.entry(key.to_owned()).or_default().push(effect.to_owned());
        }
        effects
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("effects")
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the effect that a response names, if the response is whole.
pub(super) fn effect_of(body: &str) -> Option<String> {
    let mut parts = body.splitn(3, ' ');
    let (effect, length) = (parts.next()?, parts.next()?.parse::<usize>().ok()?);
    (parts.next()?.len() == length).then(|| effect.to_owned())
}

/// Starts this program again, as the upstream.
fn launch(listen: SocketAddr, effects: PathBuf) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "proxy::faults::shop::process", "--ignored", "--nocapture"]);
    command.env(LISTEN, listen.to_string()).env(EFFECTS, effects);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[tokio::test]
#[ignore = "no test: the process that tests start and kill"]
#[expect(clippy::disallowed_methods, reason = "the variables are those of this process alone")]
async fn process() {
    let (Ok(listen), Ok(effects)) = (std::env::var(LISTEN), std::env::var(EFFECTS)) else { return };
    let effects = OpenOptions::new().append(true).open(effects).unwrap();
    let server = Arc::new(Server { effects, requests: AtomicUsize::new(0) });
    let listener = TcpListener::bind(listen).await.unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(server.clone().serve(stream));
    }
}

struct Server {
    effects: File,
    requests: AtomicUsize,
}

impl Server {
    /// Serves requests with empty bodies until one of them ends the connection.
    async fn serve(self: Arc<Self>, mut stream: TcpStream) -> Option<()> {
        loop {
            let (head, _) = read_head(&mut stream).await?;
            let key = head.lines().find_map(|line| line.strip_prefix("idempotency-key: "))?;
            let turn = self.requests.fetch_add(1, Ordering::SeqCst);
            if turn.is_multiple_of(TURNS) {
                return None;
            }
            let effect = format!("{}-{turn}", std::process::id());
            // In one piece.
            (&self.effects).write_all(format!("{key} {effect}\n").as_bytes()).ok()?;
            tokio::time::sleep(WORK).await;
            let padding = "x".repeat(turn % 5 * 5000);
            let body = format!("{effect} {} {padding}", padding.len());
            let (length, half) = (body.len(), &body[..body.len() / 2]);
            let answer = match turn % TURNS {
                1 => return None,
                2 => format!("HTTP/1.1 201 Created\r\ncontent-length: {length}\r\n\r\n{half}"),
                3 => "HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n".to_owned(),
                4 => {
                    format!("HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{half}\r\n", half.len())
                }
                _ => format!("HTTP/1.1 201 Created\r\ncontent-length: {length}\r\n\r\n{body}"),
            };
            stream.write_all(answer.as_bytes()).await.ok()?;
            if [2, 4].contains(&(turn % TURNS)) {
                return None;
            }
        }
    }
}
