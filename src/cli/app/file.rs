//! `oncegate app` for apps in the configuration file: prints what to write there. Never changes the file itself.

use std::io::Write;

use oncegate_core::attempt::Entropy;
use oncegate_core::tenant::AppKey;
use oncegate_gateway::tenants::secret::{Secret, SecretDigest};
use serde_json::{Value, json};

use super::Change;
use crate::cli::failure::state;
use crate::cli::output::ADD_TO_FILE;
use crate::config::{AppOptions, Config, KeyPath};

/// Prints the secret and the table of a new app.
pub(super) fn new(
    name: &AppKey,
    chain: Option<&str>,
    entropy: &dyn Entropy,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let secret = Secret::random(entropy);
    print_credential(name.as_ref(), secret.reveal(), out)?;
    writeln!(out, "{ADD_TO_FILE}")?;
    writeln!(out, "\n[{}]", table(name))?;
    if let Some(chain) = chain {
        writeln!(out, "chain = \"{}\"", chain.escape_debug())?;
    }
    Ok(writeln!(out, "secrets = [\"{}\"]", secret.digest())?)
}

/// Prints a new secret for an app, and its secrets from then on: the newest and the new one, or only the new one.
pub(super) fn rotate(
    change: &Change,
    name: &AppKey,
    revoke_all: bool,
    entropy: &dyn Entropy,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let config = change.admin.listener.config.load()?;
    let app = known(&config, name)?;
    let secret = Secret::random(entropy);
    // New secrets are always written at the end of the list, so the last one is the newest.
    let kept = app.secrets.last().filter(|_| !revoke_all).cloned();
    print_credential(name.as_ref(), secret.reveal(), out)?;
    write_secrets(name, kept.into_iter().chain([secret.digest().to_string()]), out)?;
    if !revoke_all {
        writeln!(out, "\nRemove the first one once every caller uses the new one.")?;
    }
    Ok(())
}

/// Prints the secrets of an app without one of them.
pub(super) fn revoke(change: &Change, name: &AppKey, secret_id: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let config = change.admin.listener.config.load()?;
    let app = known(&config, name)?;
    let is_it = |text: &&String| text.parse::<SecretDigest>().is_ok_and(|digest| digest.id() == secret_id);
    if !app.secrets.iter().any(|text| is_it(&text)) {
        let message =
            format!("`{name}` has no secret with the ID {secret_id}. `oncegate app show {name}` lists those it has");
        return Err(state(message));
    }
    let rest: Vec<_> = app.secrets.iter().filter(|text| !is_it(text)).cloned().collect();
    if rest.is_empty() {
        return Err(state(format!("this is the last secret of `{name}`. Rotate it first, or disable the app")));
    }
    write_secrets(name, rest, out)
}

/// Prints what disables an app, or enables it again.
pub(super) fn switch(change: &Change, name: &AppKey, disabled: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let config = change.admin.listener.config.load()?;
    let app = known(&config, name)?;
    let has = if app.disabled { "disabled" } else { "enabled" };
    if app.disabled == disabled {
        return Ok(writeln!(out, "The app `{name}` is {has} already.")?);
    }
    writeln!(out, "Write this into the configuration file. It takes effect within seconds, without a restart:")?;
    Ok(writeln!(out, "\n[{}]\ndisabled = {disabled}", table(name))?)
}

/// Returns the apps of the configuration, in the form of the admin API. Only gateways know when a secret was used.
pub(super) fn list(config: &Config) -> Value {
    json!({ "apps": config.apps.iter().map(|(name, app)| listed(config, name, app)).collect::<Vec<_>>() })
}

/// Returns one app, in the form of the admin API.
pub(super) fn show(config: &Config, name: &AppKey) -> anyhow::Result<Value> {
    Ok(listed(config, name, known(config, name)?))
}

fn listed(config: &Config, name: &AppKey, app: &AppOptions) -> Value {
    let ids = app.secrets.iter().filter_map(|text| text.parse::<SecretDigest>().ok());
    let secrets: Vec<_> = ids.map(|digest| json!({ "secret_id": digest.id() })).collect();
    let chain = app.chain.as_ref().unwrap_or(&config.defaults.chain);
    json!({ "app": name, "chain": chain, "disabled": app.disabled, "secrets": secrets })
}

fn known<'a>(config: &'a Config, name: &AppKey) -> anyhow::Result<&'a AppOptions> {
    config.apps.get(name).ok_or_else(|| {
        let known: Vec<_> = config.apps.keys().map(AsRef::as_ref).collect();
        let known = if known.is_empty() { "none. Name the file with --config".to_owned() } else { known.join(", ") };
        state(format!("the configuration has no app `{name}`; it has: {known}"))
    })
}

/// Prints a new credential, and what to do with it.
pub(super) fn print_credential(app: &str, secret: &str, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{app}.{secret}\n")?;
    Ok(writeln!(
        out,
        "Callers of `{app}` send this as `Authorization: Bearer …`. It is printed only once: store it now."
    )?)
}

fn write_secrets(name: &AppKey, secrets: impl IntoIterator<Item = String>, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "Write this into the configuration file. It takes effect within seconds, without a restart:")?;
    writeln!(out, "\n[{}]\nsecrets = [", table(name))?;
    for secret in secrets {
        writeln!(out, "  \"{secret}\",")?;
    }
    Ok(writeln!(out, "]")?)
}

fn table(name: &AppKey) -> KeyPath {
    KeyPath::of(["apps", name.as_ref()])
}
