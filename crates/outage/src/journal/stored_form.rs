//! The stored form of entries: separate JSON types, so that the types of the domain can change and files of older releases can
//! still be read. Entries hold contents and attempts, so only the gateway's user may read the file.

mod values;

use std::time::Duration;

use oncegate_core::attempt::{Attempt, AttemptHash};
use oncegate_core::caller::Caller;
use oncegate_core::canonical::Canonical;
use oncegate_core::claim::{ClaimRequest, LateTerms, Outcome, OutcomeRequest, RenewalRequest};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::millis;
use oncegate_core::global_id::GlobalId;
use oncegate_core::hex;
use oncegate_core::outage_policy::OutagePolicy;
use oncegate_core::record::{ClaimState, Contents, Key, Realm};
use oncegate_core::suspect::{Cause, Check, Found, MaskedAttempt, Suspect};
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{LeaseEnd, Retention, Terms};
use serde::{Deserialize, Serialize};

use self::values::{micros, milliseconds, text};
use oncegate_core::outage::entry::{Entry, JournaledOperation, Seq};

#[derive(Clone, Debug)]
pub(super) enum FrameContent {
    /// An entry.
    Entry(Seq, Box<Entry>),
    /// These were delivered.
    Delivered(Vec<Seq>),
    /// A suspect, or a later state of it.
    Suspect(Suspect),
}

impl FrameContent {
    /// The bytes of a frame's payload.
    pub(super) fn write(&self) -> Vec<u8> {
        let form = match self {
            Self::Entry(seq, entry) => Form::of_entry(*seq, entry),
            Self::Delivered(seqs) => Form::Delivered { seqs: seqs.clone() },
            Self::Suspect(suspect) => Form::Suspect(SuspectForm::of(suspect)),
        };
        // Strings, numbers and lists of them: always valid JSON.
        serde_json::to_vec(&form).unwrap_or_default()
    }

    /// Reads a frame's payload; nothing if this release cannot.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        match serde_json::from_slice::<Form>(payload).ok()? {
            Form::Delivered { seqs } => Some(Self::Delivered(seqs)),
            Form::Suspect(form) => Some(Self::Suspect(form.read())),
            Form::Entry { seq, chain, policy, at, app, realm, global_id, attempt, journaled } => {
                let key = Key { app, realm, global_id };
                let journaled = match journaled {
                    JournaledForm::Granted(form) => JournaledOperation::Granted(form.read(key, attempt)?),
                    JournaledForm::Renewed { lease_ms } => JournaledOperation::Renewed(RenewalRequest {
                        key,
                        attempt,
                        lease: lease_ms.map(Duration::from_millis),
                    }),
                    JournaledForm::Reported(form) => JournaledOperation::Reported(form.read(key, attempt)?),
                };
                Some(Self::Entry(seq, Box::new(Entry { chain: chain.into(), policy, at, journaled })))
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
        policy: OutagePolicy,
        #[serde(with = "micros")]
        at: Timestamp,
        app: AppKey,
        realm: Realm,
        #[serde(with = "text")]
        global_id: GlobalId,
        #[serde(with = "text")]
        attempt: Attempt,
        #[serde(flatten)]
        journaled: JournaledForm,
    },
    Delivered {
        seqs: Vec<Seq>,
    },
    Suspect(SuspectForm),
}

impl Form {
    fn of_entry(seq: Seq, entry: &Entry) -> Self {
        let journaled = match &entry.journaled {
            JournaledOperation::Granted(request) => JournaledForm::Granted(GrantedForm::of(request)),
            JournaledOperation::Renewed(request) => JournaledForm::Renewed { lease_ms: request.lease.map(millis) },
            JournaledOperation::Reported(request) => JournaledForm::Reported(ReportedForm::of(request)),
        };
        let Key { app, realm, global_id } = entry.key().clone();
        let (chain, attempt) = (entry.chain.as_ref().into(), entry.attempt().clone());
        Self::Entry { seq, chain, policy: entry.policy, at: entry.at, app, realm, global_id, attempt, journaled }
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caller: Option<Caller>,
    #[serde(with = "TermsForm")]
    terms: Terms,
    take_over: bool,
}

impl GrantedForm {
    fn of(request: &ClaimRequest) -> Self {
        Self {
            operation: request.operation.clone(),
            contents: request.contents.as_str().into(),
            contents_stored_bytes: request.contents_stored_bytes,
            fingerprint: request.fingerprint.as_ref().map(|digest| hex::encode(digest)),
            caller: request.caller.clone(),
            terms: request.terms,
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
            caller: self.caller,
            terms: self.terms,
            take_over: self.take_over,
            waits: false,
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Terms")]
struct TermsForm {
    #[serde(rename = "lease_ms", with = "milliseconds")]
    lease: Duration,
    retention: Retention,
    unknown_retention: Retention,
    on_lease_end: LeaseEnd,
}

#[derive(Serialize, Deserialize)]
struct ReportedForm {
    #[serde(with = "OutcomeForm")]
    outcome: Outcome,
    late: Option<LateForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Outcome", rename_all = "snake_case")]
enum OutcomeForm {
    Success { result: Option<Box<str>>, retention: Option<Retention> },
    Failure,
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct LateForm {
    operation: Option<Operation>,
    contents: ContentsForm,
    #[serde(with = "TermsForm")]
    terms: Terms,
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
        let late = request.late.as_ref().map(|late| LateForm {
            operation: late.operation.clone(),
            contents: match &late.contents {
                Contents::Canonical(contents) => ContentsForm::Canonical(contents.as_str().into()),
                Contents::Digest(digest, bytes) => ContentsForm::Digest { sha256: hex::encode(digest), bytes: *bytes },
                Contents::Unverified => ContentsForm::Unverified,
            },
            terms: late.terms,
        });
        Self { outcome: request.outcome.clone(), late }
    }

    fn read(self, key: Key, attempt: Attempt) -> Option<OutcomeRequest> {
        let late = match self.late {
            Some(late) => Some(LateTerms {
                operation: late.operation,
                contents: match late.contents {
                    ContentsForm::Canonical(contents) => Contents::Canonical(Canonical::trusted(&contents)),
                    ContentsForm::Digest { sha256, bytes } => Contents::Digest(hex::decode(&sha256)?, bytes),
                    ContentsForm::Unverified => Contents::Unverified,
                },
                terms: late.terms,
            }),
            None => None,
        };
        Some(OutcomeRequest { key, attempt, outcome: self.outcome, late })
    }
}

#[derive(Serialize, Deserialize)]
struct SuspectForm {
    seq: Seq,
    why: Cause,
    app: AppKey,
    operation: Option<Operation>,
    realm: Realm,
    #[serde(with = "text")]
    global_id: GlobalId,
    ours: MaskedAttemptForm,
    theirs: Option<MaskedAttemptForm>,
    state: Option<StateForm>,
    #[serde(with = "micros")]
    noticed_at: Timestamp,
    checked: Option<CheckForm>,
}

impl SuspectForm {
    fn of(suspect: &Suspect) -> Self {
        Self {
            seq: suspect.id,
            why: suspect.cause,
            app: suspect.app.clone(),
            operation: suspect.operation.clone(),
            realm: suspect.realm,
            global_id: suspect.global_id,
            ours: MaskedAttemptForm::of(suspect.ours),
            theirs: suspect.theirs.map(MaskedAttemptForm::of),
            state: suspect.state.map(StateForm),
            noticed_at: suspect.noticed_at,
            checked: suspect.checked.clone().map(CheckForm),
        }
    }

    fn read(self) -> Suspect {
        Suspect {
            id: self.seq,
            cause: self.why,
            app: self.app,
            operation: self.operation,
            realm: self.realm,
            global_id: self.global_id,
            ours: self.ours.read(),
            theirs: self.theirs.map(MaskedAttemptForm::read),
            state: self.state.map(|StateForm(state)| state),
            noticed_at: self.noticed_at,
            checked: self.checked.map(|CheckForm(check)| check),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct MaskedAttemptForm {
    #[serde(with = "micros")]
    timestamp: Timestamp,
    #[serde(with = "text")]
    hash: AttemptHash,
}

impl MaskedAttemptForm {
    fn of(MaskedAttempt { timestamp, hash }: MaskedAttempt) -> Self {
        Self { timestamp, hash }
    }

    fn read(self) -> MaskedAttempt {
        MaskedAttempt { timestamp: self.timestamp, hash: self.hash }
    }
}

#[derive(Serialize, Deserialize)]
struct StateForm(#[serde(with = "StateName")] ClaimState);

#[derive(Serialize, Deserialize)]
#[serde(remote = "ClaimState", rename_all = "snake_case")]
enum StateName {
    InProgress,
    Succeeded,
    Unknown,
}

#[derive(Serialize, Deserialize)]
struct CheckForm(#[serde(with = "CheckFields")] Check);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Check")]
struct CheckFields {
    found: Found,
    reason: String,
    who: String,
    #[serde(with = "micros")]
    checked_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use oncegate_core::engine::conformance::fresh_claim;

    use super::*;

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

    /// Every later release must read this text, so it is never changed.
    #[test]
    fn an_entry_of_this_release_is_read_by_every_later_one() {
        let text = r#"{"kind":"entry","seq":3,"chain":"default","policy":"spool","at":1700000000000001,"app":"shop",
            "realm":"api","global_id":"2ca8a31a53ad078ffd0c7c8c80158af7","attempt":"1700000000000000-0123456789abcdef",
            "reported":{"outcome":{"success":{"result":"{}","retention":"30d"}},"late":{"operation":"order.submit",
            "contents":{"canonical":"{\"order_id\":\"A-1\"}"},"terms":{"lease_ms":30000,"retention":"24h",
            "unknown_retention":"7d","on_lease_end":"release"}}}}"#;
        let Some(FrameContent::Entry(3, entry)) = FrameContent::read(text.as_bytes()) else { panic!("it is read") };
        assert_eq!((entry.app().as_ref(), entry.operation().unwrap().as_ref()), ("shop", "order.submit"));
        let written = String::from_utf8(FrameContent::Entry(3, entry).write()).unwrap();
        assert_eq!(written, text.replace("24h", "1d").split_whitespace().collect::<String>(), "and written the same");
        assert!(FrameContent::read(br#"{"kind":"of a release to come"}"#).is_none());
    }

    #[test]
    fn a_suspect_of_this_release_is_read_by_every_later_one_and_written_the_same() {
        let overlap = concat!(
            r#"{"kind":"suspect","seq":7,"why":{"kind":"overlap","cause":"fail_open"},"app":"shop","operation":null,"#,
            r#""realm":"proxy","global_id":"2ca8a31a53ad078ffd0c7c8c80158af7","ours":{"timestamp":1700000000000000,"hash":"9f86d081"},"#,
            r#""theirs":{"timestamp":1700000000000001,"hash":"60303ae2"},"state":"in_progress","#,
            r#""noticed_at":1700000000000002,"checked":null}"#
        );
        let double = concat!(
            r#"{"kind":"suspect","seq":8,"why":{"kind":"double","cause":"superseded_success"},"app":"shop","#,
            r#""operation":"order.submit","realm":"api","global_id":"2ca8a31a53ad078ffd0c7c8c80158af7","#,
            r#""ours":{"timestamp":1700000000000000,"hash":"9f86d081"},"theirs":null,"state":null,"#,
            r#""noticed_at":1700000000000002,"#,
            r#""checked":{"found":"twice","reason":"INC-42","who":"alice","checked_at":1700000000000003}}"#
        );
        for text in [overlap, double] {
            let read = FrameContent::read(text.as_bytes()).unwrap();
            assert!(matches!(&read, FrameContent::Suspect(suspect) if suspect.app.as_ref() == "shop"));
            assert_eq!(String::from_utf8(read.write()).unwrap(), text);
        }
    }
}
