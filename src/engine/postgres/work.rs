//! Answers a gathering of calls over one connection. One statement does what can be done at once and reads the rest; what
//! that rest needs to have changed goes into a second one. What was changed by others between the two begins anew.

use std::collections::VecDeque;

use hashbrown::HashMap;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Connection as _, Postgres};

use super::call::{Call, Told, Verdict};
use super::failure::{Failure, Remedy, reading};
use super::row::{self, Change, Line};
use crate::domain::record::{Key, LiveClaim};
use crate::engine::EngineError;

/// How often a call is begun anew before it is told that it cannot be done now.
const ROUNDS: usize = 10;

/// What an answered gathering leaves behind.
pub(super) struct Done {
    /// Why the connection is not to be used again.
    pub(super) broken: Option<String>,
    /// What was found standing, for calls that wait behind those that were answered.
    pub(super) found: HashMap<Key, LiveClaim>,
}

/// A connection, and how statements go over it.
pub(super) struct Link {
    pub(super) connection: PgConnection,
    /// Nothing may stay in the session: each statement goes into a transaction that brings all it needs.
    pub(super) pooled: bool,
}

impl Link {
    /// Runs one statement to its end, its commit included.
    pub(super) async fn run(&mut self, query: Query<'static, Postgres, PgArguments>) -> sqlx::Result<Vec<PgRow>> {
        if !self.pooled {
            // Its answer is complete only when the server is ready for the next: only then it has committed.
            return query.fetch_all(&mut self.connection).await;
        }
        let begin = "BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL enable_seqscan = off";
        let mut transaction = self.connection.begin_with(begin).await?;
        let rows = query.persistent(false).fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }
}

/// Answers all calls; they are on distinct keys. Never dropped half way: what was sent is waited for.
pub(super) async fn answer(link: &mut Link, calls: Vec<Call>) -> Done {
    let mut done = Done { broken: None, found: HashMap::new() };
    let mut groups = VecDeque::from([calls]);
    while let Some(mut group) = groups.pop_front() {
        // Always in the same order, so that two statements that lock the same rows do so one after the other.
        group.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        let (again, failure) = step(link, group, &mut done.found).await;
        let mut rest = Vec::with_capacity(again.len());
        for mut call in again {
            call.rounds += 1;
            if call.rounds <= ROUNDS {
                rest.push(call);
            } else {
                call.tell(Err(EngineError::unavailable("the claim kept changing hands while it was looked at")));
            }
        }
        match failure {
            Some(Remedy::OneByOne) => groups.extend(rest.into_iter().map(|call| vec![call])),
            Some(Remedy::Reconnect) => {
                done.broken = Some("it refused a statement".into());
                for call in rest.into_iter().chain(groups.drain(..).flatten()) {
                    call.tell(Err(EngineError::unavailable("the connection to the PostgreSQL server was lost")));
                }
            }
            Some(Remedy::Again | Remedy::Answer) | None if rest.is_empty() => {}
            Some(Remedy::Again | Remedy::Answer) | None => groups.push_back(rest),
        }
    }
    done
}

/// Both statements, once. Returns the calls to begin anew, and what a failure asks for.
async fn step(
    link: &mut Link,
    mut group: Vec<Call>,
    found: &mut HashMap<Key, LiveClaim>,
) -> (Vec<Call>, Option<Remedy>) {
    let questions: Vec<_> = group.iter().map(Call::question).collect();
    let rows = match link.run(row::look(&questions)).await {
        Ok(rows) => rows,
        Err(error) => return failed(&error, group, Call::writes),
    };
    let mut lines = match lines(&group, &rows) {
        Ok(lines) => lines,
        // The statement has been done, but what it said is lost.
        Err(error) => return failed(&error, group, Call::writes),
    };
    let mut again = Vec::new();
    let mut changes = Vec::new();
    for (place, mut call) in group.drain(..).enumerate() {
        let standing = match lines[place].take() {
            Some(Line::Written(fence, retention)) => {
                let told = call.done(fence, retention);
                call.tell(Ok(told));
                continue;
            }
            Some(Line::Unreadable(why)) => {
                call.tell(Err(why));
                continue;
            }
            Some(Line::Taken) => {
                again.push(call);
                continue;
            }
            Some(Line::Held(standing)) => standing,
            None => None,
        };
        match call.judge(standing.as_deref()) {
            Verdict::Tell(told) => {
                if let Some(standing) = standing {
                    found.insert(call.key().clone(), standing.held);
                }
                call.tell(Ok(told));
            }
            Verdict::Change(change, told) => changes.push((call, change, told)),
            Verdict::Again => again.push(call),
        }
    }
    if changes.is_empty() {
        return (again, None);
    }
    let (mut more, remedy) = make(link, changes).await;
    again.append(&mut more);
    (again, remedy)
}

/// The second statement. Returns the calls whose record was changed by somebody else meanwhile.
async fn make(link: &mut Link, changes: Vec<(Call, Box<Change>, Told)>) -> (Vec<Call>, Option<Remedy>) {
    let asked: Vec<&Change> = changes.iter().map(|(_, change, _)| &**change).collect();
    let made = match link.run(row::change(&asked)).await {
        Ok(rows) => rows.iter().map(|row| Ok((row::key(row, 0)?, row::fence(row, 2)?))).collect(),
        Err(error) => Err(error),
    };
    let made: HashMap<Key, u64> = match made {
        Ok(made) => made,
        // Whatever it is, it was to be changed.
        Err(error) => return failed(&error, changes.into_iter().map(|(call, ..)| call).collect(), |_| true),
    };
    let mut again = Vec::new();
    for (call, _, told) in changes {
        match made.get(call.key()) {
            Some(fence) => call.tell(Ok(told.with_fence(*fence))),
            None => again.push(call),
        }
    }
    (again, None)
}

/// What each call's key came to; nothing if nothing stands there.
fn lines(group: &[Call], rows: &[PgRow]) -> sqlx::Result<Vec<Option<Line>>> {
    let mut lines: Vec<Option<Line>> = group.iter().map(|_| None).collect();
    for row in rows {
        let (key, line) = row::line(row)?;
        // Sorted, and each once.
        let place = group.binary_search_by(|call| call.key().cmp(&key));
        let place = place.map_err(|_| sqlx::Error::Decode("a key that was not asked for".into()))?;
        // What was done counts for more than what was seen just before.
        if !matches!(lines[place], Some(Line::Written(..))) {
            lines[place] = Some(line);
        }
    }
    Ok(lines)
}

/// Tells the calls of a failed statement, or gives them back to be begun anew. `writes` tells for which of them it may have
/// changed something.
fn failed(error: &sqlx::Error, calls: Vec<Call>, writes: fn(&Call) -> bool) -> (Vec<Call>, Option<Remedy>) {
    let failure = Failure::from(error);
    let (told, remedy) = (failure.told, failure.remedy);
    if remedy == Remedy::Again || remedy == Remedy::OneByOne && calls.len() > 1 {
        return (calls, Some(remedy));
    }
    for call in calls {
        let told = if writes(&call) { told.clone() } else { reading(told.clone()) };
        call.tell(Err(told));
    }
    (Vec::new(), Some(remedy))
}
