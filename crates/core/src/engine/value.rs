//! The stored form of a record: one readable line of text, used by every engine that stores bytes.
//!
//! `<attempt> 1<state> [word ...] [c=<contents>]`, then, if there is a result, a newline and the result. The end of the record
//! is not part of the text; the store keeps it. See `docs/adr/0003-value-layout.md`.

mod json;

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use self::json::may_be_json;

use crate::attempt::Attempt;
use crate::canonical::Canonical;
use crate::claim::ClaimRequest;
use crate::hex;
use crate::record::{ClaimState, Contents, Record};
use crate::terms::{LeaseEnd, Retention, Span, Terms};

/// The version that this release writes. A reader ignores unknown words, so a new word needs no new version.
const VERSION: char = '1';

/// Terms that the text leaves out, to keep values short. Part of the format: never changed, even if the defaults of the
/// configuration change.
const IMPLIED: Terms = Terms {
    lease: Duration::from_secs(30),
    retention: Retention::For(Duration::from_hours(24)),
    unknown_retention: Retention::For(Duration::from_hours(24 * 7)),
    on_lease_end: LeaseEnd::Release,
};
const IMPLIED_OPERATION: &str = "default";

/// Word of a claim whose end is notified. Always the first one. It has no information about the claim itself, so
/// readers skip it.
const WAITED_FOR: &str = " w";

/// Word of the name of the caller.
const CALLER: &str = " by=";

/// Word of a claim that was granted by a take-over.
const TAKEN_OVER: &str = "taken";

/// Timestamps of 16 digits that every JSON reader reads as the same number.
const TIMESTAMPS: Range<u64> = 1_000_000_000_000_000..1 << 53;

/// Maximum number of digits in the length of contents.
const LENGTH_DIGITS_MAX: usize = 15;

/// Writes a record.
pub fn encode(record: &Record) -> String {
    let contents_bytes =
        if let Contents::Canonical(contents) = &record.contents { contents.as_str().len() } else { 80 };
    let result_bytes = record.result.as_ref().map_or(0, |result| result.len());
    let mut text = String::with_capacity(96 + contents_bytes + result_bytes);
    // Writing to a String cannot fail.
    let _ = record.attempt.write_to(&mut text);
    text.extend([' ', VERSION, state_letter(record.state)]);
    let terms = &record.terms;
    if terms.lease != IMPLIED.lease {
        let _ = write!(text, " l={}", Span(terms.lease));
    }
    if terms.retention != IMPLIED.retention {
        let _ = write!(text, " r={}", terms.retention);
    }
    if terms.unknown_retention != IMPLIED.unknown_retention {
        let _ = write!(text, " u={}", terms.unknown_retention);
    }
    if terms.on_lease_end != IMPLIED.on_lease_end {
        text.push_str(" e=u");
    }
    let operation = record.operation.as_ref().map_or("", AsRef::as_ref);
    if operation != IMPLIED_OPERATION {
        text.push_str(" o=");
        text.push_str(operation);
    }
    if let Some(fingerprint) = &record.fingerprint {
        text.push_str(" f=");
        text.push_str(&hex::encode(fingerprint));
    }
    if record.late {
        text.push_str(" late");
    }
    if record.taken_over {
        text.extend([" ", TAKEN_OVER]);
    }
    if let Some(caller) = &record.caller {
        text.push_str(CALLER);
        text.push_str(caller.as_ref());
    }
    match &record.contents {
        Contents::Canonical(contents) => {
            text.push_str(" c=");
            text.push_str(contents.as_str());
        }
        Contents::Digest(digest, bytes) => {
            text.push_str(" h=");
            text.push_str(&hex::encode(digest));
            let _ = write!(text, ":{bytes}");
        }
        Contents::Unverified => {}
    }
    if let Some(result) = &record.result {
        text.push('\n');
        text.push_str(result);
    }
    text
}

/// Writes the record that a claim call stores. The record of a claim call that waits is marked from the start: others
/// may wait behind it.
pub fn encode_claim(request: &ClaimRequest, record: &Record) -> String {
    let mut text = encode(record);
    if let Some(blank) = text.find(' ').filter(|_| request.waits) {
        // After the version and the state, where engines look for it.
        text.insert_str(blank + 3, WAITED_FOR);
    }
    text
}

/// Reads a record. The scripts of the Redis engine (`live_claim.lua`) accept exactly the same words and change values without
/// this function: a change to one is a change to both.
///
/// # Errors
/// The value cannot be read. It must neither be treated as absent nor be overwritten.
pub fn decode(text: &[u8]) -> Result<Record, Unreadable> {
    let text = std::str::from_utf8(text).map_err(|_| Unreadable("it is not UTF-8"))?;
    // Canonical JSON escapes every newline, so the first one ends the header.
    let (header, result) = text.split_once('\n').map_or((text, None), |(header, result)| (header, Some(result)));
    // No word holds a space, so the first ` c=` starts the contents.
    let (words, contents) =
        header.split_once(" c=").map_or((header, None), |(words, contents)| (words, Some(contents)));
    if !contents.is_none_or(may_be_json) {
        return Err(Unreadable("its contents are not JSON"));
    }
    let mut words = words.split(' ');
    let attempt: Option<Attempt> = words.next().and_then(|word| word.parse().ok());
    let attempt = attempt
        .filter(|attempt| TIMESTAMPS.contains(&attempt.timestamp().as_micros()))
        .ok_or(Unreadable("it does not begin with an attempt"))?;
    let state = words.next().and_then(|word| word.strip_prefix(VERSION)).ok_or(Unreadable("its version is unknown"))?;
    let mut record = Record {
        attempt,
        state: state_of(state).ok_or(Unreadable("its state is unknown"))?,
        operation: Some(crate::tenant::Operation::default()),
        caller: None,
        contents: match contents {
            Some(contents) => Contents::Canonical(Canonical::trusted(contents)),
            None => Contents::Unverified,
        },
        fingerprint: None,
        terms: IMPLIED,
        result: result.map(Into::into),
        late: false,
        taken_over: false,
    };
    // The first of two retentions counts: the settle script writes a new one before the old one.
    let mut seen_retention = false;
    for word in words {
        record.late |= word == "late";
        record.taken_over |= word == TAKEN_OVER;
        let Some((name, value)) = word.split_once('=') else { continue };
        match name {
            "l" => record.terms.lease = read(value, "its lease cannot be read").map(|Span(lease)| lease)?,
            "r" if !std::mem::replace(&mut seen_retention, true) => {
                record.terms.retention = read(value, "its retention cannot be read")?;
            }
            "u" => record.terms.unknown_retention = read(value, "its unknown retention cannot be read")?,
            "e" => {
                record.terms.on_lease_end = match value {
                    "u" => LeaseEnd::Unknown,
                    _ => return Err(Unreadable("the meaning of its lease's end is unknown")),
                }
            }
            "o" if value.is_empty() => record.operation = None,
            "o" => record.operation = Some(read(value, "its operation cannot be read")?),
            "f" => record.fingerprint = Some(hex::decode(value).ok_or(Unreadable("its fingerprint cannot be read"))?),
            "h" => record.contents = read_digest_and_bytes(value)?,
            // For display only, so one that cannot be read hides no claim.
            "by" => record.caller = value.parse().ok(),
            _ => {}
        }
    }
    Ok(record)
}

/// Reason why a stored value cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a record cannot be read by this release: {0}")]
pub struct Unreadable(&'static str);

impl From<Unreadable> for super::EngineError {
    fn from(unreadable: Unreadable) -> Self {
        Self::incompatible(unreadable.to_string())
    }
}

/// Returns the letter of a state.
pub const fn state_letter(state: ClaimState) -> char {
    match state {
        ClaimState::InProgress => 'p',
        ClaimState::Succeeded => 's',
        ClaimState::Unknown => 'u',
    }
}

/// Returns the state of a letter.
pub fn state_of(letter: &str) -> Option<ClaimState> {
    match letter {
        "p" => Some(ClaimState::InProgress),
        "s" => Some(ClaimState::Succeeded),
        "u" => Some(ClaimState::Unknown),
        _ => None,
    }
}

fn read<T: std::str::FromStr>(value: &str, why: &'static str) -> Result<T, Unreadable> {
    value.parse().map_err(|_| Unreadable(why))
}

fn read_digest_and_bytes(value: &str) -> Result<Contents, Unreadable> {
    let parts = || {
        let (digest, bytes) = value.split_once(':')?;
        let is_length =
            (1..=LENGTH_DIGITS_MAX).contains(&bytes.len()) && bytes.bytes().all(|byte| byte.is_ascii_digit());
        Some(Contents::Digest(hex::decode(digest)?, bytes.parse().ok().filter(|_| is_length)?))
    };
    parts().ok_or(Unreadable("its contents' digest cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            attempt: "1700000000000000-0123456789abcdef".parse().unwrap(),
            state: ClaimState::InProgress,
            operation: Some("order.submit".parse().unwrap()),
            caller: None,
            contents: Contents::Canonical(Canonical::trusted(r#"{"order_id":"A 1 c=2"}"#)),
            fingerprint: None,
            terms: IMPLIED,
            result: None,
            late: false,
            taken_over: false,
        }
    }

    #[test]
    fn a_value_begins_with_the_attempt_and_is_readable() {
        assert_eq!(
            encode(&record()),
            r#"1700000000000000-0123456789abcdef 1p o=order.submit c={"order_id":"A 1 c=2"}"#
        );
    }

    #[test]
    fn records_read_back_as_written() {
        let small = record();
        let full = Record {
            state: ClaimState::Succeeded,
            fingerprint: Some([0xa5; 32]),
            caller: Some("pod/shop-7c9:1".parse().unwrap()),
            terms: Terms {
                lease: Duration::from_millis(1500),
                retention: Retention::Forever,
                unknown_retention: Retention::For(Duration::from_secs(61)),
                on_lease_end: LeaseEnd::Unknown,
            },
            result: Some("{\n \"a\": 1 }".into()),
            taken_over: true,
            ..record()
        };
        let late = Record { operation: None, contents: Contents::Unverified, late: true, ..record() };
        let digest = Record { state: ClaimState::Unknown, contents: Contents::Digest([7; 32], 4096), ..record() };
        let implied = Record { operation: Some("default".parse().unwrap()), ..record() };
        for record in [small, full, late, digest, implied] {
            assert_eq!(decode(encode(&record).as_bytes()), Ok(record));
        }
    }

    #[test]
    fn words_of_a_newer_release_are_skipped_and_the_first_retention_counts() {
        let text = "1700000000000000-0123456789abcdef 1s r=2d x=9 new r=1h o=order.submit c={}";
        assert_eq!(decode(text.as_bytes()).unwrap().terms.retention, Retention::For(Duration::from_hours(48)));
    }

    #[test]
    fn a_caller_is_a_word_and_one_that_cannot_be_read_hides_no_claim() {
        let named = Record { caller: Some("pod/a".parse().unwrap()), ..record() };
        let text = encode(&named);
        assert!(text.contains(" o=order.submit by=pod/a c="), "{text}");
        assert_eq!(decode(text.replace("pod/a", "p=d").as_bytes()), Ok(record()));
    }

    #[test]
    fn text_that_is_not_a_record_is_rejected() {
        let attempt = "1700000000000000-0123456789abcdef";
        let wrong = [
            String::new(),
            "hello".into(),
            attempt.into(),
            format!("{attempt} 2p c=1"),
            format!("{attempt} 1x c=1"),
            format!("{attempt} 1p l=0s c=1"),
            format!("{attempt} 1p e=z c=1"),
            format!("{attempt} 1p f=12 c=1"),
            format!("{attempt} 1p h=12:1"),
            format!("{attempt} 1p h={}:+1", "0".repeat(64)),
            format!("{attempt} 1p l=zz l=30s c=1"),
            format!("{attempt} 1p c={{nope"),
            "1-abcde 1p c=1".into(),
            format!("9{attempt} 1p c=1"),
        ];
        for text in wrong {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
        assert!(decode(b"\xff").is_err());
    }
}
