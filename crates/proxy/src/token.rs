//! Tokens that identify the caller: JSON Web Tokens (RFC 7519), signed by an issuer whose keys are known as a set (RFC
//! 7517).

pub(super) mod keys;
mod source;

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oncegate_core::clock::Clock;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::source::Source;
use super::fields::only;
use super::options::IssuerOptions;

/// Difference of clocks that is tolerated, in seconds.
const LEEWAY: u64 = 60;

/// Longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// The issuers of a proxy.
pub(super) struct Issuers {
    issuers: Vec<Issuer>,
    clock: Arc<dyn Clock>,
}

struct Issuer {
    name: String,
    audience: Vec<String>,
    source: Source,
}

/// The caller that a token names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenOwner {
    pub(super) issuer: String,
    pub(super) subject: String,
}

/// Reason why a token names no caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NoOwner {
    #[error("there is no bearer token in `Authorization`: it says who calls, and keys belong to their caller")]
    Missing,
    #[error("the token is not valid: {0}. Send the request with a new one")]
    Invalid(&'static str),
    #[error("the keys of the token's issuer are not known yet")]
    NoKeys,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood (RFC 7515, 4.1.11). None is.
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    /// Seconds since 1970, not always whole.
    exp: f64,
    nbf: Option<f64>,
    aud: Option<Audience>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Issuers {
    /// Returns the issuers of these options. Keys that a URL has are not known yet.
    ///
    /// # Errors
    /// An issuer cannot be used, for a person to read.
    pub(super) fn new(options: &[IssuerOptions], clock: Arc<dyn Clock>) -> Result<Self, String> {
        let issuer = |options: &IssuerOptions| {
            let source = Source::new(options).map_err(|why| format!("`{}`: {why}", options.issuer))?;
            Ok(Issuer { name: options.issuer.clone(), audience: options.audience.clone(), source })
        };
        Ok(Self { issuers: options.iter().map(issuer).collect::<Result<_, String>>()?, clock })
    }

    /// Reads the keys of URLs, again and again.
    pub(super) async fn follow(self: Arc<Self>) {
        let follow = self.issuers.iter().map(|issuer| issuer.source.follow(&issuer.name));
        futures_util::future::join_all(follow).await;
    }

    /// Returns the caller that the token of a request names.
    pub(super) fn owner(&self, headers: &HeaderMap) -> Result<TokenOwner, NoOwner> {
        let token = bearer(headers).ok_or(NoOwner::Missing)?;
        let invalid = |why| move || NoOwner::Invalid(why);
        if token.len() > TOKEN_BYTES_MAX {
            return Err(NoOwner::Invalid("it is too long"));
        }
        let (signed, signature) = token.rsplit_once('.').ok_or_else(invalid("it is no JSON Web Token"))?;
        let (header, claims) = signed.split_once('.').ok_or_else(invalid("it is no JSON Web Token"))?;
        let header: Header = json(header).ok_or_else(invalid("its header cannot be read"))?;
        let claims: Claims = json(claims).ok_or_else(invalid("its iss, sub or exp is missing"))?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| NoOwner::Invalid("it is no JSON Web Token"))?;
        if header.crit.is_some() {
            return Err(NoOwner::Invalid("it has extensions that are not supported"));
        }
        let issuer = self.issuers.iter().find(|issuer| issuer.name == claims.iss);
        let issuer = issuer.ok_or_else(invalid("its issuer is not one of proxy.issuers"))?;
        // Before anything else that it claims is believed.
        issuer.verify(&header, signed.as_bytes(), &signature, &*self.clock)?;
        let now = self.clock.wall().as_micros() / 1_000_000;
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^53")]
        let (earliest, latest) = (now.saturating_sub(LEEWAY) as f64, (now + LEEWAY) as f64);
        if claims.exp <= earliest {
            return Err(NoOwner::Invalid("it has expired"));
        }
        if claims.nbf.is_some_and(|nbf| nbf > latest) {
            return Err(NoOwner::Invalid("it is not valid yet"));
        }
        if claims.sub.is_empty() {
            return Err(NoOwner::Invalid("its sub is empty"));
        }
        if !issuer.is_audience(claims.aud.as_ref()) {
            return Err(NoOwner::Invalid("it is for another audience"));
        }
        Ok(TokenOwner { issuer: claims.iss, subject: claims.sub })
    }
}

impl Issuer {
    fn verify(&self, header: &Header, signed: &[u8], signature: &[u8], clock: &dyn Clock) -> Result<(), NoOwner> {
        let keys = self.source.keys().ok_or(NoOwner::NoKeys)?;
        match keys.verify(header.kid.as_deref(), &header.alg, signed, signature) {
            Ok(()) => Ok(()),
            // The issuer may have a new key.
            Err(keys::NotVerified::UnknownKey) if self.source.refresh(clock) => Err(NoOwner::NoKeys),
            Err(keys::NotVerified::UnknownKey) => Err(NoOwner::Invalid("its issuer has no such key")),
            Err(keys::NotVerified::WrongSignature) => Err(NoOwner::Invalid("its signature is wrong")),
        }
    }

    fn is_audience(&self, audience: Option<&Audience>) -> bool {
        let is_own = |name: &String| self.audience.contains(name);
        self.audience.is_empty()
            || match audience {
                Some(Audience::One(name)) => is_own(name),
                Some(Audience::Many(names)) => names.iter().any(is_own),
                None => false,
            }
    }
}

/// Returns the bearer token of a request (RFC 6750, 2.1), if there is one only.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = only(headers, &header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Reads an object. A field that is read and occurs twice is an error.
fn json<T: DeserializeOwned>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

#[cfg(test)]
mod tests;
