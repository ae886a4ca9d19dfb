//! Signing in with a token, once, and out again.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use oncegate_web::auth_throttle::Failed;
use oncegate_web::problem::Problem;
use oncegate_web::request_id::RequestId;

use super::context::{Console, value};
use super::entry::{DRAFT_BYTES_MAX, form, no_tokens, own_path, see_other};
use super::session::{Draft, SessionId};
use super::sign_in_form;
use super::site::Site;
use super::texts::{Language, Text};
use crate::audit::Change;
use crate::auth::{Operator, Token, Via};

/// `GET /console/sign-in?to=…`: the form, or the page itself for those who are signed in.
pub(super) async fn show(State(console): State<Arc<Console>>, request: Request) -> Response {
    let language = Language::of(request.headers());
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let query: Vec<(String, String)> = form_urlencoded::parse(query).into_owned().collect();
    let to = own_path(value(&query, "to").unwrap_or("/console/"));
    if !console.sessions.has_tokens() {
        return no_tokens(language);
    }
    if session(&console, &request).is_some() {
        return see_other(to);
    }
    let ended = value(&query, "ended").map(|_| Text::SessionEnded(console.sites.mark()));
    sign_in_form::draw(language, to, ended, "").into_response()
}

/// `POST /console/sign-in`: begins a session with a new ID, and ends an existing one.
pub(super) async fn sign_in(State(console): State<Arc<Console>>, request: Request) -> Result<Response, Problem> {
    let language = Language::of(request.headers());
    if !console.sessions.has_tokens() {
        return Ok(no_tokens(language));
    }
    let (site, earlier) = (request.extensions().get::<Site>().cloned(), session(&console, &request));
    let request_id = request_id(&request);
    let (parts, body) = request.into_parts();
    let fields = form(&parts.headers, body).await?;
    let to = own_path(value(&fields, "to").unwrap_or("/console/"));
    let kept = value(&fields, "kept").filter(|kept| kept.len() <= DRAFT_BYTES_MAX).unwrap_or_default();
    let begun = value(&fields, "token").and_then(|token| console.sessions.sign_in(token.trim()));
    let Some((id, token)) = begun else {
        let page = sign_in_form::draw(language, to, Some(Text::WrongToken), kept);
        let mut response = (StatusCode::UNAUTHORIZED, page).into_response();
        // Without it a response would not be a 401 (RFC 9110, 11.6.1).
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        response.extensions_mut().insert(Failed);
        return Ok(response);
    };
    if let Some((earlier, _)) = earlier {
        console.sessions.end(&earlier);
    }
    if !kept.is_empty() {
        let path = to.split('?').next().unwrap_or_default().to_owned();
        let fields = form_urlencoded::parse(kept.as_bytes()).into_owned().collect();
        console.sessions.keep(&id, Draft { path, fields });
    }
    note(&console, token, request_id, "session.begin");
    Ok(with_cookie(see_other(to), site.and_then(|site| site.keep(&id))))
}

/// `POST /console/sign-out`: ends the session.
pub(super) async fn sign_out(State(console): State<Arc<Console>>, request: Request) -> Result<Response, Problem> {
    let (site, found) = (request.extensions().get::<Site>().cloned(), session(&console, &request));
    let request_id = request_id(&request);
    let (parts, body) = request.into_parts();
    let fields = form(&parts.headers, body).await?;
    let Some((id, token)) = found else { return Ok(see_other("/console/sign-in")) };
    if !value(&fields, "form_token").is_some_and(|sent| id.has_form_token(sent)) {
        return Ok(see_other("/console/"));
    }
    console.sessions.end(&id);
    note(&console, token, request_id, "session.end");
    Ok(with_cookie(see_other("/console/sign-in"), site.and_then(|site| site.forget())))
}

fn session(console: &Console, request: &Request) -> Option<(SessionId, Token)> {
    let id = request.extensions().get::<Site>()?.session(request.headers())?;
    console.sessions.find(&id).map(|token| (id, token))
}

fn request_id(request: &Request) -> String {
    request.extensions().get::<RequestId>().map_or("", RequestId::as_str).to_owned()
}

fn note(console: &Console, token: Token, request_id: String, action: &'static str) {
    let operator = Operator { name: token.name, role: token.role, request_id, via: Via::Console };
    console.admin.audit.note(&operator, &Change::without_reason(action));
}

fn with_cookie(mut response: Response, cookie: Option<HeaderValue>) -> Response {
    let headers: &mut HeaderMap = response.headers_mut();
    headers.extend(cookie.map(|cookie| (header::SET_COOKIE, cookie)));
    response
}
