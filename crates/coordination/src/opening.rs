//! How an engine opens a session: at the first member that passes the checks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use oncegate_core::engine::Determinate;
use tokio::time::{sleep, timeout};

use super::State;
use super::url::Address;

/// Pause before the next member is tried as well, while one does not answer.
const NEXT_MEMBER: Duration = Duration::from_millis(100);

/// Time for which the first session waits for the answers of the other members.
const OTHERS: Duration = Duration::from_millis(300);

impl State {
    /// Opens a session with `open` at the first of these members that passes its checks, beginning with number `from`, counted in a
    /// circle. A member that does not answer in time fails, and delays the others by a tenth of a second.
    ///
    /// The first time all are asked, since their markers show whether they belong together. `check` compares the marker of the
    /// session with those that have been seen by then.
    ///
    /// # Errors
    /// No member passes. A reason that an operator can correct comes before the others.
    pub async fn open_session<Session, Opening, Checking>(
        &self,
        mut members: Vec<Address>,
        from: usize,
        open: impl Fn(Address) -> Opening,
        check: impl FnOnce(Session) -> Checking,
    ) -> Result<Session, Determinate>
    where
        Opening: Future<Output = Result<Session, Determinate>>,
        Checking: Future<Output = Result<Session, Determinate>>,
    {
        let (count, limit) = (members.len().max(1), self.options.connect_timeout);
        members.rotate_left(from % count);
        let is_first = !self.has_opened.load(Ordering::Acquire);
        let mut attempts = FuturesUnordered::new();
        for (position, member) in members.into_iter().enumerate() {
            let wait =
                if is_first { Duration::ZERO } else { NEXT_MEMBER * u32::try_from(position).unwrap_or(u32::MAX) };
            let why = format!("{member} does not answer within {limit:?}, or has no quorum");
            let opening = open(member);
            attempts.push(async move {
                sleep(wait).await;
                timeout(limit, opening).await.unwrap_or(Err(Determinate::Unavailable(why)))
            });
        }
        let mut refusal = Determinate::Unavailable("it has no members".into());
        while let Some(opened) = attempts.next().await {
            match opened {
                Ok(session) if is_first => {
                    let others = async { while attempts.next().await.is_some() {} };
                    // Fails if one does not answer.
                    let _ = timeout(OTHERS, others).await;
                    let session = check(session).await?;
                    self.has_opened.store(true, Ordering::Release);
                    return Ok(session);
                }
                Ok(session) => return Ok(session),
                // A reason that an operator can correct is more useful.
                Err(why) if refusal.is_unavailable() => refusal = why,
                Err(_) => {}
            }
        }
        Err(refusal)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::gate::Gate;
    use crate::options::Options;

    const LIMIT: Duration = Duration::from_secs(1);

    fn state() -> State {
        let options = Options { connect_timeout: LIMIT, ..Options::default() };
        State::new("a store", "a:1".into(), options, Gate::new("a store", "grant_until"))
    }

    fn members() -> Vec<Address> {
        ["a", "b", "c"].map(|host| Address { host: host.into(), port: 1 }).into()
    }

    /// `a` never answers, `b` after a while, and `c` at once.
    async fn open(member: Address) -> Result<String, Determinate> {
        match member.host.as_str() {
            "a" => std::future::pending().await,
            "b" => sleep(OTHERS / 2).await,
            _ => {}
        }
        Ok(member.host)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_session_is_checked_after_the_other_members_and_later_ones_are_tried_one_after_another() {
        let (state, checked) = (state(), AtomicU32::new(0));
        let check = |session: String| async {
            checked.fetch_add(1, Ordering::Relaxed);
            Ok(session)
        };
        let early = Duration::from_millis(1);
        for (wait, why) in [(OTHERS, "`a` may belong to another store"), (2 * NEXT_MEMBER, "others come first")] {
            let opening = state.open_session(members(), 0, open, check);
            assert!(timeout(wait.saturating_sub(early), opening).await.is_err(), "{why}");
            let opened = state.open_session(members(), 0, open, check).await;
            assert_eq!(opened, Ok("c".to_owned()));
        }
        let opening = state.open_session(members(), 5, open, check);
        assert_eq!(timeout(early, opening).await, Ok(Ok("c".to_owned())), "it is the first one from there");
        assert_eq!(checked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_session_that_fails_its_check_is_not_used_and_the_next_one_is_first_again() {
        let (state, refused) = (state(), Determinate::Incompatible("two stores".into()));
        let check = |_: String| std::future::ready(Err(refused.clone()));
        for _ in 0..2 {
            assert_eq!(state.open_session(members(), 0, open, check).await, Err(refused.clone()));
        }
        let check = |session: String| std::future::ready(Ok(session));
        assert!(state.open_session(members(), 0, open, check).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_that_an_operator_can_correct_comes_before_the_others() {
        let open = |member: Address| async move {
            match member.host.as_str() {
                "a" => std::future::pending::<()>().await,
                "b" => return Err(Determinate::Incompatible("too old".into())),
                _ => {}
            }
            Err(Determinate::Unavailable("refused".into()))
        };
        let check = |(): ()| std::future::ready(Ok(()));
        let refusal = state().open_session(members(), 0, open, check).await;
        assert_eq!(refusal, Err(Determinate::Incompatible("too old".into())));
        let refusal = state().open_session(members()[..1].to_vec(), 0, open, check).await.unwrap_err();
        assert!(refusal.reason().contains("a:1 does not answer within 1s"), "{refusal}");
        let refusal = state().open_session(Vec::new(), 7, open, check).await.unwrap_err();
        assert_eq!(refusal.reason(), "it has no members");
    }
}
