//! The admin API over sockets: authentication, actions of operators on claims, and their audit trail.

mod access;
mod apps;
mod caller;
mod claims;
pub(crate) mod commands;
mod ends;
mod gateways;
mod history;
mod operations;
mod recent;
mod roles;
mod settings;
mod summary;
mod suspects;
mod trail;
mod unknowns;
mod waiting;

use oncegate_core::hex;
use oncegate_testkit::client::Client;
use oncegate_testkit::gateway::{Gateway, Setup};
use sha2::{Digest, Sha256};

use crate::support::gateway;

/// The token of the operator alice.
pub(crate) const TOKEN: &str = "token_of_alice_0123456789abcdef";
const TOKEN_OF_BOB: &str = "token_of_bob_0123456789abcdef";

/// The configuration of the operators.
pub(crate) fn operators() -> String {
    let digest = |token: &str| hex::encode(&Sha256::digest(token));
    format!("[admin.tokens]\nalice = \"sha256:{}\"\nbob = \"sha256:{}\"\n", digest(TOKEN), digest(TOKEN_OF_BOB))
}

/// A patient gateway on this engine that has operators.
pub(crate) fn operated(engine: &str) -> Setup {
    gateway::on(engine).config(&operators()).patient()
}

/// The operator alice.
pub(crate) fn alice(gateway: &Gateway) -> Client {
    gateway.admin_client().with_credential(TOKEN)
}
