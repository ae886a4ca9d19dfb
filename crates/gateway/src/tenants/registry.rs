//! The apps that may call, and the verification of their credentials.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use oncegate_core::clock::Timestamp;
use oncegate_core::tenant::AppKey;
use tokio::sync::watch;

use super::App;
use super::credential::{CachedCredential, Credentials};

/// Apps that may call. They can be replaced while requests are served.
pub struct Registry {
    apps: ArcSwap<Apps>,
    /// Held while apps are replaced, since the new set is derived from the old one.
    replacing: Mutex<()>,
    /// Notified of each change of the apps.
    changed: watch::Sender<()>,
    /// Their source did not answer lately.
    may_be_old: AtomicBool,
}

/// Apps at one instant.
struct Apps {
    /// Unique among all sets of this process.
    number: u64,
    by_key: HashMap<AppKey, Arc<App>>,
    credentials: Credentials,
    /// The only app of an open gateway, which does not authenticate.
    open: Option<Arc<App>>,
    /// The apps have not been loaded yet.
    loading: bool,
}

impl Apps {
    fn of(by_key: HashMap<AppKey, Arc<App>>) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let credentials = Credentials::of(by_key.values());
        Self { number: NUMBER.fetch_add(1, Ordering::Relaxed), by_key, credentials, open: None, loading: false }
    }
}

/// Reason why a request is not authenticated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AuthError {
    /// The credential is missing, malformed or wrong. The message does not say which.
    #[error("send `Authorization: Bearer <app key>.<secret>` with a valid secret of a known app")]
    Unauthenticated,
    /// The apps have not been loaded yet.
    #[error(
        "the gateway is starting and does not know its apps yet; try again after Retry-After, or at another gateway"
    )]
    Loading,
    /// The secret is valid, and the app is disabled.
    #[error("this app is disabled; ask the operators of the gateway to enable it")]
    Disabled,
}

impl Registry {
    /// Returns a registry of these apps.
    pub fn of(apps: impl IntoIterator<Item = App>) -> Self {
        let registry = Self::with(Apps::of(HashMap::new()));
        registry.replace(apps);
        registry
    }

    /// Returns a registry that accepts every caller as this app.
    pub fn open(app: App) -> Self {
        Self::with(Apps { open: Some(Arc::new(app)), ..Apps::of(HashMap::new()) })
    }

    /// Returns a registry whose apps are still to be loaded. Until then every request gets [`AuthError::Loading`].
    pub fn loading() -> Self {
        Self::with(Apps { loading: true, ..Apps::of(HashMap::new()) })
    }

    fn with(apps: Apps) -> Self {
        let (apps, changed) = (ArcSwap::from_pointee(apps), watch::Sender::new(()));
        Self { apps, replacing: Mutex::default(), changed, may_be_old: AtomicBool::new(false) }
    }

    /// Reports whether the apps are still to be loaded.
    pub fn is_loading(&self) -> bool {
        self.apps.load().loading
    }

    /// Reports whether the source of the apps did not answer its last check, so that it may have others by now.
    pub fn may_be_old(&self) -> bool {
        self.may_be_old.load(Ordering::Relaxed)
    }

    /// Records whether the source of the apps has answered a check. Only a registry in a database is checked.
    #[cfg(feature = "postgres")]
    pub(super) fn checked(&self, up: bool) {
        self.may_be_old.store(!up, Ordering::Relaxed);
    }

    /// Replaces all apps, and closes an open registry. An app that was there before keeps its usage.
    pub fn replace(&self, apps: impl IntoIterator<Item = App>) {
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.apps.load();
        let carried = |mut app: App| {
            if let Some(same) = before.by_key.get(&app.key) {
                app.usage = same.usage.clone();
                if app.quota != same.quota {
                    app.usage.charged.reset();
                }
            }
            (app.key.clone(), Arc::new(app))
        };
        self.apps.store(Arc::new(Apps::of(apps.into_iter().map(carried).collect())));
        self.changed.send_replace(());
    }

    /// Replaces the app of an open registry. Does nothing on a registry that is not open.
    pub fn replace_open(&self, app: App) {
        let _alone = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = &self.apps.load().open {
            let app = App { usage: before.usage.clone(), ..app };
            self.apps.store(Arc::new(Apps { open: Some(Arc::new(app)), ..Apps::of(HashMap::new()) }));
            self.changed.send_replace(());
        }
    }

    /// Resolves once this is true. It is asked now, and after each change of the apps.
    pub async fn until(&self, is_true: impl Fn() -> bool + Send) {
        // The sender lives as long as this registry, so there is no error.
        let _ = self.changed.subscribe().wait_for(|()| is_true()).await;
    }

    /// Reports whether requests need no credential.
    pub fn is_open(&self) -> bool {
        self.apps.load().open.is_some()
    }

    /// Returns all apps.
    pub fn apps(&self) -> Vec<Arc<App>> {
        let apps = self.apps.load();
        apps.by_key.values().chain(&apps.open).cloned().collect()
    }

    /// Returns the app of this key.
    pub fn app(&self, key: &str) -> Option<Arc<App>> {
        let apps = self.apps.load();
        apps.by_key.get(key).or(apps.open.as_ref().filter(|app| app.key.as_ref() == key)).cloned()
    }

    /// Returns the app whose credential `Bearer <app key>.<secret>` is. `cached` belongs to the connection; `now`
    /// becomes the secret's last use.
    ///
    /// # Errors
    /// The reason. Wrong credentials all take the same time and get the same answer.
    pub fn authenticate(
        &self,
        authorization: Option<&[u8]>,
        cached: &CachedCredential,
        now: Timestamp,
    ) -> Result<Arc<App>, AuthError> {
        let apps = self.apps.load();
        if let Some(app) = &apps.open {
            return Ok(app.clone());
        }
        if apps.loading {
            return Err(AuthError::Loading);
        }
        let again = authorization.and_then(|authorization| cached.matches(authorization, apps.number, now));
        if let Some(app) = again {
            return Ok(app);
        }
        match apps.credentials.find(authorization.and_then(|text| str::from_utf8(text).ok())) {
            None => Err(AuthError::Unauthenticated),
            Some(known) if known.app.disabled => Err(AuthError::Disabled),
            Some(known) => {
                known.last_use.record(now);
                cached.keep(authorization.unwrap_or_default(), apps.number, known);
                Ok(known.app.clone())
            }
        }
    }
}

#[cfg(test)]
mod auth_tests;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tenants::secret::SecretDigest;
    use crate::tenants::tests::app;

    impl Registry {
        /// Authenticates as on a new connection.
        pub(super) fn authenticate_once(
            &self,
            authorization: Option<&str>,
            now: Timestamp,
        ) -> Result<Arc<App>, AuthError> {
            self.authenticate(authorization.map(str::as_bytes), &CachedCredential::default(), now)
        }
    }

    pub(super) const NOON: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const OLD: &str = "0123456789abcdefABCDEF";
    const NEW: &str = "fedcba9876543210FEDCBA";

    #[test]
    fn each_valid_secret_of_an_app_authenticates() {
        let registry = Registry::of([app("shop.eu", &[OLD, NEW]), app("other", &[NEW])]);
        for authorization in [format!("Bearer shop.eu.{OLD}"), format!("bearer shop.eu.{NEW}")] {
            assert_eq!(registry.authenticate_once(Some(&authorization), NOON).unwrap().key.as_ref(), "shop.eu");
        }
        assert_eq!(
            registry.authenticate_once(Some(&format!("Bearer other.{NEW}")), NOON).unwrap().key.as_ref(),
            "other"
        );
    }

    #[test]
    fn all_wrong_credentials_get_the_same_error() {
        let registry = Registry::of([app("shop", &[OLD]), App { disabled: true, ..app("gone", &[NEW]) }]);
        let wrong = [
            format!("Bearer shop.{NEW}"),
            format!("Bearer unknown.{OLD}"),
            format!("Bearer gone.{OLD}"),
            format!("Basic shop.{OLD}"),
            format!("shop.{OLD}"),
            "Bearer shop".into(),
            "Bearer ".into(),
            "Bearer shop.".into(),
            "Bearer .".into(),
            format!("Bearer shop.{}", "x".repeat(2000)),
        ];
        for authorization in wrong.iter().map(|text| Some(text.as_str())).chain([None]) {
            assert_eq!(
                registry.authenticate_once(authorization, NOON).unwrap_err(),
                AuthError::Unauthenticated,
                "{authorization:?}"
            );
        }
        assert_eq!(
            registry.authenticate_once(Some(&format!("Bearer gone.{NEW}")), NOON).unwrap_err(),
            AuthError::Disabled
        );
    }

    #[test]
    fn a_short_secret_is_refused_even_if_its_digest_is_configured() {
        let short = &OLD[1..];
        let registry = Registry::of([app("shop", &["", "\n"]), app("bank", &[short])]);
        for authorization in ["Bearer shop.".to_owned(), "Bearer shop. ".to_owned(), format!("Bearer bank.{short}")] {
            let refused = registry.authenticate_once(Some(&authorization), NOON).unwrap_err();
            assert_eq!(refused, AuthError::Unauthenticated, "{authorization:?}");
        }
    }

    #[test]
    fn a_cached_credential_is_valid_for_the_same_text_and_the_same_apps_only() {
        let registry = Registry::of([app("shop", &[OLD]), app("bank", &[NEW])]);
        let cached = CachedCredential::default();
        let authenticate = |authorization: &str| registry.authenticate(Some(authorization.as_bytes()), &cached, NOON);
        let right = format!("Bearer shop.{OLD}");
        assert_eq!(cached.app(), None);
        for _ in 0..2 {
            assert_eq!(authenticate(&right).unwrap().key.as_ref(), "shop");
            assert_eq!(cached.app().unwrap().as_ref(), "shop");
        }
        for wrong in [format!("Bearer bank.{OLD}"), format!("{right}x"), right[..right.len() - 1].to_owned()] {
            assert_eq!(authenticate(&wrong).unwrap_err(), AuthError::Unauthenticated);
            assert_eq!(authenticate(&right).unwrap().key.as_ref(), "shop", "a failure does not change the cache");
        }
        assert_eq!(registry.authenticate(None, &cached, NOON).unwrap_err(), AuthError::Unauthenticated);
        assert_eq!(authenticate(&format!("Bearer bank.{NEW}")).unwrap().key.as_ref(), "bank");
        registry.replace([app("shop", &[NEW]), App { disabled: true, ..app("bank", &[NEW]) }]);
        assert_eq!(authenticate(&right).unwrap_err(), AuthError::Unauthenticated);
        assert_eq!(authenticate(&format!("Bearer bank.{NEW}")).unwrap_err(), AuthError::Disabled);
    }

    #[test]
    fn a_disabled_app_is_refused_on_every_request_of_a_connection() {
        let cached = CachedCredential::default();
        let enabled = || app("shop", &[OLD]);
        let disabled = || App { disabled: true, ..app("shop", &[OLD]) };
        let registry = Registry::of([disabled()]);
        let authenticate =
            || registry.authenticate(Some(format!("Bearer shop.{OLD}").as_bytes()), &cached, NOON).map(drop);
        for (app, expected) in
            [(disabled(), Err(AuthError::Disabled)), (enabled(), Ok(())), (disabled(), Err(AuthError::Disabled))]
        {
            registry.replace([app]);
            for _ in 0..3 {
                assert_eq!(authenticate(), expected);
            }
        }
    }

    #[test]
    fn a_use_with_a_cached_credential_is_recorded() {
        let registry = Registry::of([app("shop", &[OLD])]);
        let (cached, later) = (CachedCredential::default(), NOON.plus(Duration::from_hours(1)));
        for now in [NOON, later] {
            let app = registry.authenticate(Some(format!("Bearer shop.{OLD}").as_bytes()), &cached, now).unwrap();
            assert_eq!(app.usage.last_use(&SecretDigest::of(OLD)), Some(now));
        }
    }

    #[test]
    fn an_open_gateway_needs_no_credential() {
        let registry = Registry::open(app("default", &[]));
        assert_eq!(registry.authenticate_once(None, NOON).unwrap().key.as_ref(), "default");
        assert_eq!(registry.authenticate_once(Some("Bearer x.y"), NOON).unwrap().key.as_ref(), "default");
    }

    #[test]
    fn the_app_of_an_open_gateway_can_change_and_keeps_its_usage() {
        let registry = Registry::open(app("default", &[]));
        let usage = registry.app("default").unwrap().usage.clone();
        registry.replace_open(App { chain: "other".into(), ..app("default", &[]) });
        let changed = registry.authenticate_once(None, NOON).unwrap();
        assert!(changed.chain == "other" && Arc::ptr_eq(&changed.usage, &usage) && registry.is_open());
    }

    #[test]
    fn credentials_are_not_judged_before_the_apps_are_loaded() {
        let registry = Registry::loading();
        assert!(registry.is_loading() && !Registry::of([]).is_loading());
        assert_eq!(registry.authenticate_once(None, NOON).unwrap_err(), AuthError::Loading);
        registry.replace([]);
        assert_eq!(registry.authenticate_once(None, NOON).unwrap_err(), AuthError::Unauthenticated);
    }

    #[test]
    fn replaced_apps_keep_their_usage_and_a_closed_registry_stays_closed() {
        let registry = Registry::open(app("default", &[]));
        registry.replace([app("shop", &[OLD]), app("bank", &[OLD])]);
        assert!(!registry.is_open());
        let credential = format!("Bearer shop.{OLD}");
        let usage = registry.authenticate_once(Some(&credential), NOON).unwrap().usage.clone();
        registry.replace([app("shop", &[NEW, OLD])]);
        registry.replace_open(app("default", &[]));
        assert_eq!(registry.authenticate_once(None, NOON).unwrap_err(), AuthError::Unauthenticated);
        assert!(Arc::ptr_eq(&registry.app("shop").unwrap().usage, &usage));
        assert_eq!(usage.last_use(&SecretDigest::of(OLD)), Some(NOON));
        assert_eq!(usage.last_use(&SecretDigest::of(NEW)), None);
        registry.replace([]);
        assert_eq!(registry.authenticate_once(Some(&credential), NOON).unwrap_err(), AuthError::Unauthenticated);
        assert!(!registry.is_open() && registry.app("shop").is_none());
    }
}
