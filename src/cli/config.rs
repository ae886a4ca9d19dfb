//! `oncegate config`: checks the configuration, or prints it with all its layers merged.

use std::io::Write;

use clap::Subcommand;

use super::Settings;

const EXAMPLES: &str = "\
Examples:
  oncegate config check --config oncegate.toml
  ONCEGATE_SERVER__LISTEN=0.0.0.0:8080 oncegate config print --config oncegate.toml";

#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Check whether a gateway can use the configuration; the exit code is 2 if it cannot
    Check(Settings),
    /// Print the configuration with all layers merged, without secrets
    Print(Settings),
}

pub(super) fn run(action: Action, out: &mut impl Write) -> anyhow::Result<()> {
    match action {
        Action::Check(settings) => {
            let config = settings.load_to_serve()?;
            let (apps, engines) = (config.apps.len(), config.engines.len());
            writeln!(out, "The configuration is valid. Apps: {apps}, engines: {engines}.")?;
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
        run(action, &mut out).expect("a good configuration");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_valid_configuration_is_reported_as_valid() {
        assert_eq!(answer(Action::Check(settings("memory:"))), "The configuration is valid. Apps: 0, engines: 1.\n");
    }

    #[test]
    fn the_printed_configuration_has_no_passwords() {
        let printed = answer(Action::Print(settings("redis://:hidden@host")));
        assert!(
            printed.contains("primary = \"redis://:***@host\"") && printed.contains("lease = \"30s\""),
            "{printed}"
        );
    }

    #[test]
    fn an_invalid_configuration_is_an_error_of_its_own_type() {
        let bad = Settings { listen: Some("nowhere".to_owned()), ..Settings::default() };
        let error = run(Action::Check(bad), &mut Vec::new()).expect_err("no address");
        assert!(error.is::<Problems>());
        assert!(error.to_string().contains("flag --listen: server.listen: an address is"), "{error}");
    }
}
