//! The preference `wait` of a call that may wait (RFC 7240).

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Returns the time that a caller prefers to wait, in whole seconds. A preference that cannot be read is none.
pub fn wait(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(PREFER).iter().filter_map(|line| line.to_str().ok());
    let preferences = lines.flat_map(|line| line.split(',')).filter_map(|preference| {
        let (name, value) = preference.split(';').next()?.split_once('=')?;
        name.trim().eq_ignore_ascii_case("wait").then(|| value.trim().trim_matches('"').parse().ok())
    });
    // The first one counts.
    preferences.take(1).flatten().map(|seconds: u32| Duration::from_secs(seconds.into())).next()
}

/// Names the granted wait, on the response to a call that did wait. An upstream may have applied other preferences.
pub fn apply_wait(headers: &mut HeaderMap, wait: Duration) {
    let applied = HeaderValue::try_from(format!("wait={}", wait.as_millis().div_ceil(1000)));
    if let Ok(applied) = applied {
        headers.append(PREFERENCE_APPLIED, applied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preference_to_wait_is_read_among_others() {
        let wait = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(PREFER, HeaderValue::from_static(line));
            }
            wait(&headers).map(|wait| wait.as_secs())
        };
        for lines in [&["wait=10"][..], &["respond-async, Wait = \"10\"; x=1"], &["return=minimal", "wait=10, wait=5"]]
        {
            assert_eq!(wait(lines), Some(10), "{lines:?}");
        }
        for lines in [&[][..], &["wait"], &["wait=soon"], &["wait=-1"], &["waits=10"], &["wait=99999999999"]] {
            assert_eq!(wait(lines), None, "{lines:?}");
        }
    }
}
