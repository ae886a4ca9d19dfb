//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

use crate::{
    compare::Measurement, contender::Contender, cores::Cores, curves::Axis, languages::Program, proc::Watched,
    scenario::Scenario, soak,
};

#[derive(Parser)]
#[command(about = "Puts an Oncegate gateway under load and checks its promises")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Load one gateway and report latencies, rates and broken promises
    Run(RunArgs),
    /// Serve the reference: a no-op handler that parses claims
    Noop {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1:8081")]
        listen: SocketAddr,
    },
    /// Serve requests as a service behind a proxy does, and count them by idempotency key
    Upstream {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1:9000")]
        listen: SocketAddr,
    },
    /// Serve claims by the client library's own cluster mode
    Library {
        /// Address to listen on
        #[arg(long, default_value = "127.0.0.1:8081")]
        listen: SocketAddr,
        /// URLs of some nodes
        #[arg(long, value_delimiter = ',')]
        nodes: Vec<String>,
    },
    /// Carry connections to a store, as a network does that takes time
    Network {
        /// Address to listen on
        #[arg(long)]
        listen: SocketAddr,
        /// Address of the store
        #[arg(long)]
        to: SocketAddr,
        /// Time that it adds to a request and its answer together
        #[arg(long, value_parser = time, default_value = "1ms")]
        round_trip: Duration,
    },
    /// Compare the reference server, a gateway on each engine and alternatives side by side
    Compare(CompareArgs),
    /// Measure locks against their targets, next to claims, redis-py's lock and etcd's
    Locks(FigureArgs),
    /// Measure claim calls that wait for a claim in progress, against their targets
    Waiting(FigureArgs),
    /// Measure how the cost of a claim grows with live claims, apps, connections, locks, results and batches
    Curves(CurveArgs),
    /// Measure a bare SET NX in five languages, and `once` of the client in each
    Languages(LanguageArgs),
    /// Let each engine work for an hour, with faults, and check that what it uses does not grow
    Soak(SoakArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// URL of the gateway's API; https:// needs --authority
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// File in PEM with the authority of the gateway's certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) authority: Option<PathBuf>,
    /// Behaviour of the callers
    #[arg(long, value_enum, default_value = "settle")]
    pub(crate) scenario: Scenario,
    /// Operations started per second, even if earlier ones are unanswered
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) rate: u64,
    /// Instead of a rate: every connection starts its next operation when the previous one is answered
    #[arg(long, conflicts_with = "rate")]
    pub(crate) closed: bool,
    /// Duration of the measurement, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    /// Load before the measurement, in seconds; checked, but not measured
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=600))]
    pub(crate) warm_up: u64,
    /// Connections, and so the maximum of requests in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) connections: u64,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Process whose CPU time to report, such as gateway=1234; may be repeated
    #[arg(long = "pid", value_name = "NAME=PID")]
    pub(crate) pids: Vec<Watched>,
    /// `<app_key>.<secret>`, if the gateway has apps configured
    #[arg(long, env = "ONCEGATE_CREDENTIAL", hide_env_values = true)]
    pub(crate) credential: Option<String>,
    /// Do not check promises, for the reference server, which keeps none
    #[arg(long)]
    pub(crate) no_checks: bool,
    /// Cores of the generator and of its pacer; see `compare`
    #[arg(long, value_name = "SHARES")]
    pub(crate) cores: Option<Cores>,
    /// Permit an address beyond loopback
    #[arg(long)]
    pub(crate) allow_remote: bool,
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Behaviour of the callers
    #[arg(long, value_enum, default_value = "unique")]
    pub(crate) scenario: Scenario,
    /// Duration of each contender's measurement in each round, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Rounds; each measures every contender once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// Connections of the generator
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) connections: u64,
    /// Only these contenders, such as postgres,pgbench; the reference server of the scenario is always measured
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<Contender>,
    /// Also measure the figures of the targets: all kinds except live, or the named ones
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS", num_args = 0..=1, require_equals = true, default_missing_value = "rates,latencies,storms,low,failover,sizes,streams")]
    pub(crate) targets: Vec<Measurement>,
    /// Live claims during `--targets=live`
    #[arg(long, default_value_t = 5_000_000, value_name = "CLAIMS")]
    pub(crate) live: u64,
    /// Instead: each gateway in plain text and with TLS, to its callers, to Redis, and on both sides
    #[arg(long, conflicts_with_all = ["targets", "scenario", "live"])]
    pub(crate) tls: bool,
    /// Instead: each gateway with and without a network to its store that adds this round trip time, such as 1ms
    #[arg(long, value_parser = time, value_name = "TIME", conflicts_with_all = ["targets", "scenario", "live"])]
    pub(crate) network: Option<Duration>,
    /// Cores of each process, such as gateway=0-3,store=4,network=4,generator=5,pacer=6. The pacer knows when
    /// operations are due; on a separate core it spins
    #[arg(long, value_name = "SHARES")]
    pub(crate) cores: Option<Cores>,
    #[command(flatten)]
    pub(crate) paths: PathArgs,
}

/// Parses a time such as 1ms or 250us.
fn time(text: &str) -> anyhow::Result<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number = digits.parse().with_context(|| format!("{digits:?} is not a number"))?;
    match &text[digits.len()..] {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        unit => anyhow::bail!("{unit:?} is no unit: a time is a number and us, ms or s"),
    }
}

/// Paths of what a measurement runs and writes.
#[derive(Args)]
pub(crate) struct PathArgs {
    /// Path of the gateway's executable [default: the one in the folder of this executable]
    #[arg(long, value_name = "PATH")]
    pub(crate) gateway: Option<PathBuf>,
    /// Directory for the stores' data [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Also write the tables into this file, between its two lines for them, such as `<!-- locks: begin -->` and
    /// `<!-- locks: end -->`; the comparison's are named measured, proxied or ways
    #[arg(long, value_name = "FILE")]
    pub(crate) into: Option<PathBuf>,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct CurveArgs {
    /// Only these curves
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) of: Vec<Axis>,
    /// Only these engines: memory, disk, redis, postgres
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES", hide_possible_values = true)]
    pub(crate) only: Vec<Contender>,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Measurements of each point; medians are reported
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// Leave out points beyond this value
    #[arg(long, default_value_t = 1_000_000, value_name = "VALUE")]
    pub(crate) most: u64,
    #[command(flatten)]
    pub(crate) paths: PathArgs,
}

#[derive(Args)]
pub(crate) struct LanguageArgs {
    /// Only these programs
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<Program>,
    /// Folder of the programs
    #[arg(long, value_name = "DIR", default_value = "load/peers")]
    pub(crate) peers: PathBuf,
    /// Callers of each program
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) callers: u64,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Rounds; in each, every program runs once with Redis and once with a gateway
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// Cores of gateway, store and program (generator); see `compare`
    #[arg(long, value_name = "SHARES")]
    pub(crate) cores: Option<Cores>,
    #[command(flatten)]
    pub(crate) paths: PathArgs,
}

#[derive(Args)]
pub(crate) struct SoakArgs {
    /// Rounds on each engine. Growth is judged between the second and the last third
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(soak::ROUNDS_MIN..=10_000))]
    pub(crate) rounds: u64,
    /// Duration of each round, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Operations per second
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) rate: u64,
    /// Only these engines: memory, disk, redis, postgres
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES", hide_possible_values = true)]
    pub(crate) only: Vec<Contender>,
    #[command(flatten)]
    pub(crate) paths: PathArgs,
}

#[derive(Args)]
pub(crate) struct FigureArgs {
    /// Duration of each run, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) seconds: u64,
    /// Rounds; in each the contenders take turns
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) rounds: u64,
    /// Callers that wait at once; for the store calls of a release, a fifth of them
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(50..=20_000))]
    pub(crate) callers: u64,
    /// Only these engines: memory, redis, postgres, etcd, zookeeper
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES", hide_possible_values = true)]
    pub(crate) only: Vec<Contender>,
    #[command(flatten)]
    pub(crate) paths: PathArgs,
}
