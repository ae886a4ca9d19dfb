//! The text of a document. That of a duplicate is the most frequent one in a storm of retries, and is written like a grant.

use itoa::Buffer;
use oncegate_core::hex;
use oncegate_core::outage_policy::OutagePolicy;

use super::{Code, Document, DuplicateMembers, Members};

impl Document<'_> {
    /// Appends the JSON text.
    ///
    /// # Errors
    /// The serializer's, which has none for a document.
    pub fn write(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        match self.members {
            Members::Duplicate(members) if self.code == Code::Duplicate.name() && self.needs_no_escape() => {
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
        [self.r#type.base, self.detail, self.request_id].into_iter().all(is_plain)
    }

    /// Appends the same text as its `Serialize`, from parts.
    fn write_duplicate(&self, members: &DuplicateMembers, text: &mut Vec<u8>) {
        let [mut retry_after, mut timestamp, mut waited] = [Buffer::new(); 3];
        let (mut global_id, mut attempt_hash) = ([0; 32], [0; 8]);
        let (mut claimed_at, mut expires_at) = ([0; _], [0; _]);
        let name_of = |is_there: bool, name: &'static [u8]| if is_there { name } else { b"" };
        let truth = |value: Option<bool>, yes: &'static [u8], no: &'static [u8]| match value {
            None => &b""[..],
            Some(true) => yes,
            Some(false) => no,
        };
        let parts: [&[u8]; _] = [
            b"{\"type\":\"",
            self.r#type.base.as_bytes(),
            // The code, and what belongs to it.
            b"duplicate\",\"title\":\"Duplicate\",\"status\":409,\"detail\":\"",
            self.detail.as_bytes(),
            b"\",\"code\":\"duplicate\",\"request_id\":\"",
            self.request_id.as_bytes(),
            b"\"",
            name_of(self.retry_after_ms.is_some(), b",\"retry_after_ms\":"),
            self.retry_after_ms.map_or("", |wait| retry_after.format(wait)).as_bytes(),
            b",\"global_id\":\"",
            hex::write_bytes(members.global_id.as_bytes(), &mut global_id),
            b"\",\"state\":\"",
            members.state.name().as_bytes(),
            b"\",\"timestamp\":",
            timestamp.format(members.timestamp).as_bytes(),
            b",\"attempt_hash\":\"",
            hex::write_bytes(members.attempt_hash.as_bytes(), &mut attempt_hash),
            b"\",\"claimed_at\":\"",
            members.claimed_at.write(&mut claimed_at),
            if members.expires_at.is_some() { b"\",\"expires_at\":\"" } else { b"\",\"expires_at\":null" },
            members.expires_at.map_or(b"", |instant| instant.write(&mut expires_at)),
            name_of(members.expires_at.is_some(), b"\""),
            name_of(members.result.is_some(), b",\"result\":"),
            members.result.as_ref().map_or("", |result| result.get()).as_bytes(),
            truth(members.result_omitted, b",\"result_omitted\":true", b",\"result_omitted\":false"),
            name_of(members.waited_ms.is_some(), b",\"waited_ms\":"),
            members.waited_ms.map_or("", |wait| waited.format(wait)).as_bytes(),
            truth(members.contents_verified, b",\"contents_verified\":true", b",\"contents_verified\":false"),
            name_of(self.degraded.is_some(), b",\"degraded\":\""),
            self.degraded.map_or("", OutagePolicy::name).as_bytes(),
            if self.degraded.is_some() { b"\"}" } else { b"}" },
        ];
        text.reserve(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            text.extend_from_slice(part);
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

    use super::super::{Problem, ProblemBase};
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
                    // With any other code it is left to the serializer.
                    for (code, request_id) in
                        [(Code::Duplicate, "0123456789abcdef"), (Code::Duplicate, ""), (Code::Superseded, "")]
                    {
                        let members = Members::Duplicate(Box::new(members.clone()));
                        let problem = Problem { retry_after, members, degraded, ..Problem::new(code, detail) };
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
