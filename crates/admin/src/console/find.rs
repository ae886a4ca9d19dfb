//! `/console/find`: finds a claim by its ID, or by operation and contents. Contents are posted, so no address has them.

use std::sync::Arc;

use maud::html;
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::apps::{App, AppsPage};
use super::context::{Answer, Context, value};
use super::layout;
use super::parts::{address, path};
use super::texts::Text;
use super::untrusted::Untrusted;

/// The part of `POST /admin/v1/claims/show` that leads to its page.
#[derive(Deserialize)]
struct Found {
    app: String,
    global_id: String,
}

/// Search of an operator.
struct Wanted<'a> {
    app: &'a str,
    realm: &'a str,
    operation: &'a str,
    text: &'a str,
}

impl<'a> Wanted<'a> {
    fn of(fields: &'a [(String, String)]) -> Self {
        let field = |name| value(fields, name).map_or("", str::trim);
        Self { app: field("app"), realm: field("realm"), operation: field("operation"), text: field("text") }
    }
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    draw(&context, &Wanted::of(&context.draft), None).await
}

/// Leads to the page of the claim, or says that there is none.
pub(super) async fn find(context: Arc<Context>) -> Result<Answer, Problem> {
    let wanted = Wanted::of(&context.form);
    if is_id(wanted.text) {
        let id = wanted.text.to_ascii_lowercase();
        return Ok(Answer::SeeOther(address(&path(&["claims", wanted.app, &id]), &[("realm", wanted.realm)])));
    }
    let body = match body(&wanted) {
        Ok(body) => body,
        Err(problem) => return draw(&context, &wanted, Some(&problem)).await,
    };
    match context.console.calls.look_up::<Found>(&context.operator, "/admin/v1/claims/show", body).await {
        Ok(found) => {
            let realm = if wanted.operation.starts_with("proxy:") { "proxy" } else { "" };
            Ok(Answer::SeeOther(address(&path(&["claims", &found.app, &found.global_id]), &[("realm", realm)])))
        }
        Err(problem) => draw(&context, &wanted, Some(&problem)).await,
    }
}

/// Returns the body that names a claim by its contents, as they were typed: parsing them would change numbers.
fn body(wanted: &Wanted<'_>) -> Result<String, Problem> {
    let contents: &RawValue = serde_json::from_str(wanted.text).map_err(|_| {
        Problem::invalid("This is neither a global ID, which has 32 hex digits, nor JSON. Contents are JSON, such as {\"order_id\": \"A-1001\"}.")
    })?;
    let mut named = json!({ "app": wanted.app });
    if !wanted.operation.is_empty() {
        named["operation"] = Value::from(wanted.operation);
    }
    let named = named.to_string();
    Ok(format!("{},\"contents\":{}}}", named.trim_end_matches('}'), contents.get()))
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

async fn draw(context: &Context, wanted: &Wanted<'_>, problem: Option<&Problem>) -> Result<Answer, Problem> {
    let t = context.texts();
    let AppsPage { apps } = context.get("/admin/v1/apps").await?;
    let main = html! {
        h1 { (t.of(Text::Find)) }
        @if let Some(problem) = problem {
            div.notice role="alert" {
                @if problem.code == Code::NotFound { strong { (t.of(Text::NoLiveClaim)) } " " }
                (Untrusted::from(problem.detail.clone()))
            }
        }
        form.action method="post" action="/console/find" {
            (layout::form_token(context))
            p {
                label for="app" { (t.of(Text::App)) }
                select #app name="app" required {
                    @for App { key, .. } in &apps {
                        option value=(key.raw()) selected[key.raw() == wanted.app] { (key.shown()) }
                    }
                }
            }
            p {
                label for="text" { (t.of(Text::IdOrContents)) }
                textarea #text name="text" rows="3" required spellcheck="false" autofocus aria-describedby="text-hint" { (wanted.text) }
                span.muted #text-hint { (t.of(Text::IdOrContentsHint)) }
            }
            p {
                label for="operation" { (t.of(Text::Operation)) }
                input #operation type="text" name="operation" value=(wanted.operation) spellcheck="false" autocomplete="off"
                    aria-describedby="operation-hint";
                span.muted #operation-hint { (t.of(Text::OperationHint)) }
            }
            p {
                label.option { input type="checkbox" name="realm" value="proxy" checked[wanted.realm == "proxy"]; " " (t.of(Text::OfProxy)) }
            }
            p { button.primary type="submit" { (t.of(Text::Find)) } }
        }
        (layout::same_as(t, "POST /admin/v1/claims/show", "oncegate claim show"))
    };
    Ok(Answer::Page(Text::Find, main))
}
