//! `oncegate admin-token`: makes tokens for the admin API. Changes nothing, and prints what to write into the
//! configuration file.

use std::io::Write;

use clap::Subcommand;

use crate::config::KeyPath;
use crate::domain::attempt::Entropy;
use crate::domain::name::Name;
use crate::tenants::secret::Secret;

const EXAMPLES: &str = "\
Examples:
  oncegate admin-token new alice      # prints a token, and the line for [admin.tokens]

The token is printed only once. Put its digest into the configuration, and the token into ONCEGATE_ADMIN_TOKEN of
the commands that use the admin API.";

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Make a token, and print it once
    New {
        /// Name for the audit trail, such as alice
        name: Name,
    },
}

pub(super) fn run(action: Action, entropy: &dyn Entropy, out: &mut impl Write) -> anyhow::Result<()> {
    let Action::New { name } = action;
    let token = Secret::random(entropy);
    writeln!(out, "{}", token.reveal())?;
    writeln!(out)?;
    writeln!(
        out,
        "`{name}` sends this as `Authorization: Bearer …`; commands read it from ONCEGATE_ADMIN_TOKEN. It is printed only \
         once: store it now."
    )?;
    writeln!(out, "Add this to the configuration file. It takes effect within seconds, without a restart:")?;
    writeln!(out, "\n[{}]", KeyPath::of(["admin", "tokens"]))?;
    Ok(writeln!(out, "{} = \"{}\"", KeyPath::of([name.as_ref()]), token.digest())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::attempt::SystemEntropy;
    use crate::tenants::secret::SecretDigest;

    #[test]
    fn the_output_can_be_pasted_into_the_configuration() {
        for name in ["alice", "ci.deploy"] {
            let mut out = Vec::new();
            let action = Action::New { name: name.parse().unwrap() };
            run(action, &SystemEntropy, &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            let token = out.lines().next().unwrap();
            let table: toml::Table = out[out.find("[admin").unwrap()..].parse().unwrap();
            assert_eq!(table["admin"]["tokens"][name].as_str(), Some(SecretDigest::of(token).to_string().as_str()));
        }
    }
}
