//! `oncegate app`: who may call. Where the apps are in a registry, or a gateway is named, it asks that gateway's admin API;
//! else it changes nothing itself, and prints what to write into the configuration file.

mod file;

use std::io::Write;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminClient};
use crate::domain::attempt::Entropy;
use crate::domain::tenant::AppKey;

/// What to do, and where.
#[derive(Args, Debug)]
pub(super) struct AppArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Make an app; prints its secret, once
    New {
        /// The app's key, such as shop
        name: AppKey,
        #[arg(long, value_name = "JSON", help = SETTINGS_HELP)]
        settings: Option<String>,
        /// The chain that keeps its claims [default: that of `[defaults]`]
        #[arg(long)]
        chain: Option<String>,
        #[command(flatten)]
        asked: Asked,
    },
    /// List the apps, their secrets' IDs and when each was last used
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Give an app a new secret, printed once, beside the newest one it has
    Rotate {
        /// The app's key
        name: AppKey,
        /// Revoke all its other secrets at once, for one that has leaked
        #[arg(long)]
        revoke_all: bool,
        #[command(flatten)]
        asked: Asked,
    },
    /// Revoke one secret of an app, once its callers use another one
    Revoke {
        /// The app's key
        name: AppKey,
        /// The ID of the secret, as `oncegate app list` shows it
        secret_id: String,
        #[command(flatten)]
        asked: Asked,
    },
    /// Turn an app's callers away
    Disable {
        /// The app's key
        name: AppKey,
        #[command(flatten)]
        asked: Asked,
    },
    /// Let an app's callers in again
    Enable {
        /// The app's key
        name: AppKey,
        #[command(flatten)]
        asked: Asked,
    },
}

/// Not a doc comment: braces and quotes would be taken for Markdown.
const SETTINGS_HELP: &str =
    r#"Its terms, as a table [apps.<name>] has them, in JSON: '{"retention":"30d"}'; for a registry"#;

/// Of whom it is asked, and why.
#[derive(Args, Debug)]
struct Asked {
    /// Why, for the audit trail; needed where a gateway is asked
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) fn run(args: AppArgs, entropy: &dyn Entropy, out: &mut impl Write) -> anyhow::Result<()> {
    match args.action {
        Action::New { name, settings, chain, asked } => {
            let Some(gateway) = asked.gateway()? else { return file::new(&name, chain.as_deref(), entropy, out) };
            let settings: Option<Value> = settings
                .map(|text| {
                    serde_json::from_str(&text).context("--settings is JSON, such as '{\"retention\":\"30d\"}'")
                })
                .transpose()?;
            let mut body = json!({ "app": name, "reason": gateway.reason });
            if let Some(settings) = settings {
                body["settings"] = settings;
            }
            if let Some(chain) = chain {
                body["chain"] = chain.into();
            }
            tell_secret(&gateway.client.post("/admin/v1/apps", &body)?, out)
        }
        Action::List { json, admin } => {
            if admin.is_named() || admin.settings().load()?.registry.is_set() {
                let apps = AdminClient::new(admin)?.get("/admin/v1/apps")?;
                if json { Ok(writeln!(out, "{apps:#}")?) } else { list(&apps, out) }
            } else {
                file::list(&admin.settings().load()?, json, out)
            }
        }
        Action::Rotate { name, revoke_all, asked } => {
            let Some(gateway) = asked.gateway()? else { return file::rotate(&asked, &name, revoke_all, entropy, out) };
            let revoke = if revoke_all { "all" } else { "older" };
            let body = json!({ "revoke": revoke, "reason": gateway.reason });
            tell_secret(&gateway.client.post(&format!("/admin/v1/apps/{name}/rotate"), &body)?, out)
        }
        Action::Revoke { name, secret_id, asked } => {
            let Some(gateway) = asked.gateway()? else { return file::revoke(&asked, &name, &secret_id, out) };
            let body = json!({ "secret_id": secret_id, "reason": gateway.reason });
            gateway.client.post(&format!("/admin/v1/apps/{name}/revoke"), &body)?;
            Ok(writeln!(out, "the secret {secret_id} of `{name}` is revoked; every gateway refuses it within seconds")?)
        }
        Action::Disable { name, asked } => switch(&asked, &name, true, out),
        Action::Enable { name, asked } => switch(&asked, &name, false, out),
    }
}

fn switch(asked: &Asked, name: &AppKey, disabled: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(gateway) = asked.gateway()? else { return file::switch(asked, name, disabled, out) };
    let verb = if disabled { "disable" } else { "enable" };
    gateway.client.post(&format!("/admin/v1/apps/{name}/{verb}"), &json!({ "reason": gateway.reason }))?;
    Ok(writeln!(out, "`{name}` is {verb}d; every gateway heeds it within seconds")?)
}

/// A gateway to ask, and why.
struct Gateway<'a> {
    client: AdminClient,
    reason: &'a str,
}

impl Asked {
    /// The gateway to ask; none where the apps are in the configuration file and no gateway is named.
    fn gateway(&self) -> anyhow::Result<Option<Gateway<'_>>> {
        if !self.admin.is_named() && !self.admin.settings().load()?.registry.is_set() {
            return Ok(None);
        }
        let Some(reason) = self.reason.as_deref() else {
            bail!("say why with --reason, for the audit trail, such as --reason \"INC-42: new checkout\"");
        };
        Ok(Some(Gateway { client: AdminClient::new(self.admin.clone())?, reason }))
    }
}

/// Tells a new secret, and what to do with it.
fn tell_secret(answer: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let text = |name: &str| answer[name].as_str().with_context(|| format!("the gateway's answer has no {name}"));
    let (app, secret, id) = (text("app")?, text("secret")?, text("secret_id")?);
    writeln!(out, "{app}.{secret}")?;
    writeln!(out)?;
    writeln!(
        out,
        "This is what callers of `{app}` send as `Authorization: Bearer …`. It is shown this once; store it now."
    )?;
    Ok(writeln!(out, "Its ID in lists is {id}. Every gateway takes it within seconds.")?)
}

fn list(answer: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let apps = answer["apps"].as_array().context("the gateway's answer has no apps")?;
    if apps.is_empty() {
        return Ok(writeln!(out, "there are no apps")?);
    }
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    for app in apps {
        let disabled = if app["disabled"] == true { ", disabled" } else { "" };
        writeln!(out, "{} (chain {}{disabled})", text(&app["app"]), text(&app["chain"]))?;
        for secret in app["secrets"].as_array().into_iter().flatten() {
            let (id, made, used) =
                (text(&secret["secret_id"]), text(&secret["created_at"]), text(&secret["last_used_at"]));
            writeln!(out, "  secret {id}  made {made}  last used {used}")?;
        }
        if let Some(problem) = app["problem"].as_str() {
            writeln!(out, "  problem: {problem}")?;
        }
    }
    Ok(())
}
