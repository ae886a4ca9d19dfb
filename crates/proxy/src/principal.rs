//! The principal of a request. It distinguishes callers, so that no caller gets the response of another. Kept only as
//! its SHA-256.

use axum::http::{HeaderMap, HeaderName, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oncegate_web::problem::{Code, Problem};
use sha2::{Digest as _, Sha256};

use super::dialect::Refusal;
use super::fields::{CLIENT_CERT, only};
use super::principal_source::PrincipalSource;
use super::token::{Issuers, NoOwner};

/// Schemes of `Authorization` whose credentials differ in each request or on each connection: they sign the request, answer a
/// challenge, or are used once. From the registry of IANA, and of cloud providers.
const SIGNING_SCHEMES: [&str; 18] = [
    "aws",
    "concealed",
    "digest",
    "dpop",
    "edgegrid",
    "hawk",
    "hmac",
    "hoba",
    "mac",
    "mutual",
    "negotiate",
    "ntlm",
    "oauth",
    "privatetoken",
    "sharedkey",
    "sharedkeylite",
    "signature",
    "vapid",
];

/// Parts of the names of such schemes: `AWS4-HMAC-SHA256`, `EG1-HMAC-SHA256`, `GOOG4-RSA-SHA256`, `SCRAM-SHA-256`.
const SIGNING_PARTS: [&str; 2] = ["hmac-", "-sha"];

/// Longest name of a scheme.
const SCHEME_LENGTH_MAX: usize = 32;

/// Reason why a request has no principal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum NoPrincipal {
    #[error("the field `{0}` is missing or empty: it says who calls, and keys belong to their caller")]
    Field(HeaderName),
    #[error(
        "the field `{0}` is missing or empty, or occurs twice: the peer that is trusted to say who calls has to replace it"
    )]
    Trusted(HeaderName),
    #[error(
        "the cookie `{0}` is missing or empty, occurs twice, or is in a quoted string: it says who calls, and keys belong to \
         their caller"
    )]
    Cookie(String),
    #[error(
        "credentials of the scheme `{0}` in `authorization` differ in each request, so a repeat would be another caller, and run again. \
         Operators: name in `principal` what stays the same, such as \"jwt:iss+sub\", \"cookie:NAME\", \"client-cert\", or another field that the \
         upstream verifies"
    )]
    Signed(String),
    #[error(
        "the field `{0}` is believed only from the addresses of proxy.trusted_peers, and this client has none of them"
    )]
    Untrusted(HeaderName),
    #[error(
        "there is no client certificate: it says who calls; it is that of the TLS connection, or from proxy.trusted_peers the one in \
         `Client-Cert` (RFC 9440)"
    )]
    ClientCert,
    #[error(transparent)]
    Token(#[from] NoOwner),
}

impl From<NoPrincipal> for Refusal {
    fn from(why: NoPrincipal) -> Self {
        match why {
            // A matter of credentials, for the upstream too.
            NoPrincipal::Token(why @ NoOwner::Invalid(_)) => {
                Self::Problem(Problem::new(Code::Unauthenticated, format!("The request was not forwarded: {why}.")))
            }
            NoPrincipal::Token(why @ NoOwner::NoKeys) => {
                let problem = Problem::new(Code::UpstreamUnavailable, format!("The request was not forwarded: {why}."));
                Self::Problem(problem.retry_soon())
            }
            why => Self::Principal(why.to_string()),
        }
    }
}

/// Returns the digest of a request's principal. `certificate` is the digest of the connection's.
pub(super) fn of(
    sources: &[PrincipalSource],
    headers: &HeaderMap,
    is_trusted: bool,
    certificate: Option<[u8; 32]>,
    issuers: &Issuers,
) -> Result<[u8; 32], NoPrincipal> {
    let mut digest = Sha256::new();
    // Each part has its length, so that no two lists of parts have the same bytes.
    let mut add = |part: &[u8]| {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    };
    for source in sources {
        match source {
            PrincipalSource::Field(name) | PrincipalSource::OptionalField(name) => {
                let lines = headers.get_all(name).iter().map(|value| value.as_bytes().trim_ascii());
                // An empty value names no caller.
                let values: Vec<_> = lines.filter(|value| !value.is_empty()).collect();
                if values.is_empty() && matches!(source, PrincipalSource::Field(_)) {
                    return Err(NoPrincipal::Field(name.clone()));
                }
                // Prevents a value from crossing from one field into the next.
                add(&(values.len() as u64).to_be_bytes());
                for value in values {
                    refuse_signed(name, value)?;
                    add(value);
                }
            }
            PrincipalSource::Cookie(name) => {
                add(cookie(headers, name).ok_or_else(|| NoPrincipal::Cookie(name.clone()))?);
            }
            PrincipalSource::Trusted(name) => {
                if !is_trusted {
                    return Err(NoPrincipal::Untrusted(name.clone()));
                }
                // A peer that adds a value to that of the client has not replaced the client's value.
                let value = only(headers, name).map(|value| value.as_bytes().trim_ascii());
                let value = value.filter(|value| !value.is_empty());
                let value = value.ok_or_else(|| NoPrincipal::Trusted(name.clone()))?;
                refuse_signed(name, value)?;
                add(value);
            }
            PrincipalSource::ClientCert => {
                // The certificate of a trusted peer is its own, not that of its client.
                let certificate = if is_trusted { passed_on(headers) } else { certificate };
                add(&certificate.ok_or(NoPrincipal::ClientCert)?);
            }
            PrincipalSource::Token => {
                let owner = issuers.owner(headers)?;
                add(owner.issuer.as_bytes());
                add(owner.subject.as_bytes());
            }
        }
    }
    Ok(digest.finalize().into())
}

/// Refuses credentials that differ in each request. A value without a space is a token without a scheme.
fn refuse_signed(name: &HeaderName, value: &[u8]) -> Result<(), NoPrincipal> {
    let scheme = value.split(u8::is_ascii_whitespace).next().filter(|scheme| scheme.len() <= SCHEME_LENGTH_MAX);
    let Some(Ok(scheme)) = scheme.filter(|_| *name == header::AUTHORIZATION).map(std::str::from_utf8) else {
        return Ok(());
    };
    let is_one = SIGNING_SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let has_credentials = scheme.len() < value.len();
    // Most schemes have no hyphen.
    let has_part =
        || scheme.contains('-') && SIGNING_PARTS.iter().any(|part| scheme.to_ascii_lowercase().contains(part));
    let signs = is_one || has_credentials && has_part();
    if signs { Err(NoPrincipal::Signed(scheme.to_owned())) } else { Ok(()) }
}

/// Returns the digest of the certificate that a trusted peer passes on.
fn passed_on(headers: &HeaderMap) -> Option<[u8; 32]> {
    let value = only(headers, &CLIENT_CERT)?.as_bytes().trim_ascii();
    let certificate = STANDARD.decode(value.strip_prefix(b":")?.strip_suffix(b":")?).ok()?;
    (!certificate.is_empty()).then(|| Sha256::digest(certificate).into())
}

/// Returns the value of the only cookie with this name, unless it is empty, or another one by the rules of quoted strings.
///
/// Servers by [RFC 6265, section 5.4](https://www.rfc-editor.org/rfc/rfc6265#section-5.4) end a cookie at each semicolon,
/// others (Python's `http.cookies`) not within quotes. Of `x="; sid=a; "` some would see another caller than the gateway.
fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h [u8]> {
    let only = |end: fn(&[u8]) -> usize| {
        let fields = headers.get_all(header::COOKIE).iter().map(axum::http::HeaderValue::as_bytes);
        let mut values = fields.flat_map(|field| cookies(field, end)).filter(|(found, _)| *found == name.as_bytes());
        values.next().map(|(_, value)| value).filter(|_| values.next().is_none())
    };
    let value = only(semicolon)?;
    let is_plain = only(semicolon_outside_quotes) == Some(value) && ![&b""[..], b"\"\""].contains(&value);
    is_plain.then_some(value)
}

/// Iterates over the names and values of a `Cookie` field. `end` finds the end of its first cookie.
fn cookies(mut field: &[u8], end: fn(&[u8]) -> usize) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = std::iter::from_fn(move || {
        let (pair, rest) = (!field.is_empty()).then(|| field.split_at(end(field)))?;
        field = rest.get(1..).unwrap_or_default();
        Some(pair)
    });
    pairs.filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        Some((name.trim_ascii(), value[1..].trim_ascii()))
    })
}

/// Returns the position of the first semicolon, or the end.
fn semicolon(field: &[u8]) -> usize {
    field.iter().position(|byte| *byte == b';').unwrap_or(field.len())
}

/// Returns the position of the first semicolon that is not in a quoted value, or the end.
fn semicolon_outside_quotes(field: &[u8]) -> usize {
    let first = semicolon(field);
    let value =
        field[..first].iter().position(|byte| *byte == b'=').map(|equals| field[equals + 1..].trim_ascii_start());
    let Some(quoted) = value.and_then(|value| value.strip_prefix(b"\"")) else { return first };
    let mut is_escaped = false;
    let closing = quoted.iter().position(|byte| {
        let closes = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        closes
    });
    closing.map_or(first, |closing| {
        let after = field.len() - quoted.len() + closing + 1;
        after + semicolon(&field[after..])
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::HeaderValue;
    use oncegate_core::clock::SystemClock;

    use super::*;

    fn digest(sources: &[&str], fields: &[(&'static str, &'static str)]) -> Result<[u8; 32], NoPrincipal> {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let sources: Vec<_> = sources.iter().map(|source| source.parse().unwrap()).collect();
        of(&sources, &headers, false, None)
    }

    fn issuers() -> Issuers {
        Issuers::new(&[], Arc::new(SystemClock::new())).unwrap()
    }

    fn of(
        sources: &[PrincipalSource],
        headers: &HeaderMap,
        is_trusted: bool,
        certificate: Option<[u8; 32]>,
    ) -> Result<[u8; 32], NoPrincipal> {
        super::of(sources, headers, is_trusted, certificate, &issuers())
    }

    #[test]
    fn two_callers_have_different_principals() {
        let sources = ["authorization", "x-tenant?"];
        let one = digest(&sources, &[("authorization", "a")]).unwrap();
        assert_eq!(digest(&sources, &[("authorization", "a"), ("x-other", "1")]).unwrap(), one);
        for other in [
            &[("authorization", "b")][..],
            &[("authorization", "a"), ("x-tenant", "t")],
            &[("authorization", "a"), ("authorization", "t")],
            &[("authorization", "at")],
        ] {
            assert_ne!(digest(&sources, other).unwrap(), one, "{other:?}");
        }
    }

    #[test]
    fn no_value_passes_from_one_field_to_the_next() {
        let digest = |fields| digest(&["authorization", "x-tenant"], fields).unwrap();
        assert_ne!(
            digest(&[("authorization", "a"), ("authorization", "b"), ("x-tenant", "c")]),
            digest(&[("authorization", "a"), ("x-tenant", "b"), ("x-tenant", "c")])
        );
    }

    #[test]
    fn a_trusted_field_that_occurs_twice_is_refused() {
        let sources = ["trusted:x-user".parse().unwrap()];
        let mut headers = HeaderMap::new();
        headers.append("x-user", HeaderValue::from_static("alice"));
        assert!(of(&sources, &headers, true, None).is_ok());
        headers.append("x-user", HeaderValue::from_static("bob"));
        assert_eq!(of(&sources, &headers, true, None), Err(NoPrincipal::Trusted(HeaderName::from_static("x-user"))));
    }

    #[test]
    fn a_certificate_is_that_of_the_client_and_never_that_of_a_peer_between() {
        let sources = ["client-cert".parse().unwrap()];
        let passed =
            |lines: &[&'static str]| lines.iter().map(|line| (CLIENT_CERT, HeaderValue::from_static(line))).collect();
        let (own, none) = (Some(Sha256::digest([1, 2, 3]).into()), passed(&[]));
        let direct = of(&sources, &none, false, own).unwrap();
        assert_eq!(of(&sources, &passed(&[":AQID:"]), true, Some([7; 32])), Ok(direct), "the same certificate");
        assert_ne!(of(&sources, &none, false, Some([7; 32])), Ok(direct));
        assert_eq!(of(&sources, &passed(&[":AQID:"]), false, None), Err(NoPrincipal::ClientCert), "anyone can send it");
        for lines in [&[][..], &["AQID"], &[":AQI:"], &["::"], &[":AQID:", ":AQID:"]] {
            assert_eq!(of(&sources, &passed(lines), true, own), Err(NoPrincipal::ClientCert), "{lines:?}");
        }
    }

    #[test]
    fn a_missing_principal_is_an_error() {
        assert_eq!(digest(&["authorization"], &[]), Err(NoPrincipal::Field(header::AUTHORIZATION)));
        assert!(digest(&["x-tenant?"], &[]).is_ok());
        let session = |cookie| digest(&["cookie:session"], &[("cookie", cookie)]);
        assert_eq!(session("a=1; session=x; b=2"), session("session=x"));
        assert_ne!(session("session=x"), session("session=y"));
        assert_eq!(session("a=\"1\"; session=x; b=\"2"), session("session=x"));
        assert_ne!(session(r#"session="x""#), session("session=x"));
        for wrong in [
            "a=1",
            "session=x; session=y",
            "sessions=x",
            "",
            r#"a="; session=x; ""#,
            r#"a="1\"; session=x; ""#,
            r#"a="; session=y"; session=x"#,
            r#"session="x; y""#,
        ] {
            assert_eq!(session(wrong), Err(NoPrincipal::Cookie("session".into())), "{wrong}");
        }
        assert!(matches!(digest(&["trusted:x-user"], &[("x-user", "1")]), Err(NoPrincipal::Untrusted(_))));
    }

    #[test]
    fn an_empty_value_is_a_missing_one() {
        for empty in ["", " ", "\t "] {
            assert_eq!(
                digest(&["authorization"], &[("authorization", empty)]),
                Err(NoPrincipal::Field(header::AUTHORIZATION)),
                "{empty:?}"
            );
            assert_eq!(digest(&["x-tenant?"], &[("x-tenant", empty)]), digest(&["x-tenant?"], &[]), "{empty:?}");
            let trusted = [(HeaderName::from_static("x-user"), HeaderValue::from_static(empty))];
            assert_eq!(
                of(&["trusted:x-user".parse().unwrap()], &trusted.into_iter().collect(), true, None),
                Err(NoPrincipal::Trusted(HeaderName::from_static("x-user"))),
                "{empty:?}"
            );
        }
        for empty in ["session=", "session= ; a=1", " session =", "session=\"\""] {
            assert_eq!(
                digest(&["cookie:session"], &[("cookie", empty)]),
                Err(NoPrincipal::Cookie("session".into())),
                "{empty:?}"
            );
        }
    }

    #[test]
    fn credentials_that_sign_each_request_are_refused() {
        for scheme in [
            "AWS4-HMAC-SHA256",
            "AWS4-ECDSA-P256-SHA256",
            "AWS",
            "Digest",
            "DPoP",
            "EG1-HMAC-SHA256",
            "GOOG4-RSA-SHA256",
            "hawk",
            "Negotiate",
            "OAuth",
            "SCRAM-SHA-256",
            "SharedKey",
            "SIGNATURE",
        ] {
            let value = HeaderValue::try_from(format!("{scheme} x=1")).unwrap();
            let headers: HeaderMap = [(header::AUTHORIZATION, value)].into_iter().collect();
            for source in ["authorization", "authorization?", "trusted:authorization"] {
                let refused = of(&[source.parse().unwrap()], &headers, true, None);
                assert!(matches!(refused, Err(NoPrincipal::Signed(_))), "{scheme} {source}: {refused:?}");
            }
        }
        for usual in ["Bearer a", "Basic a", "GNAP a", "Token a", "digests a", "a", "token-sha-1"] {
            assert!(digest(&["authorization"], &[("authorization", usual)]).is_ok(), "{usual}");
        }
        assert!(digest(&["x-signed"], &[("x-signed", "Digest a")]).is_ok(), "no credentials of HTTP");
    }
}
