//! The decision in each language: a bare `SET NX` with the usual library of Redis, and `once` of the client. The programs
//! are in `load/peers`.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{
    contender::{Contender, Installed},
    cores::{Cores, Role},
    proc::{self, Watched},
    report::{self, ratio},
    running::Running,
    setting,
    trial::{Bench, median},
};

/// Exit code of a program that is not prepared.
const NOT_PREPARED: i32 = 77;

/// Time for the code of the slowest runtime to become warm.
const WARM_UP_SECONDS: u64 = 3;

/// Longest time that a program takes in addition to what it was asked for.
const EXTRA: Duration = Duration::from_mins(1);

/// Cores busy with other work above which a measurement counts as disturbed.
const DISTURBED: f64 = 0.2;

/// Program, by its language or what it is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Program {
    Python,
    Node,
    Go,
    Java,
    Rust,
    /// Powertools for AWS Lambda, with a stand-in for `DynamoDB`.
    Powertools,
}

impl Program {
    const ALL: [Self; 6] = [Self::Python, Self::Node, Self::Go, Self::Java, Self::Rust, Self::Powertools];

    /// Returns what it does, one after the other.
    fn works(self) -> &'static [Work] {
        match self {
            Self::Powertools => &[Work::Item],
            _ => &[Work::Set, Work::Once],
        }
    }

    /// Returns its folder, its name and its library of the store.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Python => ["python", "Python", "redis-py"],
            Self::Node => ["node", "Node", "ioredis"],
            Self::Go => ["go", "Go", "go-redis"],
            Self::Java => ["java", "Java", "Lettuce"],
            Self::Rust => ["rust", "Rust", "redis"],
            Self::Powertools => ["powertools", "Powertools", "boto3"],
        }
    }
}

/// What a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Work {
    /// `SET NX GET PX` of the library.
    Set,
    /// `once` of the client: a claim and its outcome.
    Once,
    /// An item of `DynamoDB`, and its update.
    Item,
}

/// Extent of the measurement.
#[derive(Debug)]
pub(crate) struct Extent {
    /// Languages; all if empty.
    pub(crate) only: Vec<Program>,
    /// Folder of the programs.
    pub(crate) peers: PathBuf,
    pub(crate) callers: u64,
    pub(crate) measured: Duration,
    pub(crate) rounds: u64,
    pub(crate) cores: Cores,
    pub(crate) gateway: Option<PathBuf>,
    pub(crate) dir: Option<PathBuf>,
}

/// Figures of all languages.
#[derive(Debug, Serialize)]
pub(crate) struct Languages {
    callers: u64,
    seconds: u64,
    rounds: u64,
    rows: Vec<Row>,
    /// Languages that were left out, and the reasons.
    skipped: Vec<String>,
    setting: String,
}

/// Medians over the rounds; CPU times of an operation in microseconds.
#[derive(Debug, Serialize)]
struct Row {
    language: Program,
    work: Work,
    per_second: f64,
    client_us: f64,
    gateway_us: Option<f64>,
    store_us: f64,
    /// Rounds in which other processes took CPU time.
    disturbed: usize,
}

/// Figures of one round.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Figures {
    per_second: f64,
    client_us: f64,
    gateway_us: Option<f64>,
    store_us: f64,
    /// Cores busy with other work.
    other_cores: f64,
}

/// Result of one round.
enum Played {
    Done(Figures),
    NotPrepared,
}

/// Measures all languages that are prepared. Returns the figures, and whether each was measured and nothing was granted twice.
pub(crate) async fn run(extent: Extent) -> anyhow::Result<(Languages, bool)> {
    let installed = Installed::with_gateway(extent.gateway.as_deref())?;
    if let Some(lack) = installed.lacks(Contender::Redis) {
        bail!("{lack}");
    }
    ensure!(
        extent.peers.is_dir(),
        "there are no programs at {}: name their folder with --peers",
        extent.peers.display()
    );
    let mut bench = Bench::new(installed, extent.dir.clone(), extent.measured, extent.rounds);
    bench.cores = extent.cores.clone();
    let mut languages = if extent.only.is_empty() { Program::ALL.to_vec() } else { extent.only.clone() };
    let mut figures: BTreeMap<(Program, Work), Vec<Figures>> = BTreeMap::new();
    for round in 1..=extent.rounds {
        for language in languages.clone() {
            let [folder, name, _] = language.names();
            for work in language.works().iter().copied() {
                let reason = match play(&bench, &extent, language, work).await {
                    Ok(Played::Done(it)) => {
                        report::say(&format!(
                            "round {round} of {}  {:<30} {:>8.0}/s",
                            extent.rounds,
                            label(language, work),
                            it.per_second
                        ));
                        figures.entry((language, work)).or_default().push(it);
                        continue;
                    }
                    Ok(Played::NotPrepared) => format!("not prepared; load/peers/prepare {folder}"),
                    Err(error) => {
                        bench.sound = false;
                        format!("{error:#}")
                    }
                };
                bench.leave_out(format!("{name}: {reason}"));
                languages.retain(|it| *it != language);
                figures.retain(|(it, _), _| *it != language);
                break;
            }
        }
    }
    let rows = figures.iter().filter_map(|((language, work), it)| Row::of(*language, *work, it)).collect();
    let languages = Languages {
        callers: extent.callers,
        seconds: extent.measured.as_secs(),
        rounds: extent.rounds,
        rows,
        skipped: bench.skipped.clone(),
        setting: setting::describe(&bench),
    };
    Ok((languages, bench.sound))
}

/// Runs a program once, with a fresh store.
async fn play(bench: &Bench, extent: &Extent, language: Program, work: Work) -> anyhow::Result<Played> {
    let [folder, ..] = language.names();
    let folder = extent.peers.join(folder);
    let status = Command::new(folder.join("run")).stdin(Stdio::null()).output().await;
    let status = status.with_context(|| format!("cannot run {}/run", folder.display()))?.status;
    if status.code() == Some(NOT_PREPARED) {
        return Ok(Played::NotPrepared);
    }
    let (surroundings, parent) = (bench.surroundings(), bench.parent());
    let running = match work {
        Work::Set => Running::start(Contender::Sets, surroundings, &bench.installed, &parent).await?,
        Work::Once => Running::start(Contender::Redis, surroundings, &bench.installed, &parent).await?,
        Work::Item => Running::start_stand_in(&folder.join("serve"), surroundings, &parent).await?,
    };
    let played = watch(&running, extent, language, work).await;
    running.stop().await;
    played
}

/// Starts a program and reads its lines, and all CPU times at each.
async fn watch(running: &Running, extent: &Extent, language: Program, work: Work) -> anyhow::Result<Played> {
    let [folder, ..] = language.names();
    let log = running.dir().join("peer.log");
    let mut command = Command::new(extent.peers.join(folder).join("run"));
    command.arg(extent.callers.to_string()).arg(WARM_UP_SECONDS.to_string());
    command.arg(extent.measured.as_secs().to_string());
    match work {
        Work::Set => command.env("REDIS_URL", format!("redis://127.0.0.1:{}", running.port)),
        Work::Item => command.env("DYNAMODB_URL", &running.url),
        Work::Once => command.env("ONCEGATE_URL", &running.url).env("ONCEGATE_CREDENTIAL", &running.credential),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&log)?).kill_on_drop(true);
    let limit = extent.cores.limit(Role::Generator)?;
    let mut child = command.spawn().with_context(|| format!("cannot run {folder}/run"))?;
    drop(limit);
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let mut watched = running.watched.clone();
    watched.push(Watched::server("client", child.id().context("it ended at once")?));
    watched.push(Watched::generator());

    let longest = Duration::from_secs(WARM_UP_SECONDS) + extent.measured + EXTRA;
    let playing = async {
        if next(&mut lines, "begin").await?.is_none() {
            return Ok(None);
        }
        let before = Reading::now(&watched)?;
        let Some([granted, refused]) = next(&mut lines, "end").await? else { return Ok(None) };
        let after = Reading::now(&watched)?;
        let Some([repeated, again]) = next(&mut lines, "repeated").await? else { return Ok(None) };
        ensure!(granted > 0 && refused == 0, "{refused} of {} new operations were refused", granted + refused);
        ensure!(repeated > 0 && again == 0, "{again} of {repeated} operations were granted twice");
        Ok(Some(after.since(&before, &watched, granted)))
    };
    match timeout(longest, playing).await {
        Ok(Ok(Some(figures))) => Ok(Played::Done(figures)),
        Ok(Ok(None)) => ended(child, &log).await,
        Ok(Err(error)) => Err(error),
        Err(_) => bail!("it did not end"),
    }
}

/// Explains the end of a program that did not say all.
async fn ended(mut child: Child, log: &Path) -> anyhow::Result<Played> {
    let status = child.wait().await?;
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    bail!("it ended with {status}: {}", lines[lines.len().saturating_sub(5)..].join(" | "))
}

/// Reads a line of this name, with up to two counts; nothing if the output ends.
async fn next(lines: &mut Lines<BufReader<ChildStdout>>, name: &str) -> anyhow::Result<Option<[u64; 2]>> {
    let Some(line) = lines.next_line().await? else { return Ok(None) };
    counts(&line, name).map(Some).with_context(|| format!("it said {line:?} instead of {name:?}"))
}

fn counts(line: &str, name: &str) -> Option<[u64; 2]> {
    let mut words = line.strip_prefix(name)?.split_ascii_whitespace();
    let mut next = || words.next().map_or(Some(0), |word| word.parse().ok());
    Some([next()?, next()?])
}

/// CPU times at one moment.
struct Reading {
    at: Instant,
    cpu_us: Vec<u64>,
    machine_us: u64,
}

impl Reading {
    fn now(watched: &[Watched]) -> anyhow::Result<Self> {
        let cpu_us = watched.iter().map(Watched::cpu_us).collect::<anyhow::Result<_>>()?;
        Ok(Self { at: Instant::now(), cpu_us, machine_us: proc::machine_us()? })
    }

    fn since(&self, before: &Self, watched: &[Watched], operations: u64) -> Figures {
        let used: Vec<_> = self.cpu_us.iter().zip(&before.cpu_us).map(|(after, before)| after - before).collect();
        let of = |name: &str| {
            let mine = watched.iter().zip(&used).filter(|(it, _)| it.name == name).map(|(_, us)| us);
            ratio(mine.sum(), operations)
        };
        let seconds = (self.at - before.at).as_secs_f64();
        let others = (self.machine_us - before.machine_us).saturating_sub(used.iter().sum());
        Figures {
            per_second: ratio(operations, 1) / seconds,
            client_us: of("client"),
            gateway_us: watched.iter().any(|it| it.name == "gateway").then(|| of("gateway")),
            store_us: of("store"),
            other_cores: ratio(others, 1) / 1e6 / seconds,
        }
    }
}

impl Row {
    fn of(language: Program, work: Work, rounds: &[Figures]) -> Option<Self> {
        let of = |figure: fn(&Figures) -> f64| median(rounds.iter().map(figure).collect());
        Some(Self {
            language,
            work,
            per_second: of(|it| it.per_second)?,
            client_us: of(|it| it.client_us)?,
            gateway_us: median(rounds.iter().filter_map(|it| it.gateway_us).collect()),
            store_us: of(|it| it.store_us)?,
            disturbed: rounds.iter().filter(|it| it.other_cores > DISTURBED).count(),
        })
    }
}

fn label(language: Program, work: Work) -> String {
    let [_, name, library] = language.names();
    match work {
        Work::Set => format!("{name}, SET NX of {library}"),
        Work::Once => format!("{name}, once of the client"),
        Work::Item => format!("{name}, moto for DynamoDB"),
    }
}

impl fmt::Display for Languages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { callers, seconds, rounds, setting, .. } = self;
        writeln!(
            f,
            "\nNew operations, {callers} callers, medians of {rounds} rounds of {seconds} s; client, gateway and store on {setting}\n"
        )?;
        writeln!(f, "| Program | operations/s | client CPU/operation | gateway CPU/operation | store CPU/operation |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: |")?;
        for row in &self.rows {
            let gateway = row.gateway_us.map_or("–".to_owned(), |us| format!("{us:.1} µs"));
            let (name, rate) = (label(row.language, row.work), row.per_second);
            writeln!(f, "| {name} | {rate:.0} | {:.1} µs | {gateway} | {:.1} µs |", row.client_us, row.store_us)?;
        }
        let disturbed = self.rows.iter().filter(|row| row.disturbed > 0).map(|row| label(row.language, row.work));
        let disturbed: Vec<_> = disturbed.collect();
        if !disturbed.is_empty() {
            writeln!(f, "\nDISTURBED, so that the rate means little: {}.", disturbed.join("; "))?;
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}
