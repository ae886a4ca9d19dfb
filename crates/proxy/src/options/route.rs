//! The tables of routes: the requests that they take, the identity of requests, and the stored responses.

use std::time::Duration;

use axum::http::uri::Authority;
use axum::http::{HeaderName, Method, StatusCode, Uri};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{Retention, Span};
use serde::{Deserialize, Serialize};

use super::{Bytes, JsonPointer, PrincipalSource, span};
use crate::authorizer::Authorizer;
use crate::dialect::Dialect;
use crate::fields::{self, StoredFields};
use crate::options::UpstreamOptions;
use crate::status::{self, Meaning, StatusRule};
use crate::target::{self, PathForm};

/// Table `[[proxy.routes]]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RouteOptions {
    /// Name of the route. The operation of its claims is `proxy:<name>`.
    pub name: String,
    /// The app whose claims they are.
    pub app: AppKey,
    /// Hosts of its requests. Empty: any.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Paths of its requests: `/v1/orders/{id}`, `/v1/{*rest}`.
    pub path: String,
    /// Forms that the paths of unsafe requests may have, although servers do not agree on what they name.
    #[serde(default)]
    pub allow_in_path: Vec<PathForm>,
    /// Methods that are protected. Others on this path are forwarded without protection.
    pub methods: Vec<String>,
    /// Name of the upstream.
    pub upstream: String,
    /// Meaning of a request without a key.
    #[serde(default)]
    pub key: KeyRequirement,
    /// Names of the field with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_headers: Option<Vec<String>>,
    /// The member of JSON bodies that has the key. A field with a key must have the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_in_body: Option<JsonPointer>,
    /// Statuses and bodies of refusals, and defaults.
    #[serde(default)]
    pub dialect: Dialect,
    /// Sources that distinguish two callers.
    pub principal: Vec<PrincipalSource>,
    /// True if all callers share their keys: `principal` is empty.
    #[serde(default)]
    pub shared_keys: bool,
    /// URL that is asked with the caller's credentials before each replay. A status of 2xx allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorize: Option<String>,
    /// Parts of a request that must be the same on a repeat.
    #[serde(default = "default_fingerprint")]
    pub fingerprint: Vec<FingerprintPart>,
    /// Members of JSON bodies that may differ on a repeat. The rest of the body is compared by value then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fingerprint_without: Vec<JsonPointer>,
    /// Statuses of responses that are stored. An exact status beats a class, and is not in the default of `release` then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Vec<StatusRule>>,
    /// Statuses of responses without an effect. An exact status is not in the default of `store` then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Vec<StatusRule>>,
    /// Meaning of a 5xx response. The dialect has a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_5xx: Option<Meaning>,
    /// Answer to a repeat of a request whose outcome is unknown.
    #[serde(default)]
    pub on_unknown: OnUnknown,
    /// Lease of the claim, renewed while the exchange runs.
    #[serde(default = "span::<60>")]
    pub lease: Span,
    /// Time for which a repeat of a running request waits for its response.
    #[serde(default = "span::<0>")]
    pub wait: Span,
    /// Time for which a key blocks repeats.
    #[serde(default = "default_retention")]
    pub retention: Retention,
    /// Time for which a response can be replayed. Absent: as long as the key blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_retention: Option<Span>,
    /// Fields of responses that are stored although they belong to one client, such as `Set-Cookie`.
    #[serde(default)]
    pub store_with: Vec<String>,
    /// Fields of responses that are not stored, in addition to the fields that are never stored.
    #[serde(default)]
    pub store_without: Vec<String>,
    /// Size of the largest body that is stored. A longer response cannot be replayed.
    #[serde(default = "default_response_bytes")]
    pub response_bytes: Bytes,
    /// True if responses with `Cache-Control: no-store` are stored as well. The default is true where stored responses are
    /// encrypted, and in the dialect of Stripe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_private: Option<bool>,
}

/// Meaning of a request without a key on a protected route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRequirement {
    /// Refused.
    #[default]
    Required,
    /// Forwarded without protection.
    Optional,
    /// Keys are ignored: nothing on this route is protected.
    Off,
}

/// Answer to a repeat of a request whose outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// 409.
    #[default]
    Refuse,
    /// Forwarded with `Oncegate-Repeat: unknown`; the upstream decides.
    Forward,
}

/// A part of the fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
pub enum FingerprintPart {
    /// The method.
    #[serde(rename = "method")]
    Method,
    /// The path.
    #[serde(rename = "path")]
    Path,
    /// The query.
    #[serde(rename = "query")]
    Query,
    /// The media type.
    #[serde(rename = "content-type")]
    ContentType,
    /// The precondition.
    #[serde(rename = "if-match")]
    IfMatch,
    /// The bytes of the body.
    #[serde(rename = "body")]
    Body,
    /// The JSON value of the body: order of members and white space make no difference.
    #[serde(rename = "body:json")]
    BodyJson,
}

impl RouteOptions {
    /// Reports whether requests to a host are its own.
    pub fn has_host(&self, host: &str) -> bool {
        let is_own = |own: &String| {
            own.strip_suffix('.').unwrap_or(own).eq_ignore_ascii_case(host)
                || own.starts_with('[') && target::plain_host(own) == host
        };
        self.hosts.is_empty() || self.hosts.iter().any(is_own)
    }

    /// Reports whether all hosts of another route are its own, in any spelling.
    pub fn has_hosts_of(&self, other: &Self) -> bool {
        let is_own = |host: &String| self.has_host(&target::plain_host(host));
        self.hosts.is_empty() || !other.hosts.is_empty() && other.hosts.iter().all(is_own)
    }

    /// Returns the meaning of a response with this status.
    pub(crate) fn meaning(&self, status: StatusCode) -> Meaning {
        let on_5xx = self.on_5xx.unwrap_or_else(|| self.dialect.on_5xx());
        status::meaning(status, &self.stored_statuses(), &self.released_statuses(), on_5xx)
    }

    /// Returns the statuses of responses that are stored.
    pub fn stored_statuses(&self) -> Vec<StatusRule> {
        effective(self.store.as_ref(), self.release.as_ref(), || StatusRule::list(&["2xx", "301", "302", "303", "4xx"]))
    }

    /// Returns the statuses of responses without an effect.
    pub fn released_statuses(&self) -> Vec<StatusRule> {
        effective(self.release.as_ref(), self.store.as_ref(), || self.dialect.release())
    }

    /// Returns the first status that is written in `store` and in `release`.
    pub fn contradiction(&self) -> Option<StatusRule> {
        let (store, release) = (self.store.as_ref()?, self.release.as_ref()?);
        store.iter().find(|rule| release.contains(rule)).copied()
    }

    /// Reports whether responses with `Cache-Control: no-store` are stored.
    pub fn stores_private(&self, is_encrypted: bool) -> bool {
        self.store_private.unwrap_or_else(|| is_encrypted || self.dialect.stores_private())
    }

    /// Returns the operation of its claims.
    pub fn operation(&self) -> Option<Operation> {
        format!("{}{}", Operation::PROXY_PREFIX, self.name).parse().ok()
    }

    /// Returns what matches its paths.
    ///
    /// # Errors
    /// The pattern is not valid.
    pub fn matcher(&self) -> Result<matchit::Router<()>, matchit::InsertError> {
        matcher(self.path.as_str())
    }

    /// Returns what matches its paths once they are decoded, as [`target::decoded`] does it.
    ///
    /// # Errors
    /// The pattern is not valid.
    pub(crate) fn decoded_matcher(&self) -> Result<matchit::Router<()>, matchit::InsertError> {
        matcher(target::decoded_pattern(&self.path))
    }

    /// Returns the reason why no request can have this path.
    pub fn path_problem(&self) -> Option<String> {
        let path = self.path.as_str();
        if path.contains(['?', '#']) {
            return Some("has a query or a fragment, which are no part of a path; leave it out".to_owned());
        }
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            let escaped: String = path.bytes().fold(String::new(), |mut escaped, byte| {
                match byte {
                    byte if byte.is_ascii_graphic() => escaped.push(byte.into()),
                    byte => escaped.extend(["%", &format!("{byte:02X}")]),
                }
                escaped
            });
            return Some(format!("has characters that requests escape; write {escaped:?}"));
        }
        for segment in path.split('/') {
            if segment.starts_with(':') || segment == "*" {
                let name = segment.trim_start_matches([':', '*']);
                let name = if name.is_empty() { "rest" } else { name };
                let star = if segment.starts_with('*') { "*" } else { "" };
                return Some(format!("takes {segment:?} literally; a parameter is {{{star}{name}}}"));
            }
        }
        let spelled = target::spelled(path);
        if spelled != path {
            return Some(format!("has escapes that requests are compared without; write {spelled:?}"));
        }
        target::refused_in(path, &self.allow_in_path)
            .map(|what| format!("has {what}, for which the proxy refuses requests; write the path without it"))
    }

    /// Returns the first of its hosts that is none: hosts have no scheme, port, path or wildcard.
    pub fn wrong_host(&self) -> Option<&str> {
        let is_host = |text: &str| {
            let can_be_one = !text.starts_with('[') || target::ipv6(text).is_some();
            can_be_one && text.parse().is_ok_and(|authority: Authority| authority.host() == text)
        };
        self.hosts.iter().map(String::as_str).find(|host| !is_host(host) || host.contains('*'))
    }

    /// Returns its methods; `None` if one of them is not valid. Methods are case-sensitive, so `post` would never match.
    pub fn methods(&self) -> Option<Vec<Method>> {
        self.methods.iter().map(|name| method(name)).collect()
    }

    /// Returns the first of its methods that is not valid.
    pub fn wrong_method(&self) -> Option<&str> {
        self.methods.iter().map(String::as_str).find(|name| method(name).is_none())
    }

    /// Reports whether the JSON of a body must be known before its key is claimed. Then no body may be longer than the
    /// limit for reading.
    pub(crate) fn reads_json(&self) -> bool {
        self.key_in_body.is_some() || !self.fingerprint_without.is_empty()
    }

    /// Reports whether the fingerprint has a part for the body.
    pub fn compares_body(&self) -> bool {
        self.fingerprint.iter().any(|part| matches!(part, FingerprintPart::Body | FingerprintPart::BodyJson))
    }

    /// Returns the path that its path with a `{*rest}` does not take, though it looks so.
    pub fn left_out(&self) -> Option<&str> {
        let (parent, _) = self.path.strip_suffix('}')?.rsplit_once("/{*")?;
        Some(if parent.is_empty() { "/" } else { parent })
    }

    /// Returns the names of the fields of the key; `None` if one of them is not valid, or is about a connection.
    pub fn key_headers(&self) -> Option<Vec<HeaderName>> {
        let Some(names) = &self.key_headers else { return Some(vec![self.dialect.key_header()]) };
        names.iter().map(|name| name.parse().ok().filter(|name| !fields::is_of_connection(name))).collect()
    }

    /// Returns the sources of the principal, those of the dialect too.
    pub(crate) fn principal_sources(&self) -> Vec<PrincipalSource> {
        self.principal.iter().cloned().chain(self.dialect.principal()).collect()
    }

    /// Returns the URL that is asked before each replay.
    ///
    /// # Errors
    /// It is no URL.
    pub fn authorize(&self) -> Result<Option<Uri>, String> {
        let Some(url) = &self.authorize else { return Ok(None) };
        let uri = url.parse::<Uri>().ok().filter(|uri| {
            let is_http = uri.scheme_str().is_some_and(|scheme| ["http", "https"].contains(&scheme));
            is_http && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        });
        uri.map(Some).ok_or_else(|| format!("{url:?} is no URL; write one like \"http://10.0.0.9:9100/may-replay\""))
    }

    /// Reports if its `authorize` can be used, with the authorities of its upstream.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check_authorize(&self, upstream: &UpstreamOptions) -> Result<(), String> {
        Authorizer::new(self, upstream).map(drop)
    }

    /// Returns the fields that are stored.
    ///
    /// # Errors
    /// Says which name is wrong, and why.
    pub fn stored_fields(&self) -> Result<StoredFields, String> {
        StoredFields::new(&self.store_with, &self.store_without)
    }
}

fn matcher(pattern: impl Into<String>) -> Result<matchit::Router<()>, matchit::InsertError> {
    let mut router = matchit::Router::new();
    router.insert(pattern, ())?;
    Ok(router)
}

/// Reports whether no request of this method needs a key: it is safe, or opens a tunnel.
pub fn needs_no_key(method: &Method) -> bool {
    method.is_safe() || *method == Method::CONNECT
}

fn method(name: &str) -> Option<Method> {
    Method::from_bytes(name.as_bytes()).ok().filter(|_| name == name.to_uppercase())
}

fn default_fingerprint() -> Vec<FingerprintPart> {
    use FingerprintPart::{Body, ContentType, IfMatch, Method, Path, Query};
    vec![Method, Path, Query, ContentType, IfMatch, Body]
}

/// Returns the rules of a list: as written, or its default without the exact statuses that are written in the other list.
fn effective(
    written: Option<&Vec<StatusRule>>,
    other: Option<&Vec<StatusRule>>,
    default: impl FnOnce() -> Vec<StatusRule>,
) -> Vec<StatusRule> {
    written.cloned().unwrap_or_else(|| {
        let is_taken = |rule: &StatusRule| other.is_some_and(|other| other.contains(rule));
        default().into_iter().filter(|rule| !(rule.is_exact() && is_taken(rule))).collect()
    })
}

fn default_retention() -> Retention {
    Retention::For(Duration::from_hours(24))
}

fn default_response_bytes() -> Bytes {
    Bytes(64 << 10)
}
