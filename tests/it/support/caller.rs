//! Apps of a configuration, and callers that are theirs.

use oncegate_core::hex;
use oncegate_testkit::client::Client;
use oncegate_testkit::gateway::Gateway;
use sha2::{Digest, Sha256};

/// The secret of every app here; whose it is, is in the key.
const SECRET: &str = "caller_secret_0123456789abcdef";

/// The table of an app; further lines may follow.
pub(crate) fn app(key: &str) -> String {
    let digest = hex::encode(&Sha256::digest(SECRET));
    format!("[apps.{key}]\nsecrets = [\"sha256:{digest}\"]\n")
}

/// Returns the credential of an app.
pub(crate) fn credential(key: &str) -> String {
    format!("{key}.{SECRET}")
}

/// A caller of an app.
pub(crate) fn caller(gateway: &Gateway, key: &str) -> Client {
    gateway.client().with_credential(&credential(key))
}
