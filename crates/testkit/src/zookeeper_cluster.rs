//! A ZooKeeper for one test, of one server or several, on free ports of the loopback interface and in temporary folders; killed on drop.
//! Servers can be frozen, killed and started again.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::Process;
use crate::tcp_proxy::{Mode, TcpProxy};
use crate::zookeeper_nodes::Nodes;
use crate::{folder, fresh, missing, wait};

/// Longest time until the servers serve.
const START: Duration = Duration::from_mins(1);

/// Folder into which `scripts/install-test-deps` puts the jars.
const JARS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/zookeeper-3.9.4");

/// Running servers.
pub struct ZooKeeperCluster {
    members: Vec<Member>,
    settings: Vec<String>,
    /// Environment of each server, such as a clock that is wrong.
    env: Vec<(String, String)>,
    scheme: &'static str,
    cable: Option<Cable>,
}

/// All connections between one server and the others.
struct Cable {
    member: usize,
    /// Proxies in front of the ports of each server: for peers, and for elections.
    proxies: Vec<[TcpProxy; 2]>,
}

/// A server, whether it runs or not.
struct Member {
    /// First, so that it is killed before its folder is removed.
    process: Process,
    folder: TempDir,
    client_port: u16,
    /// For peers, and for elections.
    peer_ports: [u16; 2],
}

impl ZooKeeperCluster {
    /// Starts one server: enough where none fails. `None` if ZooKeeper is not installed: skip the test then. On CI it fails.
    pub async fn start_one() -> Option<Self> {
        Self::start_with(1, &[]).await
    }

    /// Starts three servers.
    pub async fn start() -> Option<Self> {
        Self::start_with(3, &[]).await
    }

    /// Starts servers with more lines for their `zoo.cfg`.
    pub async fn start_with(count: usize, settings: &[&str]) -> Option<Self> {
        Self::start_as(count, settings.iter().map(ToString::to_string).collect(), "zookeeper", None).await
    }

    /// Starts three servers. The connections of this one to the others can be cut.
    pub async fn start_with_cable(member: usize) -> Option<Self> {
        Self::start_as(3, Vec::new(), "zookeeper", Some(member)).await
    }

    /// Starts one server over TLS, with the settings of its keys.
    pub async fn start_tls(settings: Vec<String>) -> Option<Self> {
        Self::start_as(1, settings, "zookeepers", None).await
    }

    /// Returns whether the jars of the server are there.
    pub fn is_installed() -> bool {
        Path::new(JARS).is_dir()
    }

    async fn start_as(
        count: usize,
        settings: Vec<String>,
        scheme: &'static str,
        cut_off: Option<usize>,
    ) -> Option<Self> {
        missing::tool("java")?;
        if !Self::is_installed() {
            missing::skip("ZooKeeper");
            return None;
        }
        let mut cluster = Self { members: Vec::new(), settings, env: Vec::new(), scheme, cable: None };
        for _ in 0..5 {
            // Another process may take a port first. Then a server exits.
            let member = || Member {
                folder: folder::temporary(),
                client_port: fresh::port(),
                peer_ports: [fresh::port(), fresh::port()],
                process: Process::default(),
            };
            cluster.members = (0..count).map(|_| member()).collect();
            if let Some(member) = cut_off {
                cluster.cable = Some(Cable::of(member, &cluster.members).await);
            }
            (0..count).for_each(|member| cluster.launch(member));
            if cluster.is_ready().await {
                cluster.warm_up();
                return Some(cluster);
            }
            cluster.members.iter_mut().for_each(|member| member.process.kill());
        }
        panic!("ZooKeeper does not start");
    }

    /// Returns the URL of the engine on it.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.addresses().join(","))
    }

    /// Returns the URL for an engine that waits for servers of a busy machine, instead of leaving them.
    pub fn patient_url(&self) -> String {
        format!("{}?response_timeout=10s", self.url())
    }

    /// Returns the addresses of all servers.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(Member::address).collect()
    }

    /// Returns the IDs of the servers' processes, which all run.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.process.id())
    }

    /// Returns the number of servers.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Returns the position of the leader, as the servers see it.
    pub fn leader(&self) -> Option<usize> {
        let is_leader = |member: &usize| {
            self.ask(*member, "srvr").is_some_and(|answer| answer.lines().any(|line| line == "Mode: leader"))
        };
        (0..self.size()).find(is_leader)
    }

    /// Asks a server with a four-letter word.
    pub fn ask(&self, member: usize, word: &str) -> Option<String> {
        let address = self.members[member].address().parse().expect("an address");
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        stream.write_all(word.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Freezes a server: its connections stay open, without any reply.
    pub fn freeze(&self, member: usize) {
        self.members[member].process.freeze();
    }

    /// Resumes a frozen server.
    pub fn thaw(&self, member: usize) {
        self.members[member].process.thaw();
    }

    /// Sets what happens to the connections between the server of the cable and the others.
    pub fn set_cable(&self, mode: Mode) {
        let cable = self.cable.as_ref().expect("started with a cable");
        cable.proxies.iter().flatten().for_each(|proxy| proxy.set(mode));
    }

    /// Kills a server.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill();
    }

    /// Starts a server again that was killed, with its data.
    pub fn restart(&mut self, member: usize) {
        self.members[member].process.kill();
        self.launch(member);
    }

    /// Kills a server and deletes its data. Starts it again.
    pub fn replace(&mut self, member: usize) {
        self.members[member].process.kill();
        fs::remove_dir_all(self.members[member].data()).expect("its data are deleted");
        self.launch(member);
    }

    /// Copies the data of a single server that runs, as a backup.
    pub fn back_up(&self) -> TempDir {
        let backup = folder::temporary();
        copy(&self.members[0].data(), backup.path());
        backup
    }

    /// Kills a single server, replaces its data with a backup, and starts it again.
    pub fn restore(&mut self, backup: &TempDir) {
        self.members[0].process.kill();
        fs::remove_dir_all(self.members[0].data()).expect("its data are deleted");
        copy(backup.path(), &self.members[0].data());
        self.launch(0);
    }

    /// Returns the number of snapshots that a server has.
    pub fn snapshots(&self, member: usize) -> usize {
        let files = fs::read_dir(self.members[member].data().join("version-2")).expect("its data");
        files.flatten().filter(|file| file.file_name().to_string_lossy().starts_with("snapshot.")).count()
    }

    /// Starts a server again, with this in its environment.
    pub fn restart_with(&mut self, member: usize, env: &[(&str, &str)]) {
        self.env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.restart(member);
        self.env = Vec::new();
    }

    /// Waits until all servers serve.
    pub async fn is_ready(&mut self) -> bool {
        let mut has_exited = false;
        wait::until("ZooKeeper serves", START, async || {
            has_exited = self.members.iter_mut().any(|member| member.process.has_exited());
            has_exited || (0..self.size()).all(|member| self.serves(member))
        })
        .await;
        !has_exited
    }

    /// Opens sessions and writes a little: the first of each take a server much longer than the next, since Java loads code then.
    fn warm_up(&self) {
        if self.scheme == "zookeepers" {
            return;
        }
        for (number, address) in (0..).zip(self.addresses()) {
            let (mut nodes, path) = (Nodes::connect(&address, None), format!("/warm-{number}"));
            nodes.create(&path, b"", false);
            for _ in 0..100 {
                nodes.set(&path, b"warm");
                nodes.get(&path);
            }
            nodes.delete(&path);
        }
    }

    /// Returns whether a server serves clients. Over TLS, checks only that it listens: it listens once it has started.
    fn serves(&self, member: usize) -> bool {
        if self.scheme == "zookeepers" {
            return TcpStream::connect(self.members[member].address()).is_ok();
        }
        self.ask(member, "srvr").is_some_and(|answer| answer.contains("Mode: "))
    }

    /// Returns the ports of a server for peers and elections, as another one reaches them.
    fn ports_of(&self, member: usize, from: usize) -> [u16; 2] {
        match &self.cable {
            Some(cable) if member != from && [member, from].contains(&cable.member) => {
                cable.proxies[member].each_ref().map(|proxy| proxy.address().port())
            }
            _ => self.members[member].peer_ports,
        }
    }

    fn launch(&mut self, position: usize) {
        let member = &self.members[position];
        let data = member.data();
        fs::create_dir_all(&data).expect("a folder");
        fs::write(data.join("myid"), (position + 1).to_string()).expect("an id");
        let (settings, port) = (member.folder.path().join("zoo.cfg"), member.client_port);
        let mut text = format!(
            "dataDir={}\nclientPortAddress=127.0.0.1\ntickTime=200\ninitLimit=40\nsyncLimit=25\n\
             minSessionTimeout=2000\nmaxSessionTimeout=20000\nmaxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=srvr,mntr,ruok,conf\n",
            data.display()
        );
        let kind = if self.scheme == "zookeepers" { "secureClientPort" } else { "clientPort" };
        let _ = writeln!(text, "{kind}={port}");
        if self.scheme == "zookeepers" {
            text = text.replace("clientPortAddress", "secureClientPortAddress");
        }
        if self.members.len() > 1 {
            for (peer, number) in (0..self.members.len()).zip(1..) {
                let [own, election] = self.ports_of(peer, position);
                let _ = writeln!(text, "server.{number}=127.0.0.1:{own}:{election}");
            }
        }
        for line in &self.settings {
            let _ = writeln!(text, "{line}");
        }
        fs::write(&settings, text).expect("the settings are written");
        let log = File::create(member.folder.path().join("log")).expect("a log");
        let mut command = Command::new("java");
        // Small and soon warm: many run at once.
        command.args([
            "-Xmx128m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Dzookeeper.4lw.commands.whitelist=*",
        ]);
        command.args(["-Dzookeeper.admin.enableServer=false", "-Dzookeeper.fsync.warningthresholdms=100000"]);
        // An election whose notifications get lost on a busy machine doubles the pause between two, up to a minute.
        command.arg("-Dzookeeper.fastleader.maxNotificationInterval=1000");
        command.args(
            ["-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"]
                .iter()
                .filter(|_| self.scheme == "zookeepers"),
        );
        command.args(["-cp", &classes(), "org.apache.zookeeper.server.quorum.QuorumPeerMain"]).arg(&settings);
        command.envs(self.env.iter().cloned());
        self.members[position].process = Process::start(command.stderr(log));
    }
}

impl Cable {
    async fn of(member: usize, members: &[Member]) -> Self {
        let before = async |port: u16| TcpProxy::start_any(([127, 0, 0, 1], port).into()).await;
        let mut proxies = Vec::new();
        for Member { peer_ports: [own, election], .. } in members {
            proxies.push([before(*own).await, before(*election).await]);
        }
        Self { member, proxies }
    }
}

/// Copies all files of a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (path, copied) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &copied);
        } else {
            fs::copy(&path, &copied).expect("it is copied");
        }
    }
}

fn classes() -> String {
    PathBuf::from(JARS).join("*").display().to_string()
}

impl Member {
    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}
