//! Reports that are written once an hour for each of their subjects.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_hours(1);

/// Subjects that are reported in an hour.
const SUBJECTS_MAX: usize = 16;

/// The subjects that were reported within the last hour, and when, by the monotonic clock.
pub(super) struct Hourly<Subject = ()>(Mutex<Vec<(Subject, Duration)>>);

impl<Subject> Default for Hourly<Subject> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Subject: PartialEq> Hourly<Subject> {
    /// Reports whether a report about this subject is due; the next one is due an hour later.
    pub(super) fn is_due(&self, subject: Subject, now: Duration) -> bool {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reported.retain(|(_, at)| now.saturating_sub(*at) < INTERVAL);
        if reported.len() >= SUBJECTS_MAX || reported.iter().any(|(other, _)| *other == subject) {
            return false;
        }
        reported.push((subject, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_about_a_subject_is_due_once_an_hour() {
        let hourly = Hourly::default();
        let due = [0, 1, 3599, 3600, 3601, 7200].map(|second| hourly.is_due((), Duration::from_secs(second)));
        assert_eq!(due, [true, false, false, true, false, true]);
        let hourly = Hourly::default();
        let due = |subject| hourly.is_due(subject, Duration::ZERO);
        assert_eq!([1, 2, 1].map(due), [true, true, false]);
        assert_eq!((3..100).filter(|subject| due(*subject)).count(), SUBJECTS_MAX - 2, "the log is bounded");
    }
}
