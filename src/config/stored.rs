//! An app of a registry, parsed and checked like one in the configuration file.

use oncegate_core::tenant::AppKey;
use oncegate_gateway::tenants::stored::StoredApp;
use toml::Value;

use super::explain::explain;
use super::path::KeyPath;
use super::problem::{Problem, Problems};
use super::{AppOptions, Config, RegistryOptions};

impl Config {
    /// Returns this configuration with this app as the only one.
    ///
    /// # Errors
    /// All problems of the app on a gateway with this configuration.
    pub fn of_stored(&self, stored: &StoredApp) -> Result<Self, Problems> {
        let mut options = read(&stored.key, &stored.settings)?;
        options.chain.clone_from(&stored.chain);
        options.disabled = stored.disabled;
        options.secrets = stored.secrets.iter().map(|secret| secret.digest.to_string()).collect();
        let apps = [(stored.key.clone(), options)].into();
        let config = Self { apps, registry: RegistryOptions { url: String::new() }, ..self.clone() };
        let problems = config.validate_apps();
        if problems.is_empty() { Ok(config) } else { Err(Problems(problems)) }
    }
}

fn read(key: &AppKey, settings: &str) -> Result<AppOptions, Problem> {
    let path = KeyPath::of(["apps", key.as_ref()]);
    let no_json =
        |_| Problem::of_key(path.clone(), "the settings are not a JSON object, such as {\"retention\": \"30d\"}");
    let settings: Value = serde_json::from_str(settings).map_err(no_json)?;
    for name in ["secrets", "disabled", "chain"] {
        if settings.get(name).is_some() {
            let message = "not an app's setting in a registry: it has its own column";
            return Err(Problem::of_key(path.child(name), message));
        }
    }
    serde_path_to_error::deserialize(settings).map_err(|error| {
        let own = KeyPath::of_error(error.path());
        let key = own.names().iter().fold(path, |path, name| path.child(name));
        let message = explain(error.inner().message(), &key, None);
        Problem::of_key(key, message)
    })
}

#[cfg(test)]
mod tests {
    use oncegate_gateway::tenants::secret::SecretDigest;
    use oncegate_gateway::tenants::stored::StoredSecret;

    use super::*;
    use crate::config::Flags;

    fn stored(settings: &str) -> StoredApp {
        let secret = StoredSecret {
            digest: SecretDigest::of("0123456789abcdefABCDEF"),
            created_at: oncegate_core::clock::Timestamp::default(),
            last_used_at: None,
        };
        let (key, settings) = ("shop".parse().unwrap(), settings.to_owned());
        StoredApp { key, settings, chain: None, disabled: false, secrets: vec![secret] }
    }

    #[test]
    fn an_app_of_a_registry_has_the_same_terms_as_in_the_file() {
        let config = Config::load(&Flags::default(), []).unwrap();
        let settings = r#"{"retention": "30d", "contents_stored_bytes": 7, "operations": {"coupon.redeem": {"retention": "forever"}}}"#;
        let made = config.of_stored(&stored(settings)).unwrap();
        let key = "shop".parse().unwrap();
        assert_eq!(made.terms_of(Some(&key), None).contents_stored_bytes, 7);
        let operation = "coupon.redeem".parse().unwrap();
        assert_eq!(made.terms_of(Some(&key), Some(&operation)).terms.retention.to_string(), "forever");
        assert_eq!(made.apps[&key].secrets.len(), 1);
    }

    #[test]
    fn an_app_of_a_registry_is_independent_of_routes_for_others() {
        let route = |app: &str| {
            format!(
                "[[proxy.routes]]\nname = \"{app}\"\napp = \"{app}\"\npath = \"/{app}\"\nmethods = [\"POST\"]\n\
                 upstream = \"u\"\nprincipal = [\"authorization\"]\n"
            )
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncegate.toml");
        let text = format!(
            "[registry]\nurl = \"postgres://u@h/d\"\n[proxy.upstreams.u]\nurls = [\"http://127.0.0.1:9000\"]\n{}{}",
            route("shop"),
            route("bank")
        );
        std::fs::write(&path, text).unwrap();
        let config = Config::load(&Flags { config: Some(path), ..Flags::default() }, []).unwrap();
        let made = config.of_stored(&stored("{}")).unwrap();
        assert_eq!(made.proxy_operations(Some(&"shop".parse().unwrap())).count(), 1);
        let refused = config.of_stored(&stored(r#"{"retention": "1h", "retention_max": "2h"}"#)).unwrap_err();
        assert!(refused.to_string().contains("beyond retention_max of its app"), "{refused}");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn the_deadline_of_an_app_leaves_its_store_time_for_replicas() {
        let url = "redis://127.0.0.1?replicas=1&replica_timeout=300ms";
        let flags = Flags { engine: Some(url.into()), ..Flags::default() };
        let refused = Config::load(&flags, []).unwrap().of_stored(&stored(r#"{"deadline": "300ms"}"#)).unwrap_err();
        assert!(refused.to_string().contains("write a deadline of 400ms or more"), "{refused}");
    }

    #[test]
    fn problems_of_an_app_are_described_as_for_the_file() {
        let config = Config::load(&Flags::default(), []).unwrap();
        let chain = StoredApp { chain: Some("nowhere".into()), ..stored("{}") };
        for (stored, word) in [
            (stored("[]"), "apps.shop"),
            (stored("{"), "not a JSON object"),
            (stored(r#"{"retentoin": "30d"}"#), "did you mean `retention`"),
            (stored(r#"{"lease": "1 minute"}"#), "apps.shop.lease"),
            (stored(r#"{"lease": "48h"}"#), "limits.lease_max"),
            (stored(r#"{"operations": {"x": {"lease": 5}}}"#), "apps.shop.operations.x.lease"),
            (stored(r#"{"secrets": []}"#), "its own column"),
            (chain, "there is no chain `nowhere`"),
        ] {
            let refused = config.of_stored(&stored).unwrap_err().to_string();
            assert!(refused.contains(word), "no {word:?} in {refused}");
        }
    }
}
