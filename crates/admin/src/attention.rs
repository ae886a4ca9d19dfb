//! Items that need a person now, as far as this gateway knows. Each kind has its runbook in `docs/operations.md`.

use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{Node, NodeRole};
use oncegate_core::spool::SpoolStatus;
use oncegate_core::suspect::{SuspectKind, UncheckedSuspects};
use oncegate_core::tenant::AppKey;
use oncegate_gateway::chains::KnownChain;
use oncegate_gateway::resilience::chain::SwitchCause;
use oncegate_gateway::{KnownEngine, MetUnknownsOf, Refusal, RefusalKind};
use serde::{Deserialize, Serialize};

use super::Admin;

/// Time for which a loss of data or an automatic switch is among the items. Nothing else says when a person has dealt with it.
const EVENT_SHOWN: Duration = Duration::from_hours(24);

/// Most entries of a list. Those of apps are the only ones without a bound of their own.
const ENTRIES_MAX: usize = 1000;

/// Something that needs a person.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Attention {
    pub(super) kind: Kind,
    pub(super) severity: Severity,
    /// Its start. `None` if this gateway does not know.
    pub(super) since: Option<Timestamp>,
    /// The app, if it is about one.
    pub(super) app: Option<AppKey>,
    /// The engine or chain, if it is about one.
    pub(super) subject: Option<String>,
    pub(super) count: usize,
    /// The problem, and its meaning.
    pub(super) text: String,
}

/// Kind of the problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// An engine does not answer.
    StoreDown,
    /// A store has no room for new claims.
    StoreFull,
    /// A store must not be used in its present state, or a record in it cannot be read.
    StoreIncompatible,
    /// A store has lost its data, or was restored from a backup.
    DataLost,
    /// A server of a store that has several is down.
    NodeDown,
    /// The witness of a chain does not answer, so the chain would not be switched automatically.
    WitnessDown,
    /// A chain was switched automatically.
    Switched,
    /// A chain grants nothing for a time, because its store lost its data.
    GrantsFrozen,
    /// A chain grants nothing, because its engine does not meet the chain's requirements.
    RequirementsUnmet,
    /// The outage journal takes no entries.
    JournalFailing,
    /// The audit trail takes no entries, so operators can change nothing.
    AuditFailing,
    /// Two attempts were granted the same operation, and no operator has checked it.
    Overlap,
    /// An operation may have been executed twice, and no operator has checked it.
    Double,
    /// Claims are unknown: their callers are refused until each is settled.
    Unknown,
    /// Answers of outage policies wait for a store.
    SpoolWaiting,
    /// The configuration was changed, and cannot be used.
    ReloadFailed,
}

impl Kind {
    /// Reports whether it is about the past. No caller is refused for it now.
    fn is_looked_up(self) -> bool {
        matches!(self, Self::DataLost | Self::Switched | Self::Overlap | Self::Double | Self::Unknown)
    }
}

/// Urgency for a person.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// Callers are refused, or something may have been done twice.
    Critical,
    /// Becomes worse with time.
    Warning,
}

impl Attention {
    /// Returns one about the whole gateway.
    fn new(kind: Kind, severity: Severity, since: Option<Timestamp>, text: impl Into<String>) -> Self {
        Self { kind, severity, since, app: None, subject: None, count: 1, text: text.into() }
    }
}

/// Returns the items that need a person: critical ones first. Of one severity, those that refuse callers come before those about the
/// past, and older ones before newer ones.
pub(super) fn attention(
    admin: &Admin,
    engines: &[KnownEngine],
    chains: &[KnownChain],
    spool: &SpoolStatus,
) -> Vec<Attention> {
    let now = admin.clock.wall();
    let mut found: Vec<_> = engines.iter().flat_map(|engine| of_engine(engine, chains, now)).collect();
    found.extend(chains.iter().filter_map(no_grants));
    found.extend(chains.iter().flat_map(|chain| of_failover(chain, now)));
    found.extend(of_spool(spool));
    found.extend(admin.journal.unchecked_suspects().into_iter().map(unchecked));
    found.extend(admin.gateway.met_unknowns().into_iter().map(unknown));
    found.extend(admin.audit.failing_since().map(|since| {
        let text =
            "The audit trail cannot be written, so operators can change nothing. Check the disk of server.data_dir.";
        Attention::new(Kind::AuditFailing, Severity::Critical, Some(since), text)
    }));
    found.extend(admin.reloads.last().and_then(|last| last.failing_since).map(|since| {
        let text = "The configuration file has an error, so its changes are not in effect, and the next start would fail. The log says \
                    what is wrong.";
        Attention::new(Kind::ReloadFailed, Severity::Warning, Some(since), text)
    }));
    sorted(found)
}

fn sorted(mut found: Vec<Attention>) -> Vec<Attention> {
    found.sort_by(|one, other| {
        let order = |of: &Attention| (of.severity, of.kind.is_looked_up(), of.since.is_none(), of.since);
        order(one).cmp(&order(other)).then_with(|| one.app.cmp(&other.app))
    });
    found.truncate(ENTRIES_MAX);
    found
}

/// Leaves out an engine that no chain has: it serves no callers.
fn of_engine(engine: &KnownEngine, chains: &[KnownChain], now: Timestamp) -> Vec<Attention> {
    if engine.chains.is_empty() {
        return Vec::new();
    }
    let active_in = chains.iter().filter(|chain| chain.status.active == engine.name);
    let served: Vec<_> = active_in.map(|chain| &*chain.name).collect();
    let severity = if served.is_empty() { Severity::Warning } else { Severity::Critical };
    let served = (!served.is_empty()).then(|| served.join(", "));
    let of_kind = |kind, since, text| Attention {
        subject: Some(engine.name.clone()),
        ..Attention::new(kind, severity, since, text)
    };
    let name = &engine.name;
    let mut found = Vec::new();
    match &engine.refusal {
        Some(Refusal { kind: RefusalKind::Incompatible, reason, since, .. }) => {
            let effect = match &served {
                Some(served) => {
                    format!("Calls of chain {served} get 503 `store_incompatible`; outage policies do not apply.")
                }
                None => unused(engine),
            };
            let text = format!("The store of engine `{name}` cannot be used, or not all of it: {reason}. {effect}");
            found.push(of_kind(Kind::StoreIncompatible, Some(*since), text));
        }
        _ if engine.up == Some(false) => {
            let why = engine.detail.as_deref().unwrap_or("no reason is known");
            let effect = match &served {
                Some(served) => format!("Callers of chain {served} get 503, or the answers of outage policies."),
                None => unused(engine),
            };
            let text = format!("Engine `{name}` does not answer: {why}. {effect}");
            found.push(of_kind(Kind::StoreDown, engine.since, text));
        }
        Some(Refusal { kind: RefusalKind::Full, reason, since, .. }) => {
            let effect = match &served {
                Some(served) => format!("New claims of chain {served} get 503 `store_full`."),
                None => unused(engine),
            };
            found.push(of_kind(Kind::StoreFull, Some(*since), format!("Engine `{name}` is full: {reason}. {effect}")));
        }
        None => {}
    }
    if let Some(at) = engine.data_lost_at.filter(|at| now.since(*at) < EVENT_SHOWN) {
        let text = format!(
            "The store of engine `{name}` has lost its data, or was restored from a backup. Operations that were done before can be \
             granted again."
        );
        found.push(of_kind(Kind::DataLost, Some(at), text));
    }
    if engine.up != Some(false) && !engine.nodes_down.is_empty() {
        found.push(node_down(engine, severity));
    }
    found
}

/// Without a primary, its shard answers no calls. Without another server, one fault more may stop the store.
fn node_down(engine: &KnownEngine, of_engine: Severity) -> Attention {
    let name = &engine.name;
    let addresses = |nodes: &[&Node]| nodes.iter().map(|node| &*node.address).collect::<Vec<_>>().join(", ");
    let all: Vec<_> = engine.nodes_down.iter().collect();
    let primaries: Vec<_> = all.iter().filter(|node| node.role == NodeRole::Primary).copied().collect();
    let (severity, text) = if primaries.is_empty() {
        let text = format!("Servers of engine `{name}` do not answer: {}. The others do its work.", addresses(&all));
        (Severity::Warning, text)
    } else {
        let text = format!(
            "Primaries of engine `{name}` do not answer: {}. Callers whose claims are there get 503, or the answers of outage policies.",
            addresses(&primaries)
        );
        (of_engine, text)
    };
    let count = engine.nodes_down.len();
    Attention {
        subject: Some(name.clone()),
        count,
        ..Attention::new(Kind::NodeDown, severity, engine.checked_at, text)
    }
}

/// Returns what needs a person about the automatic switch of a chain.
fn of_failover(chain: &KnownChain, now: Timestamp) -> Vec<Attention> {
    let Some(failover) = &chain.status.failover else { return Vec::new() };
    let name = &chain.name;
    let of_kind = |kind, since, text| Attention {
        subject: Some(name.clone()),
        ..Attention::new(kind, Severity::Warning, since, text)
    };
    let mut found = Vec::new();
    if !failover.witness.up {
        let text = format!(
            "The witness `{}` of chain `{name}` does not answer: {}. The chain would not be switched automatically.",
            failover.witness.engine, failover.witness.detail
        );
        found.push(of_kind(Kind::WitnessDown, None, text));
    }
    let last = failover.last_switch.as_ref().filter(|last| last.cause == SwitchCause::Automatic);
    if let Some(last) = last.filter(|last| now.since(last.at) < EVENT_SHOWN) {
        let text = format!(
            "Chain `{name}` was switched from `{}` to `{}` automatically: {}. The new engine knows nothing of what was done on the old one.",
            last.from, last.to, last.reason
        );
        found.push(of_kind(Kind::Switched, Some(last.at), text));
    }
    found
}

/// Returns the meaning of a fault in an engine that no chain uses now.
fn unused(engine: &KnownEngine) -> String {
    format!("No chain uses it now. It cannot take over for {}.", engine.chains.join(", "))
}

fn no_grants(chain: &KnownChain) -> Option<Attention> {
    let name = &chain.name;
    let (kind, text) = if let Some(frozen_ms) = chain.frozen_ms {
        let seconds = frozen_ms / 1000 + 1;
        let text =
            format!("Chain `{name}` grants nothing for {seconds} s more: its store has lost its data, or is new.");
        (Kind::GrantsFrozen, text)
    } else if chain.requirements_met {
        return None;
    } else {
        let text = format!("Chain `{name}` grants nothing: its store lacks what `requires` of the chain names.");
        (Kind::RequirementsUnmet, text)
    };
    Some(Attention { subject: Some(name.clone()), ..Attention::new(kind, Severity::Critical, None, text) })
}

fn of_spool(spool: &SpoolStatus) -> Vec<Attention> {
    let mut found = Vec::new();
    if !spool.takes {
        let text = "The outage journal refused its last entry, so outage policies refuse calls. Check the disk of server.data_dir.";
        found.push(Attention::new(Kind::JournalFailing, Severity::Critical, None, text));
    }
    if spool.entries > 0 {
        let text = format!(
            "{} answers of outage policies wait for a store, in {} of {} bytes. They are delivered when it answers.",
            spool.entries, spool.bytes, spool.bytes_max
        );
        let waiting = Attention::new(Kind::SpoolWaiting, Severity::Warning, spool.oldest_at, text);
        found.push(Attention { count: spool.entries, ..waiting });
    }
    found
}

fn unchecked(suspects: UncheckedSuspects) -> Attention {
    let UncheckedSuspects { app, kind, count, oldest_at } = suspects;
    let (kind, text) = match kind {
        SuspectKind::Overlap => (
            Kind::Overlap,
            format!(
                "{count} operations of app `{app}` were granted to two attempts. Look up whether both had an effect."
            ),
        ),
        SuspectKind::Double => (
            Kind::Double,
            format!("{count} operations of app `{app}` may have been executed twice. Look up their effects."),
        ),
    };
    Attention { app: Some(app), count, ..Attention::new(kind, Severity::Critical, Some(oldest_at), text) }
}

fn unknown(met: MetUnknownsOf) -> Attention {
    let MetUnknownsOf { app, count, oldest_at } = met;
    let text = format!(
        "{count} unknown claims of app `{app}`, as far as this gateway has met them. Callers get 409 until each is settled: look its effect up."
    );
    Attention { app: Some(app), count, ..Attention::new(Kind::Unknown, Severity::Warning, Some(oldest_at), text) }
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::breaker::BreakerState;
    use oncegate_gateway::BreakerHealth;
    use oncegate_gateway::chains::ChainStatus;
    use oncegate_gateway::resilience::chain::Phase;

    use super::*;

    fn engine(up: Option<bool>, chains: &[&str]) -> KnownEngine {
        KnownEngine {
            name: "primary".to_owned(),
            up,
            since: Some(Timestamp::from_micros(7)),
            detail: Some("connection refused".to_owned()),
            checked_at: None,
            breaker: BreakerHealth { state: BreakerState::Closed, since: Timestamp::from_micros(7) },
            refusal: None,
            data_lost_at: None,
            nodes_down: Vec::new(),
            chains: chains.iter().map(|chain| (*chain).to_owned()).collect(),
        }
    }

    fn chain(active: &str, frozen_ms: Option<u64>, requirements_met: bool) -> KnownChain {
        let status = ChainStatus {
            engines: vec!["primary".to_owned(), "spare".to_owned()],
            active: active.to_owned(),
            epoch: 0,
            phase: Phase::Open,
            switching_to: None,
            frozen_for: None,
            failover: None,
        };
        KnownChain { name: "default".to_owned(), status, frozen_ms, requirements_met }
    }

    #[test]
    fn an_engine_that_serves_callers_is_more_urgent_than_a_spare_one() {
        let severity = |up, active: &str, of: &[&str]| {
            let found = of_engine(&engine(up, of), &[chain(active, None, true)], Timestamp::default());
            found.first().map(|found| (found.kind, found.severity))
        };
        let down = |severity| Some((Kind::StoreDown, severity));
        assert_eq!(severity(Some(false), "primary", &["default"]), down(Severity::Critical));
        assert_eq!(severity(Some(false), "spare", &["default"]), down(Severity::Warning));
        assert_eq!(severity(Some(false), "spare", &[]), None, "no chain has it");
        assert_eq!(severity(Some(true), "primary", &["default"]), None);
        assert_eq!(severity(None, "primary", &["default"]), None, "not known yet");
    }

    #[test]
    fn a_store_that_answers_may_need_a_person_too() {
        let at = |second: u64| Timestamp::from_micros(second * 1_000_000);
        let kinds = |engine: &KnownEngine, now| {
            let found = of_engine(engine, &[chain("primary", None, true)], at(now));
            found.into_iter().map(|found| (found.kind, found.since)).collect::<Vec<_>>()
        };
        let refusing = |up, kind| {
            let refusal = Some(Refusal::new(kind, "why", at(9)));
            KnownEngine { refusal, ..engine(Some(up), &["default"]) }
        };
        assert_eq!(kinds(&refusing(true, RefusalKind::Full), 9), [(Kind::StoreFull, Some(at(9)))]);
        let incompatible = [(Kind::StoreIncompatible, Some(at(9)))];
        assert_eq!(kinds(&refusing(true, RefusalKind::Incompatible), 9), incompatible);
        assert_eq!(kinds(&refusing(false, RefusalKind::Incompatible), 9), incompatible, "its probes are refused too");
        let down = [(Kind::StoreDown, Some(Timestamp::from_micros(7)))];
        assert_eq!(kinds(&refusing(false, RefusalKind::Full), 9), down, "it was full before");
        let lost = KnownEngine { data_lost_at: Some(at(9)), ..engine(Some(true), &["default"]) };
        assert_eq!(kinds(&lost, 9 + 86_399), [(Kind::DataLost, Some(at(9)))]);
        assert_eq!(kinds(&lost, 9 + 86_400), []);
    }

    #[test]
    fn a_primary_that_is_down_is_as_urgent_as_its_engine_and_another_server_a_warning() {
        let found = |role| {
            let node = Node {
                address: "a:1".into(),
                role,
                version: None,
                shard: 0,
                up: false,
                breaker: None,
                warnings: Vec::new(),
            };
            let engine = KnownEngine { nodes_down: vec![node], ..engine(Some(true), &["default"]) };
            let found = of_engine(&engine, &[chain("primary", None, true)], Timestamp::default());
            found.into_iter().map(|found| (found.kind, found.severity)).collect::<Vec<_>>()
        };
        assert_eq!(found(NodeRole::Primary), [(Kind::NodeDown, Severity::Critical)]);
        assert_eq!(found(NodeRole::Replica), [(Kind::NodeDown, Severity::Warning)]);
    }

    #[test]
    fn a_chain_that_grants_nothing_says_why() {
        let kind = |frozen_ms, met| no_grants(&chain("primary", frozen_ms, met)).map(|found| found.kind);
        assert_eq!(kind(None, true), None);
        assert_eq!(kind(Some(29_400), true), Some(Kind::GrantsFrozen));
        assert_eq!(kind(None, false), Some(Kind::RequirementsUnmet));
    }

    #[test]
    fn a_spool_that_refuses_entries_is_critical_and_one_that_waits_a_warning() {
        let spool = |entries, takes| {
            let spool = SpoolStatus { entries, bytes: 10, bytes_max: 100, oldest_at: None, takes };
            of_spool(&spool).into_iter().map(|found| (found.kind, found.severity, found.count)).collect::<Vec<_>>()
        };
        assert_eq!(spool(0, true), []);
        assert_eq!(spool(3, true), [(Kind::SpoolWaiting, Severity::Warning, 3)]);
        assert_eq!(spool(0, false), [(Kind::JournalFailing, Severity::Critical, 1)]);
    }

    #[test]
    fn the_critical_comes_first_then_the_oldest_and_the_list_is_bounded() {
        let at = |micros| Some(Timestamp::from_micros(micros));
        let of = |severity, since| Attention::new(Kind::Double, severity, since, "");
        let (warning, critical) = (Severity::Warning, Severity::Critical);
        let found = [of(warning, at(1)), of(critical, None), of(critical, at(3)), of(critical, at(2))];
        let order: Vec<_> = sorted(found.into()).into_iter().map(|found| (found.severity, found.since)).collect();
        assert_eq!(order, [(critical, at(2)), (critical, at(3)), (critical, None), (warning, at(1))]);
        let down = Attention::new(Kind::StoreDown, critical, at(9), "");
        let kinds: Vec<_> = sorted(vec![of(critical, at(2)), down]).into_iter().map(|found| found.kind).collect();
        assert_eq!(kinds, [Kind::StoreDown, Kind::Double], "callers are refused now");
        let many = vec![of(warning, None); ENTRIES_MAX + 1];
        assert_eq!(sorted(many).len(), ENTRIES_MAX);
    }
}
