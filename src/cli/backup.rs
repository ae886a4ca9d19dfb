//! `oncegate backup`: writes a backup of an engine to a file, which gets its name only when it is complete.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::StreamExt as _;
use oncegate_admin::bodies::{Reason, WithReason};
use oncegate_core::clock::SystemClock;
use oncegate_core::engine::Backup;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminClient};
use super::failure::{state, usage};
use super::output::{Out, OutputArgs, cell, rows};
use super::progress;
use crate::engines::{self, Summary};
use crate::server::signals::{Signal, Signals};

/// Longest wait for the next piece.
const PIECE_TIMEOUT: Duration = Duration::from_mins(1);

const EXAMPLES: &str = "\
Examples:
  oncegate backup --to claims.backup
  oncegate backup --to \"/backup/claims-$(date +%F).backup\" --reason \"every night\"
  oncegate backup --to claims.backup --engine disk:./oncegate-data/claims

The gateway serves meanwhile. Everything that it answered before the backup began is in the file. The last form is for a folder
that no gateway uses. `oncegate restore` restores the file. It contains contents and results as they are stored: keep it as safe
as the folder.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct BackupArgs {
    /// File to write. An existing file is not overwritten
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Name of the engine, or URL of one that no gateway uses, such as `disk:./claims` [default: the disk engine of the gateway]
    #[arg(long, value_name = "NAME|URL")]
    engine: Option<String>,
    /// Reason for the audit trail: one line
    #[arg(long, default_value = "oncegate backup")]
    reason: Reason,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) fn run(args: BackupArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let BackupArgs { to, engine, reason, output, admin } = args;
    let partial = Partial::create(&to)?;
    let source = Source::find(engine, reason, admin)?;
    let progress = progress::spinner(format!("Writing {}", to.display()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let summary = runtime.context("cannot start the runtime")?.block_on(async {
        let mut signals = Signals::new(&[Signal::INT, Signal::TERM, Signal::HUP])?;
        tokio::select! {
            written = write(partial, source) => written,
            // Returns, so that the incomplete file is removed.
            _ = signals.next() => bail!("stopped by a signal; no backup was made"),
        }
    })?;
    drop(progress);
    let made = json!({
        "file": to.display().to_string(), "engine": summary.engine, "made_at": summary.made_at, "rows": summary.rows,
    });
    output.print(&made, out, |made, out| {
        let (rows, file, at) = (cell(&made["rows"]), cell(&made["file"]), cell(&made["made_at"]));
        Ok(writeln!(out, "Wrote {file}: {rows} rows, as they were at {at}.")?)
    })
}

/// Source of a backup.
enum Source {
    /// An engine of this name at a gateway, and the reason for the audit trail.
    Gateway(AdminClient, String, Reason),
    /// The store of this URL, which no gateway uses.
    Stopped(String),
}

impl Source {
    fn find(engine: Option<String>, reason: Reason, admin: AdminArgs) -> anyhow::Result<Self> {
        match engine {
            Some(url) if url.contains(':') => Ok(Self::Stopped(url)),
            engine => {
                let client = AdminClient::new(admin)?;
                let engine = engine_of(&client.get("/admin/v1/engines")?, engine)?;
                Ok(Self::Gateway(client, engine, reason))
            }
        }
    }
}

async fn write(mut partial: Partial, source: Source) -> anyhow::Result<Summary> {
    let pieces = match source {
        Source::Stopped(url) => stopped(url).await?,
        Source::Gateway(client, engine, reason) => {
            client.download(&format!("/admin/v1/engines/{engine}/backup"), &WithReason { reason }).await?
        }
    };
    partial.fill(pieces).await?;
    partial.complete()
}

/// Returns the backup of a store that no gateway uses.
async fn stopped(url: String) -> anyhow::Result<Backup> {
    engines::check(&url).map_err(|error| usage(format!("--engine: {error}")))?;
    if let Some(folder) = url.strip_prefix("disk:").filter(|folder| !Path::new(folder).join("FORMAT").exists()) {
        bail!("{folder} is not the folder of a disk engine: it has no file FORMAT");
    }
    let opened = tokio::task::spawn_blocking(move || {
        let engine = engines::open(&url, Arc::new(SystemClock::new()), Vec::new())?;
        anyhow::Ok((engine, url))
    });
    let (engine, url) = opened.await??;
    let backup = engine.backup().await?;
    let backup = backup.with_context(|| {
        format!("{} makes no backups; use the tools of its store", url.split(':').next().unwrap_or_default())
    })?;
    // The engine stays open as long as its backup.
    Ok(backup.map(move |piece| (&engine, piece).1).boxed())
}

/// Returns the name of the gateway's engine to back up: the requested one, or its only disk engine.
fn engine_of(answer: &Value, asked: Option<String>) -> anyhow::Result<String> {
    let engines = rows(answer, "engines").iter();
    let (disks, others): (Vec<_>, Vec<_>) = engines.partition(|engine| cell(&engine["url"]).starts_with("disk:"));
    let names = |engines: &[&Value]| engines.iter().map(|engine| cell(&engine["name"])).collect::<Vec<_>>();
    let (disks, others) = (names(&disks), names(&others));
    match (asked, &disks[..]) {
        (Some(asked), _) if disks.contains(&asked) || others.contains(&asked) => Ok(asked),
        (Some(asked), _) => {
            let all = [disks, others].concat().join(", ");
            Err(usage(format!("--engine: the gateway has no engine `{asked}`; it has: {all}")))
        }
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(state(
            "the gateway has no disk engine. Back up Redis, PostgreSQL, etcd and ZooKeeper with their own tools",
        )),
        (None, several) => {
            let several = several.join(", ");
            Err(usage(format!("the gateway has several disk engines: name one with --engine: {several}")))
        }
    }
}

/// The incomplete file, in the folder of the complete one. Removed unless it is completed.
struct Partial {
    to: PathBuf,
    path: PathBuf,
    file: File,
}

impl Partial {
    fn create(to: &Path) -> anyhow::Result<Self> {
        let exists = || state(format!("--to: {} exists; a backup overwrites nothing. Name another file", to.display()));
        if to.symlink_metadata().is_ok() {
            return Err(exists());
        }
        let name = to.file_name().ok_or_else(|| usage("--to: name a file, such as claims.backup"))?;
        let path = to.with_file_name(format!("{}.{}.partial", name.to_string_lossy(), std::process::id()));
        let mut options = File::options();
        options.write(true).read(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).with_context(|| format!("cannot write {}", to.display()))?;
        Ok(Self { to: to.to_owned(), path, file })
    }

    async fn fill(&mut self, mut pieces: Backup) -> anyhow::Result<()> {
        loop {
            let late = || format!("the gateway sent nothing for {} s; no backup was made", PIECE_TIMEOUT.as_secs());
            let piece = tokio::time::timeout(PIECE_TIMEOUT, pieces.next()).await.with_context(late)?;
            let Some(piece) = piece else { return Ok(()) };
            let piece = piece.context("the backup was interrupted, and no file was written")?;
            self.file
                .write_all(&piece)
                .with_context(|| format!("cannot write {}; no backup was made", self.to.display()))?;
        }
    }

    /// Checks the whole file, makes it durable, and gives it its name.
    fn complete(mut self) -> anyhow::Result<Summary> {
        let Self { to, path, file } = &mut self;
        let unwritten = || format!("cannot write {}; no backup was made", to.display());
        file.sync_all().with_context(unwritten)?;
        let summary = engines::verify_backup(File::open(&*path).with_context(unwritten)?)
            .with_context(|| "what was received is not a complete backup; no file was written")?;
        // Unlike a rename, it fails if there is such a file.
        match std::fs::hard_link(&*path, &*to) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(state(format!("--to: {} exists by now; a backup overwrites nothing", to.display())));
            }
            // Not every file system has links.
            Err(_) => std::fs::rename(&*path, &*to).with_context(unwritten)?,
        }
        let folder = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        oncegate_folder::sync(folder).with_context(unwritten)?;
        Ok(summary)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
