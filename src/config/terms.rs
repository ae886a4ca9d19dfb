//! Configured terms of claims: complete in `[defaults]`, partial for apps and their operations. The most specific value
//! applies.

use std::collections::BTreeMap;
use std::time::Duration;

use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{ClaimOnOutage, LeaseEnd, Mode, OutcomeOnOutage, Retention, Span, Terms};
use oncegate_gateway::tenants::OperationTerms;
use oncegate_gateway::tenants::quota::Quota;
use oncegate_gateway::tenants::quota::options::QuotaOptions;
use serde::{Deserialize, Serialize};

use super::Config;

/// Table `[defaults]`: every term has a value.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TermsOptions {
    /// Chain that stores the claims.
    pub chain: String,
    /// Enforce or observe.
    pub mode: Mode,
    /// Lease of a claim in progress.
    pub lease: Span,
    /// Retention of a success.
    pub retention: Retention,
    /// Retention of an unknown outcome.
    pub unknown_retention: Retention,
    /// Meaning of a lease's end.
    pub on_lease_end: LeaseEnd,
    /// Accept that a switch forgets claims that are `unknown`, or would become so.
    pub accept_loss: bool,
    /// Size above which contents are stored as their digest.
    pub contents_stored_bytes: u32,
    /// Deadline of each call.
    pub deadline: Span,
    /// Outage policies.
    pub on_outage: OnOutage,
    /// Longest retention that callers may request.
    pub retention_max: Retention,
    /// Quotas of each app.
    pub quota: QuotaOptions,
}

/// Defines a table of optional terms, as in [`TermsOptions`], after its own fields. Serde's `flatten` would share the terms too, but would
/// ignore unknown keys.
macro_rules! partial_terms {
    ($(#[$about:meta])* $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($own)*
            pub(crate) mode: Option<Mode>,
            pub(crate) lease: Option<Span>,
            pub(crate) retention: Option<Retention>,
            pub(crate) unknown_retention: Option<Retention>,
            pub(crate) on_lease_end: Option<LeaseEnd>,
            pub(crate) accept_loss: Option<bool>,
            pub(crate) contents_stored_bytes: Option<u32>,
            pub(crate) deadline: Option<Span>,
            pub(crate) on_outage: Option<OnOutageOptions>,
        }
    };
}

partial_terms! {
    /// Table `[apps.<app key>]`.
    AppOptions {
        /// Digests of its secrets, at most two.
        #[serde(default)]
        pub secrets: Vec<String>,
        /// True if calls with a valid secret are refused.
        #[serde(default)]
        pub disabled: bool,
        /// Chain that stores its claims.
        pub chain: Option<String>,
        /// Longest retention that its callers may request.
        pub retention_max: Option<Retention>,
        /// Its quotas.
        pub quota: Option<QuotaOptions>,
        /// JSON pointers of values in contents and results that the console does not show.
        #[serde(default)]
        pub console_mask: Vec<String>,
        /// Terms of its operations that differ from its own.
        #[serde(default)]
        pub operations: BTreeMap<Operation, OperationOptions>,
    }
}

partial_terms! {
    /// Table `[apps.<app key>.operations.<operation>]`.
    #[derive(Debug)]
    OperationOptions {
        /// JSON with a place for what an operator has of an operation, such as the number of an order. The console finds claims by it.
        pub console_find: Option<String>,
    }
}

impl AppOptions {
    /// Returns the terms that are set.
    pub(super) fn own_terms(&self) -> OperationOptions {
        let Self { mode, lease, retention, unknown_retention, on_lease_end, .. } = *self;
        let Self { accept_loss, contents_stored_bytes, deadline, on_outage, .. } = *self;
        OperationOptions {
            console_find: None,
            mode,
            lease,
            retention,
            unknown_retention,
            on_lease_end,
            accept_loss,
            contents_stored_bytes,
            deadline,
            on_outage,
        }
    }
}

impl TermsOptions {
    /// Returns the same terms, all set.
    pub(super) fn own_terms(&self) -> OperationOptions {
        let OnOutage { claim, outcome } = self.on_outage;
        OperationOptions {
            console_find: None,
            mode: Some(self.mode),
            lease: Some(self.lease),
            retention: Some(self.retention),
            unknown_retention: Some(self.unknown_retention),
            on_lease_end: Some(self.on_lease_end),
            accept_loss: Some(self.accept_loss),
            contents_stored_bytes: Some(self.contents_stored_bytes),
            deadline: Some(self.deadline),
            on_outage: Some(OnOutageOptions { claim: Some(claim), outcome: Some(outcome) }),
        }
    }
}

/// Returns the first of these terms that is set, the most specific first.
fn first<T>(own: &[OperationOptions], term: fn(&OperationOptions) -> Option<T>, default: T) -> T {
    own.iter().find_map(term).unwrap_or(default)
}

impl Config {
    /// Returns the terms of an operation: its own, or the app's, or the defaults. Without an operation those of the
    /// app, without an app the defaults; an unknown name counts as absent.
    pub fn terms_of(&self, app: Option<&AppKey>, operation: Option<&Operation>) -> OperationTerms {
        let defaults = &self.defaults;
        let app = app.and_then(|app| self.apps.get(app));
        let operation = app.zip(operation).and_then(|(app, operation)| app.operations.get(operation));
        let own = [operation.cloned().unwrap_or_default(), app.map(AppOptions::own_terms).unwrap_or_default()];
        let stored_bytes = first(&own, |own| own.contents_stored_bytes, defaults.contents_stored_bytes);
        OperationTerms {
            mode: first(&own, |own| own.mode, defaults.mode),
            terms: Terms {
                lease: first(&own, |own| own.lease, defaults.lease).0,
                retention: first(&own, |own| own.retention, defaults.retention),
                unknown_retention: first(&own, |own| own.unknown_retention, defaults.unknown_retention),
                on_lease_end: first(&own, |own| own.on_lease_end, defaults.on_lease_end),
            },
            accept_loss: first(&own, |own| own.accept_loss, defaults.accept_loss),
            // A number above the address space means no limit anyway.
            contents_stored_bytes: usize::try_from(stored_bytes).unwrap_or(usize::MAX),
            deadline: first(&own, |own| own.deadline, defaults.deadline).0,
            claim_on_outage: first(&own, |own| own.on_outage?.claim, defaults.on_outage.claim),
            outcome_on_outage: first(&own, |own| own.on_outage?.outcome, defaults.on_outage.outcome),
        }
    }

    /// Returns the chain that stores the claims of an app; without one, that of the defaults.
    pub fn chain_of(&self, app: Option<&AppKey>) -> &str {
        let own = app.and_then(|app| self.apps.get(app)).and_then(|app| app.chain.as_ref());
        own.unwrap_or(&self.defaults.chain)
    }

    /// Reports whether any app or operation has an outage policy other than `fail_closed`.
    pub fn answers_for_stores(&self) -> bool {
        let is_set = |terms: &OperationOptions| {
            let OnOutageOptions { claim, outcome } = terms.on_outage.unwrap_or_default();
            claim.is_some_and(|claim| claim != ClaimOnOutage::FailClosed)
                || outcome.is_some_and(|outcome| outcome != OutcomeOnOutage::FailClosed)
        };
        is_set(&self.defaults.own_terms())
            || self.apps.values().any(|app| is_set(&app.own_terms()) || app.operations.values().any(is_set))
    }

    /// Returns the longest retention that callers of an app may request; without an app, that of the defaults.
    pub fn retention_max_of(&self, app: Option<&AppKey>) -> Retention {
        let own = app.and_then(|app| self.apps.get(app)).and_then(|app| app.retention_max);
        own.unwrap_or(self.defaults.retention_max)
    }

    /// Returns the longest default lease among the apps of this chain. Apps of a registry count as the defaults.
    pub fn lease_max_of(&self, chain: &str) -> Duration {
        let of_chain = self.apps.iter().filter(|(key, _)| self.chain_of(Some(key)) == chain);
        let leases = of_chain.flat_map(|(key, app)| {
            let operations = app.operations.keys().map(Some).chain([None]);
            operations.map(|operation| self.terms_of(Some(key), operation).terms.lease)
        });
        leases.max().unwrap_or(self.defaults.lease.0)
    }

    /// Returns the quotas of an app; without one, those of an open gateway's only app, which shares its permits with
    /// none.
    pub fn quota_of(&self, app: Option<&AppKey>) -> Quota {
        let own = app.and_then(|app| self.apps.get(app)).and_then(|app| app.quota.as_ref());
        self.defaults.quota.resolve(own, app.map(|_| self.limits.requests_in_flight))
    }
}

/// Table `[defaults.on_outage]`: the outage policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OnOutage {
    /// Policy of claims.
    pub claim: ClaimOnOutage,
    /// Policy of outcomes.
    pub outcome: OutcomeOnOutage,
}

/// Outage policies of an app or an operation.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OnOutageOptions {
    /// Policy of claims.
    pub claim: Option<ClaimOnOutage>,
    /// Policy of outcomes.
    pub outcome: Option<OutcomeOnOutage>,
}
