//! `/console/find`: finds a claim by its ID, by contents or what a template makes contents of, by a request ID or an attempt that this
//! gateway has answered lately, or by route and key of the proxy; and a lock by its name. All of them are posted, so no address has them.

mod guesses;
pub(super) mod templates;

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_core::attempt::Attempt;
use oncegate_web::problem::{Code, Problem};
use serde::Deserialize;
use serde_json::json;

use self::guesses::{Guess, LOOK_UPS_MAX};
use super::apps::KnownApps;
use super::context::{Answer, Context, value};
use super::parts::{address, claim_page, path, refusal};
use super::proxy::Routes;
use super::proxy::keys::{self, Keys};
use super::recent::Recent;
use super::texts::{Notice, Text};
use super::untrusted::Untrusted;
use super::{layout, locks};

/// `POST /admin/v1/proxy/find`.
#[derive(Deserialize)]
struct FoundKey {
    #[serde(flatten)]
    keys: Keys,
    claim: Option<ClaimOfKey>,
}

/// The claim of a key and its caller.
#[derive(Deserialize)]
struct ClaimOfKey {
    app: Untrusted,
    global_id: Untrusted,
}

/// Search of an operator.
struct Wanted<'a> {
    app: &'a str,
    realm: &'a str,
    operation: &'a str,
    text: &'a str,
    by_key: ByKey<'a>,
}

/// Search for a request of the proxy.
#[derive(Default)]
pub(super) struct ByKey<'a> {
    pub(super) route: &'a str,
    key: &'a str,
    principal: &'a str,
}

impl<'a> Wanted<'a> {
    fn of(fields: &'a [(String, String)]) -> Self {
        let field = |name| value(fields, name).map_or("", str::trim);
        let by_key = ByKey { route: field("route"), key: field("key"), principal: field("principal") };
        Self { app: field("app"), realm: field("realm"), operation: field("operation"), text: field("text"), by_key }
    }
}

/// Draws the page.
pub(super) async fn show(context: Arc<Context>) -> Result<Answer, Problem> {
    draw(&context, &Wanted::of(&context.draft), None, &html! {}).await
}

/// Leads to the page of the claim, or says that there is none.
pub(super) async fn find(context: Arc<Context>) -> Result<Answer, Problem> {
    let wanted = Wanted::of(&context.form);
    if !wanted.by_key.key.is_empty() {
        return find_key(&context, &wanted).await;
    }
    let only = if wanted.app.is_empty() { only_app(&context) } else { None };
    let wanted = match &only {
        Some(app) => Wanted { app: app.raw(), ..wanted },
        None => wanted,
    };
    let id = is_id(wanted.text).then(|| wanted.text.to_ascii_lowercase());
    if let Some(id) = id.as_deref().filter(|_| !is_from_header(&context)) {
        return Ok(Answer::SeeOther(address(&path(&["claims", wanted.app, id]), &[("realm", wanted.realm)])));
    }
    if let Some(page) = seen(&context, wanted.text, id.as_deref()).await {
        return Ok(Answer::SeeOther(page));
    }
    if let Some(id) = id.as_deref().filter(|_| !wanted.app.is_empty()) {
        return Ok(Answer::SeeOther(path(&["claims", wanted.app, id])));
    }
    let guesses = match &id {
        Some(id) => guesses::of_id(&context, wanted.app, id),
        None => guesses::of_text(&context, wanted.app, wanted.operation, wanted.text).await,
    };
    look_up(&context, &wanted, guesses).await
}

/// Leads to the claim among these, or to a lock of that name, or lists the claims, or says what was looked for.
async fn look_up(context: &Context, wanted: &Wanted<'_>, mut guesses: Vec<Guess>) -> Result<Answer, Problem> {
    let t = context.texts();
    let lock = locks::found(context, wanted.app, wanted.text).await;
    let has_too_many = wanted.app.is_empty() && guesses.len() > LOOK_UPS_MAX;
    if let Some(lock) = lock.as_ref().filter(|_| guesses.is_empty() || has_too_many) {
        return Ok(Answer::SeeOther(lock.clone()));
    }
    if guesses.is_empty() {
        let problem = Problem::invalid(t.of(Text::NothingToLookUp));
        return draw(context, wanted, Some(&problem), &html! {}).await;
    }
    if has_too_many {
        return draw(context, wanted, None, &html! { p.notice role="status" { (t.of(Text::ChooseApp)) } }).await;
    }
    let has_more = guesses.len() > LOOK_UPS_MAX;
    guesses.truncate(LOOK_UPS_MAX);
    let pages = match guesses::look_up(context, &guesses).await {
        Ok(pages) => pages,
        Err(problem) if problem.code == Code::NotFound && lock.is_some() => Vec::new(),
        Err(problem) => return draw(context, wanted, Some(&problem), &html! {}).await,
    };
    let found = match (&*pages, lock) {
        ([page], _) => return Ok(Answer::SeeOther(page.clone())),
        ([], Some(lock)) => return Ok(Answer::SeeOther(lock)),
        ([], None) => {
            let mut names: Vec<_> = guesses.into_iter().map(|guess| guess.name).collect();
            names.dedup();
            html! {
                strong { (t.of(Text::NoLiveClaim)) } " " (t.of(Text::LookedFor)) " " (Untrusted::from(names.join(", ")))
                @if has_more { " " (t.of(Text::Notice(Notice::SomeOperations(LOOK_UPS_MAX)))) }
            }
        }
        (pages, _) => html! { (t.of(Text::SeveralClaims)) @for page in pages { br; a href=(page) { (page) } } },
    };
    draw(context, wanted, None, &html! { p.notice role="status" { (found) } }).await
}

/// Reports whether a form is that of the header of each page, which names no app.
fn is_from_header(context: &Context) -> bool {
    value(&context.form, "app").is_none()
}

/// Returns the app of a gateway that has only one.
fn only_app(context: &Context) -> Option<Untrusted> {
    let KnownApps { mut keys, .. } = KnownApps::of(context);
    keys.pop().filter(|_| keys.is_empty())
}

/// Returns the page of the claim that this gateway has answered lately, by its ID, its attempt, or the ID of a request.
async fn seen(context: &Context, text: &str, id: Option<&str>) -> Option<String> {
    let filters = [("global_id", id.unwrap_or_default()), ("limit", "1000")];
    let [of_api, of_proxy] = ["/admin/v1/recent", "/admin/v1/proxy/recent"].map(|call| address(call, &filters));
    let (of_api, of_proxy) = tokio::join!(context.get::<Recent>(&of_api), context.get::<Keys>(&of_proxy));
    let attempt = text.parse::<Attempt>().map(|attempt| attempt.hash().to_string()).ok();
    let is_it = |request: &Untrusted, hash: Option<&Untrusted>| {
        id.is_some() || request.raw() == text || attempt.is_some() && hash.map(Untrusted::raw) == attempt.as_deref()
    };
    let of_api = of_api.ok().and_then(|recent| {
        let mut found = recent.events.iter().filter(|event| is_it(&event.request_id, event.attempt_hash.as_ref()));
        found.find_map(|event| Some(claim_page(&event.app, event.global_id.as_ref()?, "api")))
    });
    let of_proxy = || {
        let keys = of_proxy.ok()?;
        let found = keys.requests.iter().find(|request| is_it(&request.request_id, None))?;
        Some(claim_page(&found.app, &found.global_id, "proxy"))
    };
    of_api.or_else(of_proxy)
}

/// Leads to the claim of a key. If several callers have used the key, it lists their requests.
async fn find_key(context: &Context, wanted: &Wanted<'_>) -> Result<Answer, Problem> {
    let ByKey { route, key, principal } = wanted.by_key;
    let mut body = json!({ "route": route, "key": key });
    if !principal.is_empty() {
        body["principal"] = principal.into();
    }
    let FoundKey { keys, claim } = match context.post("/admin/v1/proxy/find", &body).await {
        Ok(found) => found,
        Err(problem) => return draw(context, wanted, Some(&problem), &html! {}).await,
    };
    let of_request = keys.requests.iter().map(|request| claim_page(&request.app, &request.global_id, "proxy"));
    let mut pages: Vec<_> = of_request.collect();
    if let Some(ClaimOfKey { app, global_id }) = &claim {
        pages = vec![claim_page(app, global_id, "proxy")];
    }
    pages.sort_unstable();
    pages.dedup();
    let t = context.texts();
    match &*pages {
        [page] => Ok(Answer::SeeOther(page.clone())),
        [] => draw(context, wanted, None, &html! { p.notice role="status" { (t.of(Text::NoSuchKey)) } }).await,
        _ => {
            let found = html! { p.notice role="status" { (t.of(Text::SeveralCallers)) } (keys::list(context, &keys)) };
            draw(context, wanted, None, &found).await
        }
    }
}

/// Returns the form that finds a request of the proxy on one of these routes.
pub(super) fn by_key(context: &Context, routes: &[&Untrusted], wanted: &ByKey<'_>) -> Markup {
    let t = context.texts();
    html! {
        form.action method="post" action="/console/find" {
            (layout::form_token(context))
            @if let [route] = routes { input type="hidden" name="route" value=(route.raw()); }
            @else {
                p {
                    label for="route" { (t.of(Text::Route)) }
                    select #route name="route" required {
                        @for route in routes { option value=(route.raw()) selected[route.raw() == wanted.route] { (route.shown()) } }
                    }
                }
            }
            p {
                label for="key" { (t.of(Text::Key)) }
                input.wide #key type="text" name="key" required maxlength="600" value=(wanted.key) spellcheck="false" autocomplete="off"
                    aria-describedby="key-hint";
                span.muted #key-hint { (t.of(Text::KeyHint)) }
            }
            p {
                label for="principal" { (t.of(Text::CallerDigest)) }
                input.wide #principal type="text" name="principal" value=(wanted.principal) spellcheck="false" autocomplete="off"
                    aria-describedby="principal-hint";
                span.muted #principal-hint { (t.of(Text::CallerDigestHint)) }
            }
            p { button type="submit" { (t.of(Text::FindByKey)) } }
        }
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

async fn draw(
    context: &Context,
    wanted: &Wanted<'_>,
    problem: Option<&Problem>,
    found: &Markup,
) -> Result<Answer, Problem> {
    let t = context.texts();
    let apps = KnownApps::of(context);
    let routes = context.get::<Routes>("/admin/v1/proxy/routes").await.map(|found| found.routes).unwrap_or_default();
    let routes: Vec<_> = routes.iter().map(|route| &route.name).collect();
    let main = html! {
        h1 { (t.of(Text::Find)) }
        @if let Some(problem) = problem {
            div.notice role="alert" {
                @if problem.code == Code::NotFound { strong { (t.of(Text::NoLiveClaim)) } " " }
                (refusal(t, problem))
            }
        }
        (found)
        (apps.notice(t))
        form.action method="post" action="/console/find" {
            (layout::form_token(context))
            p {
                label for="app" { (t.of(Text::App)) }
                select #app name="app" required {
                    @for key in &apps.keys {
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
        @if !routes.is_empty() {
            h2.apart { (t.of(Text::FindByKey)) }
            (by_key(context, &routes, &wanted.by_key))
        }
        (layout::same_as(t, "POST /admin/v1/claims/show, POST /admin/v1/proxy/find", "oncegate claim show --app … --global-id …, oncegate proxy find --route … …"))
    };
    Ok(Answer::Page(Text::Find, main))
}
