//! Apps that call the gateway: their secrets, quotas and terms.

pub mod auth_throttle;
pub mod credential;
#[cfg(feature = "postgres")]
pub mod follow;
#[cfg(any(test, feature = "test-util"))]
mod for_tests;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod quota;
mod registry;
pub mod secret;
pub mod stored;
pub mod usage;

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{ClaimOnOutage, Mode, OutcomeOnOutage, Retention, Terms};

pub use self::credential::{CachedCredential, bearer};
use self::quota::Quota;
pub use self::registry::{AuthError, Registry};
use self::secret::SecretDigest;
use self::usage::Usage;

/// Business system that calls the gateway.
#[derive(Clone, Debug)]
pub struct App {
    /// App key: part of every claim key and every global ID.
    pub key: AppKey,
    /// Chain of engines that stores its claims.
    pub chain: String,
    /// True if calls with a valid secret are refused.
    pub disabled: bool,
    /// Digests of the valid secrets. Two may be valid at once, for rotation.
    pub secrets: Vec<SecretDigest>,
    /// Terms of operations without their own terms.
    pub terms: OperationTerms,
    /// Terms of operations that have their own.
    pub operations: HashMap<Operation, OperationTerms>,
    /// Longest retention that its callers may request.
    pub retention_max: Retention,
    /// Limits of its use of this process.
    pub quota: Quota,
    /// JSON pointers of values in contents and results that the console does not show.
    pub console_mask: Vec<String>,
    /// Templates by which the console finds claims of an operation.
    pub console_find: Vec<(Operation, String)>,
    /// Counts of this process. Kept when the settings change.
    pub usage: Arc<Usage>,
}

/// Configured behaviour of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationTerms {
    /// Lease, retention, and the meaning of a lease's end.
    pub terms: Terms,
    /// Enforce or observe.
    pub mode: Mode,
    /// A claim may be `unknown` although its chain switches automatically, and then forgets it.
    pub accept_loss: bool,
    /// Size above which contents are stored as their digest.
    pub contents_stored_bytes: usize,
    /// Deadline of each call.
    pub deadline: Duration,
    /// Outage policy of claims.
    pub claim_on_outage: ClaimOnOutage,
    /// Outage policy of outcomes.
    pub outcome_on_outage: OutcomeOnOutage,
}

impl App {
    /// Returns the terms of an operation.
    pub fn terms_of(&self, operation: &Operation) -> &OperationTerms {
        self.operations.get(operation).unwrap_or(&self.terms)
    }

    /// Returns the terms of an outcome that names no operation and matches no claim: the longest of each in this app.
    pub fn longest_terms(&self) -> Terms {
        let longest = |longest: Terms, own: &OperationTerms| Terms {
            lease: longest.lease.max(own.terms.lease),
            retention: longest.retention.max(own.terms.retention),
            unknown_retention: longest.unknown_retention.max(own.terms.unknown_retention),
            on_lease_end: longest.on_lease_end,
        };
        self.operations.values().fold(self.terms.terms, longest)
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::terms::LeaseEnd;

    use super::*;

    pub(super) fn app(key: &str, secrets: &[&str]) -> App {
        let day = Duration::from_hours(24);
        let terms = Terms {
            lease: Duration::from_secs(30),
            retention: Retention::For(day),
            unknown_retention: Retention::For(day),
            on_lease_end: LeaseEnd::Release,
        };
        App::for_tests(key, secrets, terms, Duration::from_secs(1))
    }

    #[test]
    fn an_outcome_without_an_operation_gets_the_longest_terms() {
        let mut app = app("shop", &[]);
        let own = OperationTerms { terms: Terms { retention: Retention::Forever, ..app.terms.terms }, ..app.terms };
        app.operations.insert("coupon.redeem".parse().unwrap(), own);
        assert_eq!(app.longest_terms().retention, Retention::Forever);
        assert_eq!(app.longest_terms().unknown_retention, app.terms.terms.unknown_retention);
        assert_eq!(app.terms_of(&"coupon.redeem".parse().unwrap()), &own);
    }
}
