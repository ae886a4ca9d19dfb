//! The rounds of a batch: its calls are sent together, and calls without an answer begin again.

use std::collections::VecDeque;

use hashbrown::HashMap;
use oncegate_core::engine::EngineError;
use oncegate_core::record::{Key, LiveClaim};

use super::failure::{Failure, Remedy};
use super::session::Session;

/// Number of times that a call begins again before it fails.
const ROUNDS_MAX: usize = 10;

/// Claims that were found, by key, for calls that wait behind the answered ones.
pub(super) type Found = HashMap<Key, LiveClaim>;

/// A call of a batch.
pub(super) trait Batched: Sized + Send {
    /// Error of a call that began again too often.
    const GIVEN_UP: &'static str;

    /// Runs the statements of a group once. Returns the calls that begin again, and how to continue.
    fn step(
        session: &mut Session,
        group: Vec<Self>,
        found: &mut Found,
    ) -> impl Future<Output = (Vec<Self>, Remedy)> + Send;

    /// Answers that the call has failed.
    fn fail_with(self, why: EngineError);
}

/// Calls that are sent together, and how often they began again.
type Group<C> = (usize, Vec<C>);

/// Answers all calls of a batch. Returns the records that were found, for other calls. An error is the reason why the
/// connection must not be used again.
pub(super) async fn answer<C: Batched>(session: &mut Session, calls: Vec<C>) -> Result<Found, String> {
    let mut found = Found::new();
    let mut groups = VecDeque::from([(0, calls)]);
    while let Some((rounds, group)) = groups.pop_front() {
        let (again, remedy) = C::step(session, group, &mut found).await;
        continue_with((rounds + 1, again), remedy, &mut groups)?;
    }
    Ok(found)
}

/// Adds calls that begin again. An error is the reason why the connection must not be used again.
fn continue_with<C: Batched>(
    (rounds, again): Group<C>,
    remedy: Remedy,
    groups: &mut VecDeque<Group<C>>,
) -> Result<(), String> {
    if remedy == Remedy::Reconnect {
        for call in again.into_iter().chain(groups.drain(..).flat_map(|(_, group)| group)) {
            call.fail_with(EngineError::unavailable("the connection to the PostgreSQL server was lost"));
        }
        return Err("the PostgreSQL server refused a statement".into());
    }
    if rounds > ROUNDS_MAX {
        for call in again {
            call.fail_with(EngineError::unavailable(C::GIVEN_UP));
        }
    } else if remedy == Remedy::OneByOne {
        groups.extend(again.into_iter().map(|call| (rounds, vec![call])));
    } else if !again.is_empty() {
        groups.push_back((rounds, again));
    }
    Ok(())
}

/// Answers the calls of a failed statement, or returns them to begin again. `may_write` tells for each call whether it
/// may have changed something.
pub(super) fn failed<C: Batched>(
    Failure { answer, remedy }: Failure,
    calls: Vec<C>,
    may_write: impl Fn(&C) -> bool,
) -> (Vec<C>, Remedy) {
    if remedy == Remedy::Again || remedy == Remedy::OneByOne && calls.len() > 1 {
        return (calls, remedy);
    }
    for call in calls {
        let answer = if may_write(&call) { answer.clone() } else { answer.clone().of_read() };
        call.fail_with(answer);
    }
    (Vec::new(), remedy)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A call that is answered into a log, by its name.
    #[derive(Clone)]
    struct Logged(&'static str, Arc<Mutex<Vec<String>>>);

    impl Batched for Logged {
        const GIVEN_UP: &'static str = "given up";

        async fn step(_: &mut Session, _: Vec<Self>, _: &mut Found) -> (Vec<Self>, Remedy) {
            (Vec::new(), Remedy::Again)
        }

        fn fail_with(self, why: EngineError) {
            let word = if why.is_uncertain() { "uncertain" } else { "certain" };
            self.1.lock().unwrap().push(format!("{}: {word}, {why}", self.0));
        }
    }

    fn calls() -> (Vec<Logged>, Arc<Mutex<Vec<String>>>) {
        let log = Arc::default();
        (["a", "b"].map(|name| Logged(name, Arc::clone(&log))).into(), log)
    }

    /// The names of the calls of each group, and how often they began again.
    fn names(groups: &VecDeque<Group<Logged>>) -> Vec<(usize, String)> {
        groups.iter().map(|(rounds, group)| (*rounds, group.iter().map(|call| call.0).collect())).collect()
    }

    #[test]
    fn calls_begin_again_together_or_one_by_one_and_not_for_ever() {
        for (rounds, remedy, left) in [
            (1, Remedy::Again, vec![(1, "ab")]),
            (1, Remedy::Answer, vec![(1, "ab")]),
            (2, Remedy::OneByOne, vec![(2, "a"), (2, "b")]),
            (ROUNDS_MAX, Remedy::Again, vec![(ROUNDS_MAX, "ab")]),
            (ROUNDS_MAX + 1, Remedy::Again, vec![]),
            (ROUNDS_MAX + 1, Remedy::OneByOne, vec![]),
        ] {
            let ((calls, log), mut groups) = (calls(), VecDeque::new());
            assert!(continue_with((rounds, calls), remedy, &mut groups).is_ok());
            let left: Vec<_> = left.into_iter().map(|(rounds, names)| (rounds, names.to_owned())).collect();
            assert_eq!(names(&groups), left, "{rounds} {remedy:?}");
            let given_up = log.lock().unwrap().iter().filter(|line| line.contains("given up")).count();
            assert_eq!(given_up, if left.is_empty() { 2 } else { 0 });
        }
        let mut groups = VecDeque::new();
        assert!(continue_with::<Logged>((1, Vec::new()), Remedy::Again, &mut groups).is_ok() && groups.is_empty());
    }

    #[test]
    fn without_its_connection_nothing_of_a_batch_is_left() {
        let (calls, log) = calls();
        let mut groups = VecDeque::from([(1, vec![calls[1].clone()])]);
        assert!(continue_with((1, vec![calls[0].clone()]), Remedy::Reconnect, &mut groups).is_err());
        assert!(groups.is_empty());
        let log = log.lock().unwrap();
        assert!(
            log.len() == 2 && log.iter().all(|line| line.contains("certain, ") && line.contains("was lost")),
            "{log:?}"
        );
    }

    #[test]
    fn a_conflict_is_tried_again_and_a_bad_item_is_looked_for_among_several() {
        for (code, count, remedy, again) in [
            ("40P01", 2, Remedy::Again, 2),
            ("40001", 1, Remedy::Again, 1),
            ("22021", 2, Remedy::OneByOne, 2),
            ("22021", 1, Remedy::OneByOne, 0),
            ("57014", 2, Remedy::Answer, 0),
            ("25006", 2, Remedy::Reconnect, 0),
        ] {
            let (mut calls, log) = calls();
            calls.truncate(count);
            let (left, found) = failed(Failure::of_refusal(code, "a text"), calls, |_| true);
            assert_eq!((left.len(), found), (again, remedy), "{code}");
            assert_eq!(log.lock().unwrap().len(), count - again, "{code}");
        }
    }

    #[test]
    fn the_calls_of_a_failed_statement_are_answered_as_far_as_they_may_have_written() {
        let (calls, log) = calls();
        let (again, remedy) = failed(Failure::from(&sqlx::Error::RowNotFound), calls, |call| call.0 == "b");
        assert!(again.is_empty() && remedy == Remedy::Reconnect);
        let log = log.lock().unwrap();
        assert!(log[0].starts_with("a: certain") && log[1].starts_with("b: uncertain"), "{log:?}");
    }
}
