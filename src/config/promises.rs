//! Checks that engines have the capabilities that the configuration requires: those of chains, and retention without an end.
//! Decided by URL; what depends on a running store is checked at run time.

use std::collections::BTreeSet;

use oncegate_core::engine::capability::Capability;
use oncegate_core::terms::{Retention, Span};
use oncegate_proxy::options::RouteOptions;

use super::path::KeyPath;
use super::problem::Problem;
use super::{ChainOptions, Config, OperationOptions};
use crate::engines;

impl Config {
    /// Returns the missing capabilities. Invalid URLs are reported elsewhere.
    pub(super) fn check_promises(&self) -> Vec<Problem> {
        let mut found = Vec::new();
        for (name, chain) in &self.chains {
            let key = KeyPath::of(["chains"]).child(name).child("requires");
            for required in &chain.requires {
                if let Some(engine) = self.engine_without(chain, *required) {
                    let message = format!("{}, or leave `{}` out", self.cannot(engine, *required), required.as_str());
                    found.push(Problem::of_key(key.clone(), message));
                }
            }
        }
        let of_apps = self.apps.keys().map(|key| self.chain_of(Some(key)));
        let of_open = self.apps.is_empty().then_some(self.defaults.chain.as_str());
        for chain in of_apps.chain(of_open).collect::<BTreeSet<_>>() {
            self.check_terms_on(chain, &KeyPath::of(["defaults"]), &self.defaults_used_on(chain), &mut found);
        }
        if let Some((engine, max)) =
            self.chains.values().filter_map(|chain| self.result_bytes_max(chain)).min_by_key(|found| found.1)
            && self.limits.result_bytes > max
        {
            let message =
                format!("{} is more than engine `{engine}` can store; write {max} or less", self.limits.result_bytes);
            found.push(Problem::of_key(KeyPath::of(["limits", "result_bytes"]), message));
        }
        for (key, app) in &self.apps {
            let (path, chain) = (KeyPath::of(["apps", key.as_ref()]), self.chain_of(Some(key)));
            self.check_terms_on(chain, &path, &app.own_terms(), &mut found);
            for (operation, own) in &app.operations {
                self.check_terms_on(chain, &path.child("operations").child(operation.as_ref()), own, &mut found);
            }
        }
        found
    }

    /// Returns the defaults that an app of this chain uses, or an open gateway.
    fn defaults_used_on(&self, chain: &str) -> OperationOptions {
        let apps = self.apps.iter().filter(|(key, _)| self.chain_of(Some(*key)) == chain);
        let own: Vec<_> = apps.map(|(_, app)| app.own_terms()).collect();
        let is_used = |has_own: fn(&OperationOptions) -> bool| own.is_empty() || !own.iter().all(has_own);
        OperationOptions {
            retention: is_used(|own| own.retention.is_some()).then_some(self.defaults.retention),
            unknown_retention: is_used(|own| own.unknown_retention.is_some())
                .then_some(self.defaults.unknown_retention),
            deadline: is_used(|own| own.deadline.is_some()).then_some(self.defaults.deadline),
            ..OperationOptions::default()
        }
    }

    fn check_terms_on(&self, chain: &str, path: &KeyPath, terms: &OperationOptions, found: &mut Vec<Problem>) {
        self.check_forever(path, terms, chain, found);
        self.check_deadline(path, terms, chain, found);
    }

    /// Checks that a deadline leaves an engine the time that its URL requires.
    fn check_deadline(&self, path: &KeyPath, terms: &OperationOptions, chain: &str, found: &mut Vec<Problem>) {
        let (Some(options), Some(Span(deadline))) = (self.chains.get(chain), terms.deadline) else { return };
        for engine in &options.engines {
            let promise = self.engines.get(engine).and_then(|url| engines::promise_of(url).ok());
            if let Some(shortest) = promise.map(|promise| promise.deadline_min).filter(|shortest| deadline < *shortest)
            {
                let message = format!(
                    "engine `{engine}` in chain `{chain}` waits for replicas by its replica_timeout, so every call would fail; \
                     write a deadline of {} or more, or a shorter replica_timeout",
                    Span(shortest)
                );
                found.push(Problem::of_key(path.child("deadline"), message));
            }
        }
    }

    fn check_forever(&self, path: &KeyPath, terms: &OperationOptions, chain: &str, found: &mut Vec<Problem>) {
        let Some(options) = self.chains.get(chain) else { return };
        let Some(engine) = self.engine_without(options, Capability::Forever) else { return };
        for (name, retention) in [("retention", terms.retention), ("unknown_retention", terms.unknown_retention)] {
            if retention == Some(Retention::Forever) {
                let cannot = self.cannot(engine, Capability::Forever);
                let message = format!("{cannot} in chain `{chain}`, or a retention that ends");
                found.push(Problem::of_key(path.child(name), message));
            }
        }
    }

    /// Returns the engine of a chain that stores the shortest results, and how long they may be, if there is a limit.
    fn result_bytes_max<'a>(&self, chain: &'a ChainOptions) -> Option<(&'a str, usize)> {
        let max = |engine: &'a String| {
            let promise = engines::promise_of(self.engines.get(engine)?).ok()?;
            Some((engine.as_str(), promise.result_bytes_max?))
        };
        chain.engines.iter().filter_map(max).min_by_key(|(_, max)| *max)
    }

    /// Returns why the responses of a route are too long for its chain, if they are: they are stored as text, and encrypted.
    pub(super) fn response_bytes_problem(&self, route: &RouteOptions) -> Option<String> {
        let chain = self.chains.get(self.chain_of(Some(&route.app)))?;
        let (engine, max) = self.result_bytes_max(chain)?;
        let max = max / 4 * 3;
        (route.response_bytes.0 > max).then(|| {
            format!(
                "response_bytes is {}, and engine `{engine}` can store {max}; write that or less, or use another chain",
                route.response_bytes.0
            )
        })
    }

    /// Returns the first engine of a chain without this capability: any engine may become the active one.
    fn engine_without<'a>(&self, chain: &'a ChainOptions, required: Capability) -> Option<&'a str> {
        let lacks = |engine: &&String| {
            let url = self.engines.get(*engine);
            url.and_then(|url| engines::capabilities_of(url).ok()).is_some_and(|promised| !required.is_in(promised))
        };
        chain.engines.iter().find(lacks).map(String::as_str)
    }

    /// Describes a property that an engine lacks, and the engines that have it.
    fn cannot(&self, engine: &str, required: Capability) -> String {
        let scheme = self.engines.get(engine).and_then(|url| url.split_once(':')).map_or("", |(scheme, _)| scheme);
        let (lacks, instead) = match required {
            Capability::Durable => (
                "keeps nothing across a restart",
                "disk:, postgres://, etcd://, zookeeper:// from 3.9.4 on, redis:// with appendfsync always",
            ),
            Capability::StrictFence => ("has no fences", "disk:, postgres://, etcd://, zookeeper://"),
            Capability::Forever => {
                ("cannot keep claims without a time limit", "disk:, redis://, postgres://, etcd://, zookeeper://")
            }
            Capability::Shared => ("serves a single gateway", "redis://, postgres://, etcd://, zookeeper://"),
        };
        format!("engine `{engine}` ({scheme}:) {lacks}; use another one ({instead})")
    }
}
