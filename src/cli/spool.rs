//! `oncegate spool`: lists the waiting entries of a gateway, through the admin API. Also lists or delivers the journal
//! of a gateway that no longer runs, from its folder. Prints neither contents nor attempts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;
use oncegate_core::attempt::SystemEntropy;
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::engine::Engine;
use oncegate_core::spool::SpoolFilter;
use oncegate_core::suspect::{SuspectFilter, SuspectKind};
use oncegate_core::tenant::AppKey;
use oncegate_core::terms::Span;
use oncegate_folder::{FolderLock, LockError};
use oncegate_gateway::resilience::call_guard::CallGuard;
use oncegate_gateway::resilience::chain::{Chain, Setup};
use oncegate_outage::deadline::DELIVERY_DEADLINE;
use oncegate_outage::journal::Bounds;
use oncegate_outage::{OutageJournal, OutagePolicies};
use serde_json::{Value, json};

use super::admin_client::{QueryArgs, filters};
use super::arguments::number;
use super::failure::{state, usage};
use super::output::{self, Column, Out, OutputArgs, cell, escaped, rows};
use super::{ConfigFile, progress, suspects};
use crate::engines;

/// Nothing is added to the journal here, so it needs no bound.
const UNBOUNDED: Bounds = Bounds { bytes: u64::MAX, app_bytes: u64::MAX };

/// Interval of the progress display.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  oncegate spool waiting --app shop
  oncegate spool list --data-dir ./lost-gateway
  oncegate spool deliver --data-dir ./lost-gateway --config oncegate.toml
  oncegate spool deliver --data-dir ./lost-gateway --engine redis://localhost

`waiting` asks a gateway that runs, `list` and `deliver` read a folder. They refuse one that a running gateway uses: that gateway
delivers its journal itself.";

#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// List the undelivered entries of a gateway that runs, oldest first
    Waiting {
        /// List only those of this app
        #[arg(long)]
        app: Option<AppKey>,
        /// List only those newer than the one with this ID
        #[arg(long, value_name = "ID", value_parser = number::<u64>(1..=u64::MAX))]
        after: Option<u64>,
        /// List at most this many, from 1 to 1000
        #[arg(long, default_value_t = 50, value_parser = number::<u32>(1..=1000))]
        limit: u32,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// List the undelivered entries in the folder of a gateway that no longer runs, oldest first
    List {
        #[command(flatten)]
        folder: Folder,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Deliver the entries in such a folder to the stores, and list the overlaps that are found
    ///
    /// Can be repeated. The exit code is 1 if an entry was not delivered.
    Deliver {
        #[command(flatten)]
        folder: Folder,
        /// URL of the store to deliver everything to, such as `redis://localhost` [default: the engines of the
        /// configuration]
        #[arg(long, value_name = "URL")]
        engine: Option<String>,
        /// Longest wait for a store that does not answer
        #[arg(long, alias = "patience", value_name = "DURATION", default_value = "10s")]
        timeout: Span,
        #[command(flatten)]
        output: OutputArgs,
    },
}

#[derive(Args)]
pub(super) struct Folder {
    /// Folder that was the gateway's `server.data_dir` [default: that of the configuration]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
}

const COLUMNS: &[Column] = &[
    ("ID", |entry| cell(&entry["id"])),
    ("ANSWERED AT", |entry| cell(&entry["answered_at"])),
    ("APP", |entry| cell(&entry["app"])),
    ("OPERATION", |entry| cell(&entry["operation"])),
    ("REALM", |entry| cell(&entry["realm"])),
    ("GLOBAL ID", |entry| cell(&entry["global_id"])),
    ("ANSWER", |entry| cell(&entry["answer"])),
    ("POLICY", |entry| cell(&entry["policy"])),
    ("CHAIN", |entry| cell(&entry["chain"])),
    ("LAST FAILURE", |entry| cell(&entry["last_failure"])),
];

pub(super) fn run(action: Action, out: &mut impl Out) -> anyhow::Result<()> {
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.context("cannot start the runtime")
    };
    match action {
        Action::Waiting { app, after, limit, query } => {
            let filters =
                filters([("app", app.map(|app| app.to_string())), ("after", after.map(|after| after.to_string()))]);
            query.show(&format!("/admin/v1/spool?limit={limit}{filters}"), out, |answer, out| {
                output::page(answer, "entries", COLUMNS, "Nothing waits for a store at this gateway.", out)
            })
        }
        Action::List { folder, output } => output.print(&runtime()?.block_on(list(&folder))?, out, |listed, out| {
            let entries = rows(listed, "entries");
            if entries.is_empty() {
                return Ok(writeln!(out, "Everything has been delivered.")?);
            }
            output::table(entries, COLUMNS, out)?;
            Ok(writeln!(out, "\nWaiting: {}.", entries.len())?)
        }),
        Action::Deliver { folder, engine, timeout: Span(timeout), output } => {
            let (report, failure) = runtime()?.block_on(deliver(&folder, engine, timeout))?;
            output.print(&report, out, |report, out| {
                let [delivered, waiting] = ["delivered", "waiting"].map(|name| cell(&report[name]));
                let found = rows(report, "overlaps");
                writeln!(out, "Delivered: {delivered}, waiting: {waiting}, overlaps: {}.", found.len())?;
                if found.is_empty() {
                    return Ok(());
                }
                writeln!(out)?;
                output::table(found, suspects::COLUMNS, out)
            })?;
            failure.map_or(Ok(()), Err)
        }
    }
}

impl Folder {
    /// Locks the folder, and opens the journal in it. No gateway can use the folder until the lock is dropped.
    async fn open(&self, clock: &Arc<dyn Clock>) -> anyhow::Result<(FolderLock, Arc<OutageJournal>)> {
        let data_dir = match &self.data_dir {
            Some(data_dir) => data_dir.clone(),
            None => self.config.load()?.server.data_dir,
        };
        let journal = Arc::new(OutageJournal::new(&data_dir, UNBOUNDED, clock.clone()));
        journal.check_exists().map_err(|error| state(error.to_string()))?;
        let lock = FolderLock::take(&data_dir).map_err(|error| match error {
            LockError::Held(holder) => {
                anyhow!(
                    "the folder {} is held by {holder}: its gateway runs, and delivers the journal itself",
                    data_dir.display()
                )
            }
            LockError::Io(error) => {
                anyhow::Error::new(error).context(format!("the folder {} cannot be used", data_dir.display()))
            }
        })?;
        journal.open().await?;
        Ok((lock, journal))
    }
}

async fn list(folder: &Folder) -> anyhow::Result<Value> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (_lock, journal) = folder.open(&clock).await?;
    Ok(json!({ "entries": journal.unconfigured_entries(&SpoolFilter::default(), usize::MAX) }))
}

/// Delivers the entries. Returns the report, and the reason if one was not delivered.
async fn deliver(
    folder: &Folder,
    engine: Option<String>,
    timeout: Duration,
) -> anyhow::Result<(Value, Option<anyhow::Error>)> {
    if let Some(engine) = &engine {
        engines::check(engine).map_err(|error| usage(format!("--engine: {error}")))?;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (_lock, journal) = folder.open(&clock).await?;
    let overlaps = SuspectFilter { kinds: vec![SuspectKind::Overlap], ..SuspectFilter::default() };
    let newest_known = journal.suspects(&SuspectFilter::default(), 1).first().map_or(0, |newest| newest.id);
    let before = journal.status().entries;
    let urls = urls(folder, engine, journal.unconfigured_chains())?;
    let progress = progress::bar(before as u64, "Delivering".to_owned());
    let mut failure = None;
    for (chain, urls) in urls {
        let engines = open(&chain, urls, &clock).await?;
        let store = Arc::new(open_chain(&chain, engines.clone(), &clock));
        let policies = OutagePolicies::start(&chain, store, journal.clone(), clock.clone(), Arc::new(SystemEntropy));
        let delivered = tokio::select! {
            delivered = policies.deliver_all(timeout) => delivered,
            () = show(&progress, &journal, before) => Ok(()),
        };
        if let Err(error) = delivered {
            failure = Some(anyhow::Error::new(error).context(format!("the store of chain `{}`", escaped(&chain))));
        }
        policies.close().await;
        for (_, engine) in engines {
            engine.close().await;
        }
    }
    drop(progress);
    let (waiting, mut found) = (journal.status().entries, journal.suspects(&overlaps, usize::MAX));
    journal.close().await;
    found.retain(|overlap| overlap.id > newest_known);
    let report = json!({ "delivered": before.saturating_sub(waiting), "waiting": waiting, "overlaps": found });
    let again = "not everything was delivered. Run this again when the store answers";
    let failure = match failure {
        Some(failure) => Some(failure.context(again)),
        None => (waiting > 0).then(|| anyhow::anyhow!(again)),
    };
    Ok((report, failure))
}

/// Shows the progress of a delivery, until it is dropped.
async fn show(progress: &ProgressBar, journal: &OutageJournal, before: usize) {
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    loop {
        ticks.tick().await;
        progress.set_position(before.saturating_sub(journal.status().entries) as u64);
    }
}

/// Names and URLs of a chain's engines, in order.
type Urls = Vec<(String, String)>;

/// Returns the URLs of the stores of each of these chains.
fn urls(folder: &Folder, engine: Option<String>, chains: Vec<String>) -> anyhow::Result<BTreeMap<String, Urls>> {
    if let Some(url) = engine {
        return Ok(chains.into_iter().map(|chain| (chain.clone(), vec![(chain, url.clone())])).collect());
    }
    if chains.is_empty() {
        return Ok(BTreeMap::new());
    }
    let config = folder.config.load()?;
    let url = |chain: String| {
        let options = config.chains.get(&chain).ok_or_else(|| {
            usage(format!("the configuration has no chain `{}`. Name its store with --engine", escaped(&chain)))
        })?;
        let url = |engine: &String| Some((engine.clone(), config.engines.get(engine)?.clone()));
        Ok((chain, options.engines.iter().filter_map(url).collect()))
    };
    chains.into_iter().map(url).collect()
}

/// Engines by name.
type Engines = Vec<(String, Arc<dyn Engine>)>;

async fn open(chain: &str, urls: Urls, clock: &Arc<dyn Clock>) -> anyhow::Result<Engines> {
    let mut engines: Engines = Vec::new();
    for (name, url) in urls {
        let clock_of_engine = clock.clone();
        let opened = tokio::task::spawn_blocking(move || engines::open(&url, clock_of_engine, Vec::new())).await?;
        let engine = opened.with_context(|| format!("a store of chain `{}` cannot be opened", escaped(chain)))?;
        let guarded = CallGuard::new(engine, &name, DELIVERY_DEADLINE, clock.clone(), Arc::new(SystemEntropy));
        engines.push((name, Arc::new(guarded)));
    }
    Ok(engines)
}

/// Opens the chain, so that entries go to its active engine.
fn open_chain(chain: &str, engines: Engines, clock: &Arc<dyn Clock>) -> Chain {
    Chain::start(Setup::plain(chain, engines, clock.clone(), Arc::new(SystemEntropy)))
}
