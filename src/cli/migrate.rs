//! `oncegate migrate`: brings the schema of PostgreSQL databases up to date, and says from where to where. Safe to run at any
//! time and several times at once.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use super::{InvalidArgument, Settings};
use crate::database::{Address, schema};

/// Longer than a connection over a bad network takes; what a migration itself may take is the database's affair.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Which databases.
#[derive(Args)]
pub(super) struct MigrateArgs {
    #[arg(long, value_name = "FILE", help = super::CONFIG_HELP)]
    config: Option<PathBuf>,
    /// The database, such as `postgres://oncegate@localhost/oncegate` [default: every PostgreSQL engine of the configuration]
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    engine: Option<String>,
}

pub(super) fn run(args: MigrateArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let urls = match args.engine {
        Some(url) => vec![("the database".to_owned(), url)],
        None => configured(args.config)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    for (name, url) in urls {
        let address = Address::parse(&url).map_err(|error| InvalidArgument(format!("{name}: {error}")))?;
        if address.is_pooled() {
            let why = "is reached through a pooler; migrate over a connection of its own, without `pooler` in the URL";
            return Err(InvalidArgument(format!("{name} {why}")).into());
        }
        let migrated = runtime.block_on(schema::migrate(&address, CONNECT_TIMEOUT));
        let (before, after) = migrated.with_context(|| format!("{name} was not migrated"))?;
        if before == after {
            writeln!(out, "{name} is up to date: version {after}")?;
        } else {
            writeln!(out, "{name} was migrated from version {before} to {after}")?;
        }
    }
    Ok(())
}

/// The names and URLs of the PostgreSQL engines of the configuration.
fn configured(config: Option<PathBuf>) -> anyhow::Result<Vec<(String, String)>> {
    let config = Settings { config, ..Settings::default() }.load()?;
    let is_postgres = |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
    let engines = config.engines.into_iter().filter(|(_, url)| is_postgres(url));
    let engines: Vec<_> = engines.map(|(name, url)| (format!("engine `{name}`"), url)).collect();
    if engines.is_empty() {
        let why = "no engine of the configuration is a PostgreSQL database; name one with --engine";
        return Err(InvalidArgument(why.into()).into());
    }
    Ok(engines)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error, and whether it is one of the arguments.
    fn error(engine: &str) -> (String, bool) {
        let args = MigrateArgs { config: None, engine: Some(engine.to_owned()) };
        let error = run(args, &mut Vec::new()).expect_err("nothing to migrate");
        (format!("{error:#}"), error.is::<InvalidArgument>())
    }

    #[test]
    fn what_cannot_be_migrated_is_told() {
        for (engine, why) in [
            ("redis://h", "postgres://"),
            ("memory:", "postgres://"),
            ("postgres://me:hunter2@h/d?pooler=transaction", "of its own"),
        ] {
            let (refused, is_argument) = error(engine);
            assert!(refused.contains(why) && is_argument, "{engine}: {refused}");
        }
        let (refused, is_argument) = error("postgres://me:hunter2@127.0.0.1:1/d");
        assert!(!is_argument, "the database may be there later");
        assert!(refused.contains("the database was not migrated: 127.0.0.1:1: "), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}
