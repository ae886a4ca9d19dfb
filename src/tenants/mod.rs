//! Who may call, and on what terms: the apps, their secrets and the terms of their operations.

pub mod quota;
pub mod secret;
pub mod usage;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;

use self::quota::Quota;
use self::secret::SecretDigest;
use self::usage::Usage;
use crate::domain::tenant::{AppKey, Operation};
use crate::domain::terms::{Mode, Retention, Terms};

/// One business system that calls the gateway.
#[derive(Clone, Debug)]
pub struct App {
    /// Its name, in every key and every global ID.
    pub key: AppKey,
    /// The chain of engines that keeps its claims.
    pub chain: String,
    /// Refused although its secret is right.
    pub disabled: bool,
    /// What it proves itself with. Two may be valid at once, for rotation.
    pub secrets: Vec<SecretDigest>,
    /// The terms of operations that have none of their own.
    pub terms: OperationTerms,
    /// The terms of operations that have their own.
    pub operations: HashMap<Operation, OperationTerms>,
    /// The longest retention that its callers may ask for.
    pub retention_max: Retention,
    /// How much of this process it may take.
    pub quota: Quota,
    /// What this process has seen of it. Outlives a change of all the rest.
    pub usage: Arc<Usage>,
}

/// What the claims of an operation are made on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationTerms {
    /// Lease, retention and what a lease's end means.
    pub terms: Terms,
    /// Whether duplicates are stopped.
    pub mode: Mode,
    /// Longer contents are kept as their digest.
    pub contents_stored_bytes: usize,
    /// By when a call is answered.
    pub deadline: Duration,
}

impl App {
    /// The terms of an operation.
    pub fn terms_of(&self, operation: &Operation) -> &OperationTerms {
        self.operations.get(operation).unwrap_or(&self.terms)
    }

    /// The terms of an outcome that names no operation and finds no claim: of each, the longest that the app has.
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

/// The apps that may call. They can be replaced while calls are answered.
pub struct Registry(ArcSwap<Apps>);

/// The apps of one instant.
struct Apps {
    by_key: HashMap<AppKey, Arc<App>>,
    /// The one app of an open gateway, which asks nobody who they are.
    open: Option<Arc<App>>,
}

/// Why a caller is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The credential is missing, malformed, or not right. Which of these is not told.
    #[error("send `Authorization: Bearer <app key>.<secret>` with a valid secret of a known app")]
    Unauthenticated,
    /// The secret is right, and the app is switched off.
    #[error("this app is disabled; ask the operators of the gateway to enable it")]
    Disabled,
}

impl Registry {
    /// A registry that lets in the callers of these apps.
    pub fn of(apps: impl IntoIterator<Item = App>) -> Self {
        let registry = Self(ArcSwap::from_pointee(Apps { by_key: HashMap::new(), open: None }));
        registry.replace(apps);
        registry
    }

    /// A registry that takes every caller for this one app.
    pub fn open(app: App) -> Self {
        Self(ArcSwap::from_pointee(Apps { by_key: HashMap::new(), open: Some(Arc::new(app)) }))
    }

    /// From now on these apps, and no others. One that was there before goes on with its usage.
    pub fn replace(&self, apps: impl IntoIterator<Item = App>) {
        let before = self.0.load();
        let carried = |mut app: App| {
            if let Some(same) = before.by_key.get(&app.key) {
                app.usage = same.usage.clone();
                if app.quota != same.quota {
                    app.usage.drawn.forgive();
                }
            }
            (app.key.clone(), Arc::new(app))
        };
        let by_key = apps.into_iter().map(carried).collect();
        self.0.store(Arc::new(Apps { by_key, open: before.open.clone() }));
    }

    /// Whether callers are let in without a credential.
    pub fn is_open(&self) -> bool {
        self.0.load().open.is_some()
    }

    /// All apps.
    pub fn apps(&self) -> Vec<Arc<App>> {
        let apps = self.0.load();
        apps.by_key.values().chain(&apps.open).cloned().collect()
    }

    /// Lets in the holder of `Bearer <app key>.<secret>`.
    ///
    /// # Errors
    /// Why not. An unknown app costs and answers the same as a wrong secret.
    pub fn authenticate(&self, authorization: Option<&str>) -> Result<Arc<App>, Refused> {
        let apps = self.0.load();
        if let Some(app) = &apps.open {
            return Ok(app.clone());
        }
        let credential = authorization.and_then(bearer).ok_or(Refused::Unauthenticated)?;
        // An app key may hold dots, a secret may not.
        let (key, secret) = credential.rsplit_once('.').ok_or(Refused::Unauthenticated)?;
        let app = apps.by_key.get(key);
        // As many comparisons whoever calls: where a secret is missing, a digest that nothing hashes to.
        let digest = SecretDigest::of(secret);
        let known = |place: usize| app.and_then(|app| app.secrets.get(place)).unwrap_or(&SecretDigest::NOBODY);
        let matches = known(0).matches(&digest) | known(1).matches(&digest);
        match app.filter(|_| matches) {
            None => Err(Refused::Unauthenticated),
            Some(app) if app.disabled => Err(Refused::Disabled),
            Some(app) => Ok(app.clone()),
        }
    }
}

/// The credential of a `Bearer` authorization; the scheme's case does not matter (RFC 9110, 11.1).
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, credential) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::terms::LeaseEnd;

    pub(super) fn app(key: &str, secrets: &[&str]) -> App {
        let day = Duration::from_hours(24);
        let terms = Terms {
            lease: Duration::from_secs(30),
            retention: Retention::For(day),
            unknown_retention: Retention::For(day),
            on_lease_end: LeaseEnd::Release,
        };
        let deadline = Duration::from_secs(1);
        App {
            key: key.parse().unwrap(),
            chain: "default".into(),
            disabled: false,
            secrets: secrets.iter().map(|secret| SecretDigest::of(secret)).collect(),
            terms: OperationTerms { terms, mode: Mode::Enforce, contents_stored_bytes: 1024, deadline },
            operations: HashMap::new(),
            retention_max: Retention::Forever,
            quota: Quota::default(),
            usage: Arc::default(),
        }
    }

    const OLD: &str = "0123456789abcdefABCDEF";
    const NEW: &str = "fedcba9876543210FEDCBA";

    #[test]
    fn either_secret_of_an_app_lets_its_caller_in() {
        let registry = Registry::of([app("shop.eu", &[OLD, NEW]), app("other", &[NEW])]);
        for authorization in [format!("Bearer shop.eu.{OLD}"), format!("bearer shop.eu.{NEW}")] {
            assert_eq!(registry.authenticate(Some(&authorization)).unwrap().key.as_ref(), "shop.eu");
        }
        assert_eq!(registry.authenticate(Some(&format!("Bearer other.{NEW}"))).unwrap().key.as_ref(), "other");
    }

    #[test]
    fn everybody_else_stays_out_and_is_told_the_same() {
        let registry = Registry::of([app("shop", &[OLD]), App { disabled: true, ..app("gone", &[NEW]) }]);
        let wrong = [
            format!("Bearer shop.{NEW}"),
            format!("Bearer nobody.{OLD}"),
            format!("Bearer gone.{OLD}"),
            format!("Basic shop.{OLD}"),
            format!("shop.{OLD}"),
            "Bearer shop".into(),
            "Bearer ".into(),
            "Bearer shop.".into(),
        ];
        for authorization in wrong.iter().map(|text| Some(text.as_str())).chain([None]) {
            assert_eq!(
                registry.authenticate(authorization).unwrap_err(),
                Refused::Unauthenticated,
                "{authorization:?}"
            );
        }
        assert_eq!(registry.authenticate(Some(&format!("Bearer gone.{NEW}"))).unwrap_err(), Refused::Disabled);
    }

    #[test]
    fn an_open_gateway_asks_nobody() {
        let registry = Registry::open(app("default", &[]));
        assert_eq!(registry.authenticate(None).unwrap().key.as_ref(), "default");
        assert_eq!(registry.authenticate(Some("Bearer x.y")).unwrap().key.as_ref(), "default");
    }

    #[test]
    fn a_late_outcome_takes_the_longest_terms() {
        let mut app = app("shop", &[]);
        let own = OperationTerms { terms: Terms { retention: Retention::Forever, ..app.terms.terms }, ..app.terms };
        app.operations.insert("coupon.redeem".parse().unwrap(), own);
        assert_eq!(app.longest_terms().retention, Retention::Forever);
        assert_eq!(app.longest_terms().unknown_retention, app.terms.terms.unknown_retention);
        assert_eq!(app.terms_of(&"coupon.redeem".parse().unwrap()), &own);
    }
}
