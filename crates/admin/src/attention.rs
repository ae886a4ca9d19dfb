//! Items that need a person now, as far as this gateway knows. Each kind has its runbook in `docs/operations.md`.

use oncegate_core::clock::Timestamp;
use oncegate_core::spool::SpoolStatus;
use oncegate_core::suspect::{SuspectKind, UncheckedSuspects};
use oncegate_core::tenant::AppKey;
use oncegate_gateway::chains::KnownChain;
use oncegate_gateway::{KnownEngine, MetUnknownsOf};
use serde::Serialize;

use super::Admin;

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// An engine does not answer.
    StoreDown,
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

/// Urgency for a person.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
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

/// Returns what needs a person: the critical first, then the oldest.
pub(super) fn attention(
    admin: &Admin,
    engines: &[KnownEngine],
    chains: &[KnownChain],
    spool: &SpoolStatus,
) -> Vec<Attention> {
    let mut found: Vec<_> = engines.iter().filter_map(|engine| store_down(engine, chains)).collect();
    found.extend(chains.iter().filter_map(no_grants));
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
        let order = |of: &Attention| (of.severity, of.since.is_none(), of.since);
        order(one).cmp(&order(other)).then_with(|| one.app.cmp(&other.app))
    });
    found.truncate(ENTRIES_MAX);
    found
}

/// Leaves out an engine that no chain has: it serves no callers.
fn store_down(engine: &KnownEngine, chains: &[KnownChain]) -> Option<Attention> {
    let is_down = engine.up == Some(false) && !engine.chains.is_empty();
    let serving: Vec<_> =
        chains.iter().filter(|chain| chain.status.active == engine.name).map(|chain| &*chain.name).collect();
    let (severity, effect) = if serving.is_empty() {
        (Severity::Warning, format!("No chain uses it now. It cannot take over for {}.", engine.chains.join(", ")))
    } else {
        let effect = format!("Callers of chain {} get 503, or the answers of outage policies.", serving.join(", "));
        (Severity::Critical, effect)
    };
    let why = engine.detail.as_deref().unwrap_or("no reason is known");
    let text = format!("Engine `{}` does not answer: {why}. {effect}", engine.name);
    let subject = Some(engine.name.clone());
    is_down.then(|| Attention { subject, ..Attention::new(Kind::StoreDown, severity, engine.since, text) })
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
            store_down(&engine(up, of), &[chain(active, None, true)]).map(|found| found.severity)
        };
        assert_eq!(severity(Some(false), "primary", &["default"]), Some(Severity::Critical));
        assert_eq!(severity(Some(false), "spare", &["default"]), Some(Severity::Warning));
        assert_eq!(severity(Some(false), "spare", &[]), None, "no chain has it");
        assert_eq!(severity(Some(true), "primary", &["default"]), None);
        assert_eq!(severity(None, "primary", &["default"]), None, "not known yet");
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
        let many = vec![of(warning, None); ENTRIES_MAX + 1];
        assert_eq!(sorted(many).len(), ENTRIES_MAX);
    }
}
