//! Permits: how many holds of a shared lock there may be at once.

use std::fmt;
use std::ops::RangeInclusive;

use super::HOLDS_MAX;

/// Number of holds that a shared lock may have at once: 2 to [`HOLDS_MAX`]. All that hold it name the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permits(u16);

/// One would be an exclusive lock.
const PERMITS: RangeInclusive<usize> = 2..=HOLDS_MAX;

impl Permits {
    /// Returns the number of holds.
    pub fn holds(self) -> usize {
        self.0.into()
    }

    /// Returns the stored number. Zero means no limit.
    pub(super) fn stored(limit: Option<Self>) -> u16 {
        limit.map_or(0, |permits| permits.0)
    }
}

impl TryFrom<u64> for Permits {
    type Error = InvalidPermits;

    fn try_from(holds: u64) -> Result<Self, InvalidPermits> {
        let is_within = usize::try_from(holds).is_ok_and(|holds| PERMITS.contains(&holds));
        u16::try_from(holds).ok().filter(|_| is_within).map(Self).ok_or(InvalidPermits)
    }
}

/// Error: the number of holds is out of bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidPermits;

impl fmt::Display for InvalidPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (PERMITS.start(), PERMITS.end());
        write!(
            f,
            "a limit is a number of holds from {least} to {most}, such as 4; for one, request the lock in mode exclusive"
        )
    }
}

impl std::error::Error for InvalidPermits {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_two_holds_to_as_many_as_a_lock_may_have() {
        for good in [2, 3, 1000] {
            assert_eq!(Permits::try_from(good).unwrap().holds(), usize::try_from(good).unwrap());
        }
        for bad in [0, 1, 1001, 65_538, u64::MAX] {
            assert_eq!(Permits::try_from(bad), Err(InvalidPermits), "{bad}");
        }
        assert!(InvalidPermits.to_string().contains("from 2 to 1000"));
    }
}
