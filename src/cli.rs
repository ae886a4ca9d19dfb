//! Command line: one file per command, and what they share: errors, output, progress, and the client of the admin API.
//! Only here are the process's environment and standard streams used.

mod admin_client;
mod admin_token;
mod app;
pub mod arguments;
mod audit;
mod backup;
mod chain;
mod claim;
mod config;
mod engine;
mod exit_code;
mod failure;
mod gateway_client;
mod gateways;
mod generate;
mod health;
mod history;
mod http_client;
mod id;
mod job;
mod listener;
mod lock;
#[cfg(feature = "postgres")]
mod migrate;
mod once;
mod operations;
mod output;
mod progress;
mod proxy;
mod recent;
mod restore;
mod serve;
mod spool;
mod summary;
mod suspects;
mod tls;
mod unknowns;
mod waiting;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use oncegate_core::attempt::SystemEntropy;

use crate::config::{Config, Flags, Problems};

const HELP: &str = "\
Examples:
  oncegate serve --config oncegate.toml
  oncegate config check --config oncegate.toml
  oncegate app new shop
  oncegate claim show --app shop --operation order.submit '{\"order_id\": \"A-1001\"}'
  oncegate claim list --app shop --state unknown
  oncegate lock run nightly-report --if-held skip -- /usr/local/bin/report
  oncegate chain list

Environment:
  ONCEGATE_CONFIG          Configuration file, unless --config names one
  ONCEGATE_<TABLE>__<KEY>  A setting, such as ONCEGATE_SERVER__LISTEN=127.0.0.1:8080
  ONCEGATE_URL             API of the gateway, for `lock run` and `once`, unless --url names it
  ONCEGATE_CREDENTIAL      Credential of the app for them, unless --credential-file names a file
  ONCEGATE_ADMIN_URL       Admin listener of the gateway, for all other commands that use one, unless --admin names it
  ONCEGATE_ADMIN_TOKEN     Token for the admin API, unless --token-file names a file
  NO_COLOR                 If it is set and not empty, output has no colors or styles

Exit codes:
  0  Done
  1  Failed: no response from a gateway or a store, no access, or a file that cannot be used
  2  The command line or the configuration is wrong
  3  The stored state does not permit it: nothing is there, or it has changed
`lock run` and `once` have others: see their help.";

const SERVE_HELP: &str = "\
Examples:
  oncegate serve
  oncegate serve --engine disk:./claims --listen 127.0.0.1:8080
  ONCEGATE_DEFAULTS__LEASE=2m oncegate serve --config oncegate.toml

Flags override the environment, which overrides the configuration file. SIGTERM or SIGINT stops the gateway after the requests in
flight, a second signal at once; SIGHUP reloads the configuration.";

/// An idempotency gateway: lets every business operation run once
#[derive(Parser)]
#[command(name = "oncegate", version, arg_required_else_help = true, after_help = HELP)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a gateway
    #[command(after_help = SERVE_HELP)]
    Serve(Flags),
    /// Check or print the configuration, or show that of a running gateway
    #[command(subcommand)]
    Config(config::Action),
    /// Compute the global ID of an operation, without a gateway
    Id(id::IdArgs),
    /// Update the schema of PostgreSQL databases
    #[cfg(feature = "postgres")]
    Migrate(migrate::MigrateArgs),
    /// Check whether a gateway is ready
    Health(health::HealthArgs),
    /// Show the state of a gateway, and what needs a person
    Summary(summary::SummaryArgs),
    /// Manage apps and their secrets
    #[command(subcommand)]
    App(app::Action),
    /// Make a token for the admin API
    #[command(subcommand)]
    AdminToken(admin_token::Action),
    /// Show, list, settle and release claims
    #[command(subcommand)]
    Claim(claim::Action),
    /// Run a command while holding a lock; show, list and release locks
    #[command(subcommand)]
    Lock(lock::Action),
    /// List the claims whose outcome is unknown, of all apps
    Unknowns(unknowns::UnknownsArgs),
    /// List the claims and locks that callers of a gateway wait for
    Waiting(waiting::WaitingArgs),
    /// List the gateways that share a chain with a gateway
    Gateways(gateways::GatewaysArgs),
    /// Show rates and latencies of the last hour, day or two weeks
    History(history::HistoryArgs),
    /// List what the operations of a gateway have been answered
    Operations(operations::OperationsArgs),
    /// List recent calls: repeats, refusals, late outcomes
    Recent(recent::RecentArgs),
    /// Run a command once: with a claim before it, and an outcome after it
    Once(once::OnceArgs),
    /// List the engines of a gateway
    #[command(subcommand)]
    Engine(engine::Action),
    /// Show the chains of a gateway, or switch one to another engine
    #[command(subcommand)]
    Chain(chain::Action),
    /// List operations that may have been executed twice, and record what you found
    #[command(subcommand)]
    Suspects(suspects::Action),
    /// List operations that two attempts were allowed to run while a store was unavailable
    Overlaps(suspects::OverlapsArgs),
    /// Explain requests to the Idempotency-Key proxy, without a gateway; list its routes and requests, erase stored responses
    #[command(subcommand)]
    Proxy(proxy::Action),
    /// List the changes that operators made
    Audit(audit::AuditArgs),
    /// Write a backup of a disk engine to a file, while its gateway serves
    Backup(backup::BackupArgs),
    /// Restore a backup into the folder of a new disk engine
    Restore(restore::RestoreArgs),
    /// List the entries that wait for a store at a gateway; list or deliver the journal of one that no longer runs
    #[command(subcommand)]
    Spool(spool::Action),
    /// Write man pages or shell completions into a directory
    Generate(generate::GenerateArgs),
}

/// The configuration file, for commands without further settings.
#[derive(Args, Clone, Debug, Default)]
struct ConfigFile {
    #[arg(short = 'c', long, value_name = "FILE", help = Flags::CONFIG_HELP)]
    config: Option<PathBuf>,
}

impl ConfigFile {
    fn load(&self) -> Result<Config, Problems> {
        load(&Flags { config: self.config.clone(), ..Flags::default() })
    }
}

/// Loads the configuration of these flags and of the process's environment.
fn load(flags: &Flags) -> Result<Config, Problems> {
    Config::load(flags, environment())
}

/// Runs a command. Prints an error as one block on standard error. Returns the exit code, as the help describes it.
pub fn run(cli: Cli) -> ExitCode {
    let out = &mut io::stdout();
    let done = match cli.command {
        Command::Serve(flags) => serve::run(flags),
        Command::Config(action) => config::run(action, out),
        Command::Id(args) => id::run(&args, &mut io::stdin().lock(), out),
        #[cfg(feature = "postgres")]
        Command::Migrate(args) => migrate::run(args, out),
        Command::Health(args) => health::run(args, out),
        Command::Summary(args) => summary::run(args, out),
        Command::App(action) => app::run(action, &SystemEntropy, out),
        Command::AdminToken(action) => admin_token::run(action, &SystemEntropy, out),
        Command::Claim(action) => claim::run(action, &mut io::stdin().lock(), out),
        Command::Lock(action) => return finish(lock::run(action, out)),
        Command::Once(args) => return finish(once::run(args, &mut io::stdin().lock())),
        Command::Unknowns(args) => unknowns::run(args, out),
        Command::Waiting(args) => waiting::run(args, out),
        Command::Operations(args) => operations::run(args, out),
        Command::Recent(args) => recent::run(args, out),
        Command::Gateways(args) => gateways::run(args, out),
        Command::History(args) => history::run(args, out),
        Command::Engine(action) => engine::run(action, out),
        Command::Chain(action) => chain::run(action, out),
        Command::Suspects(action) => suspects::run(action, out),
        Command::Overlaps(args) => suspects::run_overlaps(args, out),
        Command::Proxy(action) => proxy::run(action, &mut io::stdin().lock(), out),
        Command::Audit(args) => audit::run(args, out),
        Command::Backup(args) => backup::run(args, out),
        Command::Restore(args) => restore::run(args, out),
        Command::Spool(action) => spool::run(action, out),
        Command::Generate(args) => generate::run(&args, out),
    };
    finish(done.map(|()| 0))
}

/// Prints the error, and returns the exit code.
fn finish(done: anyhow::Result<u8>) -> ExitCode {
    match done {
        Ok(code) => code.into(),
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            failure::report_within(failure::REPORT_TIMEOUT, format!("{error:#}"), io::stderr());
            ExitCode::from(exit_code::exit_code(&error))
        }
    }
}

/// Reports whether output to a terminal may be colored. See <https://no-color.org>.
fn may_color() -> bool {
    !forbids_color(environment())
}

fn forbids_color(mut environment: impl Iterator<Item = (OsString, OsString)>) -> bool {
    environment.any(|(name, value)| name == "NO_COLOR" && !value.is_empty())
}

#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

/// Returns an environment variable; none if it is not set or not UTF-8.
#[expect(clippy::disallowed_methods, reason = "the command line is where the environment is read")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
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
        let Command::Serve(flags) = parsed.unwrap().command else { panic!("not serve") };
        let config = load(&flags).unwrap();
        assert_eq!((config.server.listen.port(), config.engines["primary"].as_str()), (1, "memory:"));
    }

    #[test]
    fn the_short_flag_of_the_configuration_and_the_log_level_are_accepted() {
        let parsed = Cli::try_parse_from(["oncegate", "serve", "-c", "a.toml", "--log-level", "debug"]);
        let Command::Serve(flags) = parsed.unwrap().command else { panic!("not serve") };
        assert_eq!((flags.config, flags.log_level), (Some("a.toml".into()), Some("debug".into())));
    }

    #[test]
    fn the_former_name_of_a_flag_is_accepted() {
        for flag in ["--timeout", "--patience"] {
            assert!(Cli::try_parse_from(["oncegate", "spool", "deliver", flag, "3s"]).is_ok(), "{flag}");
        }
    }

    #[test]
    fn the_realm_of_a_claim_is_asked_for_only_where_there_are_two() {
        let name = ["--app", "shop", "--global-id", "2ca8a31a53ad078ffd0c7c8c80158af7", "--realm", "proxy"];
        let parsed = |command: &[&str]| Cli::try_parse_from([command, &name, &["--reason", "r"]].concat()).is_ok();
        assert!(parsed(&["oncegate", "claim", "release"]));
        assert!(!parsed(&["oncegate", "proxy", "forget"]), "its claims are all of the proxy");
    }

    #[test]
    fn color_can_be_forbidden() {
        let set = |value: &str| [("PATH".into(), "/".into()), ("NO_COLOR".into(), value.into())].into_iter();
        assert!(forbids_color(set("1")) && !forbids_color(set("")) && !forbids_color([].into_iter()));
    }

    #[test]
    fn contents_may_begin_with_a_dash() {
        for contents in ["-5", "-"] {
            assert!(Cli::try_parse_from(["oncegate", "id", "--app", "shop", contents]).is_ok());
        }
    }

    #[test]
    fn every_command_shows_examples_and_every_argument_has_a_help_text() {
        fn check(command: &clap::Command, is_top: bool) {
            let name = command.get_display_name().unwrap_or_default().to_owned();
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(!is_top || command.is_hide_set() || examples.contains("Examples:\n  "), "{name} has no examples");
            let mut after = None;
            for argument in
                command.get_arguments().filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()))
            {
                assert!(argument.get_help().is_some(), "{name}: {} has no help text", argument.get_id());
                let heading = argument.get_help_heading();
                assert!(heading.is_some() || after.is_none(), "{name}: {} is below {after:?}", argument.get_id());
                after = heading;
            }
            command.get_subcommands().for_each(|sub| check(sub, false));
        }
        let mut command = Cli::command();
        command.build();
        command.get_subcommands().filter(|sub| sub.get_name() != "help").for_each(|sub| check(sub, true));
    }

    #[test]
    fn a_mistyped_command_or_flag_gets_a_tip() {
        let tip = |words: &[&str]| match arguments::parse_from(words) {
            Ok(_) => panic!("{words:?} is accepted"),
            Err(error) => error.to_string(),
        };
        for (words, meant) in [
            (&["oncegate", "overlap"][..], "'overlaps'"),
            (&["oncegate", "claim", "shwo"], "'show'"),
            (&["oncegate", "overlaps", "--limt", "5"], "'--limit'"),
            (&["oncegate", "chain", "list", "--output", "jsn"], "'json'"),
            (&["oncegate", "serve", "--port=80"], "'--listen 127.0.0.1:8080'"),
            (&["oncegate", "serve", "gateway.toml"], "'--config gateway.toml'"),
            (&["oncegate", "health", "--url", "http://127.0.0.1:9464"], "'--admin http"),
            (&["oncegate", "audit", "--token", "x"], "ONCEGATE_ADMIN_TOKEN"),
            (&["oncegate", "run"], "'oncegate serve'"),
            (&["oncegate", "version"], "'oncegate --version'"),
            (&["oncegate", "status"], "'oncegate summary'"),
            (&["oncegate", "doctor"], "'oncegate config check --connect'"),
            (&["oncegate", "check"], "'oncegate config check'"),
            (&["oncegate", "config", "validate"], "'oncegate config check'"),
        ] {
            let tip = tip(words);
            assert!(tip.matches("tip: ").count() == 1 && tip.contains(meant), "{tip}");
        }
    }
}
