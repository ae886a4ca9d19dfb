//! The way of a request to its page: permit, host, origin of forms, session, role; and the headers of every response.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::RequestExt as _;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use maud::html;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::request_id::RequestId;
use oncegate_web::response::{self, contain};
use oncegate_web::{body, head};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::context::{Answer, Console, Context, value};
use super::parts::refusal;
use super::session::Draft;
use super::site::Site;
use super::texts::{Language, Text, Texts};
use super::{layout, sign_in_form};
use crate::auth::{Operator, Via};
use crate::role::Role;

/// Limit of concurrent requests to the console by operators, and by others. The admin API has its own.
const IN_FLIGHT_MAX: usize = 16;

/// Longest time for a page to be read.
const PAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest form.
const FORM_BYTES_MAX: usize = 128 << 10;

/// Largest draft of a form that is kept over a sign-in, as the browser encodes it.
pub(super) const DRAFT_BYTES_MAX: usize = 16 << 10;

/// Fields that are new each time a form is shown.
const UNKEPT: [&str; 2] = ["form_token", "nonce"];

/// Longest time for a form to arrive.
const FORM_TIMEOUT: Duration = Duration::from_secs(5);

/// The field of requests that a page's script makes without a click.
const LIVE: &str = "oncegate-live";

/// Characters that a value of a query may have as they are.
const IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Only the console's own files are loaded, nothing runs in a page, and no other site can frame it or send its forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// A page, called with the request of an operator who may see it.
pub(super) type Page = Arc<dyn Fn(Arc<Context>) -> BoxFuture<'static, Result<Answer, Problem>> + Send + Sync>;

/// Dependencies of [`guard`].
#[derive(Clone)]
pub(super) struct Guard {
    console: Arc<Console>,
    /// Places of operators, and as many of those who have not signed in: forms that never end keep no operator out.
    operators: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl Guard {
    /// Returns the guard of a console.
    pub(super) fn new(console: Arc<Console>) -> Self {
        let [operators, strangers] = [(); 2].map(|()| Arc::new(Semaphore::new(IN_FLIGHT_MAX)));
        Self { console, operators, strangers }
    }
}

/// Passes requests on if their host is known and their forms come from pages of the console. Adds the headers of every response.
pub(super) async fn guard(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let mut response = match admitted(&guard, &request) {
        Ok((site, _permit)) => {
            request.extensions_mut().insert(site);
            contain(next.run(request)).await
        }
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn admitted(guard: &Guard, request: &Request) -> Result<(Site, OwnedSemaphorePermit), Problem> {
    let site = head::host(request).and_then(|host| guard.console.sites.of_host(host)).ok_or_else(|| {
        Problem::invalid(
            "The console does not answer to this host. It answers to loopback names, such as those of a tunnel, and to the host of \
             console.origin.",
        )
    })?;
    let session = site.session(request.headers());
    let has_session = session.is_some_and(|session| guard.console.sessions.peek(&session).is_some());
    let places = if has_session { &guard.operators } else { &guard.strangers };
    let permit = places.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("{IN_FLIGHT_MAX} pages of the console are being drawn; load this one again.");
        Problem::new(Code::Overloaded, detail).retry_soon()
    })?;
    if !request.method().is_safe() && !site.has_sent(request.headers()) {
        return Err(Problem::new(Code::Forbidden, Texts(Language::English).of(Text::NotFromThisSite)));
    }
    Ok((site, permit))
}

/// Answers a request to a page: finds the session and its role, draws the page, and draws problems as pages too.
pub(super) async fn enter(console: Arc<Console>, role: Role, page: Page, request: Request) -> Response {
    let (language, is_read) = (Language::of(request.headers()), request.method().is_safe());
    if !console.sessions.has_tokens() {
        return no_tokens(language);
    }
    let context = match context(console, language, request).await {
        Ok(context) => Arc::new(context),
        Err(response) => return response,
    };
    if context.operator.role < role {
        let problem = forbidden(&context.operator, role);
        return draw_problem(&context, &problem, None);
    }
    let drawing = page(context.clone());
    let drawn = if is_read {
        tokio::time::timeout(PAGE_TIMEOUT, drawing).await.unwrap_or_else(|_| {
            let detail = format!("The page took longer than {} s. Load it again.", PAGE_TIMEOUT.as_secs());
            Err(Problem::new(Code::StoreUnavailable, detail))
        })
    } else {
        drawing.await
    };
    match drawn {
        Ok(Answer::Page(title, main)) => layout::page(&context, title, &main).into_response(),
        Ok(Answer::SeeOther(to)) => see_other(&to),
        Ok(Answer::Json(json)) => response::json(&json),
        Err(problem) => draw_problem(&context, &problem, kept_form(&context).as_deref()),
    }
}

/// Keeps what was typed into a refused form until its page is opened. Returns the address of that page.
fn kept_form(context: &Context) -> Option<String> {
    let bytes: usize = context.form.iter().map(|(name, value)| name.len() + value.len()).sum();
    if context.form.is_empty() || bytes > DRAFT_BYTES_MAX {
        return None;
    }
    let fields = context.form.iter().filter(|(name, _)| !UNKEPT.contains(&name.as_str())).cloned().collect();
    context.console.sessions.keep(&context.session, Draft { path: context.path.clone(), fields });
    Some(context.address())
}

/// Returns the page for a gateway without operators.
pub(super) fn no_tokens(language: Language) -> Response {
    let t = Texts(language);
    let main = html! {
        p { (t.of(Text::NoTokensWhy)) }
        p { (t.of(Text::NoTokensMake)) }
        pre { "oncegate admin-token new alice\noncegate admin-token new bob --role view" }
        p { (t.of(Text::NoTokensThen)) }
    };
    (StatusCode::FORBIDDEN, layout::bare(language, Text::NoTokens, &main)).into_response()
}

/// Returns a redirect to another page of the console.
pub(super) fn see_other(to: &str) -> Response {
    let to = HeaderValue::from_str(to).unwrap_or(HeaderValue::from_static("/console/"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response()
}

/// Returns the path that a sign-in leads to, if it is one of the console.
pub(super) fn own_path(to: &str) -> &str {
    let is_own = to.starts_with("/console/") && to.len() <= 1024 && to.bytes().all(|byte| byte.is_ascii_graphic());
    if is_own && !to.contains("//") && !to.contains("/..") && !to.contains(['\\', '#']) { to } else { "/console/" }
}

/// Reads the fields of a form.
pub(super) async fn form(headers: &HeaderMap, body: Body) -> Result<Vec<(String, String)>, Problem> {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    if media_type.split(';').next().unwrap_or_default().trim() != "application/x-www-form-urlencoded" {
        return Err(Problem::new(Code::UnsupportedMediaType, "The console takes forms only."));
    }
    let read = tokio::time::timeout(FORM_TIMEOUT, to_bytes(body, FORM_BYTES_MAX));
    let bytes = read.await.map_err(|_| Problem::invalid("The form did not arrive in time; send it again."))?;
    let bytes = bytes.map_err(|_| body::too_large("The form", FORM_BYTES_MAX))?;
    Ok(form_urlencoded::parse(&bytes).into_owned().collect())
}

/// Returns the request of a signed-in operator, or the response for others.
async fn context(console: Arc<Console>, language: Language, mut request: Request) -> Result<Context, Response> {
    let site = request.extensions().get::<Site>().cloned();
    let session = site.as_ref().and_then(|site| site.session(request.headers()));
    let is_click = !request.headers().contains_key(LIVE);
    let found = session.and_then(|session| {
        let token = if is_click { console.sessions.find(&session) } else { console.sessions.peek(&session) };
        token.map(|token| (session, token))
    });
    let Some((session, token)) = found else { return Err(signed_out(language, request).await) };
    let request_id = request.extensions().get::<RequestId>().map_or("", RequestId::as_str).to_owned();
    let operator = Operator { name: token.name, role: token.role, request_id, via: Via::Console };
    let parameters = request.extract_parts::<Path<BTreeMap<String, String>>>().await;
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let path = request.uri().path();
    let is_opened = request.method().is_safe() && is_click;
    let draft = if is_opened { console.sessions.take_draft(&session, path) } else { Vec::new() };
    let mut context = Context {
        console,
        operator,
        session,
        language,
        path: path.to_owned(),
        parameters: parameters.map(|Path(parameters)| parameters).unwrap_or_default(),
        // Only the sign-in reads `reloaded`. The admin API refuses parameters that it does not know.
        query: form_urlencoded::parse(query).into_owned().filter(|(name, _)| name != "reloaded").collect(),
        form: Vec::new(),
        draft,
        is_click,
    };
    if !request.method().is_safe() {
        let (parts, body) = request.into_parts();
        context.form = match form(&parts.headers, body).await {
            Ok(form) => form,
            Err(problem) => return Err(draw_problem(&context, &problem, None)),
        };
        let is_own = value(&context.form, "form_token").is_some_and(|sent| context.session.has_form_token(sent));
        if !is_own {
            let problem = Problem::new(Code::Forbidden, context.texts().of(Text::FormIsOld));
            return Err(draw_problem(&context, &problem, None));
        }
    }
    Ok(context)
}

/// Leads to the sign-in. A browser that follows a link on another site sends no cookie: the page loads itself again,
/// and the browser sends it. The text that was typed into a form is kept.
async fn signed_out(language: Language, request: Request) -> Response {
    let path = own_path(request.uri().path_and_query().map_or("/console/", |path| path.as_str())).to_owned();
    if !request.method().is_safe() {
        return signed_out_with_form(language, &path, request).await;
    }
    let has_reloaded = path.contains("reloaded=1");
    if Site::is_linked(request.headers()) && !has_reloaded {
        let separator = if path.contains('?') { '&' } else { '?' };
        return layout::reload(language, &format!("{path}{separator}reloaded=1")).into_response();
    }
    let to = path.trim_end_matches("reloaded=1").trim_end_matches(['?', '&']);
    let ended = if Site::has_any_session(request.headers()) { "&ended=1" } else { "" };
    see_other(&format!("/console/sign-in?to={}{ended}", utf8_percent_encode(to, IN_QUERY)))
}

/// Shows the sign-in in place of the result of a form, and nothing is executed. The fields go to the browser that has sent them; after the
/// sign-in they are in the form again.
async fn signed_out_with_form(language: Language, to: &str, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let fields = form(&parts.headers, body).await.unwrap_or_default();
    let kept = fields.iter().filter(|(name, _)| !UNKEPT.contains(&name.as_str()));
    let kept = form_urlencoded::Serializer::new(String::new()).extend_pairs(kept).finish();
    let kept = if kept.len() <= DRAFT_BYTES_MAX { &kept } else { "" };
    let page = sign_in_form::draw(language, to, Some(Text::SignInAgain), kept);
    // Without it a response would not be a 401 (RFC 9110, 11.6.1).
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], page).into_response()
}

fn forbidden(operator: &Operator, needed: Role) -> Problem {
    let detail = format!(
        "The token `{}` has the role `{}`; this page needs `{}`. Roles are set in [admin.tokens] of the configuration.",
        operator.name,
        operator.role.name(),
        needed.name()
    );
    Problem::new(Code::Forbidden, detail)
}

/// Draws a problem as a page, with the text of the admin API's document, and a link to the form that was refused.
fn draw_problem(context: &Context, problem: &Problem, form: Option<&str>) -> Response {
    let t = context.texts();
    let title = Text::Refused(problem.code);
    let main = html! {
        h1 { (t.of(title)) }
        p { (refusal(t, problem)) }
        @if problem.code == Code::Internal { p { (t.of(Text::NothingKnownToHaveChanged)) } }
        @if let Some(form) = form { p { a.button href=(form) { (t.of(Text::BackToForm)) } " " (t.of(Text::FormIsKept)) } }
        p.muted {
            (t.of(Text::Code)) " " code { (problem.code.name()) } " · " (t.of(Text::Request)) " " code { (context.operator.request_id) }
        }
    };
    (problem.code.status(), layout::page(context, title, &main)).into_response()
}
