//! Source of a part of the principal, as a route names it.

use std::fmt;
use std::str::FromStr;

use axum::http::{HeaderName, header};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fields;

/// Text of [`PrincipalSource::Token`].
const TOKEN: &str = "jwt:iss+sub";

/// Fields that differ from try to try of a request: they name the try, or sign it.
const OF_ONE_TRY: [&str; 16] = [
    "b3",
    "content-digest",
    "date",
    "dpop",
    "request-id",
    "signature",
    "signature-input",
    "traceparent",
    "tracestate",
    "x-amz-date",
    "x-amzn-trace-id",
    "x-b3-spanid",
    "x-b3-traceid",
    "x-cloud-trace-context",
    "x-correlation-id",
    "x-request-id",
];

/// Source of a part of the principal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PrincipalSource {
    /// A field that must be present.
    Field(HeaderName),
    /// A field whose absence is a value.
    OptionalField(HeaderName),
    /// A cookie that must be present.
    Cookie(String),
    /// A field that only trusted peers may set.
    Trusted(HeaderName),
    /// The client's TLS certificate: that of the connection, or, from trusted peers, that of the field `Client-Cert` (RFC 9440).
    ClientCert,
    /// Issuer and subject of a verified token: a refreshed token is the same caller.
    Token,
}

impl FromStr for PrincipalSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |name: &str| {
            name.parse::<HeaderName>().map_err(|_| {
                format!(
                    "{text:?} names no principal; write a field such as \"authorization\", \"x-tenant?\" if it may be absent, \
                     \"cookie:NAME\", \"trusted:FIELD\", \"client-cert\", or \"{TOKEN}\""
                )
            })
        };
        let field = |name: &str| {
            named(name).and_then(|name| {
                let whole = format!(
                    "{text:?} takes all cookies, and one that changes would make a repeat run again; name the one that says who \
                     calls: \"cookie:NAME\""
                );
                if name == header::COOKIE {
                    Err(whole)
                } else if OF_ONE_TRY.contains(&name.as_str()) {
                    Err(format!(
                        "{text:?} differs from try to try, so that a repeat would be another caller, and run again; name what says who \
                         calls, such as \"authorization\""
                    ))
                } else if fields::is_of_connection(&name) {
                    Err(format!("{text:?} is about a connection, and not who calls; name a field such as \"authorization\""))
                } else {
                    Ok(name)
                }
            })
        };
        if text == "client-cert" {
            return Ok(Self::ClientCert);
        }
        if text == TOKEN {
            return Ok(Self::Token);
        }
        if text.starts_with("jwt:") {
            return Err(format!(
                "{text:?} is not supported; write \"{TOKEN}\", issuer and subject of a verified token"
            ));
        }
        if let Some(name) = text.strip_prefix("cookie:") {
            return named(name).map(|_| Self::Cookie(name.to_owned()));
        }
        if let Some(name) = text.strip_prefix("trusted:") {
            return field(name).map(Self::Trusted);
        }
        match text.strip_suffix('?') {
            Some(name) => field(name).map(Self::OptionalField),
            None => field(text).map(Self::Field),
        }
    }
}

impl fmt::Display for PrincipalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, "{name}"),
            Self::OptionalField(name) => write!(f, "{name}?"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Trusted(name) => write!(f, "trusted:{name}"),
            Self::ClientCert => write!(f, "client-cert"),
            Self::Token => f.write_str(TOKEN),
        }
    }
}

impl Serialize for PrincipalSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PrincipalSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_misspelt_is_explained() {
        for whole in ["cookie", "Cookie", "cookie?", "trusted:cookie"] {
            let why = whole.parse::<PrincipalSource>().unwrap_err();
            assert!(why.contains("\"cookie:NAME\""), "{whole}: {why}");
        }
        for of_one_try in ["date", "X-Request-Id", "traceparent?", "trusted:dpop"] {
            let why = of_one_try.parse::<PrincipalSource>().unwrap_err();
            assert!(why.contains("differs from try to try"), "{of_one_try}: {why}");
        }
        for of_connection in ["te", "Connection?", "expect", "proxy-authorization", "trusted:upgrade"] {
            let why = of_connection.parse::<PrincipalSource>().unwrap_err();
            assert!(why.contains("about a connection"), "{of_connection}: {why}");
        }
        assert!("cookie:cookie".parse::<PrincipalSource>().is_ok());
        for wrong in ["", "a b", "cookie:", "trusted:", "jwt:sub", "ä"] {
            assert!(wrong.parse::<PrincipalSource>().is_err(), "{wrong}");
        }
    }
}
