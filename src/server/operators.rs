//! Creates the admin API's tokens from a configuration.

use anyhow::Context as _;

use crate::admin::auth::Token;
use crate::admin::role::TokenOptions;
use crate::config::Config;

/// Returns the tokens of a configuration.
pub(super) fn of_config(config: &Config) -> anyhow::Result<Vec<Token>> {
    let token = |(name, options): (&String, &TokenOptions)| {
        let digest = options.digest.parse().with_context(|| format!("admin.tokens.{name}"))?;
        Ok(Token { name: name.as_str().into(), digest, role: options.role })
    };
    config.admin.tokens.iter().map(token).collect()
}
