//! `oncegate admin-token`: makes tokens for the admin API. Changes nothing itself, and prints what to write into the
//! configuration file.

use std::io::Write;

use clap::{Args, Subcommand};

use crate::config::KeyPath;
use crate::domain::attempt::Entropy;
use crate::domain::name::Name;
use crate::tenants::secret::Secret;

const EXAMPLES: &str = "\
Examples:
  oncegate admin-token new alice      # a token, and the line for [admin.tokens]

The token is printed once. Put its digest into the configuration, and the token into ONCEGATE_ADMIN_TOKEN of those commands that use the \
admin API.";

/// What to do.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct AdminTokenArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Make a token; prints it, once
    New {
        /// The name that the audit trail shows, such as alice
        name: Name,
    },
}

pub(super) fn run(args: AdminTokenArgs, entropy: &dyn Entropy, out: &mut impl Write) -> anyhow::Result<()> {
    let Action::New { name } = args.action;
    let token = Secret::random(entropy);
    writeln!(out, "{}", token.reveal())?;
    writeln!(out)?;
    writeln!(
        out,
        "`{name}` sends this as `Authorization: Bearer …`, or has commands read it from ONCEGATE_ADMIN_TOKEN. It is shown this \
         once; store it now."
    )?;
    writeln!(out, "Add this to the configuration file; a running gateway takes it over on SIGHUP:")?;
    writeln!(out, "\n[{}]", KeyPath::of(["admin", "tokens"]))?;
    Ok(writeln!(out, "{} = \"{}\"", KeyPath::of([name.as_ref()]), token.digest())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::attempt::SystemEntropy;
    use crate::tenants::secret::SecretDigest;

    #[test]
    fn what_is_printed_can_be_put_into_the_configuration() {
        for name in ["alice", "ci.deploy"] {
            let mut out = Vec::new();
            let args = AdminTokenArgs { action: Action::New { name: name.parse().unwrap() } };
            run(args, &SystemEntropy, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            let token = out.lines().next().unwrap();
            let table: toml::Table = out[out.find("[admin").unwrap()..].parse().unwrap();
            assert_eq!(table["admin"]["tokens"][name].as_str(), Some(SecretDigest::of(token).to_string().as_str()));
        }
    }
}
