//! Who may use the admin API: the holders of configured tokens, each under the name that the audit trail shows.

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;

use super::Admin;
use crate::tenants::bearer;
use crate::tenants::secret::SecretDigest;
use crate::web::problem::{Code, Problem};
use crate::web::request_id::RequestId;

/// Whoever asks for a change, or to be shown something: proven by a token.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The name of the token.
    pub name: Arc<str>,
    /// The ID of the request that the token came with.
    pub request_id: String,
}

/// The tokens that are accepted, at first none. They can be replaced while calls are answered.
#[derive(Default)]
pub struct Tokens {
    taken: ArcSwap<Vec<Token>>,
}

struct Token {
    name: Arc<str>,
    digest: SecretDigest,
}

/// Why a call of the admin API is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    /// No tokens are configured.
    SwitchedOff,
    /// The token is missing, or is none of ours. Which of these is not told.
    Unauthenticated,
}

impl Tokens {
    /// From now on these tokens, each by its name, and no others.
    pub fn replace(&self, tokens: impl IntoIterator<Item = (String, SecretDigest)>) {
        let token = |(name, digest): (String, SecretDigest)| Token { name: name.into(), digest };
        self.taken.store(Arc::new(tokens.into_iter().map(token).collect()));
    }

    /// The name of the token of `Bearer <token>`.
    fn check(&self, authorization: Option<&str>) -> Result<Arc<str>, Refused> {
        let tokens = self.taken.load();
        if tokens.is_empty() {
            return Err(Refused::SwitchedOff);
        }
        let sent = authorization.and_then(bearer).and_then(SecretDigest::of_sent);
        let digest = sent.ok_or(Refused::Unauthenticated)?;
        // The same work for every token that was sent: all are compared, also after one has matched.
        let matching = |found: Option<Arc<str>>, token: &Token| {
            let matches = token.digest.matches(&digest);
            if matches { Some(token.name.clone()) } else { found }
        };
        tokens.iter().fold(None, matching).ok_or(Refused::Unauthenticated)
    }
}

impl FromRequestParts<Arc<Admin>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Self, Problem> {
        let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match admin.tokens.check(authorization) {
            Ok(name) => {
                let request_id = parts.extensions.get::<RequestId>().map_or("", RequestId::as_str).to_owned();
                Ok(Self { name, request_id })
            }
            Err(Refused::SwitchedOff) => Err(Problem::new(
                Code::AdminDisabled,
                "No token is configured, so nobody may use the admin API. `oncegate admin-token new NAME` makes one, and prints \
                 what to write into [admin.tokens] of the configuration.",
            )),
            Err(Refused::Unauthenticated) => {
                let detail = "Send `Authorization: Bearer <token>` with a token of [admin.tokens].";
                Err(Problem::new(Code::Unauthenticated, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token_of(name: &str) -> String {
        format!("{name}-token-0123456789abcdef")
    }

    fn tokens(names: &[&str]) -> Tokens {
        let tokens = Tokens::default();
        tokens.replace(names.iter().map(|name| ((*name).to_owned(), SecretDigest::of(&token_of(name)))));
        tokens
    }

    #[test]
    fn a_token_proves_its_name_and_nothing_else_does() {
        let tokens = tokens(&["alice", "bob"]);
        for name in ["alice", "bob"] {
            assert_eq!(tokens.check(Some(&format!("Bearer {}", token_of(name)))).as_deref(), Ok(name));
        }
        let (basic, bare) = (format!("Basic {}", token_of("alice")), token_of("alice"));
        for wrong in [None, Some(""), Some("Bearer "), Some("Bearer alice"), Some(&basic), Some(&bare)] {
            assert_eq!(tokens.check(wrong), Err(Refused::Unauthenticated), "{wrong:?}");
        }
    }

    #[test]
    fn nothing_and_short_tokens_are_refused_whatever_digest_is_configured() {
        let tokens = tokens(&[]);
        let short = "0123456789abcdefABCDE";
        tokens.replace(["", "\n", short].map(|text| ("alice".to_owned(), SecretDigest::of(text))));
        let short = format!("Bearer {short}");
        for authorization in [None, Some(""), Some("Bearer"), Some("Bearer "), Some("Bearer  "), Some(&short)] {
            assert_eq!(tokens.check(authorization), Err(Refused::Unauthenticated), "{authorization:?}");
        }
    }

    #[test]
    fn without_tokens_nobody_is_let_in_and_tokens_can_be_replaced() {
        let tokens = tokens(&[]);
        let [first, second] = ["first", "second"].map(token_of);
        assert_eq!(tokens.check(Some(&format!("Bearer {first}"))), Err(Refused::SwitchedOff));
        tokens.replace([("alice".to_owned(), SecretDigest::of(&second))]);
        assert_eq!(tokens.check(Some(&format!("Bearer {first}"))), Err(Refused::Unauthenticated));
        assert_eq!(tokens.check(Some(&format!("Bearer {second}"))).as_deref(), Ok("alice"));
    }
}
