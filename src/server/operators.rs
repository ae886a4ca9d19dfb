//! Creates the admin API's tokens from a configuration.

use anyhow::Context as _;

use crate::config::Config;
use crate::tenants::secret::SecretDigest;

/// Returns the tokens of a configuration, by name.
pub(super) fn of_config(config: &Config) -> anyhow::Result<Vec<(String, SecretDigest)>> {
    let token = |(name, digest): (&String, &String)| {
        let digest = digest.parse().with_context(|| format!("admin.tokens.{name}"))?;
        Ok((name.clone(), digest))
    };
    config.admin.tokens.iter().map(token).collect()
}
