//! The configuration without secrets, tokens and passwords in URLs, for display.

use std::collections::BTreeMap;
use std::fmt;

use oncegate_gateway::tenants::secret::SecretDigest;

use super::Config;

/// Replacement of a secret.
const REDACTED: &str = "***";

impl Config {
    /// Returns the configuration as TOML, without secrets.
    pub fn redacted_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(&self.without_secrets(|_| format!("sha256:{REDACTED}")))
    }

    /// Returns the configuration without secrets, with the IDs of secrets and tokens in place of their digests.
    pub(super) fn with_secret_ids(&self) -> Self {
        self.without_secrets(|digest| digest.parse::<SecretDigest>().map_or_else(|_| REDACTED.to_owned(), |of| of.id()))
    }

    fn without_secrets(&self, shown_digest: impl Fn(&str) -> String) -> Self {
        let mut shown = self.clone();
        shown.engines = self.redacted_engines();
        shown.registry.url = redacted_url(&shown.registry.url);
        let tokens = shown.admin.tokens.values_mut().map(|token| &mut token.digest);
        for digest in shown.apps.values_mut().flat_map(|app| &mut app.secrets).chain(tokens) {
            *digest = shown_digest(digest);
        }
        shown
    }

    /// Returns the URLs of the engines by name, without secrets.
    pub fn redacted_engines(&self) -> BTreeMap<String, String> {
        self.engines.iter().map(|(name, url)| (name.clone(), redacted_url(url))).collect()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted_toml().unwrap_or_else(|error| error.to_string()))
    }
}

/// Removes the password before the `@` of a URL, and parameters that look like secrets by their name.
///
/// An unescaped password may contain any of `/ ? # @`, so everything up to the last `@` counts as the password: hiding
/// a host is better than showing half a password.
fn redacted_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let rest = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((name, _)) => format!("{name}:{REDACTED}@{host}"),
            None => format!("{REDACTED}@{host}"),
        },
        None => rest.to_owned(),
    };
    let Some((base, parameters)) = rest.split_once('?') else { return format!("{scheme}://{rest}") };
    let shown = parameters.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={REDACTED}"),
        _ => parameter.to_owned(),
    });
    format!("{scheme}://{base}?{}", shown.collect::<Vec<_>>().join("&"))
}

fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    ["pass", "secret", "token", "key"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_redacted() {
        for (url, shown) in [
            ("memory:", "memory:"),
            ("disk:./claims@night", "disk:./claims@night"),
            ("redis://localhost:6379/0?prefix=og", "redis://localhost:6379/0?prefix=og"),
            ("redis://:pw@host/0", "redis://:***@host/0"),
            ("rediss://me:p@w/o?r#d@host:1/0?prefix=x", "rediss://me:***@host:1/0?prefix=x"),
            ("redis://pw@host", "redis://***@host"),
            ("postgres://me:pw@host/db?sslmode=require", "postgres://me:***@host/db?sslmode=require"),
            ("postgres://host/db?user=me&Password=pw&x", "postgres://host/db?user=me&Password=***&x"),
        ] {
            assert_eq!(redacted_url(url), shown);
        }
    }
}
