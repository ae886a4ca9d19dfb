//! The table `[chains.<name>.failover]`: its keys, and the rules for such a chain. Each problem says what
//! to write.

use std::ops::RangeInclusive;
use std::time::Duration;

use oncegate_core::engine::capability::Capability;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{LeaseEnd, Span};
use serde::{Deserialize, Serialize};

use super::path::KeyPath;
use super::problem::Problem;
use super::{ChainOptions, Config};
use crate::engines;

/// Time that the active engine must be out.
const AFTER: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(1);

/// Engines that keep acknowledged writes, so that two gateways never win the same switch.
const WITNESSES: [&str; 6] = ["etcd", "etcds", "postgres", "postgresql", "zookeeper", "zookeepers"];

/// Table `[chains.<name>.failover]`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FailoverOptions {
    /// Name of the engine that decides between switches. In no chain.
    pub witness: String,
    /// Manual or automatic switching.
    pub mode: FailoverModeOption,
    /// False: the other engine does not get the claims of the active one.
    pub mirror: Option<bool>,
    /// True: claims that the other engine does not know are lost.
    pub accept_loss: Option<bool>,
    /// Time that the active engine must be out.
    pub after: Span,
}

/// Manual or automatic switching of a chain that has a witness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FailoverModeOption {
    /// The gateways.
    Automatic,
    /// People only.
    Manual,
}

impl Config {
    /// Returns the problems of all tables `[chains.<name>.failover]`.
    pub(super) fn check_failover(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        for (name, chain) in &self.chains {
            let Some(failover) = &chain.failover else { continue };
            let table = KeyPath::of(["chains"]).child(name).child("failover");
            let mut add = |key: KeyPath, message: String| found.push(Problem::of_key(key, message));
            if let Some(message) = self.members_problem(name, chain) {
                add(KeyPath::of(["chains"]).child(name).child("engines"), message);
            }
            let witness_problem = self.witness_problem(&failover.witness);
            if let Some(message) = witness_problem.or_else(|| self.same_server_as_witness(chain, &failover.witness)) {
                add(table.child("witness"), message);
            }
            if failover.mirror != Some(false) {
                let message = "this release does not mirror: write mirror = false, which means that the other engine knows nothing of \
                               what the active one stores";
                add(table.child("mirror"), message.to_owned());
            }
            if failover.accept_loss != Some(true) {
                let message = "a switch loses what the active engine stores: claims that are in progress or done can be claimed and run \
                               again. Write accept_loss = true if that is better than waiting, or leave the table out";
                add(table.child("accept_loss"), message.to_owned());
            }
            if !AFTER.contains(&failover.after.0) {
                add(table.child("after"), format!("{} is not from 1s to 60s; 3s is a good start", failover.after));
            }
        }
        found
    }

    /// Returns the problem of the engines of a chain with a table `failover`.
    fn members_problem(&self, name: &str, chain: &ChainOptions) -> Option<String> {
        let count = chain.engines.len();
        if count != 2 {
            return Some(format!(
                "chain `{name}` has a table failover and {count} engines; it needs two, such as [\"primary\", \"spare\"]"
            ));
        }
        let unfit = |engine: &&String| {
            let Some(url) = self.engines.get(*engine) else { return false };
            let is_shared = engines::capabilities_of(url).is_ok_and(|promised| Capability::Shared.is_in(promised));
            !is_shared || scheme(url).ends_with("+cluster")
        };
        let Some(engine) = chain.engines.iter().find(unfit) else { return self.one_server(chain) };
        let scheme = scheme(self.engines.get(engine)?);
        let why = if scheme.ends_with("+cluster") {
            "loses one shard at a time, which switches nothing"
        } else {
            "serves a single gateway, so that there is no other to ask"
        };
        Some(format!(
            "engine `{engine}` ({scheme}:) {why}; a chain with a table failover has two of redis://, redis+sentinel://, postgres://, etcd://"
        ))
    }

    /// Returns the problem of a chain whose two engines are one server.
    fn one_server(&self, chain: &ChainOptions) -> Option<String> {
        let [first, second] = &chain.engines[..] else { return None };
        self.common_address(first, second).map(|address| {
            format!(
                "engines `{first}` and `{second}` are one server, {address}, and are out together; name a store on other servers"
            )
        })
    }

    /// Returns the problem of a witness that is a server of its chain.
    fn same_server_as_witness(&self, chain: &ChainOptions, witness: &str) -> Option<String> {
        chain.engines.iter().find_map(|engine| {
            let address = self.common_address(engine, witness)?;
            Some(format!(
                "engine `{witness}` is on the server of engine `{engine}`, {address}, and would be lost together with it; name an \
                 etcd://, zookeeper:// or postgres:// engine on other servers"
            ))
        })
    }

    /// Returns an address that the URLs of two engines have in common.
    fn common_address(&self, one: &str, other: &str) -> Option<String> {
        engines::common_address(self.engines.get(one)?, self.engines.get(other)?)
    }

    fn witness_problem(&self, witness: &str) -> Option<String> {
        let able = "name an etcd://, zookeeper:// or postgres:// engine that is in no chain";
        let Some(url) = self.engines.get(witness) else {
            return Some(format!("there is no engine `{witness}` in [engines]; {able}"));
        };
        let is_member = |(_, chain): &(&String, &ChainOptions)| chain.engines.iter().any(|engine| engine == witness);
        if let Some((chain, _)) = self.chains.iter().find(is_member) {
            return Some(format!(
                "engine `{witness}` is in chain `{chain}`, and would be lost together with it; {able}"
            ));
        }
        let scheme = scheme(url);
        if !WITNESSES.contains(&scheme) {
            return Some(format!(
                "engine `{witness}` ({scheme}:) may lose what it has acknowledged, or serves one gateway; {able}"
            ));
        }
        let members = self.chains.values().flat_map(|chain| &chain.engines);
        let same = members.filter(|engine| self.engines.get(*engine) == Some(url)).min();
        same.map(|engine| format!("engine `{witness}` is the same server as engine `{engine}` of a chain; {able}"))
    }

    /// Returns the operations whose claims may become unknown, on chains that may lose such claims, unless the loss is
    /// accepted.
    pub(super) fn check_forgotten(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut check = |app: Option<&AppKey>, operation: Option<&Operation>, table: KeyPath| {
            let terms = self.terms_of(app, operation);
            if self.forgets(self.chain_of(app)) && terms.terms.on_lease_end == LeaseEnd::Unknown && !terms.accept_loss {
                found.push(Problem::of_key(table.child("on_lease_end"), Self::forgotten(self.chain_of(app))));
            }
        };
        if self.apps.is_empty() {
            check(None, None, KeyPath::of(["defaults"]));
        }
        for (key, app) in &self.apps {
            let table = KeyPath::of(["apps", key.as_ref()]);
            check(Some(key), None, table.clone());
            for (operation, own) in &app.operations {
                if own.on_lease_end.is_some() || own.accept_loss.is_some() {
                    check(Some(key), Some(operation), table.child("operations").child(operation.as_ref()));
                }
            }
        }
        for route in &self.proxy.routes {
            let app = Some(&route.app).filter(|app| self.apps.contains_key(*app));
            if app.is_some() && self.forgets(self.chain_of(app)) && !self.terms_of(app, None).accept_loss {
                let message = format!("route `{}`: {}", route.name, Self::forgotten(self.chain_of(app)));
                found.push(Problem::of_key(KeyPath::of(["proxy", "routes"]), message));
            }
        }
        found
    }

    fn forgets(&self, chain: &str) -> bool {
        let failover = self.chains.get(chain).and_then(|chain| chain.failover.as_ref());
        failover.is_some_and(|failover| failover.mode == FailoverModeOption::Automatic)
    }

    fn forgotten(chain: &str) -> String {
        format!(
            "a claim may become `unknown`, and chain `{chain}` switches automatically and then forgets it; use another chain, or set \
             accept_loss = true for the app or the operation"
        )
    }
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}
