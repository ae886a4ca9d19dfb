//! Checks across settings: names refer to something, terms respect the limits, an open gateway stays on loopback. Each
//! problem says what to do.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use oncegate_core::limits::Limits;
use oncegate_core::name::Name;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{Retention, Span};
use oncegate_gateway::tenants::secret::SecretDigest;

use super::path::KeyPath;
use super::problem::Problem;
use super::{AppOptions, Config, OperationOptions};
use crate::engines;

const DEADLINE_MIN: Duration = Duration::from_millis(1);
const DEADLINE_MAX: Duration = Duration::from_mins(1);

/// More series than anyone looks at.
const METRIC_OPERATIONS_MAX: usize = 10_000;

/// A smaller buffer drops lines of a normal start; a larger one holds lines that are useless by the time they are
/// written.
const LOG_BUFFER_BYTES: RangeInclusive<usize> = 16 << 10..=1 << 30;

/// The secret in use, and one more for rotation.
const SECRETS_MAX: usize = 2;

impl Config {
    /// Returns all problems, without their origins.
    pub fn validate(&self) -> Vec<Problem> {
        let mut findings = Findings(Vec::new());
        self.check_server(&mut findings);
        self.check_admin(&mut findings);
        self.check_registry(&mut findings);
        self.check_engines_and_chains(&mut findings);
        findings.0.extend(self.check_promises());
        findings.0.extend(self.check_failover());
        findings.0.extend(self.check_forgotten());
        findings.0.extend(self.check_proxy());
        findings.0.extend(self.check_terms_of_routes());
        findings.0.extend(self.check_console());
        self.check_quotas(&mut findings);
        let before = findings.0.len();
        check_limits(&self.limits, &mut findings);
        let limits_hold = findings.0.len() == before;

        self.check_chain_exists(&KeyPath::of(["defaults"]), &self.defaults.chain, &mut findings);
        self.check_apps(&mut findings);
        // With contradictory limits, all terms would be reported.
        if limits_hold {
            self.check_terms(&mut findings);
        }
        if let Err(error) = self.log.check() {
            findings.add(KeyPath::of(["log", "level"]), error.to_string());
        }
        if let Err(error) = self.traces.check() {
            findings.add(KeyPath::of(["traces", "endpoint"]), error.to_string());
        }
        if !LOG_BUFFER_BYTES.contains(&self.log.buffer_bytes) {
            let message = "the log's buffer must have 16384 to 1073741824 bytes; 1048576 is a good size";
            findings.add(KeyPath::of(["log", "buffer_bytes"]), message);
        }
        findings.0
    }

    /// Returns the problems of the apps, and of the routes for them. Reads no file, since it is called for each app of a registry.
    pub(super) fn validate_apps(&self) -> Vec<Problem> {
        let mut findings = Findings(self.check_promises());
        findings.0.extend(self.check_forgotten());
        findings.0.extend(self.check_apps_in_console());
        findings.0.extend(self.check_terms_of_routes());
        self.check_quotas(&mut findings);
        self.check_apps(&mut findings);
        self.check_terms(&mut findings);
        for route in self.proxy.routes.iter().filter(|route| self.apps.contains_key(&route.app)) {
            if let Some(message) = self.route_retention_problem(route) {
                findings.add(KeyPath::of(["proxy", "routes"]), format!("route `{}`: {message}", route.name));
            }
        }
        findings.0
    }

    fn check_server(&self, findings: &mut Findings) {
        let server = &self.server;
        for (table, tls) in self.tls_tables() {
            if let Err(error) = tls.check() {
                findings.add(table.child(error.key), error.to_string());
            }
        }
        if overlap(server.listen, server.admin_listen) {
            findings.add(
                KeyPath::of(["server", "admin_listen"]),
                format!(
                    "{} and server.listen ({}) are the same address; give each its own port",
                    server.admin_listen, server.listen
                ),
            );
        }
        let open = self.apps.is_empty() && !self.registry.is_set();
        if open && !server.allow_open && !server.listen.ip().is_loopback() {
            findings.add(
                KeyPath::of(["server", "listen"]),
                format!(
                    "without apps, anyone who can reach {} could make claims; add an [apps.<name>] with a secret, \
                     listen on 127.0.0.1, or set server.allow_open = true",
                    server.listen
                ),
            );
        }
    }

    fn check_admin(&self, findings: &mut Findings) {
        for (name, token) in &self.admin.tokens {
            let path = KeyPath::of(["admin", "tokens"]).child(name);
            findings.check_name(&path);
            if let Err(error) = token.digest.parse::<SecretDigest>() {
                findings.add(path, error.to_string());
            }
        }
    }

    fn check_registry(&self, findings: &mut Findings) {
        let path = KeyPath::of(["registry", "url"]);
        if !self.registry.is_set() {
            return;
        }
        #[cfg(feature = "postgres")]
        if let Err(error) = oncegate_gateway::tenants::postgres::Database::at(&self.registry.url) {
            findings.add(path, error.to_string());
        }
        #[cfg(not(feature = "postgres"))]
        findings.add(path, "this program was built without PostgreSQL; use one that was built with it");
        for app in self.apps.keys() {
            let message = "registry.url is set, so all apps must be in that database; move this one there with \
                           `oncegate app new`, or remove registry.url";
            findings.add(KeyPath::of(["apps", app.as_ref()]), message);
        }
    }

    fn check_engines_and_chains(&self, findings: &mut Findings) {
        for (name, address) in &self.engines {
            let path = KeyPath::of(["engines"]).child(name);
            findings.check_name(&path);
            if let Err(why) = engines::check(address) {
                findings.add(path, why.to_string());
            }
        }
        for (chain, options) in &self.chains {
            let path = KeyPath::of(["chains"]).child(chain);
            findings.check_name(&path);
            let path = path.child("engines");
            if options.engines.is_empty() {
                findings.add(path.clone(), "a chain needs an engine; name one of [engines], such as [\"primary\"]");
            }
            let mut seen = BTreeSet::new();
            for engine in &options.engines {
                if !self.engines.contains_key(engine) {
                    let known = if self.engines.is_empty() {
                        format!("primary, the default; or add it there, such as {engine} = \"redis://localhost\"")
                    } else {
                        list(self.engines.keys())
                    };
                    let message = format!(
                        "chain `{chain}` names engine `{engine}`, which is not in [engines]; there are: {known}"
                    );
                    findings.add(path.clone(), message);
                } else if !seen.insert(engine) {
                    findings.add(path.clone(), format!("chain `{chain}` names engine `{engine}` twice; name it once"));
                } else if let Some(same) = self.same_store(engine, &seen) {
                    findings.add(
                        path.clone(),
                        format!("engines `{same}` and `{engine}` of chain `{chain}` have one URL, and are one store; name another store"),
                    );
                }
            }
        }
    }

    /// Returns an engine with the same URL, if that names a server.
    fn same_store<'a>(&self, engine: &str, others: &BTreeSet<&'a String>) -> Option<&'a String> {
        let url = self.engines.get(engine)?;
        let has_server = engines::common_address(url, url).is_some();
        others.iter().find(|other| has_server && **other != engine && self.engines.get(**other) == Some(url)).copied()
    }

    fn check_quotas(&self, findings: &mut Findings) {
        let apps = self.apps.iter().map(|(key, app)| (KeyPath::of(["apps", key.as_ref()]), app.quota));
        for (path, quota) in apps.chain([(KeyPath::of(["defaults"]), Some(self.defaults.quota))]) {
            if let Some((key, message)) = quota.and_then(|quota| quota.check()) {
                findings.add(path.child("quota").child(key), message);
            }
        }
        // If there are apps, only their own terms count: an app's retention may be shorter than the default.
        if self.apps.is_empty() {
            self.check_retention_max(&KeyPath::of(["defaults"]), None, None, findings);
        }
        for (key, app) in &self.apps {
            let path = KeyPath::of(["apps", key.as_ref()]);
            self.check_retention_max(&path, Some(key), None, findings);
            for (operation, _) in app.operations.iter().filter(|(_, own)| own.retention.is_some()) {
                let path = path.child("operations").child(operation.as_ref());
                self.check_retention_max(&path, Some(key), Some(operation), findings);
            }
        }
    }

    fn check_retention_max(
        &self,
        path: &KeyPath,
        app: Option<&AppKey>,
        operation: Option<&Operation>,
        findings: &mut Findings,
    ) {
        let (most, retention) = (self.retention_max_of(app), self.terms_of(app, operation).terms.retention);
        if retention > most {
            let message = format!(
                "{retention} is longer than the retention_max of {most} that holds here; set a shorter retention, or a \
                 longer retention_max"
            );
            findings.add(path.child("retention"), message);
        }
    }

    fn check_apps(&self, findings: &mut Findings) {
        for (key, app) in &self.apps {
            let path = KeyPath::of(["apps", key.as_ref()]);
            check_secrets(&path, app, findings);
            if let Some(chain) = &app.chain {
                self.check_chain_exists(&path, chain, findings);
            }
        }
    }

    /// Checks the terms of the defaults, the apps and their operations.
    fn check_terms(&self, findings: &mut Findings) {
        check_terms(&KeyPath::of(["defaults"]), &self.defaults.own_terms(), &self.limits, findings);
        for (key, app) in &self.apps {
            let path = KeyPath::of(["apps", key.as_ref()]);
            check_terms(&path, &app.own_terms(), &self.limits, findings);
            for (operation, own) in &app.operations {
                check_terms(&path.child("operations").child(operation.as_ref()), own, &self.limits, findings);
            }
        }
    }

    fn check_chain_exists(&self, path: &KeyPath, chain: &str, findings: &mut Findings) {
        if !self.chains.contains_key(chain) {
            let known = list(self.chains.keys());
            findings.add(path.child("chain"), format!("there is no chain `{chain}` in [chains]; there are: {known}"));
        }
    }
}

/// Problems found so far.
struct Findings(Vec<Problem>);

impl Findings {
    fn add(&mut self, key: KeyPath, message: impl Into<String>) {
        self.0.push(Problem::of_key(key, message));
    }

    fn check_name(&mut self, path: &KeyPath) {
        if let Err(error) = path.last().parse::<Name>() {
            self.add(path.clone(), error.to_string());
        }
    }
}

fn check_secrets(path: &KeyPath, app: &AppOptions, findings: &mut Findings) {
    if app.secrets.is_empty() && !app.disabled {
        findings.add(
            path.clone(),
            "the app has no secret and can never call; set secrets = [\"sha256:<64 hex digits>\"] or disabled = true",
        );
    }
    let path = path.child("secrets");
    if app.secrets.len() > SECRETS_MAX {
        let message = format!("{} secrets; at most {SECRETS_MAX} may be valid at once", app.secrets.len());
        findings.add(path.clone(), message);
    }
    if let Some(error) = app.secrets.iter().find_map(|digest| digest.parse::<SecretDigest>().err()) {
        findings.add(path, error.to_string());
    }
}

fn check_terms(path: &KeyPath, terms: &OperationOptions, limits: &Limits, findings: &mut Findings) {
    if let Some(Err(error)) = terms.lease.map(|Span(lease)| limits.check_lease(lease)) {
        findings.add(path.child("lease"), format!("{error} (limits.lease_min, limits.lease_max)"));
    }
    for (name, retention) in [("retention", terms.retention), ("unknown_retention", terms.unknown_retention)] {
        if let Some(Err(error)) = retention.map(|retention| limits.check_retention(retention)) {
            let bounds = match retention {
                Some(Retention::Forever) => "limits.forever_allowed",
                _ => "limits.retention_min, limits.retention_max",
            };
            findings.add(path.child(name), format!("{error} ({bounds})"));
        }
    }
    if terms.deadline.is_some_and(|Span(deadline)| !(DEADLINE_MIN..=DEADLINE_MAX).contains(&deadline)) {
        let (min, max) = (Span(DEADLINE_MIN), DEADLINE_MAX.as_secs());
        findings.add(path.child("deadline"), format!("a deadline is from {min} to {max}s, such as \"1s\""));
    }
}

fn check_limits(limits: &Limits, findings: &mut Findings) {
    let path = KeyPath::of(["limits"]);
    for (name, count) in [
        ("body_bytes", limits.body_bytes),
        ("contents_bytes", limits.contents_bytes),
        ("result_bytes", limits.result_bytes),
        ("header_bytes", limits.header_bytes),
        ("headers", limits.headers),
        ("batch_items", limits.batch_items),
        ("batch_result_bytes", limits.batch_result_bytes),
        ("connections", limits.connections),
        ("requests_in_flight", limits.requests_in_flight),
        ("waiting", limits.waiting),
        ("journal_bytes", limits.journal_bytes),
        ("journal_app_bytes", limits.journal_app_bytes),
        ("unread_answer_bytes", limits.unread_answer_bytes),
    ] {
        if count == 0 {
            findings.add(path.child(name), "must be at least 1: 0 admits nothing");
        }
    }
    if limits.metric_operations > METRIC_OPERATIONS_MAX {
        let message = "each operation has its own series; set at most 10000, and configure the operations that matter";
        findings.add(path.child("metric_operations"), message);
    }
    for (min, max, min_name, max_name) in [
        (limits.lease_min, limits.lease_max, "lease_min", "lease_max"),
        (limits.retention_min, limits.retention_max, "retention_min", "retention_max"),
    ] {
        if min > max {
            findings.add(path.child(min_name), format!("{min} is longer than limits.{max_name} ({max}); swap them"));
        }
    }
    for (name, part) in [("contents_bytes", limits.contents_bytes), ("result_bytes", limits.result_bytes)] {
        if part > limits.body_bytes {
            let body = limits.body_bytes;
            let message = format!("{part} is more than limits.body_bytes ({body}); lower this or raise that");
            findings.add(path.child(name), message);
        }
    }
    // A single app may use a quarter.
    let (one, all) = (limits.result_bytes, limits.batch_result_bytes);
    if one.saturating_mul(4) > all {
        let message = format!("{all} is less than four times limits.result_bytes ({one}); raise this or lower that");
        findings.add(path.child("batch_result_bytes"), message);
    }
    let (one, all) = (limits.journal_app_bytes, limits.journal_bytes);
    if one > all {
        let message = format!("{one} is more than limits.journal_bytes ({all}); lower this or raise that");
        findings.add(path.child("journal_app_bytes"), message);
    }
}

/// Reports whether two listeners would use the same port. Port 0 differs each time.
pub(super) fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && same_ip
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<_> = names.map(String::as_str).collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}
