//! `oncegate admin-token`: makes tokens for the admin API. Changes nothing, and prints the lines for the configuration
//! file.

use std::io::Write;

use clap::{Subcommand, ValueEnum};
use oncegate_admin::Role;
use oncegate_core::attempt::Entropy;
use oncegate_core::name::Name;
use oncegate_gateway::tenants::secret::Secret;

use super::output::ADD_TO_FILE;
use crate::config::KeyPath;

const EXAMPLES: &str = "\
Examples:
  oncegate admin-token new alice      # prints a token, and the line for [admin.tokens]
  oncegate admin-token new bob --role view

The token is printed only once. Put its digest into the configuration, and the token into ONCEGATE_ADMIN_TOKEN of
the commands that use the admin API.";

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Make a token, and print it once
    New {
        /// Name for the audit trail, such as alice
        name: Name,
        /// Calls that the token may make
        #[arg(long, value_enum, default_value = "act")]
        role: RoleName,
    },
}

/// The name of a role on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum RoleName {
    /// Sees states, but no contents, results or configuration
    View,
    /// Sees everything
    Read,
    /// Changes things too
    Act,
}

pub(super) fn run(action: Action, entropy: &dyn Entropy, out: &mut impl Write) -> anyhow::Result<()> {
    let Action::New { name, role } = action;
    let token = Secret::random(entropy);
    writeln!(out, "{}", token.reveal())?;
    writeln!(out)?;
    writeln!(
        out,
        "`{name}` sends this as `Authorization: Bearer …`; commands read it from ONCEGATE_ADMIN_TOKEN. It is printed only \
         once: store it now."
    )?;
    writeln!(out, "{ADD_TO_FILE}")?;
    writeln!(out, "\n[{}]", KeyPath::of(["admin", "tokens"]))?;
    let (name, digest) = (KeyPath::of([name.as_ref()]), token.digest());
    let role = match role {
        RoleName::Act => return Ok(writeln!(out, "{name} = \"{digest}\"")?),
        RoleName::Read => Role::Read,
        RoleName::View => Role::View,
    };
    Ok(writeln!(out, "{name} = {{ digest = \"{digest}\", role = \"{}\" }}", role.name())?)
}

#[cfg(test)]
mod tests {
    use oncegate_admin::TokenOptions;
    use oncegate_core::attempt::SystemEntropy;
    use oncegate_gateway::tenants::secret::SecretDigest;

    use super::*;

    #[test]
    fn the_output_can_be_pasted_into_the_configuration() {
        for (name, role) in
            [("alice", RoleName::Act), ("ci.deploy", RoleName::Act), ("bob", RoleName::View), ("eve", RoleName::Read)]
        {
            let mut out = Vec::new();
            let action = Action::New { name: name.parse().unwrap(), role };
            run(action, &SystemEntropy, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            let token = out.lines().next().unwrap();
            assert!(out.contains("start it again with --config FILE"), "{out}");
            let table: toml::Table = out[out.find("[admin").unwrap()..].parse().unwrap();
            let options: TokenOptions = table["admin"]["tokens"][name].clone().try_into().unwrap();
            assert_eq!(options.digest, SecretDigest::of(token).to_string());
            assert_eq!(options.role.name(), format!("{role:?}").to_lowercase());
        }
    }
}
