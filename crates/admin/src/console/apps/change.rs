//! Changes of an app: a new secret, the revocation of one, and whether its callers are accepted.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::json;

use super::show::App;
use crate::console::context::{Answer, Context, value};
use crate::console::parts::path;
use crate::console::texts::{Notice, Text};
use crate::console::{forms, layout};

/// `POST /admin/v1/apps/{app}/rotate`.
#[derive(Deserialize)]
struct NewSecret {
    secret: String,
}

/// Draws the page that makes a new secret.
pub(in crate::console) async fn ask_rotate(context: Arc<Context>) -> Result<Answer, Problem> {
    let revoked = [("older", Text::RevokeOlder), ("all", Text::RevokeAll)];
    let fields = |app: &App| {
        let name = Text::Notice(Notice::TypeAppIfUsed(app.key.raw()));
        html! {
            (forms::choice(&context, "revoke", Text::OtherSecrets, &revoked))
            @if !app.last_used().is_empty() { (forms::typed_if(&context, name, false)) }
        }
    };
    ask(&context, "rotate", Text::RotateIt, Text::RotateAbout, fields).await
}

/// Makes a new secret, and shows it once.
pub(in crate::console) async fn rotate(context: Arc<Context>) -> Result<Answer, Problem> {
    let (app, call) = bound(&context, "rotate").await?;
    let newest = app.secrets.last().map(|secret| secret.id.raw());
    let is_kept = |id: &str| value(&context.form, "revoke") == Some("older") && Some(id) == newest;
    if app.last_used().into_iter().any(|id| !is_kept(id)) {
        forms::check_typed(&context, app.key.raw())?;
    }
    let body = json!({ "revoke": value(&context.form, "revoke"), "reason": value(&context.form, "reason") });
    let done = format!("{}?done=rotated", app.address(&[]));
    let (console, operator, form) = (context.console.clone(), context.operator.clone(), forms::name(&context)?);
    let name = form.clone();
    let action = async move {
        let made: NewSecret = console.calls.change(&operator, &call, body.to_string()).await?;
        console.actions.hand_over(name, made.secret);
        Ok(done)
    };
    let led = forms::run(&context, action).await?;
    // A reload does not find it again.
    let Some(secret) = context.console.actions.take(&form) else { return Ok(led) };
    let t = context.texts();
    let main = html! {
        h1 { (t.of(Text::NewSecret)) }
        p { (t.of(Text::NewSecretAbout)) }
        pre { (app.key.raw()) "." (secret) }
        p { a href=(app.address(&[])) { (t.of(Text::App)) " " (app.key) } }
    };
    Ok(Answer::Page(Text::NewSecret, main))
}

/// Draws the page that revokes a secret.
pub(in crate::console) async fn ask_revoke(context: Arc<Context>) -> Result<Answer, Problem> {
    let fields = |app: &App| {
        let is_used = app.last_used().contains(&secret_id(&context));
        html! {
            p { (context.texts().of(Text::SecretId)) " " code { (secret_id(&context)) } }
            @if is_used { (forms::typed(&context, Text::TypeApp(app.key.raw()))) }
        }
    };
    let action = format!("revoke/{}", secret_id(&context));
    ask(&context, &action, Text::RevokeIt, Text::RevokeAbout, fields).await
}

/// Revokes the secret that was shown.
pub(in crate::console) async fn revoke(context: Arc<Context>) -> Result<Answer, Problem> {
    let (app, call) = bound(&context, "revoke").await?;
    if app.last_used().contains(&secret_id(&context)) {
        forms::check_typed(&context, app.key.raw())?;
    }
    let done = format!("{}?done=revoked", app.address(&[]));
    let body = json!({ "secret_id": secret_id(&context) });
    forms::act(context, call, body, &["reason"], done).await
}

fn secret_id(context: &Context) -> &str {
    context.parameters.get("secret").map_or("", String::as_str)
}

/// Draws the page that refuses the callers of an app.
pub(in crate::console) async fn ask_disable(context: Arc<Context>) -> Result<Answer, Problem> {
    let fields = |app: &App| forms::typed(&context, Text::TypeApp(app.key.raw()));
    ask(&context, "disable", Text::DisableIt, Text::DisableWhen, fields).await
}

/// Refuses the callers of an app.
pub(in crate::console) async fn disable(context: Arc<Context>) -> Result<Answer, Problem> {
    let (app, call) = bound(&context, "disable").await?;
    forms::check_typed(&context, app.key.raw())?;
    let done = format!("{}?done=disabled", app.address(&[]));
    forms::act(context, call, json!({}), &["reason"], done).await
}

/// Draws the page that accepts the callers of an app again.
pub(in crate::console) async fn ask_enable(context: Arc<Context>) -> Result<Answer, Problem> {
    ask(&context, "enable", Text::EnableIt, Text::EnableWhen, |_: &App| html! {}).await
}

/// Accepts the callers of an app again.
pub(in crate::console) async fn enable(context: Arc<Context>) -> Result<Answer, Problem> {
    let (app, call) = bound(&context, "enable").await?;
    let done = format!("{}?done=enabled", app.address(&[]));
    forms::act(context, call, json!({}), &["reason"], done).await
}

/// Draws the page of an action. Its form is bound to the secrets and the state that it shows.
async fn ask(
    context: &Context,
    action: &str,
    title: Text<'static>,
    about: Text<'static>,
    fields: impl FnOnce(&App) -> Markup,
) -> Result<Answer, Problem> {
    let t = context.texts();
    let app = App::of(context).await?;
    let target = app.address(&action.split('/').collect::<Vec<_>>());
    let (word, secret) = action.split_once('/').unwrap_or((action, ""));
    // Any other text could be a command to a shell that someone copies.
    let secret = app.secrets.iter().find(|known| known.id.raw() == secret);
    let secret = secret.map(|known| format!(" {}", known.id.raw())).unwrap_or_default();
    let bound = [("secrets", &*app.secret_ids()), ("disabled", if app.disabled { "true" } else { "false" })];
    let main = html! {
        h1 { (t.of(title)) ": " (app.key) }
        (super::state(t, app.disabled, None))
        p { (t.of(about)) }
        @if app.changeable { (forms::form(context, &target, &bound, &fields(&app), title)) }
        @else { p.notice { (t.of(Text::AppInFile)) } }
        (layout::same_as(t, &format!("POST /admin/v1/apps/{{app}}/{word}"), &format!("oncegate app {word} {}{secret} --reason …", app.key.raw())))
    };
    Ok(Answer::Page(title, main))
}

/// Returns the app and the call of an action, if the app still is as the form has shown it.
async fn bound(context: &Context, action: &str) -> Result<(App, String), Problem> {
    let app = App::of(context).await?;
    let is_same = value(&context.form, "secrets").unwrap_or_default() == app.secret_ids()
        && value(&context.form, "disabled") == Some(if app.disabled { "true" } else { "false" });
    // After the action itself the app is another one; the form's nonce finds its result.
    if !is_same && !forms::has_run(context) {
        return Err(Problem::new(Code::Superseded, context.texts().of(Text::AppHasChanged)));
    }
    let call = path(&["apps", app.key.raw(), action]).replacen("/console/", "/admin/v1/", 1);
    Ok((app, call))
}
