//! `oncegate app` for apps in the configuration file: what to write there. The file itself is left to whoever owns it.

use std::io::Write;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::Asked;
use crate::config::{AppOptions, Config, KeyPath};
use crate::domain::attempt::Entropy;
use crate::domain::tenant::AppKey;
use crate::tenants::secret::{Secret, SecretDigest};

/// A new app: its secret, and its table.
pub(super) fn new(
    name: &AppKey,
    chain: Option<&str>,
    entropy: &dyn Entropy,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let secret = Secret::random(entropy);
    tell(name, &secret, out)?;
    writeln!(out, "Add this to the configuration file; a running gateway takes it over within seconds:")?;
    writeln!(out, "\n[{}]", table(name))?;
    if let Some(chain) = chain {
        writeln!(out, "chain = \"{}\"", chain.escape_debug())?;
    }
    Ok(writeln!(out, "secrets = [\"{}\"]", secret.digest())?)
}

/// A new secret beside the newest of an app, or instead of all.
pub(super) fn rotate(
    asked: &Asked,
    name: &AppKey,
    revoke_all: bool,
    entropy: &dyn Entropy,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let config = asked.admin.settings().load()?;
    let app = known(&config, name)?;
    let secret = Secret::random(entropy);
    // The last of the list is taken for the newest: here new ones are always put last.
    let kept = app.secrets.last().filter(|_| !revoke_all).cloned();
    tell(name, &secret, out)?;
    write_secrets(name, kept.into_iter().chain([secret.digest().to_string()]), out)?;
    if !revoke_all {
        writeln!(out, "\nOnce every caller uses the new one, take the first out again.")?;
    }
    Ok(())
}

/// One secret less.
pub(super) fn revoke(asked: &Asked, name: &AppKey, secret_id: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let config = asked.admin.settings().load()?;
    let app = known(&config, name)?;
    let is_it = |text: &&String| text.parse::<SecretDigest>().is_ok_and(|digest| digest.id() == secret_id);
    if !app.secrets.iter().any(|text| is_it(&text)) {
        bail!("`{name}` has no secret of the ID {secret_id}; `oncegate app list` shows those it has");
    }
    let rest: Vec<_> = app.secrets.iter().filter(|text| !is_it(text)).cloned().collect();
    if rest.is_empty() {
        bail!("this is the last secret of `{name}`: rotate first, or disable the app");
    }
    write_secrets(name, rest, out)
}

/// An app turned off, or on again.
pub(super) fn switch(asked: &Asked, name: &AppKey, disabled: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let config = asked.admin.settings().load()?;
    let app = known(&config, name)?;
    let has = if app.disabled { "disabled" } else { "enabled" };
    if app.disabled == disabled {
        return Ok(writeln!(out, "`{name}` is {has} already")?);
    }
    writeln!(out, "Write this into the configuration file; a running gateway takes it over within seconds:")?;
    Ok(writeln!(out, "\n[{}]\ndisabled = {disabled}", table(name))?)
}

/// The apps of the configuration. When a secret was last used only a gateway knows.
pub(super) fn list(config: &Config, as_json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let app = |(name, app): (&AppKey, &AppOptions)| {
        let ids = app.secrets.iter().filter_map(|text| text.parse::<SecretDigest>().ok());
        let secrets: Vec<_> = ids.map(|digest| json!({ "secret_id": digest.id() })).collect();
        let chain = app.chain.as_ref().unwrap_or(&config.defaults.chain);
        json!({ "app": name, "chain": chain, "disabled": app.disabled, "secrets": secrets })
    };
    let apps = json!({ "apps": config.apps.iter().map(app).collect::<Vec<_>>() });
    if as_json { Ok(writeln!(out, "{apps:#}")?) } else { super::list(&apps, out) }
}

fn known<'a>(config: &'a Config, name: &AppKey) -> anyhow::Result<&'a AppOptions> {
    config.apps.get(name).with_context(|| {
        let known: Vec<_> = config.apps.keys().map(AsRef::as_ref).collect();
        let known = if known.is_empty() { "none; name the file with --config".to_owned() } else { known.join(", ") };
        format!("the configuration has no app `{name}`; it has: {known}")
    })
}

fn tell(name: &AppKey, secret: &Secret, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "{name}.{}", secret.reveal())?;
    writeln!(out)?;
    writeln!(
        out,
        "This is what callers of `{name}` send as `Authorization: Bearer …`. It is shown this once; store it now."
    )?;
    Ok(())
}

fn write_secrets(name: &AppKey, secrets: impl IntoIterator<Item = String>, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "Write this into the configuration file; a running gateway takes it over within seconds:")?;
    writeln!(out, "\n[{}]\nsecrets = [", table(name))?;
    for secret in secrets {
        writeln!(out, "  \"{secret}\",")?;
    }
    Ok(writeln!(out, "]")?)
}

fn table(name: &AppKey) -> KeyPath {
    KeyPath::of(["apps", name.as_ref()])
}
