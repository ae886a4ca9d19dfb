//! `oncegate migrate`: updates the schema of PostgreSQL databases, or reports the changes of an update. Safe to run at
//! any time, and several times at once.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use oncegate_database::{Address, schema};
use serde_json::{Value, json};

use super::ConfigFile;
use super::failure::{state, usage};
use super::output::{self, Column, Out, OutputArgs, cell, rows};
use super::progress;
use crate::config::Config;

/// Longest wait for a connection over a slow network. The migrations have their own timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  oncegate migrate --config oncegate.toml
  oncegate migrate --status --output json
  oncegate migrate --dry-run --engine postgres://oncegate@localhost/oncegate

Without --engine, every PostgreSQL engine of the configuration and its registry of apps are migrated.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// URL of a database, such as `postgres://oncegate@localhost/oncegate` [default: those of the configuration]
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    engine: Option<String>,
    /// Show the version of each schema, and change nothing; the exit code is 3 if one is not up to date
    #[arg(long, conflicts_with = "dry_run")]
    status: bool,
    /// List the migrations that would be applied, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
}

const STATUS: &[Column] = &[
    ("DATABASE", |database| cell(&database["database"])),
    ("VERSION", |database| cell(&database["version"])),
    ("NEWEST", |database| cell(&database["newest"])),
    ("PENDING", |database| rows(database, "pending").len().to_string()),
    ("STATUS", |database| cell(&database["status"])),
];

const PENDING: &[Column] = &[
    ("DATABASE", |migration| cell(&migration["database"])),
    ("MIGRATION", |migration| cell(&migration["version"])),
    ("SUBJECT", |migration| cell(&migration["subject"])),
];

const MIGRATED: &[Column] = &[
    ("DATABASE", |database| cell(&database["database"])),
    ("FROM", |database| cell(&database["from"])),
    ("TO", |database| cell(&database["to"])),
];

pub(super) fn run(args: MigrateArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let databases = match args.engine {
        Some(url) => vec![("database".to_owned(), address(&url)?)],
        None => configured(&args.config.load()?)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    if args.status || args.dry_run {
        let statuses = databases.iter().map(|database| runtime.block_on(status(database)));
        let statuses = statuses.collect::<anyhow::Result<Vec<_>>>()?;
        return if args.dry_run { dry_run(&statuses, args.output, out) } else { show(&statuses, args.output, out) };
    }
    let mut migrated = Vec::new();
    for (name, address) in &databases {
        if address.is_pooled() {
            return Err(usage(format!(
                "{name} is reached through a pooler. Migrate over a direct connection: a URL without `pooler`"
            )));
        }
        let progress = progress::spinner(format!("Migrating {name}"));
        let done = runtime.block_on(schema::migrate(address, CONNECT_TIMEOUT));
        drop(progress);
        let (from, to) = done.with_context(|| format!("{name} was not migrated"))?;
        migrated.push(json!({ "database": name, "from": from, "to": to }));
    }
    let data = json!({ "databases": migrated });
    args.output.print(&data, out, |data, out| output::table(rows(data, "databases"), MIGRATED, out))
}

async fn status((name, address): &(String, Address)) -> anyhow::Result<Value> {
    let status = schema::status(address, CONNECT_TIMEOUT).await;
    let status = status.with_context(|| format!("the schema of {name} cannot be read"))?;
    let pending = status.pending.iter().map(|(version, subject)| json!({ "version": version, "subject": subject }));
    let pending: Vec<_> = pending.collect();
    let word = match () {
        () if !status.fits_build => "needs a newer release",
        () if pending.is_empty() => "up to date",
        () => "needs `oncegate migrate`",
    };
    Ok(json!({
        "database": name,
        "version": status.version,
        "newest": status.newest,
        "pending": pending,
        "up_to_date": status.fits_build && pending.is_empty(),
        "status": word,
    }))
}

/// Prints the state of each schema.
fn show(statuses: &[Value], output: OutputArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let data = json!({ "databases": statuses });
    output.print(&data, out, |data, out| output::table(rows(data, "databases"), STATUS, out))?;
    match statuses.iter().filter(|status| status["up_to_date"] != true).count() {
        0 => Ok(()),
        count => Err(state(format!("the schema of {count} of {} databases is not up to date", statuses.len()))),
    }
}

/// Prints the migrations that would be applied.
fn dry_run(statuses: &[Value], output: OutputArgs, out: &mut impl Out) -> anyhow::Result<()> {
    let of_database = |status: &Value| {
        let migration = |migration: &Value| json!({ "database": status["database"], "version": migration["version"], "subject": migration["subject"] });
        rows(status, "pending").iter().map(migration).collect::<Vec<_>>()
    };
    let data = json!({ "migrations": statuses.iter().flat_map(of_database).collect::<Vec<_>>() });
    output.print(&data, out, |data, out| match rows(data, "migrations") {
        [] => Ok(writeln!(out, "Every schema is up to date.")?),
        migrations => output::table(migrations, PENDING, out),
    })
}

fn address(url: &str) -> anyhow::Result<Address> {
    Address::parse(url).map_err(|error| usage(format!("the database cannot be used: {error}")))
}

/// Returns the names and addresses of the databases of the configuration, each once.
fn configured(config: &Config) -> anyhow::Result<Vec<(String, Address)>> {
    let is_postgres = |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
    let engines = config.engines.iter().filter(|(_, url)| is_postgres(url));
    let engines = engines.map(|(name, url)| (format!("engine {name}"), url.as_str()));
    let registry = Some(config.registry.url.as_str()).filter(|_| config.registry.is_set());
    let mut urls: Vec<(String, &str)> = engines.collect();
    if let Some(url) = registry.filter(|registry| urls.iter().all(|(_, url)| url != registry)) {
        urls.push(("registry".to_owned(), url));
    }
    if urls.is_empty() {
        return Err(usage(
            "the configuration names no PostgreSQL database. Name one with --engine, or the file with --config",
        ));
    }
    urls.into_iter().map(|(name, url)| Ok((name, address(url)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::exit_code::exit_code;
    use super::*;

    fn error(engine: &str) -> (String, u8) {
        let engine = Some(engine.to_owned());
        let output = OutputArgs::default();
        let args = MigrateArgs { config: ConfigFile::default(), engine, status: false, dry_run: false, output };
        let error = run(args, &mut Vec::new()).expect_err("nothing to migrate");
        (format!("{error:#}"), exit_code(&error))
    }

    #[test]
    fn a_database_that_cannot_be_migrated_is_named() {
        assert!(matches!(error("redis://h"), (message, 2) if message.contains("postgres://")));
        assert!(matches!(error("memory:"), (message, 2) if message.contains("postgres://")));
        let pooled = error("postgres://me:hunter2@h/d?pooler=transaction");
        assert!(matches!(pooled, (message, 2) if message.contains("a URL without `pooler`")));
        let (refused, code) = error("postgres://me:hunter2@127.0.0.1:1/d");
        assert!(refused.contains("database was not migrated: 127.0.0.1:1: "), "{refused}");
        assert!(code == 1 && !refused.contains("hunter2"), "{refused}");
    }
}
