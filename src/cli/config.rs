//! `oncegate config`: says whether the configuration can be used, or prints what all its layers come to.

use std::io::Write;

use clap::{Args, Subcommand};

use super::Settings;

/// What to do with the configuration.
#[derive(Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Say whether the configuration can be used: exit code 0 if it can, else 2
    Check(Settings),
    /// Print the configuration with all layers merged and secrets blacked out
    Print(Settings),
}

pub(super) fn run(args: ConfigArgs, out: &mut impl Write) -> anyhow::Result<()> {
    match args.action {
        Action::Check(settings) => {
            let config = settings.load_to_serve()?;
            let (apps, engines) = (config.apps.len(), config.engines.len());
            writeln!(out, "the configuration is good: apps: {apps}, engines: {engines}")?;
        }
        Action::Print(settings) => out.write_all(settings.load()?.redacted_toml()?.as_bytes())?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Problems;

    fn settings(engine: &str) -> Settings {
        Settings { engine: Some(engine.to_owned()), ..Settings::default() }
    }

    fn answer(action: Action) -> String {
        let mut out = Vec::new();
        run(ConfigArgs { action }, &mut out).expect("a good configuration");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_good_configuration_is_said_to_be_good() {
        assert_eq!(answer(Action::Check(settings("memory:"))), "the configuration is good: apps: 0, engines: 1\n");
    }

    #[test]
    fn what_is_printed_holds_the_settings_and_no_passwords() {
        let printed = answer(Action::Print(settings("redis://:hidden@host")));
        assert!(
            printed.contains("primary = \"redis://:***@host\"") && printed.contains("lease = \"30s\""),
            "{printed}"
        );
    }

    #[test]
    fn a_bad_one_is_an_error_of_its_own_kind() {
        let bad = Settings { listen: Some("nowhere".to_owned()), ..Settings::default() };
        let error = run(ConfigArgs { action: Action::Check(bad) }, &mut Vec::new()).expect_err("no address");
        assert!(error.is::<Problems>());
        assert!(error.to_string().contains("flag --listen: server.listen: an address is"), "{error}");
    }
}
