//! The command line: what can be asked of the program, and how it answers. One file for each subcommand; the process's
//! environment and its standard streams are touched here only.

mod admin_client;
mod app;
mod chain;
mod claim;
mod config;
mod engine;
mod generate;
mod health;
mod id;
#[cfg(feature = "postgres")]
mod migrate;
mod serve;
mod shown;
mod spool;
mod tls;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, Fingerprint, Flags, Problems};
use crate::domain::attempt::SystemEntropy;

const HELP: &str = "\
Examples:
  oncegate serve --config oncegate.toml
  oncegate config check --config oncegate.toml
  oncegate app new shop
  oncegate claim show --app shop --operation order.submit '{\"order_id\": \"A-1001\"}'
  oncegate claim list --app shop --state unknown
  oncegate chain list

Environment:
  ONCEGATE_CONFIG          Configuration file, unless --config names one
  ONCEGATE_<TABLE>__<KEY>  A setting, such as ONCEGATE_SERVER__LISTEN=127.0.0.1:8080
  ONCEGATE_ADMIN_TOKEN     Token for the admin API, unless --token-file names a file
  NO_COLOR                 If it is set and not empty, output has no colors or styles

Exit codes:
  0  Done
  1  Failed: no answer from a gateway or a store, no access, or a file that cannot be used
  2  The command line or the configuration is wrong
  3  What is stored does not permit it: nothing is there, or it has changed";

/// An idempotency gateway: lets every business operation run once
#[derive(Parser)]
#[command(name = "oncegate", version, arg_required_else_help = true, after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a gateway until it is told to stop by SIGTERM or SIGINT
    Serve(Settings),
    /// Check the configuration, or print what it comes to
    Config(config::ConfigArgs),
    /// Compute the global ID of an operation; asks no gateway
    Id(id::IdArgs),
    /// Bring the schema of PostgreSQL databases up to date
    #[cfg(feature = "postgres")]
    Migrate(migrate::MigrateArgs),
    /// Make, look at and change apps: who may call, and with which secrets; exit code 3 if the app is not as it has to be
    App(app::AppArgs),
    /// Ask the gateway on this machine whether it is ready: exit code 0 if it is, else 1
    Health(health::HealthArgs),
    /// Look at claims and change them, through the admin API: exit code 3 if the claim is not as it has to be
    Claim(claim::ClaimArgs),
    /// See the engines of a running gateway, through its admin API
    Engine(engine::EngineArgs),
    /// See the chains of a running gateway, and switch them, through its admin API
    Chain(chain::ChainArgs),
    /// See and deliver what a gateway that is gone has answered for stores that were out
    Spool(spool::SpoolArgs),
    /// Write man pages or shell completions into a directory, for packages
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

const CONFIG_HELP: &str =
    "Configuration file [default: the one that ONCEGATE_CONFIG names in the environment, or none]";

/// The settings that have a flag. The configuration file and the environment have all. Not `Debug`, nor is what holds it:
/// the engine's URL may hold a password.
#[derive(Args, Clone, Default)]
struct Settings {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// Where the API listens, such as 127.0.0.1:8080
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where metrics, health and the admin API listen, such as 127.0.0.1:9464
    #[arg(long, value_name = "ADDR")]
    admin_listen: Option<String>,
    /// The store of the default chain, such as memory: or disk:./claims
    #[arg(long, value_name = "URL")]
    engine: Option<String>,
    /// Folder of the default disk engine and of what the gateway must not lose
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
}

impl Settings {
    fn load(self) -> Result<Config, Problems> {
        Config::load(&self.flags(), environment())
    }

    /// With a look at the files that only a gateway reads, such as its private key.
    fn load_to_serve(self) -> Result<Config, Problems> {
        Config::load_to_serve(&self.flags(), environment())
    }

    /// What the files hold that the configuration is read from.
    fn fingerprint(&self) -> Fingerprint {
        self.clone().flags().fingerprint(environment())
    }

    fn flags(self) -> Flags {
        let Self { config, listen, admin_listen, engine, data_dir } = self;
        Flags { config, listen, admin_listen, engine, data_dir }
    }
}

/// An argument, or a configuration for this command, that can never be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct InvalidArgument(String);

/// Runs a command and says what went wrong, if something did: one block on standard error, and exit code 2 where an argument or
/// the configuration cannot be used, 3 where a gateway was asked and what stands there is not as it has to be, else 1.
pub fn run(cli: Cli) -> ExitCode {
    let done = match cli.command {
        Command::Serve(settings) => serve::run(settings),
        Command::Config(args) => config::run(args, &mut io::stdout().lock()),
        Command::Id(args) => id::run(&args, &mut io::stdin().lock(), &mut io::stdout().lock()),
        #[cfg(feature = "postgres")]
        Command::Migrate(args) => migrate::run(args, &mut io::stdout().lock()),
        Command::App(args) => app::run(args, &SystemEntropy, &mut io::stdout().lock()),
        Command::Health(args) => health::run(args, &mut io::stdout().lock()),
        Command::Claim(args) => claim::run(args, &mut io::stdin().lock(), &mut io::stdout().lock()),
        Command::Engine(args) => engine::run(args, &mut io::stdout().lock()),
        Command::Chain(args) => chain::run(args, &mut io::stdout().lock()),
        Command::Spool(args) => spool::run(args, &mut io::stdout().lock()),
        Command::Generate(args) => generate::run(&args, &mut io::stdout().lock()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format_args!("{error:#}"), &mut io::stderr().lock());
            let refusal = error.downcast_ref::<admin_client::Refusal>();
            ExitCode::from(match refusal {
                _ if error.is::<Problems>() || error.is::<InvalidArgument>() => 2,
                Some(refusal) if refusal.is_about_what_stands() => 3,
                _ => 1,
            })
        }
    }
}

/// Where even this cannot be written there is nobody left to tell.
fn report(error: &impl Display, to: &mut impl Write) {
    drop(writeln!(to, "oncegate: {error}"));
}

#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_become_settings() {
        let parsed = Cli::try_parse_from(["oncegate", "serve", "--listen", "127.0.0.1:1", "--engine", "memory:"]);
        let Command::Serve(settings) = parsed.unwrap().command else { panic!("not serve") };
        let config = settings.load().unwrap();
        assert_eq!((config.server.listen.port(), config.engines["primary"].as_str()), (1, "memory:"));
    }

    #[test]
    fn contents_may_begin_with_a_dash() {
        for contents in ["-5", "-"] {
            assert!(Cli::try_parse_from(["oncegate", "id", "--app", "shop", contents]).is_ok());
        }
    }

    #[test]
    fn an_error_is_one_block() {
        let mut shown = Vec::new();
        let error = anyhow::anyhow!("the folder is in use").context("engine `primary` cannot be opened");
        report(&format_args!("{error:#}"), &mut shown);
        assert_eq!(shown, b"oncegate: engine `primary` cannot be opened: the folder is in use\n");
    }
}
