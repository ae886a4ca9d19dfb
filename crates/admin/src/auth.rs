//! Authentication of operators by configured tokens. The audit trail shows the name of the token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use oncegate_gateway::tenants::bearer;
use oncegate_gateway::tenants::secret::SecretDigest;
use oncegate_web::problem::{Code, Problem};
use oncegate_web::request_id::RequestId;

use super::role::Role;

/// An operator, authenticated by a token.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    /// The name of the token.
    pub name: Arc<str>,
    /// The role of the token.
    pub role: Role,
    /// The ID of the request.
    pub request_id: String,
    /// Origin of the request.
    pub via: Via,
}

/// The interface that an operator uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Via {
    /// The admin API, with a token.
    Api,
    /// The console, with a session.
    Console,
    /// None: the gateway itself acts.
    Gateway,
}

/// The accepted tokens, at first none. They can be replaced at any time.
#[derive(Default)]
pub struct Tokens {
    accepted: ArcSwap<Vec<Accepted>>,
    /// Number of tokens that were accepted so far.
    count: AtomicU64,
}

/// A token and the number of its acceptance. A token that was removed and is accepted again has another number.
#[derive(Clone)]
pub(super) struct Accepted {
    pub(super) token: Token,
    pub(super) number: u64,
}

/// An accepted token.
#[derive(Clone)]
pub struct Token {
    /// Its name.
    pub name: Arc<str>,
    /// Its digest.
    pub digest: SecretDigest,
    /// Its role.
    pub role: Role,
}

impl Token {
    /// Reports whether this is the same token, with the same name and role.
    fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.role == other.role && self.digest.matches(&other.digest)
    }
}

/// Reason why a call of the admin API is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Denied {
    /// No tokens are configured.
    SwitchedOff,
    /// The token is missing or unknown. The response does not say which.
    Unauthenticated,
}

impl Tokens {
    /// Accepts these tokens from now on, and no others.
    pub fn replace(&self, tokens: Vec<Token>) {
        let before = self.accepted.load();
        let accept = |token: Token| {
            let same = before.iter().find(|known| known.token.is(&token)).map(|known| known.number);
            let number = same.unwrap_or_else(|| self.count.fetch_add(1, Ordering::Relaxed));
            Accepted { token, number }
        };
        self.accepted.store(Arc::new(tokens.into_iter().map(accept).collect()));
    }

    /// Reports whether no token is configured.
    pub(super) fn is_empty(&self) -> bool {
        self.accepted.load().is_empty()
    }

    /// Reports whether a token has been accepted since it got this number.
    pub(super) fn is_accepted(&self, number: u64) -> bool {
        self.accepted.load().iter().any(|known| known.number == number)
    }

    /// Returns the token with this text.
    pub(super) fn find(&self, sent: &str) -> Option<Accepted> {
        let digest = SecretDigest::of_sent(sent)?;
        // Compares all tokens, also after a match, so that the time does not depend on the token.
        let matching = |found: Option<Accepted>, known: &Accepted| {
            let matches = known.token.digest.matches(&digest);
            if matches { Some(known.clone()) } else { found }
        };
        self.accepted.load().iter().fold(None, matching)
    }

    /// Returns the token in `Bearer <token>`.
    fn check(&self, authorization: Option<&str>) -> Result<Token, Denied> {
        if self.is_empty() {
            return Err(Denied::SwitchedOff);
        }
        let found = authorization.and_then(bearer).and_then(|sent| self.find(sent));
        found.map(|found| found.token).ok_or(Denied::Unauthenticated)
    }
}

/// Authenticates a request to the admin API, and passes it on with its [`Operator`].
pub(super) async fn authenticate(
    State(tokens): State<Arc<Tokens>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let authorization = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Token { name, role, .. } = tokens.check(authorization)?;
    let request_id = request.extensions().get::<RequestId>().map_or("", RequestId::as_str).to_owned();
    request.extensions_mut().insert(Operator { name, role, request_id, via: Via::Api });
    Ok(next.run(request).await)
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::SwitchedOff => Self::new(
                Code::AdminDisabled,
                "No token is configured, so nobody may use the admin API. `oncegate admin-token new NAME` makes one, and prints \
                 what to write into [admin.tokens] of the configuration.",
            ),
            Denied::Unauthenticated => {
                let detail = "Send `Authorization: Bearer <token>` with a token of [admin.tokens].";
                Self::new(Code::Unauthenticated, detail)
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

    fn token(name: &str, text: &str) -> Token {
        Token { name: name.into(), digest: SecretDigest::of(text), role: Role::View }
    }

    fn tokens(names: &[&str]) -> Tokens {
        let tokens = Tokens::default();
        tokens.replace(names.iter().map(|name| token(name, &token_of(name))).collect());
        tokens
    }

    fn checked(tokens: &Tokens, authorization: Option<&str>) -> Result<String, Denied> {
        tokens.check(authorization).map(|token| token.name.to_string())
    }

    #[test]
    fn only_a_whole_bearer_token_authenticates() {
        let tokens = tokens(&["alice", "bob"]);
        for name in ["alice", "bob"] {
            assert_eq!(checked(&tokens, Some(&format!("Bearer {}", token_of(name)))).as_deref(), Ok(name));
        }
        let (basic, bare) = (format!("Basic {}", token_of("alice")), token_of("alice"));
        for wrong in [None, Some(""), Some("Bearer "), Some("Bearer alice"), Some(&basic), Some(&bare)] {
            assert_eq!(checked(&tokens, wrong), Err(Denied::Unauthenticated), "{wrong:?}");
        }
    }

    #[test]
    fn empty_and_short_tokens_are_denied_whatever_digest_is_configured() {
        let tokens = tokens(&[]);
        let short = "0123456789abcdefABCDE";
        tokens.replace(["", "\n", short].map(|text| token("alice", text)).into());
        let short = format!("Bearer {short}");
        for authorization in [None, Some(""), Some("Bearer"), Some("Bearer "), Some("Bearer  "), Some(&short)] {
            assert_eq!(checked(&tokens, authorization), Err(Denied::Unauthenticated), "{authorization:?}");
        }
    }

    #[test]
    fn without_tokens_the_admin_api_is_disabled_and_tokens_can_be_replaced() {
        let tokens = tokens(&[]);
        let [first, second] = ["first", "second"].map(token_of);
        assert_eq!(checked(&tokens, Some(&format!("Bearer {first}"))), Err(Denied::SwitchedOff));
        tokens.replace(vec![token("alice", &second)]);
        assert_eq!(checked(&tokens, Some(&format!("Bearer {first}"))), Err(Denied::Unauthenticated));
        assert_eq!(checked(&tokens, Some(&format!("Bearer {second}"))).as_deref(), Ok("alice"));
    }
}
