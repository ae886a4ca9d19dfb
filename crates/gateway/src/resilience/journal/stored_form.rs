//! The stored form of entries: separate JSON types, so that the types of the domain can change and files of older releases can
//! still be read. Entries hold contents and attempts, so only the gateway's user may read the file.

use std::time::Duration;

use oncegate_core::attempt::Attempt;
use oncegate_core::canonical::Canonical;
use oncegate_core::claim::{ClaimRequest, LateTerms, Outcome, OutcomeRequest, RenewalRequest};
use oncegate_core::clock::Timestamp;
use oncegate_core::hex;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::overlap::{MaskedAttempt, Overlap};
use oncegate_core::record::{ClaimState, Contents, Key};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, JournaledOperation, Seq};

/// Contents of a frame.
#[derive(Clone, Debug)]
pub(super) enum FrameContent {
    /// An entry.
    Entry(Seq, Box<Entry>),
    /// These were delivered.
    Delivered(Vec<Seq>),
    /// Two attempts held one claim.
    Overlap(Overlap),
}

impl FrameContent {
    /// The bytes of a frame's payload.
    pub(super) fn write(&self) -> Vec<u8> {
        let form = match self {
            Self::Entry(seq, entry) => Form::of_entry(*seq, entry),
            Self::Delivered(seqs) => Form::Delivered { seqs: seqs.clone() },
            Self::Overlap(overlap) => Form::of_overlap(overlap),
        };
        // Strings, numbers and lists of them: always valid JSON.
        serde_json::to_vec(&form).unwrap_or_default()
    }

    /// Reads a frame's payload; nothing if this release cannot.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        match serde_json::from_slice::<Form>(payload).ok()? {
            Form::Delivered { seqs } => Some(Self::Delivered(seqs)),
            Form::Overlap(form) => form.read().map(Self::Overlap),
            Form::Entry { seq, chain, policy, at, app, global_id, attempt, journaled } => {
                let key = Key { app, global_id: global_id.parse().ok()? };
                let attempt = attempt.parse().ok()?;
                let journaled = match journaled {
                    JournaledForm::Granted(form) => JournaledOperation::Granted(form.read(key, attempt)?),
                    JournaledForm::Renewed { lease_ms } => JournaledOperation::Renewed(RenewalRequest {
                        key,
                        attempt,
                        lease: lease_ms.map(Duration::from_millis),
                    }),
                    JournaledForm::Reported(form) => JournaledOperation::Reported(form.read(key, attempt)?),
                };
                let at = Timestamp::from_micros(at);
                Some(Self::Entry(seq, Box::new(Entry { chain: chain.into(), policy: policy.into(), at, journaled })))
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Form {
    Entry {
        seq: Seq,
        chain: String,
        policy: PolicyForm,
        at: u64,
        app: AppKey,
        global_id: String,
        attempt: String,
        #[serde(flatten)]
        journaled: JournaledForm,
    },
    Delivered {
        seqs: Vec<Seq>,
    },
    Overlap(OverlapForm),
}

impl Form {
    fn of_entry(seq: Seq, entry: &Entry) -> Self {
        let (attempt, journaled) = match &entry.journaled {
            JournaledOperation::Granted(request) => {
                (&request.attempt, JournaledForm::Granted(GrantedForm::of(request)))
            }
            JournaledOperation::Renewed(request) => {
                (&request.attempt, JournaledForm::Renewed { lease_ms: request.lease.map(millis) })
            }
            JournaledOperation::Reported(request) => {
                (&request.attempt, JournaledForm::Reported(ReportedForm::of(request)))
            }
        };
        let Key { app, global_id } = entry.key();
        Self::Entry {
            seq,
            chain: entry.chain.as_ref().into(),
            policy: entry.policy.into(),
            at: entry.at.as_micros(),
            app: app.clone(),
            global_id: global_id.to_string(),
            attempt: attempt.to_string(),
            journaled,
        }
    }

    fn of_overlap(overlap: &Overlap) -> Self {
        let Overlap { id, app, operation, global_id, policy, ours, theirs, state, noticed_at } = overlap;
        Self::Overlap(OverlapForm {
            seq: *id,
            app: app.clone(),
            operation: operation.clone(),
            global_id: global_id.to_string(),
            policy: (*policy).into(),
            ours: (*ours).into(),
            theirs: (*theirs).into(),
            state: (*state).into(),
            noticed_at: noticed_at.as_micros(),
        })
    }
}

/// The policies, by their names in the configuration.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyForm {
    Local,
    FailOpen,
    Spool,
}

impl From<OutagePolicy> for PolicyForm {
    fn from(policy: OutagePolicy) -> Self {
        match policy {
            OutagePolicy::Local => Self::Local,
            OutagePolicy::FailOpen => Self::FailOpen,
            OutagePolicy::Spool => Self::Spool,
        }
    }
}

impl From<PolicyForm> for OutagePolicy {
    fn from(form: PolicyForm) -> Self {
        match form {
            PolicyForm::Local => Self::Local,
            PolicyForm::FailOpen => Self::FailOpen,
            PolicyForm::Spool => Self::Spool,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JournaledForm {
    Granted(GrantedForm),
    Renewed { lease_ms: Option<u64> },
    Reported(ReportedForm),
}

#[derive(Serialize, Deserialize)]
struct GrantedForm {
    operation: Operation,
    contents: String,
    contents_stored_bytes: usize,
    fingerprint: Option<String>,
    terms: TermsForm,
    take_over: bool,
}

impl GrantedForm {
    fn of(request: &ClaimRequest) -> Self {
        Self {
            operation: request.operation.clone(),
            contents: request.contents.as_str().into(),
            contents_stored_bytes: request.contents_stored_bytes,
            fingerprint: request.fingerprint.as_ref().map(|digest| hex::encode(digest)),
            terms: TermsForm::of(&request.terms),
            take_over: request.take_over,
        }
    }

    fn read(self, key: Key, attempt: Attempt) -> Option<ClaimRequest> {
        let fingerprint = match self.fingerprint {
            Some(digest) => Some(hex::decode(&digest)?),
            None => None,
        };
        Some(ClaimRequest {
            key,
            attempt,
            operation: self.operation,
            contents: Canonical::trusted(&self.contents),
            contents_stored_bytes: self.contents_stored_bytes,
            fingerprint,
            terms: self.terms.read(),
            take_over: self.take_over,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct TermsForm {
    lease_ms: u64,
    retention: Retention,
    unknown_retention: Retention,
    on_lease_end: LeaseEnd,
}

impl TermsForm {
    fn of(terms: &Terms) -> Self {
        let Terms { lease, retention, unknown_retention, on_lease_end } = *terms;
        Self { lease_ms: millis(lease), retention, unknown_retention, on_lease_end }
    }

    fn read(&self) -> Terms {
        let Self { lease_ms, retention, unknown_retention, on_lease_end } = *self;
        Terms { lease: Duration::from_millis(lease_ms), retention, unknown_retention, on_lease_end }
    }
}

#[derive(Serialize, Deserialize)]
struct ReportedForm {
    outcome: OutcomeForm,
    late: Option<LateForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutcomeForm {
    Success { result: Option<String>, retention: Option<Retention> },
    Failure,
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct LateForm {
    operation: Option<Operation>,
    contents: ContentsForm,
    terms: TermsForm,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ContentsForm {
    Canonical(String),
    Digest { sha256: String, bytes: u64 },
    Unverified,
}

impl ReportedForm {
    fn of(request: &OutcomeRequest) -> Self {
        let outcome = match &request.outcome {
            Outcome::Success { result, retention } => {
                OutcomeForm::Success { result: result.as_deref().map(Into::into), retention: *retention }
            }
            Outcome::Failure => OutcomeForm::Failure,
            Outcome::Unknown => OutcomeForm::Unknown,
        };
        let late = request.late.as_ref().map(|late| LateForm {
            operation: late.operation.clone(),
            contents: match &late.contents {
                Contents::Canonical(contents) => ContentsForm::Canonical(contents.as_str().into()),
                Contents::Digest(digest, bytes) => ContentsForm::Digest { sha256: hex::encode(digest), bytes: *bytes },
                Contents::Unverified => ContentsForm::Unverified,
            },
            terms: TermsForm::of(&late.terms),
        });
        Self { outcome, late }
    }

    fn read(self, key: Key, attempt: Attempt) -> Option<OutcomeRequest> {
        let outcome = match self.outcome {
            OutcomeForm::Success { result, retention } => {
                Outcome::Success { result: result.map(Into::into), retention }
            }
            OutcomeForm::Failure => Outcome::Failure,
            OutcomeForm::Unknown => Outcome::Unknown,
        };
        let late = match self.late {
            Some(late) => Some(LateTerms {
                operation: late.operation,
                contents: match late.contents {
                    ContentsForm::Canonical(contents) => Contents::Canonical(Canonical::trusted(&contents)),
                    ContentsForm::Digest { sha256, bytes } => Contents::Digest(hex::decode(&sha256)?, bytes),
                    ContentsForm::Unverified => Contents::Unverified,
                },
                terms: late.terms.read(),
            }),
            None => None,
        };
        Some(OutcomeRequest { key, attempt, outcome, late })
    }
}

#[derive(Serialize, Deserialize)]
struct OverlapForm {
    seq: Seq,
    app: AppKey,
    operation: Option<Operation>,
    global_id: String,
    policy: PolicyForm,
    ours: MaskedAttemptForm,
    theirs: MaskedAttemptForm,
    state: StateForm,
    noticed_at: u64,
}

impl OverlapForm {
    fn read(self) -> Option<Overlap> {
        Some(Overlap {
            id: self.seq,
            app: self.app,
            operation: self.operation,
            global_id: self.global_id.parse().ok()?,
            policy: self.policy.into(),
            ours: self.ours.read()?,
            theirs: self.theirs.read()?,
            state: self.state.into(),
            noticed_at: Timestamp::from_micros(self.noticed_at),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct MaskedAttemptForm {
    timestamp: u64,
    hash: String,
}

impl From<MaskedAttempt> for MaskedAttemptForm {
    fn from(masked: MaskedAttempt) -> Self {
        Self { timestamp: masked.timestamp.as_micros(), hash: masked.hash.to_string() }
    }
}

impl MaskedAttemptForm {
    fn read(&self) -> Option<MaskedAttempt> {
        Some(MaskedAttempt { timestamp: Timestamp::from_micros(self.timestamp), hash: self.hash.parse().ok()? })
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StateForm {
    InProgress,
    Succeeded,
    Unknown,
}

impl From<ClaimState> for StateForm {
    fn from(state: ClaimState) -> Self {
        match state {
            ClaimState::InProgress => Self::InProgress,
            ClaimState::Succeeded => Self::Succeeded,
            ClaimState::Unknown => Self::Unknown,
        }
    }
}

impl From<StateForm> for ClaimState {
    fn from(form: StateForm) -> Self {
        match form {
            StateForm::InProgress => Self::InProgress,
            StateForm::Succeeded => Self::Succeeded,
            StateForm::Unknown => Self::Unknown,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_core::engine::conformance::fresh_claim;

    fn entry(policy: OutagePolicy, journaled: JournaledOperation) -> Entry {
        Entry { chain: "default".into(), policy, at: Timestamp::from_micros(1_700_000_000_000_001), journaled }
    }

    fn read_back(line: &FrameContent) -> FrameContent {
        FrameContent::read(&line.write()).unwrap()
    }

    #[test]
    fn entries_read_back_as_written() {
        let request = fresh_claim();
        let granted = ClaimRequest { fingerprint: Some([7; 32]), take_over: true, ..request.clone() };
        let success = Outcome::Success { result: Some("{\"a\":[1,null]}".into()), retention: Some(Retention::Forever) };
        let contents =
            [Contents::keep(&request.contents, 1024), Contents::keep(&request.contents, 0), Contents::Unverified];
        let late = contents.map(|contents| LateTerms {
            operation: Some(Operation::default()),
            contents,
            terms: request.terms,
        });
        let settle = |outcome, late| {
            let (key, attempt) = (request.key.clone(), request.attempt.clone());
            JournaledOperation::Reported(OutcomeRequest { key, attempt, outcome, late })
        };
        let [whole, digest, unverified] = late.map(Some);
        let renewed = RenewalRequest {
            key: request.key.clone(),
            attempt: request.attempt.clone(),
            lease: Some(Duration::from_secs(3)),
        };
        for journaled in [
            JournaledOperation::Granted(granted),
            JournaledOperation::Renewed(renewed),
            settle(success, whole),
            settle(Outcome::Success { result: None, retention: None }, digest),
            settle(Outcome::Unknown, unverified),
            settle(Outcome::Failure, None),
        ] {
            let entry = entry(OutagePolicy::FailOpen, journaled);
            let FrameContent::Entry(7, read) = read_back(&FrameContent::Entry(7, Box::new(entry.clone()))) else {
                panic!("an entry")
            };
            assert_eq!(format!("{read:?}"), format!("{entry:?}"));
            let attempt = |entry: &Entry| match &entry.journaled {
                JournaledOperation::Granted(request) => request.attempt.to_string(),
                JournaledOperation::Renewed(request) => request.attempt.to_string(),
                JournaledOperation::Reported(request) => request.attempt.to_string(),
            };
            assert_eq!(attempt(&read), attempt(&entry), "the nonce too");
        }
        assert!(
            matches!(read_back(&FrameContent::Delivered(vec![1, 9])), FrameContent::Delivered(seqs) if seqs == [1, 9])
        );
    }

    /// Every later release reads what a release writes: this text is never changed.
    #[test]
    fn an_entry_of_this_release_is_read_by_every_later_one() {
        let text = r#"{"kind":"entry","seq":3,"chain":"default","policy":"spool","at":1700000000000001,"app":"shop",
            "global_id":"2ca8a31a53ad078ffd0c7c8c80158af7","attempt":"1700000000000000-0123456789abcdef",
            "reported":{"outcome":{"success":{"result":"{}","retention":"30d"}},"late":{"operation":"order.submit",
            "contents":{"canonical":"{\"order_id\":\"A-1\"}"},"terms":{"lease_ms":30000,"retention":"24h",
            "unknown_retention":"7d","on_lease_end":"release"}}}}"#;
        let Some(FrameContent::Entry(3, entry)) = FrameContent::read(text.as_bytes()) else { panic!("it is read") };
        assert_eq!((entry.app().as_ref(), entry.operation().unwrap().as_ref()), ("shop", "order.submit"));
        assert!(FrameContent::read(br#"{"kind":"of a release to come"}"#).is_none());
    }
}
