//! Times and ages as pages show them: in UTC, and ages in one unit.

use std::time::Duration;

use oncegate_core::clock::Timestamp;

/// Returns an age in its largest unit, such as `9 min`.
pub(super) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns the time of day, such as `12:50:03`.
pub(super) fn time_of_day(at: Timestamp) -> String {
    at.to_string().get(11..19).unwrap_or_default().to_owned()
}

/// Returns an instant of the admin API without the fraction, such as `2026-11-27 12:50:03`.
pub(super) fn instant(text: &str) -> String {
    match (text.get(..10), text.get(11..19)) {
        (Some(date), Some(time)) => format!("{date} {time}"),
        _ => text.to_owned(),
    }
}

/// Returns an instant of the admin API with its age, such as `2026-11-27 12:50:03 (9 min)`.
pub(super) fn since(text: &str, now: Timestamp) -> String {
    age_of(text, now).map_or_else(|| instant(text), |age| format!("{} ({age})", instant(text)))
}

/// Returns the age of an instant of the admin API.
pub(super) fn age_of(text: &str, now: Timestamp) -> Option<String> {
    let at = u64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_microsecond()).ok()?;
    Some(age(Duration::from_micros(now.as_micros().saturating_sub(at))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in
            [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (90_000, "1 d")]
        {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
        assert_eq!(time_of_day(Timestamp::from_micros(46_203_000_000)), "12:50:03");
        assert_eq!(instant("2026-11-27T12:50:03.123456Z"), "2026-11-27 12:50:03");
        let now = Timestamp::from_micros(603_000_000);
        assert_eq!(since("1970-01-01T00:01:03.500000Z", now), "1970-01-01 00:01:03 (8 min)");
        assert_eq!(since("1970-01-01T00:20:00.000000Z", now), "1970-01-01 00:20:00 (0 s)", "another clock is ahead");
        assert_eq!(since("now", now), "now");
    }
}
