//! Explains for one request the way that the proxy would take: its route, its identity, and its fingerprint. Sends nothing.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use oncegate_core::clock::Clock;
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::AppKey;
use oncegate_web::problem::Problem;

use super::dialect::{Refusal, oasis};
use super::fingerprint::Content;
use super::identify::contents;
use super::key::IdempotencyKey;
use super::options::{KeyRequirement, ProxyOptions};
use super::peer_fields::PeerFields;
use super::principal::NoPrincipal;
use super::route::{Route, Way};
use super::target::Target;
use super::token::{Issuers, NoOwner};
use super::{Dialect, fields, fingerprint, principal, routes, upload};

/// A request to explain.
#[derive(Debug)]
pub struct Sample {
    /// Its method.
    pub method: String,
    /// Its URL, with the host that the client uses.
    pub url: String,
    /// Names and values of its fields.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
    /// Largest body that is read before its key is claimed (`limits.body_bytes`).
    pub body_bytes_max: usize,
    /// True if it comes from one of `proxy.trusted_peers`.
    pub is_trusted: bool,
}

/// The way of a request through the proxy.
#[derive(Debug, PartialEq, Eq)]
pub enum Explanation {
    /// Refused, with the reason.
    Refused(String),
    /// Forwarded without protection, with the reason.
    Unprotected(String),
    /// Its key is claimed.
    Claimed {
        /// Name of the claim's operation.
        operation: String,
        /// App of the claim.
        app: AppKey,
        /// Key as the gateway reads it.
        key: String,
        /// Contents of the claim, which contain the digest of the principal.
        contents: String,
        /// Global ID of the claim.
        global_id: GlobalId,
        /// Fingerprint that a repeat must have.
        fingerprint: String,
    },
}

/// Explains a request.
///
/// # Errors
/// The request or the configuration cannot be used, with the reason.
pub fn explain(options: &ProxyOptions, sample: &Sample, clock: &Arc<dyn Clock>) -> Result<Explanation, String> {
    let routes = routes(options, clock).ok_or("[proxy] cannot be used; `oncegate config check` says why")?;
    let method =
        Method::from_bytes(sample.method.as_bytes()).map_err(|_| format!("{:?} is no method", sample.method))?;
    let uri: Uri = sample.url.parse().map_err(|_| format!("{:?} is no URL", sample.url))?;
    if uri.host().is_none() {
        return Err(format!("{:?} names no host; write http://<host>/<path>", sample.url));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &sample.headers {
        let field = name.parse::<HeaderName>().ok().zip(HeaderValue::from_str(value).ok());
        let (name, value) = field.ok_or_else(|| format!("\"{name}: {value}\" is no field"))?;
        headers.append(name, value);
    }
    if !sample.is_trusted {
        PeerFields::new(options).ok_or("proxy.strip_fields is not valid")?.remove(&mut headers);
    }
    let mut request = Request::new(());
    (*request.uri_mut(), *request.headers_mut()) = (uri, headers);
    let target = match Target::take(&mut request) {
        Ok(target) => target,
        Err(problem) => return Ok(Explanation::Refused(reason(&problem))),
    };
    let mut headers = std::mem::take(request.headers_mut());
    let way = routes.find(&target.host, &target.path, &method);
    if let Some(objection) = routes.objection(&way, &target, &method, &headers) {
        return Ok(Explanation::Refused(reason(&objection.problem)));
    }
    let route = match way {
        Way::Protected(route) => route,
        Way::Unprotected { .. } => {
            let why = "no route protects this method on this path, or its route has key = \"off\"";
            return Ok(Explanation::Unprotected(why.to_owned()));
        }
        Way::None => return Ok(Explanation::Refused("no route has this host and path".to_owned())),
    };
    fields::end_hop(&mut headers);
    headers.remove(header::HOST);
    let issuers = Issuers::new(&options.issuers, clock.clone())?;
    identify(route, sample, &method, &target, &headers, &**clock, &issuers)
}

/// Returns the detail of a problem as the rest of a sentence.
fn reason(problem: &Problem) -> String {
    problem.detail.trim_end_matches('.').to_owned()
}

fn identify(
    route: &Route,
    sample: &Sample,
    method: &Method,
    target: &Target,
    headers: &HeaderMap,
    clock: &dyn Clock,
    issuers: &Issuers,
) -> Result<Explanation, String> {
    let is_long = sample.body.len() > sample.body_bytes_max;
    if is_long && route.options.reads_json() {
        let why = "its body is longer than limits.body_bytes, and the route reads the JSON of bodies";
        return Ok(Explanation::Refused(why.to_owned()));
    }
    let key = match IdempotencyKey::of_request(route, headers, Some(&sample.body)) {
        Ok(Some(key)) => key,
        Ok(None) if route.options.key == KeyRequirement::Optional => {
            return Ok(Explanation::Unprotected(format!(
                "it has no key, and `{}` does not require one",
                route.operation
            )));
        }
        Ok(None) => return Ok(Explanation::Refused(format!("it has no key, and `{}` requires one", route.operation))),
        Err(why) => return Ok(Explanation::Refused(why.to_string())),
    };
    if route.options.dialect == Dialect::Oasis
        && let Err(Refusal::Key(why) | Refusal::Expired(why)) =
            oasis::check(headers, route.options.retention, clock.wall())
    {
        return Ok(Explanation::Refused(why));
    }
    let principal = match principal::of(&route.principal, headers, sample.is_trusted, None, issuers) {
        Ok(principal) => principal,
        Err(NoPrincipal::Token(NoOwner::NoKeys)) => {
            return Err("the keys of the token's issuer are at a URL, which is not read here".to_owned());
        }
        Err(why) => return Ok(Explanation::Refused(why.to_string())),
    };
    let contents = contents(&key, &principal).ok_or("the key has no canonical form")?;
    let content = match upload::digest_of(headers) {
        Err(problem) if is_long => return Ok(Explanation::Refused(problem.detail.into_owned())),
        Ok(None) if is_long => {
            let why = "its body is longer than limits.body_bytes, and it has no Content-Digest with a SHA-256";
            return Ok(Explanation::Refused(why.to_owned()));
        }
        Ok(Some(digest)) if is_long => Content::Digest(digest),
        _ => Content::Bytes(&sample.body),
    };
    let fingerprint = fingerprint::of(&route.options, target, method, headers, content);
    Ok(Explanation::Claimed {
        operation: route.operation.to_string(),
        app: route.options.app.clone(),
        key: key.as_str().to_owned(),
        global_id: GlobalId::of(&route.options.app, &route.operation, &contents),
        contents: contents.as_str().to_owned(),
        fingerprint: fingerprint.map(|fingerprint| fingerprint.as_str().to_owned()).unwrap_or_default(),
    })
}
