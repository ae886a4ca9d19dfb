//! PostgreSQL server for a comparison, and the same work by PostgreSQL alone: `pgbench` with one row per transaction.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use oncegate_testkit::postgres_server;
use tokio::process::Command;

use crate::programs::run;

/// Debian installs the server's programs off `PATH`, in a folder per version.
const DEBIAN_FOLDER: &str = "/usr/lib/postgresql";

/// A claim as the engine writes it, by a separate statement.
const SCRIPT: &str = "\
\\set order random(1, 9000000000000000000)
INSERT INTO oncegate_claims (fence, retention_us, expires_at, sweep_at, state, app, global_id, value)
VALUES (nextval('oncegate_fence'), 300000000, clock_timestamp() + interval '5 minutes', clock_timestamp() + interval '5 minutes',
        'p', 'load', decode(md5('load' || :order), 'hex'),
        convert_to('1700000000000000-0123456789abcdef 1p l=5m r=5m c={\"order\":' || :order || '}', 'UTF8'))
ON CONFLICT (app, global_id) DO NOTHING;
";

/// Programs of one version of PostgreSQL.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Returns the newest installed version, `PATH` first.
    pub(crate) fn find() -> Option<Self> {
        let on_path = env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
        let mut versions: Vec<_> = fs::read_dir(DEBIAN_FOLDER).into_iter().flatten().flatten().collect();
        versions.sort_by_key(|version| version.file_name().to_string_lossy().parse::<u32>().unwrap_or(0));
        let by_version = versions.iter().rev().map(|version| version.path().join("bin"));
        let has_all =
            |folder: &PathBuf| ["initdb", "postgres", "psql", "pgbench"].iter().all(|name| folder.join(name).is_file());
        on_path.into_iter().chain(by_version).find(has_all).map(|folder| Self { folder })
    }

    /// Returns the server's program.
    pub(crate) fn server(&self) -> PathBuf {
        self.folder.join("postgres")
    }

    /// Creates the data directory inside `dir` and returns the command that serves it.
    pub(crate) async fn prepare(&self, dir: &Path, port: u16) -> anyhow::Result<Command> {
        let data = data(dir);
        fs::create_dir(&data).context("no directory for PostgreSQL")?;
        if postgres_server::is_root() {
            // The server's user must also be able to enter the directory above.
            fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
            postgres_server::give_to_server(&data);
        }
        let mut initdb = self.server_command("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "-D"]).arg(&data);
        run(initdb.current_dir(&data)).await?;
        let mut server = self.server_command("postgres");
        server.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k", ""]);
        server.args(["-c", "max_connections=200", "-c", postgres_server::SHARED_MEMORY]);
        Ok(server)
    }

    /// Reports whether the server answers.
    pub(crate) async fn answers(&self, port: u16) -> bool {
        run(&mut self.sql(port, "SELECT 1")).await.is_ok()
    }

    /// Returns single-row claims per second by this many clients, each with a prepared statement and a transaction of
    /// its own. The table must exist.
    pub(crate) async fn claims_per_second(
        &self,
        dir: &Path,
        port: u16,
        clients: u64,
        seconds: u64,
    ) -> anyhow::Result<f64> {
        let script = dir.join("claim.sql");
        fs::write(&script, SCRIPT).context("cannot write to the temporary directory")?;
        let mut pgbench = self.command("pgbench");
        pgbench.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-n", "-M", "prepared", "-j", "1"]);
        pgbench.args(["-c", &clients.to_string(), "-T", &seconds.to_string(), "-f"]).arg(&script).arg("postgres");
        let output = run(&mut pgbench).await?;
        tps(&output).with_context(|| format!("pgbench does not say its rate:\n{output}"))
    }

    /// Returns the size of the claims in bytes: the table with its indexes and TOAST.
    pub(crate) async fn table_bytes(&self, port: u16) -> anyhow::Result<u64> {
        let output = run(&mut self.sql(port, "SELECT pg_total_relation_size('oncegate_claims')")).await?;
        output.trim().parse().with_context(|| format!("psql does not say a size: {output}"))
    }

    fn sql(&self, port: u16, statement: &str) -> Command {
        let mut psql = self.command("psql");
        psql.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres", "-qAtX", "-c", statement, "postgres"]);
        psql
    }

    fn command(&self, name: &str) -> Command {
        Command::new(self.folder.join(name))
    }

    /// Returns a command that runs as the user of the server, since the server refuses root.
    fn server_command(&self, name: &str) -> Command {
        postgres_server::command(&self.folder.join(name)).into()
    }
}

/// Removes the shared memory that a killed server leaves in the kernel. Does nothing if none was started in this
/// directory.
pub(crate) fn clean_up(dir: &Path) {
    postgres_server::remove_shared_memory(&data(dir));
}

fn data(dir: &Path) -> PathBuf {
    dir.join("postgres")
}

/// Returns the rate in pgbench's report.
fn tps(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_parsed_from_the_report() {
        let output = "latency average = 9.1 ms\ntps = 6996.5 (without initial connection time)\n";
        assert_eq!(tps(output), Some(6_996.5));
        assert_eq!(tps("latency average = 9.1 ms"), None);
    }
}
