//! A PostgreSQL server of a test's own, on a free port of the loopback interface and in a folder of its own; killed on
//! drop. It can be frozen, killed, started again, lose its data, and have a standby that takes over.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tempfile::TempDir;

use crate::missing;

/// A running, frozen or killed server.
pub struct PostgresServer {
    folder: TempDir,
    port: u16,
    config: Vec<String>,
    /// How many MiB its small disk has, if it has one.
    small_disk: Option<u32>,
    child: Option<Child>,
}

/// Where distributions put the server's programs, which they keep out of everybody's way.
const FOLDERS: [&str; 8] = [
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/libexec/postgresql",
    "/usr/local/bin",
    "/usr/bin",
];

/// The user that the server runs as where the tests run as root, which it refuses.
const USER: &str = "nobody";

impl PostgresServer {
    /// Starts a server as it comes. Nothing where PostgreSQL is not installed: the test is to be skipped then, loudly; on
    /// CI it fails instead.
    pub async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a server with lines of configuration, such as `["max_connections = 10"]`.
    pub async fn start_with(config: &[&str]) -> Option<Self> {
        let template = template()?;
        let server = Self::in_folder(config);
        copy(&template, &server.data());
        Some(server.serve().await)
    }

    /// Starts a server beside a disk of so many MiB, for tablespaces, that nobody else sees and that goes with it. Takes the
    /// right to mount one.
    pub async fn start_beside_small_disk(mib: u32) -> Option<Self> {
        let template = template()?;
        let mut server = Self::in_folder(&[]);
        server.small_disk = Some(mib);
        std::fs::create_dir(server.small_disk_path()).expect("a place for it");
        copy(&template, &server.data());
        Some(server.serve().await)
    }

    /// Where its small disk is, if it has one.
    pub fn small_disk_path(&self) -> PathBuf {
        self.folder.path().join("small")
    }

    /// Starts a standby of this server, which follows it and can take over. This server must allow `replication`, as it
    /// does unless told otherwise.
    pub async fn standby(&self, config: &[&str]) -> Self {
        let standby = Self::in_folder(config);
        let mut command = command(&program("pg_basebackup").expect("it is where the server is"));
        command.args(["--wal-method=stream", "--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--dbname"]);
        run(command.arg(self.url()).arg("--pgdata").arg(standby.data()));
        standby.serve().await
    }

    fn in_folder(config: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the server");
        give_away(folder.path());
        Self {
            folder,
            port: 0,
            config: config.iter().map(ToString::to_string).collect(),
            small_disk: None,
            child: None,
        }
    }

    async fn serve(mut self) -> Self {
        for _ in 0..5 {
            // Somebody else may take the port before the server does; then it ends at once.
            self.port = free_port();
            self.launch();
            if self.is_ready().await {
                return self;
            }
            self.kill();
        }
        panic!("PostgreSQL does not start; its log:\n{}", self.log());
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The URL of the database that is always there, as its superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of one of its databases. More keys can be put behind it, each after an `&`.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}?sslmode=disable", self.address())
    }

    /// Makes an empty database, and gives its URL.
    pub async fn database(&self, name: &str) -> String {
        self.execute(&format!("CREATE DATABASE {name}")).await;
        self.url_of(name)
    }

    /// Does something in the database that is always there.
    pub async fn execute(&self, sql: &str) {
        Self::execute_at(&self.url(), sql).await;
    }

    /// Does something in the database of this URL.
    pub async fn execute_at(url: &str, sql: &str) {
        let mut connection = Self::connect(url).await.expect("the server lets us in");
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        connection.execute(sql).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Asks for one text.
    pub async fn ask(&self, sql: &str) -> String {
        Self::ask_at(&self.url(), sql).await
    }

    /// Asks the database of this URL for one text, by SQL that gives one row of one column; empty if there is none.
    pub async fn ask_at(url: &str, sql: &str) -> String {
        let mut connection = Self::connect(url).await.expect("the server lets us in");
        let sql = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT coalesce(({sql})::text, '')")));
        connection.fetch_one(sql).await.unwrap_or_else(|error| panic!("{error}")).get(0)
    }

    /// A connection of a test's own.
    pub async fn connect(url: &str) -> sqlx::Result<PgConnection> {
        url.parse::<PgConnectOptions>()?.connect().await
    }

    /// Freezes all its processes: connections stay open, nothing is answered.
    pub fn freeze(&self) {
        // The first one starts the others, so it is to stop first.
        self.signal("STOP", &[self.pid()]);
        self.signal("STOP", &self.children());
    }

    /// Lets frozen processes go on.
    pub fn thaw(&self) {
        self.signal("CONT", &self.children());
        self.signal("CONT", &[self.pid()]);
    }

    /// Ends all its processes with no chance to do anything.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let mut all = vec![child.id()];
            all.extend(children(child.id()));
            signal("KILL", &all);
            let _ = child.wait();
            // The next one finds the memory of this one in use as long as any is left.
            while all.iter().any(|id| is_alive(*id)) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Ends it in good order: connections are told and closed.
    pub fn shut_down(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal("INT", &[child.id()]);
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port, with what it has kept.
    pub async fn restart(&mut self) {
        self.kill();
        self.launch();
        assert!(self.is_ready().await, "PostgreSQL does not start again; its log:\n{}", self.log());
    }

    /// Starts it again on the same port, without its data.
    pub async fn restart_empty(&mut self) {
        self.kill();
        run(Command::new("rm").arg("-r").arg(self.data()));
        copy(&template().expect("it was there before"), &self.data());
        self.restart().await;
    }

    /// Makes a standby a primary.
    pub async fn promote(&self) {
        assert_eq!(self.ask("SELECT pg_promote()").await, "true");
    }

    /// Waits until it serves; false if it has ended instead.
    async fn is_ready(&mut self) -> bool {
        for _ in 0..3000 {
            let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended {
                return false;
            }
            if Self::connect(&self.url()).await.is_ok() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    fn launch(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.log_path()).expect("its log");
        let mut command = command(&program("postgres").expect("it was there before"));
        command.arg("-D").arg(self.data()).args(["-c", &format!("port={}", self.port)]);
        for line in &self.config {
            let (name, value) = line.split_once(" = ").expect("a name and a value");
            command.args(["-c", &format!("{name}={}", value.trim_matches('\''))]);
        }
        if let Some(mib) = self.small_disk {
            command = beside_small_disk(&command, mib, &self.small_disk_path());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("PostgreSQL starts"));
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("postgres.log")
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    fn children(&self) -> Vec<u32> {
        children(self.pid())
    }

    fn signal(&self, name: &str, ids: &[u32]) {
        assert!(self.child.is_some(), "it runs");
        signal(name, ids);
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// By the shell, since sending a signal takes unsafe code. A process may have ended meanwhile.
fn signal(name: &str, ids: &[u32]) {
    let ids = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let _ = Command::new("sh").arg("-c").arg(format!("kill -{name} {ids} 2>/dev/null")).status();
}

/// The processes that this one has started.
fn children(id: u32) -> Vec<u32> {
    let parent = |other: &u32| stat(*other).is_some_and(|(_, parent)| parent == id);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(parent).collect()
}

fn is_alive(id: u32) -> bool {
    stat(id).is_some_and(|(state, _)| state != 'Z')
}

/// The state and the parent of a process.
fn stat(id: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before it is in brackets, and may hold blanks.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// A data folder that was made once and is copied for each server.
fn template() -> Option<PathBuf> {
    let Some(initdb) = program("initdb") else {
        missing::skip("PostgreSQL");
        return None;
    };
    let made = std::env::temp_dir().join(format!("oncegate-postgres-template-{}", whose()));
    if !made.exists() {
        let folder = tempfile::tempdir().expect("a folder for the template");
        give_away(folder.path());
        let data = folder.path().join("data");
        let mut command = command(&initdb);
        command.args(["--username=postgres", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8"]);
        run(command.args(["--wal-segsize=1", "--pgdata"]).arg(&data));
        let settings = "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nlogging_collector = off\n";
        std::fs::write(data.join("postgresql.auto.conf"), settings).expect("its configuration");
        if is_root() {
            run(Command::new("chown").arg(USER).arg(data.join("postgresql.auto.conf")));
        }
        // Another test may have been faster; either is good.
        let _ = std::fs::rename(&data, &made);
    }
    Some(made)
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg("--reflink=auto").arg(from).arg(to));
}

/// One of the programs that come with the server.
pub fn program(name: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// A command as the user that the server runs as.
pub fn command(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--clear-groups", "--"]).arg(program);
    command.current_dir("/");
    command
}

/// The same command, run where a file system of so many MiB is mounted at this place. It is gone with the last that runs there.
fn beside_small_disk(command: &Command, mib: u32, place: &Path) -> Command {
    let mount = "mount -t tmpfs -o \"size=$0m\" tmpfs \"$1\" && chown \"$2\" \"$1\" && shift 2 && exec \"$@\"";
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "sh", "-c", mount, &mib.to_string()]).arg(place).arg(USER);
    wrapped.arg(command.get_program()).args(command.get_args()).current_dir("/");
    wrapped
}

pub fn give_away(place: &Path) {
    if is_root() {
        run(Command::new("chown").arg("-R").arg(USER).arg(place));
    }
}

fn is_root() -> bool {
    whose() == 0
}

/// The user who runs the tests: whose our own process is.
fn whose() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").expect("our own process").uid()
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("the command runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}
