//! `oncegate migrate`: brings the schema of PostgreSQL databases up to date, and says from where to where. Safe to run at any
//! time and several times at once.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use super::Settings;
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
        let address = Address::parse(&url)?;
        if address.is_pooled() {
            bail!(
                "{name} is reached through a pooler; migrate over a connection of its own, without `pooler` in the URL"
            );
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
        bail!("no engine of the configuration is a PostgreSQL database; name one with --engine");
    }
    Ok(engines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(engine: &str) -> String {
        let args = MigrateArgs { config: None, engine: Some(engine.to_owned()) };
        format!("{:#}", run(args, &mut Vec::new()).expect_err("nothing to migrate"))
    }

    #[test]
    fn what_cannot_be_migrated_is_told() {
        assert!(error("redis://h").contains("postgres://"));
        assert!(error("postgres://me:hunter2@h/d?pooler=transaction").contains("of its own"));
        let refused = error("postgres://me:hunter2@127.0.0.1:1/d");
        assert!(refused.contains("the database was not migrated: 127.0.0.1:1: "), "{refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
}
