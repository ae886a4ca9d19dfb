//! Attempts: one try at an operation, `<timestamp>-<nonce>`.
//!
//! Only the attempt that holds a claim may change it, so attempts are compared whole, and only their holder's answers contain
//! them. All others get the timestamp and [`Attempt::hash`].

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::clock::{Clock, Timestamp};
use super::hex;

/// Number of digits of a timestamp: microseconds since the epoch, from the year 2001 on.
const TIMESTAMP_DIGITS: usize = 16;

/// Timestamps of 16 digits that every JSON reader reads as the same number: below 2^53, until the year 2255.
const TIMESTAMPS: RangeInclusive<u64> = 1_000_000_000_000_000..=(1 << 53) - 1;

/// The caller's part of an attempt, fresh for each try: 16 to 64 of `[A-Za-z0-9_-]`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Nonce(Arc<str>);

impl Nonce {
    /// Creates a nonce of 64 random bits, as 16 hex digits.
    pub fn from_bits(bits: u64) -> Self {
        Self(hex::write(&bits.to_be_bytes(), &mut [0; 16]).into())
    }

    /// Creates a nonce from text that a gateway has composed.
    pub(super) fn trusted(text: String) -> Self {
        Self(text.into())
    }

    /// Returns the nonce as the caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(…)")
    }
}

impl FromStr for Nonce {
    type Err = InvalidNonce;

    fn from_str(text: &str) -> Result<Self, InvalidNonce> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if (16..=64).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidNonce)
        }
    }
}

/// Error: the text is not a nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an attempt nonce is 16 to 64 of A-Z a-z 0-9 _ -, fresh for each try, such as a UUID")]
pub struct InvalidNonce;

/// An attempt: when it was issued, and its nonce. `Debug` shows the hash and never the nonce, since knowing an attempt is enough
/// to settle its claim.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    timestamp: Timestamp,
    nonce: Nonce,
}

impl Attempt {
    /// Creates an attempt.
    pub fn new(timestamp: Timestamp, nonce: Nonce) -> Self {
        Self { timestamp, nonce }
    }

    /// Returns the attempt's text, the same as `Display`.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(TIMESTAMP_DIGITS + 1 + self.nonce.0.len());
        // Writing to a String cannot fail.
        let _ = self.write_to(&mut text);
        text
    }

    /// Writes the attempt's text.
    ///
    /// # Errors
    /// The writer fails.
    pub fn write_to(&self, text: &mut impl fmt::Write) -> fmt::Result {
        text.write_str(itoa::Buffer::new().format(self.timestamp.as_micros()))?;
        text.write_char('-')?;
        text.write_str(&self.nonce.0)
    }

    /// Returns when the attempt was issued, by the wall clock of its gateway.
    pub fn timestamp(&self) -> Timestamp {
        self.timestamp
    }

    /// Returns the nonce: the caller's, or a random one.
    pub fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    /// Returns the first 8 hex digits of the attempt's SHA-256, which may be shown to others.
    pub fn hash(&self) -> AttemptHash {
        let digest = Sha256::digest(self.text());
        AttemptHash([digest[0], digest[1], digest[2], digest[3]])
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_to(f)
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({}-#{})", self.timestamp.as_micros(), self.hash())
    }
}

impl FromStr for Attempt {
    type Err = InvalidAttempt;

    fn from_str(text: &str) -> Result<Self, InvalidAttempt> {
        let (digits, nonce) = text.split_once('-').ok_or(InvalidAttempt)?;
        // A sign or a leading zero would be a second way to write a timestamp.
        let only_digits = digits.len() == TIMESTAMP_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        let micros = digits.parse().ok().filter(|micros| only_digits && TIMESTAMPS.contains(micros));
        let micros = micros.ok_or(InvalidAttempt)?;
        let nonce = nonce.parse().map_err(|_| InvalidAttempt)?;
        Ok(Self { timestamp: Timestamp::from_micros(micros), nonce })
    }
}

/// Error: the text is not an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an attempt is `<timestamp>-<nonce>`, the timestamp a number of 16 digits; send back the `attempt` of your 201 answer, \
     unchanged"
)]
pub struct InvalidAttempt;

/// The first 8 hex digits of an attempt's SHA-256: distinguishes attempts without revealing them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttemptHash([u8; 4]);

impl AttemptHash {
    /// Returns its bytes, half the size of the text.
    pub const fn as_bytes(&self) -> &[u8; 4] {
        &self.0
    }
}

impl fmt::Display for AttemptHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl FromStr for AttemptHash {
    type Err = InvalidAttempt;

    fn from_str(text: &str) -> Result<Self, InvalidAttempt> {
        hex::decode(text).map(Self).ok_or(InvalidAttempt)
    }
}

impl Serialize for AttemptHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A source of random bits. A parameter, so that a simulation can be repeated.
pub trait Entropy: Send + Sync + 'static {
    /// Returns 64 unpredictable bits.
    fn bits(&self) -> u64;
}

/// The operating system's randomness.
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "the only source of randomness")]
    fn bits(&self) -> u64 {
        rand::random()
    }
}

/// Issues attempts. No two have the same timestamp, even if the wall clock stops or is stepped back.
pub struct Issuer {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    last: AtomicU64,
}

impl Issuer {
    /// Creates an issuer.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { clock, entropy, last: AtomicU64::new(0) }
    }

    /// Returns 64 fresh random bits.
    pub(super) fn bits(&self) -> u64 {
        self.entropy.bits()
    }

    /// Returns the source of random bits.
    pub fn entropy(&self) -> Arc<dyn Entropy> {
        self.entropy.clone()
    }

    /// Issues an attempt with the caller's nonce, or with a random one.
    pub fn issue(&self, nonce: Option<Nonce>) -> Attempt {
        // On a machine without a date, the attempt must still be valid when its holder sends it back.
        let wall = self.clock.wall().as_micros().max(*TIMESTAMPS.start());
        let next = |last: u64| wall.max(last.saturating_add(1));
        // Relaxed: only the uniqueness of this number matters.
        let last = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        let timestamp = next(last.unwrap_or_else(|last| last));
        let nonce = nonce.unwrap_or_else(|| Nonce::from_bits(self.entropy.bits()));
        Attempt { timestamp: Timestamp::from_micros(timestamp), nonce }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::clock::ManualClock;
    use super::*;

    #[test]
    fn random_bits_are_those_of_the_source() {
        struct Seven;
        impl Entropy for Seven {
            fn bits(&self) -> u64 {
                7
            }
        }
        let issuer = Issuer::new(Arc::new(ManualClock::at(Timestamp::default())), Arc::new(Seven));
        assert_eq!((issuer.bits(), issuer.entropy().bits()), (7, 7));
    }

    struct Zero;
    impl Entropy for Zero {
        fn bits(&self) -> u64 {
            0
        }
    }

    fn stopped_issuer() -> (Arc<ManualClock>, Arc<Issuer>) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_000_000)));
        (clock.clone(), Arc::new(Issuer::new(clock, Arc::new(Zero))))
    }

    #[test]
    fn attempts_never_repeat_on_a_stopped_clock_and_many_threads() {
        let (_clock, issuer) = stopped_issuer();
        let issue = |issuer: Arc<Issuer>| move || (0..10_000).map(|_| issuer.issue(None)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(issue(issuer.clone()))).collect();
        let attempts: HashSet<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(attempts.len(), 40_000);
    }

    #[test]
    fn attempts_rise_when_the_clock_is_stepped_back() {
        let (clock, issuer) = stopped_issuer();
        let first = issuer.issue(None);
        clock.step_wall(Timestamp::from_micros(5));
        assert!(issuer.issue(None).timestamp() > first.timestamp());
    }

    #[test]
    fn an_attempt_reads_back_as_written_and_splits_at_the_first_dash() {
        let attempt: Attempt = "1700000000000000-a-b_c-0123456789".parse().unwrap();
        assert_eq!(attempt.timestamp().as_micros(), 1_700_000_000_000_000);
        assert_eq!(attempt.nonce().as_str(), "a-b_c-0123456789");
        assert_eq!(attempt.to_string().parse(), Ok(attempt));
    }

    #[test]
    fn text_that_is_not_an_attempt_is_rejected() {
        let nonce = "0123456789abcdef";
        let good = "1700000000000000";
        for text in ["", "-", good, &format!("{good}-short"), &format!("{good}-{nonce} "), &format!("-{good}-{nonce}")]
        {
            assert_eq!(text.parse::<Attempt>(), Err(InvalidAttempt), "{text}");
        }
        assert_eq!(format!("{good}-{}", "a".repeat(65)).parse::<Attempt>(), Err(InvalidAttempt));
        let timestamps = [
            "0",
            "12",
            "999999999999999",
            "0999999999999999",
            "+170000000000000",
            "9007199254740992",
            "9999999999999999",
            "17000000000000000",
            "01700000000000000",
            "99999999999999999999",
        ];
        for timestamp in timestamps {
            assert_eq!(format!("{timestamp}-{nonce}").parse::<Attempt>(), Err(InvalidAttempt), "{timestamp}");
        }
        for timestamp in ["1000000000000000", "9007199254740991"] {
            assert!(format!("{timestamp}-{nonce}").parse::<Attempt>().is_ok(), "{timestamp}");
        }
    }

    #[test]
    fn a_machine_without_a_date_issues_attempts_that_can_be_sent_back() {
        let (clock, issuer) = stopped_issuer();
        for wall in [0, 1_000_000] {
            clock.step_wall(Timestamp::from_micros(wall));
            let attempt = issuer.issue(None);
            assert_eq!(attempt.text().parse(), Ok(attempt));
        }
    }

    #[test]
    fn random_bits_differ_between_calls() {
        let bits: HashSet<_> = (0..100).map(|_| SystemEntropy.bits()).collect();
        assert_eq!(bits.len(), 100);
    }

    #[test]
    fn debug_output_does_not_reveal_an_attempt() {
        let attempt: Attempt = "1700000000000000-0123456789abcdef".parse().unwrap();
        assert!(!format!("{attempt:?}").contains("0123456789abcdef"));
        assert_eq!(attempt.hash().to_string().len(), 8);
    }
}
