//! Who may use the admin API: the holders of configured tokens, each under the name that the audit trail shows.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;

use super::Admin;
use crate::domain::clock::Clock;
use crate::http::edge::RequestId;
use crate::http::problem::{Code, Problem};
use crate::tenants::bearer;
use crate::tenants::secret::SecretDigest;

/// Between two lines of the log that tell of wrong tokens: whoever guesses must not fill the log.
const FAILURES_LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Whoever asks for a change, or to be shown something: proven by a token.
#[derive(Clone, Debug)]
pub struct Operator {
    /// The name of the token.
    pub name: Arc<str>,
    /// The ID of the request that the token came with.
    pub request_id: String,
}

/// The tokens that are taken. They can be replaced while calls are answered.
pub struct Tokens {
    taken: ArcSwap<Vec<Token>>,
    clock: Arc<dyn Clock>,
    failures: Mutex<Failures>,
}

struct Token {
    name: Arc<str>,
    digest: SecretDigest,
}

/// The wrong tokens that the log has not told of yet.
#[derive(Default)]
struct Failures {
    told_at: Option<Duration>,
    untold: u64,
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
    /// No tokens, so nobody is let in.
    pub fn none(clock: Arc<dyn Clock>) -> Self {
        Self { taken: ArcSwap::default(), clock, failures: Mutex::default() }
    }

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
        // The same work for whatever comes: every token is compared, also after one has matched.
        let digest = SecretDigest::of(authorization.and_then(bearer).unwrap_or_default());
        let matching = |found: Option<Arc<str>>, token: &Token| {
            let matches = token.digest.matches(&digest);
            if matches { Some(token.name.clone()) } else { found }
        };
        tokens.iter().fold(None, matching).ok_or(Refused::Unauthenticated)
    }

    /// Logs a wrong token, unless the log has just told of one; then it is counted, and told of with a later one.
    fn note_failure(&self) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.untold += 1;
        let now = self.clock.monotonic();
        if failures.told_at.is_none_or(|told_at| now.saturating_sub(told_at) >= FAILURES_LOGGED_EVERY) {
            tracing::warn!(calls = failures.untold, "calls of the admin API without a valid token");
            *failures = Failures { told_at: Some(now), untold: 0 };
        }
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
                "No token is configured, so nobody may use the admin API. Make one, and put it into the configuration: \
                 [admin.tokens] alice = \"sha256:<the 64 hex digits of its SHA-256>\".",
            )),
            Err(Refused::Unauthenticated) => {
                admin.tokens.note_failure();
                let detail = "Send `Authorization: Bearer <token>` with a token of [admin.tokens].";
                Err(Problem::new(Code::Unauthenticated, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::clock::{ManualClock, Timestamp};

    fn tokens(names: &[&str]) -> (Arc<ManualClock>, Tokens) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1)));
        let tokens = Tokens::none(clock.clone());
        tokens.replace(names.iter().map(|name| ((*name).to_owned(), SecretDigest::of(&format!("{name}-token")))));
        (clock, tokens)
    }

    #[test]
    fn a_token_proves_its_name_and_nothing_else_does() {
        let (_clock, tokens) = tokens(&["alice", "bob"]);
        for name in ["alice", "bob"] {
            assert_eq!(tokens.check(Some(&format!("Bearer {name}-token"))).as_deref(), Ok(name));
        }
        for wrong in
            [None, Some(""), Some("Bearer "), Some("Bearer alice"), Some("Basic alice-token"), Some("alice-token")]
        {
            assert_eq!(tokens.check(wrong), Err(Refused::Unauthenticated), "{wrong:?}");
        }
    }

    #[test]
    fn without_tokens_nobody_is_let_in_and_tokens_can_be_replaced() {
        let (_clock, tokens) = tokens(&[]);
        assert_eq!(tokens.check(Some("Bearer alice-token")), Err(Refused::SwitchedOff));
        tokens.replace([("alice".to_owned(), SecretDigest::of("second"))]);
        assert_eq!(tokens.check(Some("Bearer alice-token")), Err(Refused::Unauthenticated));
        assert_eq!(tokens.check(Some("Bearer second")).as_deref(), Ok("alice"));
    }

    #[test]
    fn many_failures_are_one_line_of_the_log() {
        let (clock, tokens) = tokens(&["alice"]);
        let untold = || tokens.failures.lock().unwrap().untold;
        for _ in 0..100 {
            tokens.note_failure();
        }
        assert_eq!(untold(), 99);
        clock.advance(FAILURES_LOGGED_EVERY);
        tokens.note_failure();
        assert_eq!(untold(), 0);
    }
}
