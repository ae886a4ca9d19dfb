//! An app for tests.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_core::terms::{ClaimOnOutage, Mode, OutcomeOnOutage, Retention, Terms};

use super::quota::Quota;
use super::secret::SecretDigest;
use super::{App, OperationTerms};

impl App {
    /// Returns an enforcing app of the chain `default` with these terms for all operations, and no quota or outage policy.
    ///
    /// # Panics
    /// The key is not a name.
    pub fn for_tests(key: &str, secrets: &[&str], terms: Terms, deadline: Duration) -> Self {
        Self {
            key: key.parse().expect("an app key"),
            chain: "default".into(),
            disabled: false,
            secrets: secrets.iter().map(|secret| SecretDigest::of(secret)).collect(),
            terms: OperationTerms {
                terms,
                mode: Mode::Enforce,
                accept_loss: false,
                contents_stored_bytes: 1024,
                deadline,
                claim_on_outage: ClaimOnOutage::FailClosed,
                outcome_on_outage: OutcomeOnOutage::FailClosed,
            },
            operations: HashMap::new(),
            retention_max: Retention::Forever,
            quota: Quota::default(),
            console_mask: Vec::new(),
            console_find: Vec::new(),
            usage: Arc::default(),
        }
    }
}
