//! Certificate and key files of the listeners and engines. Only the server reads them: someone who displays the configuration may
//! have no access.

use oncegate_core::clock::Timestamp;
use oncegate_transport::tls::TlsOptions;

use super::Config;
use super::path::KeyPath;
use super::problem::Problem;
use crate::engines;

impl Config {
    /// Returns the TLS tables of all listeners.
    pub(super) fn tls_tables(&self) -> [(KeyPath, &TlsOptions); 3] {
        let (server, proxy) = (&self.server, &self.proxy);
        let tables = [
            (["server", "tls"], &server.tls),
            (["server", "admin_tls"], &server.admin_tls),
            (["proxy", "tls"], &proxy.tls),
        ];
        tables.map(|(names, tls)| (KeyPath::of(names), tls))
    }

    /// Returns the problems of certificate and key files. Blocks.
    pub fn check_files(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (table, tls) in self.tls_tables() {
            if tls.is_on()
                && let Err(error) = tls.read().and_then(|files| files.identity().map(drop))
            {
                problems.push(Problem::of_key(table.child(error.key), error.to_string()));
            }
        }
        for (name, address) in &self.engines {
            if let Err(why) = engines::check_files(address) {
                problems.push(Problem::of_key(KeyPath::of(["engines"]).child(name), why.to_string()));
            }
        }
        problems
    }

    /// Returns the keys of the listeners' certificates that have expired at an instant, and when they did. Blocks.
    pub fn expired_certificates(&self, now: Timestamp) -> Vec<(KeyPath, Timestamp)> {
        let expired = self.tls_tables().into_iter().filter(|(_, tls)| tls.is_on()).filter_map(|(table, tls)| {
            let ends_at = tls.read().and_then(|files| files.identity()).ok()?.ends_at?;
            (ends_at < now).then(|| (table.child("certificate"), ends_at))
        });
        expired.collect()
    }
}
