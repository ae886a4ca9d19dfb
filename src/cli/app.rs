//! `oncegate app`: apps and their secrets. Uses the admin API if a gateway is named or the configuration has a
//! registry. Otherwise it changes nothing, and prints the lines for the configuration file.

mod file;
mod show;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use oncegate_admin::bodies::{CreateApp, Reason, RevokeScope, RevokeSecret, RotateSecret, WithReason};
use oncegate_core::attempt::Entropy;
use oncegate_core::tenant::AppKey;
use serde_json::Value;

use super::admin_client::{AdminArgs, AdminClient, QueryArgs};
use super::claim::json_of;
use super::failure::usage;
use super::output::{Out, cell};

const EXAMPLES: &str = "\
Examples:
  oncegate app new shop
  oncegate app list
  oncegate app show shop --output json
  oncegate app rotate shop --reason \"INC-42: its secret was in a log\" --revoke-all
  oncegate app revoke shop 9f86d081 --reason \"INC-42: rotated\"";

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Create an app, and print its secret once
    New {
        /// Key of the app, such as shop
        name: AppKey,
        #[arg(long, value_name = "JSON", help = SETTINGS_HELP)]
        settings: Option<String>,
        /// Chain that stores its claims [default: that of `[defaults]`]
        #[arg(long)]
        chain: Option<String>,
        #[command(flatten)]
        change: Change,
    },
    /// List the apps
    List(QueryArgs),
    /// Show an app, with the ID and last use of each of its secrets
    Show {
        /// Key of the app
        name: AppKey,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Add a secret to an app, and print it once; its newest other secret stays valid
    Rotate {
        /// Key of the app
        name: AppKey,
        /// Revoke all other secrets at once, for a secret that has leaked
        #[arg(long)]
        revoke_all: bool,
        #[command(flatten)]
        change: Change,
    },
    /// Revoke a secret of an app, once its callers use another one
    Revoke {
        /// Key of the app
        name: AppKey,
        /// ID of the secret, as `oncegate app show` prints it
        secret_id: String,
        #[command(flatten)]
        change: Change,
    },
    /// Refuse the calls of an app
    Disable(Switch),
    /// Accept the calls of an app again
    Enable(Switch),
}

/// Not a doc comment: braces and quotes would be read as Markdown.
const SETTINGS_HELP: &str =
    r#"Settings of the app in a registry, as a table [apps.<name>] has them, in JSON: '{"retention":"30d"}'"#;

#[derive(Args, Debug)]
pub(super) struct Switch {
    /// Key of the app
    name: AppKey,
    #[command(flatten)]
    change: Change,
}

/// Arguments of every change.
#[derive(Args, Debug)]
pub(super) struct Change {
    /// Reason for the audit trail: one line; required for a change through a gateway
    #[arg(long)]
    reason: Option<Reason>,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) fn run(action: Action, entropy: &dyn Entropy, out: &mut impl Out) -> anyhow::Result<()> {
    match action {
        Action::New { name, settings, chain, change } => {
            let Some(gateway) = change.gateway()? else { return file::new(&name, chain.as_deref(), entropy, out) };
            let settings = settings.map(|settings| json_of("--settings", &settings)).transpose()?;
            let settings = settings.as_deref();
            let chain =
                chain.map(|chain| chain.parse()).transpose().map_err(|error| usage(format!("--chain: {error}")))?;
            let body = CreateApp { app: name, settings, chain, reason: gateway.reason };
            print_secret(&gateway.client.post("/admin/v1/apps", &body)?, out)
        }
        Action::List(query) if uses_gateway(&query.admin)? => query.show("/admin/v1/apps", out, show::list),
        Action::List(QueryArgs { output, admin }) => {
            output.print(&file::list(&admin.listener.config.load()?), out, show::list)
        }
        Action::Show { name, query } if uses_gateway(&query.admin)? => {
            query.show(&format!("/admin/v1/apps/{name}"), out, show::record)
        }
        Action::Show { name, query: QueryArgs { output, admin } } => {
            output.print(&file::show(&admin.listener.config.load()?, &name)?, out, show::record)
        }
        Action::Rotate { name, revoke_all, change } => {
            let Some(gateway) = change.gateway()? else {
                return file::rotate(&change, &name, revoke_all, entropy, out);
            };
            let revoke = if revoke_all { RevokeScope::All } else { RevokeScope::Older };
            let body = RotateSecret { revoke, reason: gateway.reason };
            print_secret(&gateway.client.post(&format!("/admin/v1/apps/{name}/rotate"), &body)?, out)
        }
        Action::Revoke { name, secret_id, change } => {
            let Some(gateway) = change.gateway()? else { return file::revoke(&change, &name, &secret_id, out) };
            let body = RevokeSecret { secret_id: secret_id.clone(), reason: gateway.reason };
            gateway.client.post(&format!("/admin/v1/apps/{name}/revoke"), &body)?;
            Ok(writeln!(
                out,
                "The secret {secret_id} of `{name}` is revoked. Every gateway refuses it within seconds."
            )?)
        }
        Action::Disable(Switch { name, change }) => switch(&change, &name, true, out),
        Action::Enable(Switch { name, change }) => switch(&change, &name, false, out),
    }
}

fn switch(change: &Change, name: &AppKey, disabled: bool, out: &mut impl Out) -> anyhow::Result<()> {
    let Some(gateway) = change.gateway()? else { return file::switch(change, name, disabled, out) };
    let verb = if disabled { "disable" } else { "enable" };
    gateway.client.post(&format!("/admin/v1/apps/{name}/{verb}"), &WithReason { reason: gateway.reason })?;
    Ok(writeln!(out, "The app `{name}` is {verb}d. It takes effect at every gateway within seconds.")?)
}

/// Reports whether to use a gateway: one is named, or the apps are in a registry.
fn uses_gateway(admin: &AdminArgs) -> anyhow::Result<bool> {
    Ok(admin.listener.named().is_some() || admin.listener.config.load()?.registry.is_set())
}

/// The gateway to use, and the reason to send.
struct Gateway {
    client: AdminClient,
    reason: Reason,
}

impl Change {
    /// Returns the gateway to use; none if the apps are in the configuration file and no gateway is named.
    fn gateway(&self) -> anyhow::Result<Option<Gateway>> {
        if !uses_gateway(&self.admin)? {
            return Ok(None);
        }
        let Some(reason) = self.reason.clone() else {
            return Err(usage(
                "a change through a gateway needs a reason for its audit trail. Add --reason, such as --reason \"INC-42: new checkout\". \
                 For apps in a configuration file, leave out --admin and ONCEGATE_ADMIN_URL",
            ));
        };
        Ok(Some(Gateway { client: AdminClient::new(self.admin.clone())?, reason }))
    }
}

/// Prints a new secret, and what to do with it.
fn print_secret(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let text = |name: &str| answer[name].as_str().with_context(|| format!("the gateway answered without `{name}`"));
    file::print_credential(text("app")?, text("secret")?, out)?;
    Ok(writeln!(out, "Its ID in lists is {}. Every gateway accepts it within seconds.", cell(&answer["secret_id"]))?)
}
