//! The audit trail: who changed what, when, why, and what came of it. A change is written down, with fsync, before it is
//! begun; where that cannot be done, it is not begun. Never holds contents, attempts or secrets.

mod trail;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use self::trail::Trail;
pub use self::trail::{Entry, Unwritten};
use super::Admin;
use super::auth::Operator;
use super::query::Query;
use crate::domain::attempt::{AttemptHash, Entropy};
use crate::domain::clock::{Clock, Timestamp};
use crate::domain::global_id::GlobalId;
use crate::domain::tenant::{AppKey, Operation};
use crate::web::problem::{Code, Problem};
use crate::web::response::json;

/// How many characters a reason may have.
const REASON_CHARS_MAX: usize = 500;

/// Entries shown if the request does not say how many, and the most that it may say.
const SHOWN: usize = 50;
const SHOWN_MAX: usize = 200;

/// Why somebody makes a change: one line of 1 to 500 characters.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct Reason(String);

impl TryFrom<String> for Reason {
    type Error = InvalidReason;

    fn try_from(text: String) -> Result<Self, InvalidReason> {
        // Beside the controls of both sets, what some readers take for the end of a line.
        let is_wrong = |char: char| char.is_control() || matches!(char, '\u{2028}' | '\u{2029}');
        let good = !text.trim().is_empty() && text.chars().count() <= REASON_CHARS_MAX && !text.contains(is_wrong);
        if good { Ok(Self(text)) } else { Err(InvalidReason) }
    }
}

/// Text that gives no reason, or too much of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a reason is one line of 1 to 500 characters, for whoever reads the audit trail, such as \"INC-42: paid by hand\""
)]
pub struct InvalidReason;

/// A change as the trail tells of it. What has no meaning for it is left out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Change {
    /// What is done, in a word that is stable: `claim.release`.
    pub action: Cow<'static, str>,
    /// The app that it is done to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<AppKey>,
    /// The operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// The claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_id: Option<GlobalId>,
    /// The attempt that was found to hold the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_hash: Option<AttemptHash>,
    /// What else tells this change from others of its kind: `outcome: success`. No secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'static, str>>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// What came of a change: the answer, and the word that the trail keeps of it: `released`.
pub type Done<Answer> = (Answer, &'static str);

/// Carries changes out, and keeps the trail of them.
pub struct Audit {
    trail: Arc<Trail>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Audit {
    /// The trail in the file `audit.jsonl` of this folder. Both are made when there is something to write.
    pub fn new(folder: &Path, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { trail: Arc::new(Trail::new(folder)), clock, entropy }
    }

    /// Writes a change down, does the deed, and writes down what came of it. The deed is done to its end even if whoever
    /// asked for it goes away.
    ///
    /// # Errors
    /// The deed's own, or that the change could not be written down; then nothing was done.
    pub async fn carry_out<Answer: Send + 'static>(
        &self,
        operator: &Operator,
        change: Change,
        deed: impl Future<Output = Result<Done<Answer>, Problem>> + Send + 'static,
    ) -> Result<Answer, Problem> {
        let id = format!("{:016x}", self.entropy.bits());
        let asked = Asked {
            id: &id,
            at: self.clock.wall(),
            who: &operator.name,
            request_id: &operator.request_id,
            change: &change,
        };
        let asked = trail::line(&asked)?;
        let (trail, clock, who) = (self.trail.clone(), self.clock.clone(), operator.name.clone());
        let carried = tokio::spawn(async move {
            trail.append(asked).await?;
            tell(&id, &who, &change, "begun");
            let answer = deed.await;
            let result = answer.as_ref().map_or_else(|problem| problem.code.name(), |(_, word)| word);
            tell(&id, &who, &change, result);
            let ended = trail::line(&Ended { id: &id, at: clock.wall(), result })?;
            if let Err(failure) = trail.append(ended).await {
                // It is done and cannot be taken back; the trail still says that it was begun.
                tracing::error!(audit.id = id, error = %failure, "what came of a change is missing in the audit trail");
            }
            answer.map(|(answer, _)| answer)
        });
        carried.await.unwrap_or_else(|_panicked| {
            let detail =
                "The gateway met a fault of its own; the change may or may not have been made. See what stands now.";
            Err(Problem::new(Code::Internal, detail))
        })
    }

    /// The newest entries, newest first.
    async fn newest(&self, count: usize) -> Result<Vec<Entry>, Problem> {
        Ok(self.trail.newest(count).await?)
    }
}

/// The line of a change that is about to be begun.
#[derive(Serialize)]
struct Asked<'a> {
    id: &'a str,
    at: Timestamp,
    who: &'a str,
    request_id: &'a str,
    #[serde(flatten)]
    change: &'a Change,
}

/// The line of what came of it.
#[derive(Serialize)]
struct Ended<'a> {
    id: &'a str,
    at: Timestamp,
    result: &'a str,
}

/// The same in the log, for whoever gathers the logs of many gateways.
fn tell(id: &str, who: &str, change: &Change, result: &str) {
    let shown = |part: Option<String>| part.unwrap_or_default();
    tracing::info!(
        target: "audit",
        {
            audit.id = id,
            audit.who = who,
            audit.action = %change.action,
            audit.result = result,
            app.key = shown(change.app.as_ref().map(ToString::to_string)),
            claim.global_id = shown(change.global_id.map(|global_id| global_id.to_string())),
            attempt.hash = shown(change.attempt_hash.map(|hash| hash.to_string())),
            audit.detail = change.detail.as_deref().unwrap_or_default(),
            audit.reason = change.reason.as_ref().map_or("", |reason| &reason.0),
        },
        "an operator's change"
    );
}

impl From<Unwritten> for Problem {
    fn from(unwritten: Unwritten) -> Self {
        tracing::error!(error = %unwritten, "the audit trail cannot be used");
        Self::new(
            Code::AuditUnavailable,
            format!("Nothing was changed: {unwritten}. See to the folder `server.data_dir`, then send it again."),
        )
    }
}

#[derive(Serialize)]
struct EntriesBody {
    entries: Vec<Entry>,
}

/// `GET /admin/v1/audit`: the newest entries of this gateway's trail.
pub(super) async fn audit(
    State(admin): State<Arc<Admin>>,
    _operator: Operator,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let count = query.count("limit", SHOWN, SHOWN_MAX)?;
    query.end()?;
    Ok(json(&EntriesBody { entries: admin.audit.newest(count).await? }))
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::domain::attempt::SystemEntropy;
    use crate::domain::clock::ManualClock;

    #[test]
    fn a_reason_is_one_line_that_says_something() {
        for good in ["INC-42", "zu Recht bezahlt, siehe Beleg", &"ü".repeat(500)] {
            assert!(Reason::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in
            ["", "   ", "two\nlines", "\u{1b}[31mred", "\u{85}", "a\u{9b}31m", "two\u{2028}lines", &"x".repeat(501)]
        {
            assert_eq!(Reason::try_from(bad.to_owned()), Err(InvalidReason), "{bad:?}");
        }
    }

    fn audit(folder: &Path) -> Arc<Audit> {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000)));
        Arc::new(Audit::new(folder, clock, Arc::new(SystemEntropy)))
    }

    fn alice() -> Operator {
        Operator { name: "alice".into(), request_id: "r-1".into() }
    }

    fn change() -> Change {
        Change { action: "test.change".into(), ..Change::default() }
    }

    #[tokio::test]
    async fn a_change_is_carried_to_its_end_though_nobody_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let audit = audit(folder.path());
        let (begun, begins) = oneshot::channel();
        let (go_on, goes_on) = oneshot::channel::<()>();
        let deed = async move {
            let _ = begun.send(());
            let _ = goes_on.await;
            Ok(((), "done"))
        };
        let asked = {
            let audit = audit.clone();
            tokio::spawn(async move { audit.carry_out(&alice(), change(), deed).await })
        };
        begins.await.unwrap();
        let entries = audit.newest(5).await.unwrap();
        assert_eq!((entries.len(), &entries[0].result), (1, &None), "it is written down before it is begun");
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        go_on.send(()).unwrap();
        while audit.newest(5).await.unwrap()[0].result.is_none() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_deed_that_fails_or_panics_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let audit = audit(folder.path());
        let refused = async { Err::<Done<()>, _>(Problem::new(Code::Superseded, "no")) };
        assert_eq!(audit.carry_out(&alice(), change(), refused).await.unwrap_err().code, Code::Superseded);
        assert_eq!(audit.newest(1).await.unwrap()[0].result.as_deref(), Some("superseded"));
        let panics = async { panic!("planted") };
        let told = audit.carry_out::<()>(&alice(), change(), panics).await.unwrap_err();
        assert_eq!(told.code, Code::Internal);
        assert_eq!(audit.newest(1).await.unwrap()[0].result, None, "nobody knows what came of it");
    }
}
