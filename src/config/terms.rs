//! The terms of claims as they are configured: complete in `[defaults]`, in parts for an app and for an operation of an
//! app. The most specific part wins.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Config;
use crate::domain::tenant::{AppKey, Operation};
use crate::domain::terms::{ClaimOnOutage, LeaseEnd, Mode, OutcomeOnOutage, Retention, Span, Terms};
use crate::tenants::quota::Quota;
use crate::tenants::quota::options::QuotaOptions;

/// The table `[defaults]`: every term has a value.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TermsOptions {
    /// The chain that keeps the claims.
    pub chain: String,
    /// Whether duplicates are stopped.
    pub mode: Mode,
    /// How long a claim lasts while its operation is in progress.
    pub lease: Span,
    /// How long a success keeps blocking repeats.
    pub retention: Retention,
    /// How long an unknown outcome keeps blocking repeats.
    pub unknown_retention: Retention,
    /// What the end of a lease means.
    pub on_lease_end: LeaseEnd,
    /// Longer contents are stored as their digest.
    pub contents_stored_bytes: u32,
    /// By when the store must have answered.
    pub deadline: Span,
    /// What happens while it does not.
    pub on_outage: OnOutage,
    /// The longest retention that callers may ask for.
    pub retention_max: Retention,
    /// How much of a gateway an app may take.
    pub quota: QuotaOptions,
}

/// A table of terms in which each may be left out, after fields of its own. Serde's `flatten` would share the terms
/// between the tables too, but then unknown keys went unnoticed.
macro_rules! partial_terms {
    ($(#[$about:meta])* $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($own)*
            /// Whether duplicates are stopped.
            pub mode: Option<Mode>,
            /// How long a claim lasts while its operation is in progress.
            pub lease: Option<Span>,
            /// How long a success keeps blocking repeats.
            pub retention: Option<Retention>,
            /// How long an unknown outcome keeps blocking repeats.
            pub unknown_retention: Option<Retention>,
            /// What the end of a lease means.
            pub on_lease_end: Option<LeaseEnd>,
            /// Longer contents are stored as their digest.
            pub contents_stored_bytes: Option<u32>,
            /// By when the store must have answered.
            pub deadline: Option<Span>,
            /// What happens while it does not.
            pub on_outage: Option<OnOutageOptions>,
        }

        impl $name {
            /// The terms it sets.
            pub(super) fn own_terms(&self) -> OwnTerms {
                let Self { mode, lease, retention, unknown_retention, on_lease_end, .. } = *self;
                let Self { contents_stored_bytes, deadline, .. } = *self;
                let on_outage = self.on_outage.unwrap_or_default();
                OwnTerms {
                    mode,
                    lease,
                    retention,
                    unknown_retention,
                    on_lease_end,
                    contents_stored_bytes,
                    deadline,
                    on_outage,
                }
            }
        }
    };
}

partial_terms! {
    /// The table `[apps.<app key>]`.
    AppOptions {
        /// The digests of its secrets, at most two.
        #[serde(default)]
        pub secrets: Vec<String>,
        /// Whether it is turned away although its secret is right.
        #[serde(default)]
        pub disabled: bool,
        /// The chain that keeps its claims.
        pub chain: Option<String>,
        /// The longest retention that its callers may ask for.
        pub retention_max: Option<Retention>,
        /// How much of a gateway it may take.
        pub quota: Option<QuotaOptions>,
        /// The terms of its operations that differ from its own.
        #[serde(default)]
        pub operations: BTreeMap<Operation, OperationOptions>,
    }
}

partial_terms! {
    /// The table `[apps.<app key>.operations.<operation>]`.
    #[derive(Debug)]
    OperationOptions {}
}

impl fmt::Debug for AppOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppOptions")
            .field("disabled", &self.disabled)
            .field("chain", &self.chain)
            .finish_non_exhaustive()
    }
}

/// What an app or an operation sets of the terms.
#[derive(Clone, Copy)]
pub(super) struct OwnTerms {
    pub(super) mode: Option<Mode>,
    pub(super) lease: Option<Span>,
    pub(super) retention: Option<Retention>,
    pub(super) unknown_retention: Option<Retention>,
    pub(super) on_lease_end: Option<LeaseEnd>,
    pub(super) contents_stored_bytes: Option<u32>,
    pub(super) deadline: Option<Span>,
    pub(super) on_outage: OnOutageOptions,
}

impl TermsOptions {
    /// The same terms, as if each had been left out or set.
    pub(super) fn own_terms(&self) -> OwnTerms {
        OwnTerms {
            mode: Some(self.mode),
            lease: Some(self.lease),
            retention: Some(self.retention),
            unknown_retention: Some(self.unknown_retention),
            on_lease_end: Some(self.on_lease_end),
            contents_stored_bytes: Some(self.contents_stored_bytes),
            deadline: Some(self.deadline),
            on_outage: OnOutageOptions { claim: Some(self.on_outage.claim), outcome: Some(self.on_outage.outcome) },
        }
    }
}

/// What holds for an operation of an app, whoever set it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolvedTerms {
    /// The chain that keeps the claims.
    pub chain: String,
    /// Whether duplicates are stopped.
    pub mode: Mode,
    /// Lease, retention and what a lease's end means.
    pub terms: Terms,
    /// Longer contents are stored as their digest.
    pub contents_stored_bytes: usize,
    /// By when the store must have answered.
    pub deadline: Duration,
    /// What happens while it does not.
    pub on_outage: OnOutage,
}

impl ResolvedTerms {
    fn set(&mut self, own: OwnTerms) {
        let terms = &mut self.terms;
        replace(&mut self.mode, own.mode);
        replace(&mut terms.lease, own.lease.map(|Span(lease)| lease));
        replace(&mut terms.retention, own.retention);
        replace(&mut terms.unknown_retention, own.unknown_retention);
        replace(&mut terms.on_lease_end, own.on_lease_end);
        replace(&mut self.contents_stored_bytes, own.contents_stored_bytes.map(in_memory));
        replace(&mut self.deadline, own.deadline.map(|Span(deadline)| deadline));
        replace(&mut self.on_outage.claim, own.on_outage.claim);
        replace(&mut self.on_outage.outcome, own.on_outage.outcome);
    }
}

fn replace<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// A count of bytes. Where it is more than the machine can address, everything is below it anyway.
fn in_memory(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Config {
    /// The terms of an operation of an app: its own, else the app's, else the defaults. Without an operation those of the
    /// app, without an app the defaults; names that are not configured count as left out.
    pub fn terms_of(&self, app: Option<&AppKey>, operation: Option<&Operation>) -> ResolvedTerms {
        let defaults = &self.defaults;
        let mut resolved = ResolvedTerms {
            chain: defaults.chain.clone(),
            mode: defaults.mode,
            terms: Terms {
                lease: defaults.lease.0,
                retention: defaults.retention,
                unknown_retention: defaults.unknown_retention,
                on_lease_end: defaults.on_lease_end,
            },
            contents_stored_bytes: in_memory(defaults.contents_stored_bytes),
            deadline: defaults.deadline.0,
            on_outage: defaults.on_outage,
        };
        if let Some(app) = app.and_then(|app| self.apps.get(app)) {
            replace(&mut resolved.chain, app.chain.clone());
            resolved.set(app.own_terms());
            if let Some(operation) = operation.and_then(|operation| app.operations.get(operation)) {
                resolved.set(operation.own_terms());
            }
        }
        resolved
    }
}

impl Config {
    /// Whether a policy may answer for a store that is out, for some app and operation.
    pub fn answers_for_stores(&self) -> bool {
        let is_set = |terms: &OwnTerms| {
            let OnOutageOptions { claim, outcome } = terms.on_outage;
            claim.is_some_and(|claim| claim != ClaimOnOutage::FailClosed)
                || outcome.is_some_and(|outcome| outcome != OutcomeOnOutage::FailClosed)
        };
        is_set(&self.defaults.own_terms())
            || self.apps.values().any(|app| {
                is_set(&app.own_terms()) || app.operations.values().any(|operation| is_set(&operation.own_terms()))
            })
    }

    /// The longest retention that callers of an app may ask for; without an app that of the defaults.
    pub fn retention_max_of(&self, app: Option<&AppKey>) -> Retention {
        let own = app.and_then(|app| self.apps.get(app)).and_then(|app| app.retention_max);
        own.unwrap_or(self.defaults.retention_max)
    }

    /// The longest lease that callers of this chain get without asking for one. Apps of a registry count as the defaults.
    pub fn lease_max_of(&self, chain: &str) -> Duration {
        let own = self.apps.iter().flat_map(|(key, app)| {
            let operations = app.operations.keys().map(Some).chain([None]);
            operations.map(|operation| self.terms_of(Some(key), operation))
        });
        let defaults = self.apps.is_empty().then(|| self.terms_of(None, None));
        let of_chain = own.chain(defaults).filter(|terms| terms.chain == chain);
        of_chain.map(|terms| terms.terms.lease).max().unwrap_or(self.defaults.lease.0)
    }

    /// The quotas of an app; without one, those of the one app of an open gateway, which shares its places with nobody.
    pub fn quota_of(&self, app: Option<&AppKey>) -> Quota {
        let own = app.and_then(|app| self.apps.get(app)).and_then(|app| app.quota.as_ref());
        self.defaults.quota.resolve(own, app.map(|_| self.limits.requests_in_flight))
    }
}

/// The table `[defaults.on_outage]`: what happens while the store does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OnOutage {
    /// To a claim.
    pub claim: ClaimOnOutage,
    /// To an outcome.
    pub outcome: OutcomeOnOutage,
}

/// The same for an app or an operation, where each may be left out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OnOutageOptions {
    /// To a claim.
    pub claim: Option<ClaimOnOutage>,
    /// To an outcome.
    pub outcome: Option<OutcomeOnOutage>,
}
