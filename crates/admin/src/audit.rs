//! The audit trail: operator, change, time, reason and result. A change is recorded, with fsync, before it begins; if that
//! fails, it does not begin. Never contains contents, attempts or secrets.

mod trail;

use std::collections::VecDeque;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{RawQuery, State};
use axum::response::Response;
use oncegate_core::attempt::{AttemptHash, Entropy};
use oncegate_core::clock::{Clock, Timestamp};
use oncegate_core::global_id::GlobalId;
use oncegate_core::name::Name;
use oncegate_core::record::Realm;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_web::problem::{Code, Problem};
use oncegate_web::response::json;
use serde::{Deserialize, Serialize};

use self::trail::{Entry, Filter, Trail, Unwritten};
use super::Admin;
use super::auth::{Operator, Via};
use super::query::{Query, page};

/// Longest reason, in characters.
const REASON_CHARS_MAX: usize = 500;

/// Largest number of notes that wait for the disk.
const NOTES_MAX: usize = 64;

/// The result of an event that changes nothing.
const NOTED: &str = "done";

/// Default and largest number of entries in a response.
const SHOWN: usize = 50;
const SHOWN_MAX: usize = 200;

/// The reason for a change: one line of 1 to 500 characters.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct Reason(String);

impl Reason {
    /// Returns its text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl FromStr for Reason {
    type Err = InvalidReason;

    fn from_str(text: &str) -> Result<Self, InvalidReason> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for Reason {
    type Error = InvalidReason;

    fn try_from(text: String) -> Result<Self, InvalidReason> {
        // Control characters, and what some readers take for the end of a line.
        let is_wrong = |char: char| char.is_control() || matches!(char, '\u{2028}' | '\u{2029}');
        let good = !text.trim().is_empty() && text.chars().count() <= REASON_CHARS_MAX && !text.contains(is_wrong);
        if good { Ok(Self(text)) } else { Err(InvalidReason) }
    }
}

/// A text that is no reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a reason is one line of 1 to 500 characters, for readers of the audit trail, such as \"INC-42: paid by hand\""
)]
pub struct InvalidReason;

/// A change as the audit trail records it. Members that do not apply are left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    /// Stable name of the action, such as `claim.release`.
    pub(crate) action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app: Option<AppKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<Operation>,
    /// The realm of the claim, if it is not that of the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) realm: Option<Realm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) global_id: Option<GlobalId>,
    /// The hash of the attempt that held the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt_hash: Option<AttemptHash>,
    /// Further details, such as `outcome: success`. No secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// Looks and sign-ins have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Reason>,
}

impl Change {
    /// Returns a change with this name and reason, and no further members.
    pub(crate) fn new(action: &'static str, reason: Reason) -> Self {
        Self { reason: Some(reason), ..Self::without_reason(action) }
    }

    /// Returns it for a claim of this realm.
    pub(crate) fn of_realm(self, realm: Realm) -> Self {
        Self { realm: (realm != Realm::Api).then_some(realm), ..self }
    }

    /// Returns an event that changes no claim, lock, app or chain.
    pub(crate) fn without_reason(action: &'static str) -> Self {
        Self {
            action,
            app: None,
            operation: None,
            realm: None,
            global_id: None,
            attempt_hash: None,
            detail: None,
            reason: None,
        }
    }
}

/// The result of a change: the response, and the word for the audit trail, such as `released`.
pub(crate) type Done<Answer> = (Answer, &'static str);

/// Executes changes and records them.
pub struct Audit {
    writer: Arc<Writer>,
    clock: Arc<dyn Clock>,
    pub(super) entropy: Arc<dyn Entropy>,
    notes: Arc<Notes>,
}

/// Lines that wait for the disk, in their order.
#[derive(Default)]
struct Notes {
    lines: Mutex<VecDeque<String>>,
    /// Held by the writer.
    turn: tokio::sync::Mutex<()>,
}

/// The trail, and since when it cannot be written.
struct Writer {
    trail: Trail,
    clock: Arc<dyn Clock>,
    failing_since: Mutex<Option<Timestamp>>,
}

impl Writer {
    async fn append(&self, line: String) -> Result<(), Unwritten> {
        let appended = self.trail.append(line).await;
        let mut since = self.failing_since();
        *since = appended.as_ref().err().map(|_| since.unwrap_or_else(|| self.clock.wall()));
        appended
    }

    fn failing_since(&self) -> MutexGuard<'_, Option<Timestamp>> {
        self.failing_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Audit {
    /// Returns the audit trail in the file `audit.jsonl` of this folder. The first change creates both.
    pub fn new(folder: &Path, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let writer = Writer { trail: Trail::new(folder), clock: clock.clone(), failing_since: Mutex::default() };
        Self { writer: Arc::new(writer), clock, entropy, notes: Arc::default() }
    }

    /// Returns when the audit trail began to refuse entries; `None` if it took the last one.
    pub(crate) fn failing_since(&self) -> Option<Timestamp> {
        *self.writer.failing_since()
    }

    /// Records an event that changes nothing, such as a sign-in. Does not wait for the disk: a full disk must not stop
    /// operators from reading. The log has the event in any case.
    pub(super) fn note(&self, operator: &Operator, change: &Change) {
        let (id, at) = (format!("{:016x}", self.entropy.bits()), self.clock.wall());
        log(&id, &operator.name, change, NOTED);
        let (who, request_id) = (&operator.name, &operator.request_id);
        let begun = trail::line(&Begun { id: &id, at, who, request_id, via: via(operator), change });
        let ended = trail::line(&Ended { id: &id, at, result: NOTED });
        let (Ok(begun), Ok(ended)) = (begun, ended) else { return };
        let (writer, notes) = (self.writer.clone(), self.notes.clone());
        {
            let mut lines = notes.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == NOTES_MAX {
                tracing::warn!(audit.id = id, "Event missing in the audit trail: the disk is slow");
                return;
            }
            lines.push_back(begun + &ended);
        }
        tokio::spawn(async move {
            let _turn = notes.turn.lock().await;
            let next = notes.lines.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(line) = next else { return };
            if let Err(failure) = writer.append(line).await {
                tracing::warn!(error = %failure, "Event missing in the audit trail");
            }
        });
    }

    /// Records a change, executes its action, and records the result. The action runs to its end even if the client
    /// disconnects.
    ///
    /// # Errors
    /// The error of the action, or the change could not be recorded. Then nothing was changed.
    pub(crate) async fn execute<Answer: Send + 'static>(
        &self,
        operator: &Operator,
        change: Change,
        action: impl Future<Output = Result<Done<Answer>, Problem>> + Send + 'static,
    ) -> Result<Answer, Problem> {
        let id = format!("{:016x}", self.entropy.bits());
        let started = Begun {
            id: &id,
            at: self.clock.wall(),
            who: &operator.name,
            request_id: &operator.request_id,
            via: via(operator),
            change: &change,
        };
        let started = trail::line(&started)?;
        let (writer, clock, who) = (self.writer.clone(), self.clock.clone(), operator.name.clone());
        let executed = tokio::spawn(async move {
            writer.append(started).await?;
            log(&id, &who, &change, "begun");
            let answer = action.await;
            let result = answer.as_ref().map_or_else(|problem| problem.code.name(), |(_, word)| word);
            log(&id, &who, &change, result);
            let ended = trail::line(&Ended { id: &id, at: clock.wall(), result })?;
            if let Err(failure) = writer.append(ended).await {
                // The change is done and cannot be undone. The audit trail still says that it was started.
                tracing::error!(audit.id = id, error = %failure, "Result of a change missing in the audit trail");
            }
            answer.map(|(answer, _)| answer)
        });
        executed.await.unwrap_or_else(|_panicked| {
            let detail =
                "The gateway failed; it is unknown whether the change was made. Check the present state before you repeat it.";
            Err(Problem::new(Code::Internal, detail))
        })
    }
}

/// The line of a change that begins.
#[derive(Serialize)]
struct Begun<'a> {
    id: &'a str,
    at: Timestamp,
    who: &'a str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<&'static str>,
    #[serde(flatten)]
    change: &'a Change,
}

/// Returns the interface that an entry names. It names none for the admin API.
fn via(operator: &Operator) -> Option<&'static str> {
    match operator.via {
        Via::Api => None,
        Via::Console => Some("console"),
        Via::Gateway => Some("gateway"),
    }
}

/// The line of its result.
#[derive(Serialize)]
struct Ended<'a> {
    id: &'a str,
    at: Timestamp,
    result: &'a str,
}

/// Logs the change, for a central log of many gateways.
fn log(id: &str, who: &str, change: &Change, result: &str) {
    let shown = |part: Option<String>| part.unwrap_or_default();
    tracing::info!(
        target: "audit",
        {
            audit.id = id,
            audit.who = who,
            audit.action = change.action,
            audit.result = result,
            app.key = shown(change.app.as_ref().map(ToString::to_string)),
            claim.global_id = shown(change.global_id.map(|global_id| global_id.to_string())),
            attempt.hash = shown(change.attempt_hash.map(|hash| hash.to_string())),
            audit.detail = change.detail.as_deref().unwrap_or_default(),
            audit.reason = change.reason.as_ref().map_or("", Reason::text),
        },
        "Change by an operator"
    );
}

impl From<Unwritten> for Problem {
    fn from(unwritten: Unwritten) -> Self {
        tracing::error!(error = %unwritten, "Audit trail not available");
        Self::new(
            Code::AuditUnavailable,
            format!(
                "Nothing was changed: {unwritten}. Make the folder `server.data_dir` writable, then send it again."
            ),
        )
    }
}

#[derive(Serialize)]
struct EntriesBody {
    entries: Vec<Entry>,
    next: Option<String>,
}

/// `GET /admin/v1/audit`: entries of this gateway's trail, newest first, in pages.
pub(super) async fn audit(State(admin): State<Arc<Admin>>, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let mut query = Query::parse(query)?;
    let filter = Filter {
        who: query.take_as::<Name>("who")?.map(|who| who.as_ref().to_owned()),
        action: query.take("action").map(|text| action(&text)).transpose()?,
        app: query.take_as::<AppKey>("app")?.map(|app| app.to_string()),
        global_id: query.take_as::<GlobalId>("global_id")?.map(|global_id| global_id.to_string()),
        after: query.take("after"),
    };
    let limit = query.count("limit", SHOWN, SHOWN_MAX)?;
    query.end()?;
    let found = admin.audit.writer.trail.find(filter, limit + 1).await?;
    let found = found.ok_or_else(|| {
        Problem::invalid(
            "`after` is not the ID of an entry of this gateway's audit trail. Send the `next` of the previous page.",
        )
    })?;
    let (entries, next) = page(found, limit, |last| last.id.clone());
    Ok(json(&EntriesBody { entries, next }))
}

/// Checks the name of an action.
fn action(text: &str) -> Result<String, Problem> {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_action = text.split_once('.').is_some_and(|(kind, change)| is_word(kind) && is_word(change));
    let problem = || Problem::invalid("`action` is the name of an action, such as claim.release.");
    if is_action { Ok(text.to_owned()) } else { Err(problem()) }
}

#[cfg(test)]
mod tests {
    use oncegate_core::attempt::SystemEntropy;
    use oncegate_core::clock::ManualClock;
    use tokio::sync::oneshot;

    use super::*;
    use crate::role::Role;

    #[test]
    fn a_reason_is_one_line_with_text() {
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
        Operator { name: "alice".into(), role: Role::Act, request_id: "r-1".into(), via: Via::Api }
    }

    async fn newest(audit: &Audit) -> Vec<Entry> {
        audit.writer.trail.find(Filter::default(), 5).await.unwrap().unwrap()
    }

    fn change() -> Change {
        Change::new("test.change", Reason("INC-42".to_owned()))
    }

    #[tokio::test]
    async fn a_change_runs_to_its_end_if_its_client_disconnects() {
        let folder = tempfile::tempdir().unwrap();
        let audit = audit(folder.path());
        let (started, begins) = oneshot::channel();
        let (go_on, goes_on) = oneshot::channel::<()>();
        let action = async move {
            let _ = started.send(());
            let _ = goes_on.await;
            Ok(((), "done"))
        };
        let execution = {
            let audit = audit.clone();
            tokio::spawn(async move { audit.execute(&alice(), change(), action).await })
        };
        begins.await.unwrap();
        let entries = newest(&audit).await;
        assert_eq!((entries.len(), &entries[0].result), (1, &None), "it is recorded before it begins");
        execution.abort();
        assert!(execution.await.unwrap_err().is_cancelled());
        go_on.send(()).unwrap();
        while newest(&audit).await[0].result.is_none() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_failed_or_panicked_action_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let audit = audit(folder.path());
        let refused = async { Err::<Done<()>, _>(Problem::new(Code::Superseded, "no")) };
        assert_eq!(audit.execute(&alice(), change(), refused).await.unwrap_err().code, Code::Superseded);
        assert_eq!(newest(&audit).await[0].result.as_deref(), Some("superseded"));
        let panics = async { panic!("planted") };
        let problem = audit.execute::<()>(&alice(), change(), panics).await.unwrap_err();
        assert_eq!(problem.code, Code::Internal);
        assert_eq!(newest(&audit).await[0].result, None, "the result is unknown");
    }
}
