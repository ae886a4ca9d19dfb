//! An etcd cluster for one test, of one member or several, on free ports of the loopback interface and in temporary folders; killed on
//! drop. Members can be frozen, killed and started again.

use std::fs::{self, File};
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::PairFiles;
use crate::process::Process;
use crate::tcp_proxy::{Mode, TcpProxy};
use crate::{folder, fresh, missing, wait};

/// Longest time until a cluster has a leader.
const START: Duration = Duration::from_secs(30);

/// A running cluster.
pub struct EtcdCluster {
    members: Vec<Member>,
    arguments: Vec<String>,
    tls: Option<Tls>,
    /// A learner and proxies, each with its folder.
    others: Vec<(Process, TempDir)>,
    cable: Option<Cable>,
}

/// All connections between one member and the others.
struct Cable {
    member: usize,
    /// Name of the member to the others.
    id: String,
    /// Before the peer port of each member.
    proxies: Vec<TcpProxy>,
}

/// The files of a cluster over TLS, which requires certificates of its clients.
pub struct Tls {
    /// Certificate of the authority that clients and members trust.
    pub ca: PathBuf,
    /// Certificate and key of members, and of `etcdctl`.
    pub pair: PairFiles,
}

/// A member, whether it runs or not.
struct Member {
    /// First, so that it is killed before its folder is removed.
    process: Process,
    folder: TempDir,
    client_port: u16,
    peer_port: u16,
}

impl EtcdCluster {
    /// Starts a cluster of one member: enough where no member fails. `None` if etcd is not installed: skip the test then. On CI it fails.
    pub async fn start_one() -> Option<Self> {
        Self::start_with(1, &[]).await
    }

    /// Starts a cluster of three members.
    pub async fn start() -> Option<Self> {
        Self::start_with(3, &[]).await
    }

    /// Starts a cluster of one member over TLS.
    pub async fn start_tls(tls: Tls) -> Option<Self> {
        let file = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let arguments = [
            file("cert-file", &tls.pair.certificate),
            file("key-file", &tls.pair.key),
            file("trusted-ca-file", &tls.ca),
            "--client-cert-auth".into(),
        ];
        Self::start_as(1, arguments.into(), Some(tls)).await
    }

    /// Starts a cluster with arguments for each member, such as `["--quota-backend-bytes=16777216"]`.
    pub async fn start_with(count: usize, arguments: &[&str]) -> Option<Self> {
        Self::start_as(count, arguments.iter().map(ToString::to_string).collect(), None).await
    }

    /// Starts a cluster of three members. The connections of this one to the others can be cut.
    pub async fn start_with_cable(member: usize) -> Option<Self> {
        let mut cluster = Self::start_cabled(3, Vec::new(), None, Some(member)).await?;
        let list: serde_json::Value =
            serde_json::from_str(&cluster.ctl(&["member", "list", "--write-out=json"])).unwrap_or_default();
        let found =
            list["members"].as_array().into_iter().flatten().find(|entry| entry["name"] == format!("m{member}"));
        let id = found.and_then(|found| found["ID"].as_u64()).expect("it is a member");
        if let Some(cable) = &mut cluster.cable {
            cable.id = format!("{id:x}");
        }
        Some(cluster)
    }

    async fn start_as(count: usize, arguments: Vec<String>, tls: Option<Tls>) -> Option<Self> {
        Self::start_cabled(count, arguments, tls, None).await
    }

    async fn start_cabled(
        count: usize,
        arguments: Vec<String>,
        tls: Option<Tls>,
        cut_off: Option<usize>,
    ) -> Option<Self> {
        missing::tool("etcd")?;
        missing::tool("etcdctl")?;
        let mut cluster = Self { members: Vec::new(), arguments, tls, others: Vec::new(), cable: None };
        for _ in 0..5 {
            // Another process may take a port first. Then a member exits.
            cluster.members = (0..count).map(|_| Member::new()).collect();
            if let Some(member) = cut_off {
                let mut proxies = Vec::new();
                for member in &cluster.members {
                    proxies.push(TcpProxy::start_any(([127, 0, 0, 1], member.peer_port).into()).await);
                }
                cluster.cable = Some(Cable { member, id: String::new(), proxies });
            }
            (0..count).for_each(|member| cluster.launch(member));
            if cluster.is_ready().await {
                return Some(cluster);
            }
            cluster.members.iter_mut().for_each(|member| member.process.kill());
        }
        panic!("etcd does not start");
    }

    /// Returns the URL of the engine on it.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{}", self.addresses().join(","))
    }

    /// Returns the URL for an engine that waits for members of a busy machine, instead of leaving them.
    pub fn patient_url(&self) -> String {
        format!("{}?response_timeout=10s", self.url())
    }

    /// Returns the addresses of all members.
    pub fn addresses(&self) -> Vec<String> {
        self.members.iter().map(Member::address).collect()
    }

    /// Returns the IDs of the members' processes, which all run.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|member| member.process.id())
    }

    /// Returns the number of members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Returns the position of the leader, as the members that answer see it.
    pub fn leader(&self) -> Option<usize> {
        (0..self.size()).find(|member| {
            let address = self.members[*member].address();
            let status = self.try_ctl(&["--endpoints", &address, "endpoint", "status", "--write-out=json"]);
            status.is_some_and(|status| {
                let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
                let status = &status[0]["Status"];
                status["leader"].is_number() && status["leader"] == status["header"]["member_id"]
            })
        })
    }

    /// Returns the revision of the store.
    pub fn revision(&self) -> i64 {
        let read: serde_json::Value =
            serde_json::from_str(&self.ctl(&["get", "nothing", "--write-out=json"])).unwrap_or_default();
        read["header"]["revision"].as_i64().expect("a revision")
    }

    /// Runs `etcdctl` on all members, and returns its output.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        // A busy machine may take long, to hash a password for one. The last setting counts.
        let output = self.run(&[arguments, &["--dial-timeout=20s", "--command-timeout=20s"]].concat());
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "etcdctl {arguments:?} fails: {out}{error}");
        out.into_owned()
    }

    /// Puts a value that is no text.
    pub fn put(&self, key: &str, value: &[u8]) {
        let mut input = tempfile::tempfile().expect("a file");
        input.write_all(value).and_then(|()| input.rewind()).expect("the value is written");
        let status = self.command(&["put", key]).stdin(input).stdout(Stdio::null()).status();
        assert!(status.is_ok_and(|status| status.success()), "etcdctl put {key}");
    }

    /// Runs `etcdctl`; `None` if it fails.
    pub fn try_ctl(&self, arguments: &[&str]) -> Option<String> {
        let output = self.run(arguments);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().expect("etcdctl runs")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--dial-timeout=1s", "--command-timeout=3s"]);
        if !arguments.contains(&"--endpoints") {
            let endpoint = |address| format!("{}://{address}", self.scheme());
            let endpoints: Vec<_> = self.addresses().into_iter().map(endpoint).collect();
            command.arg("--endpoints").arg(endpoints.join(","));
        }
        if let Some(Tls { ca, pair }) = &self.tls {
            command.arg("--cacert").arg(ca).arg("--cert").arg(&pair.certificate).arg("--key").arg(&pair.key);
        }
        command.args(arguments);
        command
    }

    /// Sets what happens between the member of the cable and the others: whether the others hear it, it hears them, both or neither.
    /// Messages are both in requests and in replies.
    pub fn set_cable(&self, mode: Mode) {
        let Cable { member, id, proxies } = self.cable.as_ref().expect("started with a cable");
        let from_it = match mode {
            Mode::HalfOpen => Mode::Unheard,
            Mode::Unheard => Mode::HalfOpen,
            mode => mode,
        };
        for (position, proxy) in proxies.iter().enumerate() {
            if position == *member {
                proxy.set(mode);
            } else {
                proxy.set_from_member(id, from_it);
            }
        }
    }

    /// Freezes a member: its connections stay open, without any reply.
    pub fn freeze(&self, member: usize) {
        self.members[member].process.freeze();
    }

    /// Resumes a frozen member.
    pub fn thaw(&self, member: usize) {
        self.members[member].process.thaw();
    }

    /// Kills a member.
    pub fn kill(&mut self, member: usize) {
        self.members[member].process.kill();
    }

    /// Starts a member again that was killed, with its data.
    pub fn restart(&mut self, member: usize) {
        self.members[member].process.kill();
        self.launch(member);
    }

    /// Removes a member permanently, and adds an empty one with other addresses.
    pub async fn replace(&mut self, member: usize) {
        let list: serde_json::Value =
            serde_json::from_str(&self.ctl(&["member", "list", "--write-out=json"])).unwrap_or_default();
        let name = format!("m{member}");
        let found = list["members"].as_array().into_iter().flatten().find(|entry| entry["name"] == name.as_str());
        let id = found.and_then(|found| found["ID"].as_u64()).expect("it is a member");
        self.members[member].process.kill();
        let new = Member::new();
        let (id, peer) = (format!("{id:x}"), format!("--peer-urls=http://127.0.0.1:{}", new.peer_port));
        // Refused until the others have been connected for some seconds.
        for change in [&["member", "remove", &id][..], &["member", "add", &name, &peer]] {
            wait::until("the members are changed", START, async || self.try_ctl(change).is_some()).await;
        }
        self.members[member] = new;
        self.launch_into(member, "existing");
    }

    /// Saves a snapshot of a cluster of one member.
    pub fn back_up(&self) -> PathBuf {
        let file = self.members[0].folder.path().join("snapshot");
        self.ctl(&["snapshot", "save", &file.to_string_lossy()]);
        file
    }

    /// Kills the only member, restores its data from a snapshot, and starts it again.
    pub fn restore(&mut self, snapshot: &Path) {
        self.members[0].process.kill();
        let data = self.members[0].data();
        fs::remove_dir_all(&data).expect("its data are deleted");
        let peer = format!("http://127.0.0.1:{}", self.members[0].peer_port);
        let (snapshot, data) = (snapshot.to_string_lossy(), data.to_string_lossy());
        let cluster = format!("m0={peer}");
        // From 3.6 on another program restores.
        let is_newer = missing::is_installed("etcdutl");
        let mut command = Command::new(if is_newer { "etcdutl" } else { "etcdctl" });
        command.env("ETCDCTL_API", "3").args(["snapshot", "restore", &snapshot, "--data-dir", &data, "--name", "m0"]);
        command.args(["--initial-cluster", &cluster, "--initial-advertise-peer-urls", &peer]);
        let restored = command.stdin(Stdio::null()).output().expect("it runs");
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        self.launch(0);
    }

    /// Adds a learner to a cluster without TLS. Returns its address, once it answers.
    pub async fn add_learner(&mut self) -> String {
        let (client, peer) = (fresh::port(), fresh::port());
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        self.ctl(&["member", "add", "learner", "--learner", &format!("--peer-urls={peer}")]);
        let others = self.members.iter().enumerate();
        let mut peers: Vec<_> =
            others.map(|(position, member)| format!("m{position}=http://127.0.0.1:{}", member.peer_port)).collect();
        peers.push(format!("learner={peer}"));
        let folder = folder::temporary();
        let mut command = Command::new("etcd");
        command.args(["--name", "learner", "--data-dir"]).arg(folder.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", "existing"]);
        self.add(folder, &mut command, &client).await
    }

    /// Starts a grpc-proxy in front of the members. Returns its address, once it answers.
    pub async fn add_proxy(&mut self) -> String {
        let address = format!("127.0.0.1:{}", fresh::port());
        let mut command = Command::new("etcd");
        command.args(["grpc-proxy", "start", "--listen-addr", &address, "--advertise-client-url", &address]);
        command.arg("--endpoints").arg(self.addresses().join(","));
        let folder = folder::temporary();
        command.arg("--data-dir").arg(folder.path());
        self.add(folder, &mut command, &format!("http://{address}")).await
    }

    async fn add(&mut self, folder: TempDir, command: &mut Command, endpoint: &str) -> String {
        let log = File::create(folder.path().join("log")).expect("a log");
        self.others.push((Process::start(command.stderr(log)), folder));
        wait::until("it answers", START, async || {
            self.try_ctl(&["--endpoints", endpoint, "endpoint", "status"]).is_some()
        })
        .await;
        endpoint.trim_start_matches("http://").to_owned()
    }

    /// Waits until the cluster answers.
    pub async fn is_ready(&mut self) -> bool {
        let mut has_exited = false;
        wait::until("etcd answers", START, async || {
            has_exited = self.members.iter_mut().any(|member| member.process.has_exited());
            has_exited || self.try_ctl(&["get", "ready"]).is_some()
        })
        .await;
        !has_exited
    }

    /// Returns the scheme of the members' client URLs.
    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    fn launch(&mut self, position: usize) {
        self.launch_into(position, "new");
    }

    /// Starts a member of a cluster that is new or exists.
    fn launch_into(&mut self, position: usize, state: &str) {
        let advertised = |position: usize| match &self.cable {
            Some(cable) => format!("http://{}", cable.proxies[position].address()),
            None => format!("http://127.0.0.1:{}", self.members[position].peer_port),
        };
        let peers: Vec<_> =
            (0..self.members.len()).map(|position| format!("m{position}={}", advertised(position))).collect();
        let member = &self.members[position];
        let client = format!("{}://127.0.0.1:{}", self.scheme(), member.client_port);
        let own_peer = format!("http://127.0.0.1:{}", member.peer_port);
        let log = File::create(member.folder.path().join("log")).expect("a log");
        let mut command = Command::new("etcd");
        command.arg("--name").arg(format!("m{position}")).arg("--data-dir").arg(member.data());
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &own_peer, "--initial-advertise-peer-urls", &advertised(position)]);
        command.args(["--initial-cluster", &peers.join(","), "--initial-cluster-state", state, "--logger=zap"]);
        command.args(["--heartbeat-interval=50", "--election-timeout=500"]).args(&self.arguments);
        self.members[position].process = Process::start(command.stderr(log));
    }
}

impl Member {
    /// A member that does not run yet.
    fn new() -> Self {
        Self {
            folder: folder::temporary(),
            client_port: fresh::port(),
            peer_port: fresh::port(),
            process: Process::default(),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }
}
