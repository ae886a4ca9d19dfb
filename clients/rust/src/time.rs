//! Instants as RFC 3339 text in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// Reason why a text is no instant.
pub(crate) enum NoInstant {
    NoZone,
    Malformed,
}

/// Writes seconds and nanoseconds since 1970 in UTC with `Z`, without trailing zeros in the fraction.
pub(crate) fn write(seconds: i64, nanos: u32) -> String {
    let (year, month, day) = date_of(seconds.div_euclid(DAY));
    let left = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (left / 3600, left / 60 % 60, left % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if nanos > 0 {
        text += format!(".{nanos:09}").trim_end_matches('0');
    }
    text + "Z"
}

/// Reads RFC 3339: seconds and nanoseconds since 1970.
pub(crate) fn read(text: &str) -> Result<(i64, u32), NoInstant> {
    let bytes = text.as_bytes();
    if bytes.len() < 19 || !matches!(bytes[10], b'T' | b't' | b' ') || !text.is_ascii() || !is_date(&text[..10]) {
        return Err(NoInstant::Malformed);
    }
    let (hour, minute, second) = time_of(&text[11..19]).ok_or(NoInstant::Malformed)?;
    let mut rest = &text[19..];
    let mut nanos = 0;
    if let Some(after) = rest.strip_prefix('.') {
        let digits = after.len() - after.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        if !(1..=9).contains(&digits) {
            return Err(NoInstant::Malformed);
        }
        nanos = format!("{:0<9}", &after[..digits]).parse().map_err(|_| NoInstant::Malformed)?;
        rest = &after[digits..];
    }
    let offset = match rest.as_bytes() {
        [] => return Err(NoInstant::NoZone),
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), ..] if rest.len() == 6 => {
            let (hours, minutes, _) = time_of(&format!("{}:00", &rest[1..])).ok_or(NoInstant::Malformed)?;
            (hours * 3600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return Err(NoInstant::Malformed),
    };
    let days = days_of(&text[..10]).ok_or(NoInstant::Malformed)?;
    Ok((days * DAY + hour * 3600 + minute * 60 + second - offset, nanos))
}

/// Returns true if the text is a day of the calendar, such as `2026-11-22`.
pub(crate) fn is_date(text: &str) -> bool {
    days_of(text).is_some_and(|days| write(days * DAY, 0).starts_with(text))
}

pub(crate) fn parts_of(at: SystemTime) -> (i64, u32) {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX / 2), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX / 2);
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanos => (seconds - 1, 1_000_000_000 - nanos),
            }
        }
    }
}

/// Reads an instant of an answer.
pub(crate) fn instant(text: &str) -> Option<SystemTime> {
    let (seconds, nanos) = read(text).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, nanos))
}

fn number(text: &str) -> Option<i64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn time_of(text: &str) -> Option<(i64, i64, i64)> {
    let bytes = text.as_bytes();
    if bytes.len() != 8 || bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (number(&text[..2])?, number(&text[3..5])?, number(&text[6..])?);
    (hour < 24 && minute < 60 && second < 60).then_some((hour, minute, second))
}

/// Days since 1970 of a day of the Gregorian calendar.
fn days_of(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || !text.is_ascii() || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let (year, month, day) = (number(&text[..4])?, number(&text[5..7])?, number(&text[8..])?);
    // Years that begin in March end with the leap day.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}
