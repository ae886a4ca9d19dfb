//! Delays before a repeat: longer after each failure, and random, so that not all clients repeat at the same time.

use std::time::Duration;

/// An exponential backoff with jitter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// Longest delay after the first failure.
    pub first: Duration,
    /// Longest delay after any number of failures.
    pub max: Duration,
}

impl Backoff {
    /// Returns the delay after this many failures in a row: doubled with each, at random between a half and all of it.
    /// `bits` are random.
    pub fn delay(&self, failures: u32, bits: u64) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = self.first.saturating_mul(doubled).min(self.max);
        jittered(longest / 2, longest / 2, bits)
    }
}

/// Returns `span` and up to `more` on top of it. `bits` are random.
pub fn jittered(span: Duration, more: Duration, bits: u64) -> Duration {
    let more_us = u64::try_from(more.as_micros()).unwrap_or(u64::MAX - 1);
    span.saturating_add(Duration::from_micros(bits % (more_us + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_maximum_and_are_random_in_their_upper_half() {
        let backoff = Backoff { first: Duration::from_millis(20), max: Duration::from_millis(160) };
        for (failures, longest_ms) in [(0, 20), (1, 20), (2, 40), (4, 160), (5, 160), (40, 160), (u32::MAX, 160)] {
            let longest = Duration::from_millis(longest_ms);
            assert_eq!(backoff.delay(failures, 0), longest / 2);
            assert_eq!(backoff.delay(failures, longest_ms * 500), longest);
            assert!((0..1000).map(|bits| backoff.delay(failures, bits * 977)).all(|delay| delay <= longest));
        }
    }

    #[test]
    fn a_jittered_span_is_never_shorter_than_the_span() {
        let (span, more) = (Duration::from_secs(1), Duration::from_millis(500));
        assert_eq!(jittered(span, more, 0), span);
        assert!((0..1000).map(|bits| jittered(span, more, bits * 7919)).all(|it| it >= span && it <= span + more));
        assert_eq!(jittered(Duration::ZERO, Duration::ZERO, u64::MAX), Duration::ZERO);
    }
}
