//! A PostgreSQL server for one test, on a free port of the loopback interface and in a temporary folder; killed on drop. It can
//! be frozen, killed and restarted, lose its data, and have a standby to promote.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Executor as _, Row as _};
use tempfile::TempDir;

use crate::wait::wait_until_frozen;
use crate::{folder, fresh, missing};

/// A running, frozen or killed server.
pub struct PostgresServer {
    folder: TempDir,
    port: u16,
    config: Vec<String>,
    /// Size of its small disk in MiB, if it has one.
    small_disk: Option<u32>,
    child: Option<Child>,
}

/// Folders where distributions put the server's programs, outside `PATH`.
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

/// Setting that keeps dynamic shared memory in files of the data folder. A killed server would leave those of /dev/shm behind.
pub const SHARED_MEMORY: &str = "dynamic_shared_memory_type=mmap";

/// User of the server if the tests run as root, which it refuses.
const USER: &str = "nobody";

impl PostgresServer {
    /// Starts a server with its defaults. Returns `None` if PostgreSQL is not installed: the test skips itself then,
    /// and on CI it fails.
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

    /// Starts a server with a private disk of this size for tablespaces. The disk is removed with the server. Needs the
    /// right to mount.
    pub async fn start_beside_small_disk(mib: u32) -> Option<Self> {
        let template = template()?;
        let mut server = Self::in_folder(&[]);
        server.small_disk = Some(mib);
        std::fs::create_dir(server.small_disk_path()).expect("a place for it");
        copy(&template, &server.data());
        Some(server.serve().await)
    }

    /// Returns the path of its small disk, if it has one.
    pub fn small_disk_path(&self) -> PathBuf {
        self.folder.path().join("small")
    }

    /// Starts a standby of this server, which can be promoted. This server must allow `replication`, as it does by default.
    pub async fn standby(&self, config: &[&str]) -> Self {
        let standby = Self::in_folder(config);
        let mut command = command(&program("pg_basebackup").expect("it is where the server is"));
        command.args(["--wal-method=stream", "--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--dbname"]);
        run(command.arg(self.url()).arg("--pgdata").arg(standby.data()));
        standby.serve().await
    }

    fn in_folder(config: &[&str]) -> Self {
        let folder = folder::temporary();
        give_to_server(folder.path());
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
            // Another process may take the port first. Then the server exits.
            self.port = fresh::port();
            self.launch();
            if self.is_ready().await {
                return self;
            }
            self.kill();
        }
        panic!("PostgreSQL does not start; its log:\n{}", self.log());
    }

    /// Returns the address of its listener.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the URL of the database `postgres`, as its superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// Returns the URL of one of its databases. More keys can be appended, each after an `&`.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}?sslmode=disable", self.address())
    }

    /// Creates an empty database and returns its URL.
    pub async fn database(&self, name: &str) -> String {
        self.execute(&format!("CREATE DATABASE {name}")).await;
        self.url_of(name)
    }

    /// Executes SQL in the database `postgres`.
    pub async fn execute(&self, sql: &str) {
        Self::execute_at(&self.url(), sql).await;
    }

    /// Executes SQL in the database of this URL.
    pub async fn execute_at(url: &str, sql: &str) {
        let mut connection = Self::connect(url).await.expect("the server lets us in");
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        connection.execute(sql).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Queries one text.
    pub async fn query(&self, sql: &str) -> String {
        Self::query_at(&self.url(), sql).await
    }

    /// Queries one text in the database of this URL, by SQL that returns one row of one column; empty if there is none.
    pub async fn query_at(url: &str, sql: &str) -> String {
        let mut connection = Self::connect(url).await.expect("the server lets us in");
        let sql = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT coalesce(({sql})::text, '')")));
        connection.fetch_one(sql).await.unwrap_or_else(|error| panic!("{error}")).get(0)
    }

    /// Returns a new connection.
    pub async fn connect(url: &str) -> sqlx::Result<PgConnection> {
        url.parse::<PgConnectOptions>()?.connect().await
    }

    /// Freezes all its processes: connections stay open, without any reply.
    pub fn freeze(&self) {
        // The first process starts the others, so it must stop first.
        self.signal("STOP", &[self.pid()]);
        wait_until_frozen(self.pid());
        let children = self.children();
        self.signal("STOP", &children);
        children.into_iter().for_each(wait_until_frozen);
    }

    /// Resumes frozen processes.
    pub fn thaw(&self) {
        self.signal("CONT", &self.children());
        self.signal("CONT", &[self.pid()]);
    }

    /// Kills all its processes.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let mut all = vec![child.id()];
            all.extend(children(child.id()));
            signal("KILL", &all);
            let _ = child.wait();
            // A restart fails while a process still holds the shared memory.
            while all.iter().any(|id| is_alive(*id)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            remove_shared_memory(&self.data());
        }
    }

    /// Kills one session. The server then ends all others, and recovers as after a crash.
    pub async fn kill_session(&self) {
        let mut connection = Self::connect(&self.url()).await.expect("the server lets us in");
        let row = connection.fetch_one(sqlx::raw_sql("SELECT pg_backend_pid()")).await.expect("its process");
        let id = u32::try_from(row.get::<i32, _>(0)).expect("the id of a process");
        self.signal("KILL", &[id]);
        while is_alive(id) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Shuts it down in good order: connections receive an error and are closed.
    pub fn shut_down(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal("INT", &[child.id()]);
            let _ = child.wait();
        }
    }

    /// Restarts it on the same port, with its data.
    pub async fn restart(&mut self) {
        self.kill();
        self.launch();
        assert!(self.is_ready().await, "PostgreSQL does not restart; its log:\n{}", self.log());
    }

    /// Restarts it on the same port, without its data.
    pub async fn restart_empty(&mut self) {
        self.kill();
        run(Command::new("rm").arg("-r").arg(self.data()));
        copy(&template().expect("it was there before"), &self.data());
        self.restart().await;
    }

    /// Promotes a standby to the primary.
    pub async fn promote(&self) {
        assert_eq!(self.query("SELECT pg_promote()").await, "true");
    }

    /// Waits until it is ready. Returns false if it has exited.
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
        command.arg("-D").arg(self.data()).args(["-c", &format!("port={}", self.port), "-c", SHARED_MEMORY]);
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

    /// Returns its log.
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

/// Uses the shell, because sending a signal takes unsafe code. A process may have exited already.
fn signal(name: &str, ids: &[u32]) {
    let ids = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let _ = Command::new("sh").arg("-c").arg(format!("kill -{name} {ids} 2>/dev/null")).status();
}

/// Returns the processes that this one has started.
fn children(id: u32) -> Vec<u32> {
    let parent = |other: &u32| stat(*other).is_some_and(|(_, parent)| parent == id);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(parent).collect()
}

fn is_alive(id: u32) -> bool {
    stat(id).is_some_and(|(state, _)| state != 'Z')
}

/// Returns the state and the parent of a process.
fn stat(id: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before it is in brackets, and may contain blanks.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

/// Returns a data folder that is created once and copied for each server.
fn template() -> Option<PathBuf> {
    let Some(initdb) = program("initdb") else {
        missing::skip("PostgreSQL");
        return None;
    };
    let made = std::env::temp_dir().join(format!("oncegate-postgres-template-{}", own_uid()));
    if !made.exists() {
        let folder = tempfile::tempdir().expect("a folder for the template");
        give_to_server(folder.path());
        let data = folder.path().join("data");
        let mut command = command(&initdb);
        command.args(["--username=postgres", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8"]);
        run(command.args(["--wal-segsize=1", "--pgdata"]).arg(&data));
        let settings = "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nlogging_collector = off\n";
        std::fs::write(data.join("postgresql.auto.conf"), settings).expect("its configuration");
        if is_root() {
            run(Command::new("chown").arg(USER).arg(data.join("postgresql.auto.conf")));
        }
        // Another test may have created it first; both are the same.
        let _ = std::fs::rename(&data, &made);
    }
    Some(made)
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg("--reflink=auto").arg(from).arg(to));
}

/// Returns the path of a program of the server.
pub fn program(name: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// True if servers run in separate IPC namespaces, because the tests may make them. A killed server leaves a segment of
/// System V shared memory, and a kernel has few of these (4096 by default). The segment ends with its namespace.
static HAS_OWN_IPC: LazyLock<bool> = LazyLock::new(|| {
    is_root() && Command::new("unshare").args(["--ipc", "true"]).output().is_ok_and(|output| output.status.success())
});

/// Returns a command that runs as the user of the server, in a separate IPC namespace if the tests may make one.
pub fn command(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    if *HAS_OWN_IPC {
        command = Command::new("unshare");
        command.args(["--ipc", "setpriv"]);
    }
    command.args(["--reuid", USER, "--clear-groups", "--"]).arg(program);
    command.current_dir("/");
    command
}

/// Removes the segment of System V shared memory that a killed server has left, if it ran in the IPC namespace of the tests.
pub fn remove_shared_memory(data: &Path) {
    if *HAS_OWN_IPC {
        return;
    }
    // The last word of its line 7 is the id of the segment.
    let lock = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    if let Some(id) = lock.lines().nth(6).and_then(|line| line.split_whitespace().last()) {
        let _ = Command::new("ipcrm").args(["--shmem-id", id]).output();
    }
}

/// Returns the same command, run where a file system of this size is mounted at `place`. The mount ends with its last process.
fn beside_small_disk(command: &Command, mib: u32, place: &Path) -> Command {
    let mount = "mount -t tmpfs -o \"size=$0m\" tmpfs \"$1\" && chown \"$2\" \"$1\" && shift 2 && exec \"$@\"";
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "sh", "-c", mount, &mib.to_string()]).arg(place).arg(USER);
    wrapped.arg(command.get_program()).args(command.get_args()).current_dir("/");
    wrapped
}

/// Makes the server's user the owner of a folder.
pub fn give_to_server(place: &Path) {
    if is_root() {
        run(Command::new("chown").arg("-R").arg(USER).arg(place));
    }
}

/// Reports whether the tests run as root.
pub fn is_root() -> bool {
    own_uid() == 0
}

/// Returns the user that runs the tests, the owner of this process.
fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").expect("our own process").uid()
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("the command runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests {
    use super::PostgresServer;

    #[tokio::test]
    async fn a_killed_server_leaves_no_shared_memory() {
        let Some(mut server) = PostgresServer::start().await else { return };
        let creator = server.pid().to_string();
        server.kill();
        let segments = std::fs::read_to_string("/proc/sysvipc/shm").expect("the kernel's table");
        assert!(segments.lines().all(|line| line.split_whitespace().nth(4) != Some(&creator)), "{segments}");
    }
}
