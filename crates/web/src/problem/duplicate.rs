//! The text of a document. That of a duplicate is the most frequent one in a storm of retries, and is written like a grant.

use itoa::Buffer;
use oncegate_core::hex;
use oncegate_core::outage_policy::OutagePolicy;

use super::{Document, DuplicateMembers, Members};

impl Document<'_> {
    /// Appends the JSON text.
    ///
    /// # Errors
    /// The serializer's, which has none for a document.
    pub fn write(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        match self.members {
            Members::Duplicate(members) if self.needs_no_escape() => {
                self.write_duplicate(members, text);
                Ok(())
            }
            _ => serde_json::to_writer(text, self),
        }
    }

    fn needs_no_escape(&self) -> bool {
        // Without an early end, so that the compiler can process many bytes at once.
        let is_plain = |text: &str| {
            let special = |byte| u8::from(byte < b' ') | u8::from(byte == b'"') | u8::from(byte == b'\\');
            text.bytes().fold(0, |any, byte| any | special(byte)) == 0
        };
        [self.r#type.base, self.title, self.detail, self.request_id].into_iter().all(is_plain)
    }

    /// Appends the same text as its `Serialize`, from parts.
    fn write_duplicate(&self, members: &DuplicateMembers, text: &mut Vec<u8>) {
        let [mut status, mut retry_after, mut timestamp, mut waited] = [Buffer::new(); 4];
        let (mut global_id, mut attempt_hash) = ([0; 32], [0; 8]);
        let (mut claimed_at, mut expires_at) = ([0; _], [0; _]);
        let name_of = |is_there: bool, name: &'static str| if is_there { name } else { "" };
        let truth = |value: Option<bool>, yes: &'static str, no: &'static str| match value {
            None => "",
            Some(true) => yes,
            Some(false) => no,
        };
        let parts = [
            "{\"type\":\"",
            self.r#type.base,
            self.r#type.code,
            "\",\"title\":\"",
            self.title,
            "\",\"status\":",
            status.format(self.status),
            ",\"detail\":\"",
            self.detail,
            "\",\"code\":\"",
            self.code,
            "\",\"request_id\":\"",
            self.request_id,
            "\"",
            name_of(self.retry_after_ms.is_some(), ",\"retry_after_ms\":"),
            self.retry_after_ms.map_or("", |wait| retry_after.format(wait)),
            ",\"global_id\":\"",
            hex::write(members.global_id.as_bytes(), &mut global_id),
            "\",\"state\":\"",
            members.state.name(),
            "\",\"timestamp\":",
            timestamp.format(members.timestamp),
            ",\"attempt_hash\":\"",
            hex::write(members.attempt_hash.as_bytes(), &mut attempt_hash),
            "\",\"claimed_at\":\"",
            members.claimed_at.write(&mut claimed_at),
            if members.expires_at.is_some() { "\",\"expires_at\":\"" } else { "\",\"expires_at\":null" },
            members.expires_at.map_or("", |instant| instant.write(&mut expires_at)),
            if members.expires_at.is_some() { "\"" } else { "" },
            name_of(members.result.is_some(), ",\"result\":"),
            members.result.as_ref().map_or("", |result| result.get()),
            truth(members.result_omitted, ",\"result_omitted\":true", ",\"result_omitted\":false"),
            name_of(members.waited_ms.is_some(), ",\"waited_ms\":"),
            members.waited_ms.map_or("", |wait| waited.format(wait)),
            truth(members.contents_verified, ",\"contents_verified\":true", ",\"contents_verified\":false"),
            name_of(self.degraded.is_some(), ",\"degraded\":\""),
            self.degraded.map_or("", OutagePolicy::name),
            if self.degraded.is_some() { "\"}" } else { "}" },
        ];
        text.reserve(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            text.extend_from_slice(part.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use oncegate_core::attempt::Attempt;
    use oncegate_core::clock::Timestamp;
    use oncegate_core::global_id::GlobalId;
    use oncegate_core::record::ClaimState;

    use super::super::{Code, Problem, ProblemBase};
    use super::*;
    use crate::record::raw;

    fn duplicates() -> Vec<DuplicateMembers> {
        let attempt: Attempt = "1700000000000001-0c7f1d2e3b4a9a53".parse().unwrap();
        let plain = DuplicateMembers {
            global_id: GlobalId::from_bytes([7; 16]),
            state: ClaimState::InProgress,
            timestamp: attempt.timestamp().as_micros(),
            attempt_hash: attempt.hash(),
            claimed_at: attempt.timestamp(),
            expires_at: None,
            result: None,
            result_omitted: None,
            waited_ms: None,
            contents_verified: None,
            operation: None,
        };
        let full = DuplicateMembers {
            state: ClaimState::Succeeded,
            expires_at: Some(Timestamp::from_micros(1_700_000_000_120_000)),
            result: raw(r#"{"a": "\"\n", "b": [1.50, null]}"#.into()),
            result_omitted: Some(true),
            waited_ms: Some(u64::MAX),
            contents_verified: Some(false),
            ..plain.clone()
        };
        vec![DuplicateMembers { state: ClaimState::Unknown, ..plain.clone() }, plain, full]
    }

    #[test]
    fn a_duplicate_is_written_as_its_fields_say() {
        let details = ["`result` is what was reported.", "a \"quoted\" path\\name", "two\nlines", "naïve"];
        let waits = [None, Some(Duration::from_millis(1_250))];
        let policies = [None, Some(OutagePolicy::FailOpen)];
        for members in duplicates() {
            for detail in details {
                for (retry_after, degraded) in waits.into_iter().zip(policies) {
                    let members = Members::Duplicate(Box::new(members.clone()));
                    let problem = Problem { retry_after, members, degraded, ..Problem::new(Code::Duplicate, detail) };
                    for request_id in ["0123456789abcdef", ""] {
                        let base = ProblemBase::default();
                        let document = problem.document(request_id, &base);
                        let mut text = Vec::new();
                        document.write(&mut text).unwrap();
                        assert_eq!(String::from_utf8(text).unwrap(), serde_json::to_string(&document).unwrap());
                    }
                }
            }
        }
    }
}
