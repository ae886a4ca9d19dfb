//! `oncegate spool`: what a gateway that is gone has answered for stores that were out. Shows it, and tells the stores. Asks no
//! gateway: it holds the folder itself, and shows neither contents nor attempts.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::{Args, Subcommand};

use super::shown::plain;
use super::{InvalidArgument, Settings};
use crate::domain::attempt::SystemEntropy;
use crate::domain::claim::Outcome;
use crate::domain::clock::{Clock, SystemClock};
use crate::domain::overlap::Overlaps;
use crate::domain::terms::{OnDataLoss, Span};
use crate::engine::{Engine, url};
use crate::folder::{FolderLock, LockError};
use crate::resilience::chain::{Chain, Setup, Times};
use crate::resilience::degrade::{Degrading, Keeper};
use crate::resilience::guarded::Guarded;
use crate::resilience::journal::entry::{Deed, Entry};
use crate::resilience::journal::{Bounds, DELIVERY_DEADLINE};

/// Nothing is added here, so no bound applies.
const UNBOUNDED: Bounds = Bounds { bytes: u64::MAX, app_bytes: u64::MAX };

/// What to do with a spool.
#[derive(Args)]
pub(super) struct SpoolArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List what has not been delivered, oldest first
    List(Place),
    /// Deliver it to the stores: exit code 0 if all was, else 1. Can be repeated
    Deliver {
        #[command(flatten)]
        place: Place,
        /// The store of all of it, such as `redis://localhost` [default: the first engine of each chain of the configuration]
        #[arg(long, value_name = "URL")]
        engine: Option<String>,
        /// How long a store may not answer before it is given up
        #[arg(long, value_name = "DURATION", default_value = "10s")]
        patience: Span,
    },
}

#[derive(Args)]
struct Place {
    /// The folder that was the gateway's `server.data_dir` [default: that of the configuration]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[arg(long, value_name = "FILE", help = super::CONFIG_HELP)]
    config: Option<PathBuf>,
}

pub(super) fn run(args: SpoolArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    match args.action {
        Action::List(place) => runtime.block_on(list(&place, out)),
        Action::Deliver { place, engine, patience: Span(patience) } => {
            runtime.block_on(deliver(&place, engine, patience, out))
        }
    }
}

impl Place {
    fn settings(&self) -> Settings {
        Settings { config: self.config.clone(), ..Settings::default() }
    }

    /// Opens the journal of the folder, which no gateway may use as long.
    async fn open(&self, clock: &Arc<dyn Clock>) -> anyhow::Result<(FolderLock, Arc<Keeper>)> {
        let data_dir = match &self.data_dir {
            Some(data_dir) => data_dir.clone(),
            None => self.settings().load()?.server.data_dir,
        };
        let keeper = Arc::new(Keeper::new(&data_dir, UNBOUNDED, clock.clone()));
        keeper.check_left_behind()?;
        let lock = FolderLock::take(&data_dir).map_err(|error| match error {
            LockError::Held(holder) => {
                anyhow!("{} is held by {holder}: its gateway runs, and delivers by itself", data_dir.display())
            }
            LockError::Io(error) => anyhow::Error::new(error).context(format!("{} cannot be used", data_dir.display())),
        })?;
        keeper.open().await?;
        Ok((lock, keeper))
    }
}

async fn list(place: &Place, out: &mut impl Write) -> anyhow::Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (_lock, keeper) = place.open(&clock).await?;
    let entries = keeper.left();
    for entry in &entries {
        let age = clock.wall().since(entry.at).as_secs();
        let operation = entry.operation().map_or("-", AsRef::as_ref);
        let (app, global_id, chain) = (entry.app(), entry.key().global_id, plain(&entry.chain));
        writeln!(out, "{app}  {operation}  {global_id}  {}  {age} s ago, chain {chain}", what(entry))?;
    }
    match entries.len() {
        0 => writeln!(out, "nothing waits")?,
        count => writeln!(out, "waiting: {count}")?,
    }
    Ok(())
}

/// What was answered, in words.
fn what(entry: &Entry) -> String {
    let deed = match &entry.deed {
        Deed::Granted(_) => "granted",
        Deed::Renewed(_) => "renewed",
        Deed::Reported(ask) => match ask.outcome {
            Outcome::Success { .. } => "success",
            Outcome::Failure => "failure",
            Outcome::Unknown => "unknown",
        },
    };
    format!("{deed} by {}", entry.policy.name())
}

async fn deliver(
    place: &Place,
    engine: Option<String>,
    patience: Duration,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if let Some(engine) = &engine {
        url::check(engine).map_err(|error| InvalidArgument(format!("--engine: {error}")))?;
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (_lock, keeper) = place.open(&clock).await?;
    let (before, known) = (keeper.waiting(), keeper.newest(None, None, usize::MAX).len());
    let urls = urls(place, engine, keeper.chains_left())?;
    let mut failure = None;
    for (chain, urls) in urls {
        let engines = open(&chain, urls, &clock).await?;
        let store = Arc::new(over(&chain, engines.clone(), &clock));
        let degrading = Degrading::start(&chain, store, keeper.clone(), clock.clone(), Arc::new(SystemEntropy));
        if let Err(error) = degrading.deliver_all(patience).await {
            failure = Some(anyhow::Error::new(error).context(format!("the store of chain `{chain}`")));
        }
        degrading.close().await;
        for (_, engine) in engines {
            engine.close().await;
        }
    }
    let (left, overlaps) = (keeper.waiting(), keeper.newest(None, None, usize::MAX));
    keeper.close().await;
    writeln!(out, "delivered: {}; waiting: {left}; overlaps: {}", before.saturating_sub(left), overlaps.len() - known)?;
    for overlap in overlaps.iter().take(overlaps.len() - known) {
        let operation = overlap.operation.as_ref().map_or("-", AsRef::as_ref);
        let (app, global_id, policy) = (&overlap.app, overlap.global_id, overlap.policy.name());
        let (ours, theirs) = (overlap.ours, overlap.theirs);
        let (ours_at, theirs_at) = (ours.timestamp.as_micros(), theirs.timestamp.as_micros());
        writeln!(
            out,
            "    {app}  {operation}  {global_id}  by {policy}: {ours_at} #{} beside {theirs_at} #{}",
            ours.hash, theirs.hash
        )?;
    }
    match failure {
        Some(failure) => Err(failure.context("not all was delivered; run this again when its store answers")),
        None if left > 0 => bail!("not all was delivered; run this again"),
        None => Ok(()),
    }
}

/// The engines of a chain by name, in order: their URLs.
type Urls = Vec<(String, String)>;

/// The URLs of the stores of each of these chains.
fn urls(place: &Place, engine: Option<String>, chains: Vec<String>) -> anyhow::Result<BTreeMap<String, Urls>> {
    if let Some(url) = engine {
        return Ok(chains.into_iter().map(|chain| (chain.clone(), vec![(chain, url.clone())])).collect());
    }
    if chains.is_empty() {
        return Ok(BTreeMap::new());
    }
    let config = place.settings().load()?;
    let url = |chain: String| {
        let options = config.chains.get(&chain).with_context(|| {
            format!("the configuration has no chain `{}`; name its store with --engine", plain(&chain))
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
        let opened = tokio::task::spawn_blocking(move || url::open(&url, clock_of_engine, Vec::new())).await?;
        let engine = opened.with_context(|| format!("a store of chain `{}` cannot be opened", plain(chain)))?;
        let guarded = Guarded::new(engine, &name, DELIVERY_DEADLINE, clock.clone(), Arc::new(SystemEntropy));
        engines.push((name, Arc::new(guarded)));
    }
    Ok(engines)
}

/// The chain, so that what waits goes to the engine that is in use, and not to one that it was switched from.
fn over(chain: &str, engines: Engines, clock: &Arc<dyn Clock>) -> Chain {
    Chain::start(Setup {
        name: chain.to_owned(),
        engines,
        on_data_loss: OnDataLoss::Resume,
        lease_max: Duration::ZERO,
        clock: clock.clone(),
        entropy: Arc::new(SystemEntropy),
        times: Times::default(),
    })
}
