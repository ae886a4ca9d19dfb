//! Identity of a request: its key, its principal, and the contents of the claim that both make.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use oncegate_core::canonical::Canonical;
use oncegate_core::hex;
use oncegate_web::problem::{Code, Problem};
use serde::Serialize;

use super::dialect::{Dialect, ProxyResult, Refusal, oasis};
use super::fields::Client;
use super::key::IdempotencyKey;
use super::options::KeyRequirement;
use super::principal::{self, NoPrincipal};
use super::route::Route;
use super::{Proxy, WebSocket};

/// Beginning of the media types of gRPC.
const GRPC: &[u8] = b"application/grpc";

impl Proxy {
    /// Returns the key and the principal of a request. `body` is passed if the route reads the key from there.
    pub(super) fn identify(
        &self,
        route: &Route,
        request: &Parts,
        body: Option<&[u8]>,
        client: Client,
    ) -> Result<(IdempotencyKey, [u8; 32]), NoKey> {
        let headers = &request.headers;
        let key = IdempotencyKey::of_request(route, headers, body).map_err(|why| Refusal::Key(why.to_string()))?;
        let Some(key) = key else {
            if route.options.key == KeyRequirement::Optional {
                return Err(NoKey::NotNeeded);
            }
            let name = route.key_headers.first().map_or("idempotency-key", |name| name.as_str());
            let place = match &route.options.key_in_body {
                Some(pointer) => format!("member {pointer} of the JSON body"),
                None => format!("field `{name}`"),
            };
            return Err(Refusal::NoKey(format!(
                "the {place} is missing; send a fresh random value for each operation, such as a UUID, and the same one with each \
                 repeat"
            ))
            .into());
        };
        if route.options.dialect == Dialect::Oasis {
            oasis::check(headers, route.options.retention, self.clock.wall())?;
        }
        let is_grpc = |value: &HeaderValue| {
            value.as_bytes().get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        };
        if request.extensions.get::<WebSocket>().is_some() || headers.get(header::CONTENT_TYPE).is_some_and(is_grpc) {
            let detail =
                "WebSockets and gRPC cannot be replayed; send them without a key, on a path that is not protected.";
            return Err(Refusal::Problem(Problem::new(Code::NotSupported, detail)).into());
        }
        Ok((key, self.principal(route, headers, client).map_err(Refusal::from)?))
    }

    /// Returns the digest of the principal of a request.
    pub(super) fn principal(
        &self,
        route: &Route,
        headers: &HeaderMap,
        client: Client,
    ) -> Result<[u8; 32], NoPrincipal> {
        principal::of(&route.principal, headers, client.is_trusted, client.certificate, &self.issuers)
    }
}

/// Reason why a request has no key that is claimed.
pub(super) enum NoKey {
    /// Needs none.
    NotNeeded,
    Refused(Refusal),
}

impl NoKey {
    /// Returns the label in metrics if the request is forwarded.
    pub(super) fn label(&self) -> ProxyResult {
        match self {
            Self::NotNeeded => ProxyResult::Unprotected,
            Self::Refused(refusal) => refusal.label(),
        }
    }
}

impl From<Refusal> for NoKey {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The contents of a claim. The order of their names and the escapes of visible ASCII characters are those of the canonical form.
#[derive(Serialize)]
struct Contents<'a> {
    key: &'a str,
    principal: &'a str,
}

/// Returns the contents of the claim of a key: the key and the digest of its principal.
pub(super) fn contents(key: &IdempotencyKey, principal: &[u8; 32]) -> Option<Canonical> {
    let mut digest = [0; 64];
    hex::write(principal, &mut digest);
    let contents = Contents { key: key.as_str(), principal: std::str::from_utf8(&digest).ok()? };
    serde_json::to_string(&contents).ok().map(|text| Canonical::trusted(&text))
}
