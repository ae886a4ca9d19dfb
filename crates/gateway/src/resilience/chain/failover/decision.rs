//! The decision to switch a chain automatically: a pure function of the gateway's knowledge. Nothing here reads a clock
//! or a store. The reasons: `docs/adr/0190-automatic-switch.md`.

use std::fmt;
use std::time::Duration;

use super::super::member::Seen;

/// Longest age at which a view still shows that its gateway runs.
pub(super) const RUNNING: Duration = Duration::from_secs(30);

/// Longest age at which a view still counts as evidence that a store is out.
pub(super) const CURRENT: Duration = Duration::from_secs(3);

/// Shortest time between two changes of the active engine, if the second one is automatic.
pub(super) const SETTLED: Duration = Duration::from_mins(1);

/// A view of another gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OtherView {
    /// Time since it was first seen.
    pub(super) age: Duration,
    /// True if it has changed while this gateway read it. A view that was only found may belong to a gateway that no
    /// longer runs.
    pub(super) has_changed: bool,
    /// True if the gateway has the same chain in its configuration.
    pub(super) same_chain: bool,
    /// The active engine.
    pub(super) active: Seen,
    /// The engine after it.
    pub(super) next: Seen,
}

/// The witness, as this gateway knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WitnessState {
    /// Answers, and has the record of this epoch.
    Agrees,
    /// Does not answer, or its record cannot be read.
    Out(String),
    /// Has the record of another epoch.
    Differs,
}

/// Everything that the decision depends on.
#[derive(Clone, Debug)]
pub(super) struct Situation {
    /// False if only people switch the chain.
    pub(super) is_automatic: bool,
    /// The hold of an operator.
    pub(super) hold: Option<String>,
    /// Time that the active engine must be out.
    pub(super) after: Duration,
    /// The chain is being switched.
    pub(super) is_closing: bool,
    /// The active engine comes first in the chain. Otherwise the next one is an earlier one.
    pub(super) is_preferred: bool,
    /// Time since the last change of the active engine; `None` if it never changed.
    pub(super) changed_for: Option<Duration>,
    /// The witness.
    pub(super) witness: WitnessState,
    /// Why the two engines are one server.
    pub(super) one_server: Option<String>,
    /// The active engine.
    pub(super) active: Seen,
    /// The engine after it.
    pub(super) next: Seen,
    /// Why the engine after it would grant nothing, although it answers.
    pub(super) next_unfit: Option<String>,
    /// Views of other gateways.
    pub(super) others: Vec<OtherView>,
}

/// A decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// The chain is not switched.
    Stay(Refusal),
    /// The next engine becomes the active one.
    Switch(Majority),
}

/// Gateways that see the active engine out, among all running ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Majority {
    /// Gateways that see it out, and see the next engine answer.
    pub(super) votes: usize,
    /// All.
    pub(super) gateways: usize,
}

/// Reason why a chain is not switched automatically.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Only people switch it.
    Manual,
    /// An operator holds automatic switches.
    Held(String),
    /// The active engine answers.
    Answers,
    /// A switch is in progress.
    Closing,
    /// The witness does not answer, or has lost its record.
    WitnessOut(String),
    /// The witness has the record of another epoch.
    WitnessDiffers,
    /// The engines are one server under two names.
    OneServer(String),
    /// The next engine comes earlier in the chain.
    Return,
    /// The active engine changed a short time ago.
    TooSoon,
    /// The next engine does not answer.
    NextOut,
    /// The next engine answers, and would grant nothing.
    NextUnfit(String),
    /// The active engine is not out for long enough.
    Waiting,
    /// A gateway has another chain of this name.
    ChainsDiffer,
    /// Too few gateways see the active engine out.
    NoMajority(Majority),
}

impl Situation {
    /// Decides.
    pub(super) fn decide(&self) -> Decision {
        match self.refusal() {
            Some(refusal) => Decision::Stay(refusal),
            None => Decision::Switch(self.majority()),
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        let standing = self.standing_refusal();
        // While nothing is wrong, reports only what would stop a switch.
        let Seen::Out(out_for) = self.active else { return Some(standing.unwrap_or(Refusal::Answers)) };
        if standing.is_some() {
            return standing;
        }
        if out_for < self.after {
            return Some(Refusal::Waiting);
        }
        let majority = self.majority();
        (majority.votes * 2 <= majority.gateways).then_some(Refusal::NoMajority(majority))
    }

    /// Returns the reasons that would stop a switch, also while the active engine answers.
    fn standing_refusal(&self) -> Option<Refusal> {
        if !self.is_automatic {
            return Some(Refusal::Manual);
        }
        if let Some(hold) = &self.hold {
            return Some(Refusal::Held(hold.clone()));
        }
        if self.is_closing {
            return Some(Refusal::Closing);
        }
        match &self.witness {
            WitnessState::Agrees => {}
            WitnessState::Out(why) => return Some(Refusal::WitnessOut(why.clone())),
            WitnessState::Differs => return Some(Refusal::WitnessDiffers),
        }
        if let Some(why) = &self.one_server {
            return Some(Refusal::OneServer(why.clone()));
        }
        if !self.is_preferred {
            return Some(Refusal::Return);
        }
        if self.changed_for.is_some_and(|changed_for| changed_for < SETTLED) {
            return Some(Refusal::TooSoon);
        }
        if self.next != Seen::Answers {
            return Some(Refusal::NextOut);
        }
        if let Some(why) = &self.next_unfit {
            return Some(Refusal::NextUnfit(why.clone()));
        }
        self.running().any(|view| !view.same_chain).then_some(Refusal::ChainsDiffer)
    }

    /// Counts the gateways that run, and those that see the active engine out. This gateway is one of both.
    fn majority(&self) -> Majority {
        let is_vote = |view: &&OtherView| {
            let is_out = matches!(view.active, Seen::Out(out_for) if out_for >= self.after);
            view.has_changed && view.age <= CURRENT && is_out && view.next == Seen::Answers
        };
        Majority { votes: 1 + self.running().filter(is_vote).count(), gateways: 1 + self.running().count() }
    }

    fn running(&self) -> impl Iterator<Item = &OtherView> {
        self.others.iter().filter(|view| view.age <= RUNNING)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manual => f.write_str("the mode of the chain is manual"),
            Self::Answers => f.write_str("possible"),
            Self::Closing => f.write_str("the chain is being switched"),
            Self::WitnessOut(why) => write!(f, "the witness is out: {why}"),
            Self::WitnessDiffers => f.write_str("the witness has the record of another switch"),
            Self::Held(why) | Self::OneServer(why) => f.write_str(why),
            Self::Return => f.write_str("only an operator returns to an earlier engine of the chain"),
            Self::TooSoon => f.write_str("the active engine changed less than a minute ago"),
            Self::NextOut => f.write_str("the other engine does not answer"),
            Self::NextUnfit(why) => write!(f, "the other engine would grant nothing: {why}"),
            Self::Waiting => f.write_str("the active engine is not out for long enough"),
            Self::ChainsDiffer => f.write_str("a gateway has other engines in this chain, or another `after`"),
            Self::NoMajority(Majority { votes, gateways }) => {
                write!(f, "only {votes} of {gateways} gateways see the active engine out and the other one answering")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn other(active: Seen) -> OtherView {
        OtherView { age: SECOND, has_changed: true, same_chain: true, active, next: Seen::Answers }
    }

    /// The active engine is out at this gateway, and at these others.
    fn situation(others: Vec<OtherView>) -> Situation {
        Situation {
            is_automatic: true,
            hold: None,
            after: 3 * SECOND,
            is_closing: false,
            is_preferred: true,
            changed_for: None,
            witness: WitnessState::Agrees,
            one_server: None,
            active: Seen::Out(3 * SECOND),
            next: Seen::Answers,
            next_unfit: None,
            others,
        }
    }

    fn refusal(situation: &Situation) -> String {
        match situation.decide() {
            Decision::Stay(refusal) => refusal.to_string(),
            Decision::Switch(majority) => panic!("switched by {majority:?}"),
        }
    }

    const OUT: Seen = Seen::Out(Duration::from_secs(3));

    #[test]
    fn more_than_half_of_the_gateways_move_all() {
        for (others, votes) in [
            (vec![], 1),
            (vec![other(OUT)], 2),
            (vec![other(OUT), other(Seen::Answers)], 2),
            (vec![other(OUT), other(OUT), other(Seen::Answers)], 3),
        ] {
            let gateways = others.len() + 1;
            assert_eq!(situation(others).decide(), Decision::Switch(Majority { votes, gateways }));
        }
    }

    #[test]
    fn a_gateway_with_a_broken_cable_moves_nobody() {
        for others in [1, 2, 9] {
            let gateways = others + 1;
            let refusal = refusal(&situation(vec![other(Seen::Answers); others]));
            assert!(refusal.contains(&format!("only 1 of {gateways} gateways")), "{refusal}");
        }
        let half = vec![other(OUT), other(Seen::Answers), other(Seen::Answers)];
        assert!(refusal(&situation(half)).contains("2 of 4"), "half is no majority");
    }

    #[test]
    fn only_current_views_of_the_same_outage_are_votes() {
        let no_vote = [
            OtherView { age: CURRENT + SECOND, ..other(OUT) },
            OtherView { has_changed: false, ..other(OUT) },
            OtherView { next: OUT, ..other(OUT) },
            other(Seen::Out(2 * SECOND)),
        ];
        for view in no_vote {
            assert!(refusal(&situation(vec![view])).contains("1 of 2"), "{view:?}");
        }
        // The view of a gateway that no longer runs does not count.
        let gone = OtherView { age: RUNNING + SECOND, same_chain: false, ..other(Seen::Answers) };
        assert_eq!(situation(vec![gone]).decide(), Decision::Switch(Majority { votes: 1, gateways: 1 }));
    }

    #[test]
    fn a_chain_is_switched_only_if_the_store_is_out_for_long_enough() {
        let short = Situation { active: Seen::Out(2 * SECOND), ..situation(vec![other(OUT)]) };
        assert_eq!(short.decide(), Decision::Stay(Refusal::Waiting));
        let slow = Situation { active: Seen::Answers, ..situation(vec![other(OUT), other(OUT)]) };
        assert_eq!(refusal(&slow), "possible", "an answer, however slow, is an answer");
    }

    #[test]
    fn each_obstacle_stops_a_switch_and_is_named_before_the_store_is_out() {
        let usual = situation(vec![other(OUT)]);
        let foreign = OtherView { same_chain: false, ..other(OUT) };
        let obstacles: [(Situation, &str); 12] = [
            (Situation { is_automatic: false, ..usual.clone() }, "manual"),
            (Situation { hold: Some("`alice` holds".into()), ..usual.clone() }, "`alice` holds"),
            (Situation { is_closing: true, ..usual.clone() }, "being switched"),
            (Situation { witness: WitnessState::Out("no route".into()), ..usual.clone() }, "witness is out: no route"),
            (Situation { witness: WitnessState::Differs, ..usual.clone() }, "another switch"),
            (Situation { one_server: Some("`b` is `a`".into()), ..usual.clone() }, "`b` is `a`"),
            (Situation { is_preferred: false, ..usual.clone() }, "only an operator returns"),
            (Situation { changed_for: Some(SETTLED / 2), ..usual.clone() }, "less than a minute ago"),
            (Situation { next: OUT, ..usual.clone() }, "other engine does not answer"),
            (Situation { next: Seen::Out(Duration::ZERO), ..usual.clone() }, "other engine does not answer"),
            (Situation { next_unfit: Some("no rights".into()), ..usual.clone() }, "would grant nothing: no rights"),
            (Situation { others: vec![other(OUT), foreign], ..usual.clone() }, "other engines in this chain"),
        ];
        for (situation, part) in obstacles {
            for active in [OUT, Seen::Answers] {
                let refusal = refusal(&Situation { active, ..situation.clone() });
                assert!(refusal.contains(part), "{refusal}");
            }
        }
        let settled = Situation { changed_for: Some(SETTLED), ..usual };
        assert!(matches!(settled.decide(), Decision::Switch(_)));
    }
}
