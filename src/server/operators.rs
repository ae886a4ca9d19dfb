//! Creates the admin API's tokens and the settings of the console from a configuration.

use std::sync::Arc;

use anyhow::Context as _;
use oncegate_admin::{ConsoleSettings, Token, TokenOptions, Tokens};
use oncegate_gateway::tenants::secret::SecretDigest;

use crate::config::Config;

/// Returns the tokens of operators, which reloads replace.
pub(super) fn tokens(config: &Config) -> anyhow::Result<Arc<Tokens>> {
    let tokens = Arc::new(Tokens::default());
    tokens.replace(of_config(config)?);
    Ok(tokens)
}

/// Returns the tokens of a configuration.
pub(super) fn of_config(config: &Config) -> anyhow::Result<Vec<Token>> {
    let token = |(name, options): (&String, &TokenOptions)| {
        let digest = options.digest.parse().with_context(|| format!("admin.tokens.{name}"))?;
        Ok(Token { name: name.as_str().into(), digest, role: options.role })
    };
    config.admin.tokens.iter().map(token).collect()
}

/// Returns the settings of the console.
pub(super) fn console(config: &Config) -> ConsoleSettings {
    let folder = &config.server.data_dir;
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
    // No two gateways of one machine share a folder.
    let name = rustix::system::uname();
    let identity = format!("{} {}", name.nodename().to_string_lossy(), folder.display());
    ConsoleSettings {
        options: config.console.clone(),
        has_tls: config.server.admin_tls.is_on(),
        mark: SecretDigest::of(&identity).id(),
        host: name.nodename().to_string_lossy().into_owned(),
    }
}
