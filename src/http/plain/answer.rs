//! An answer as it is written: its head, its length, the date, and its body behind it.

use std::time::{Duration, UNIX_EPOCH};

use axum::http::{HeaderName, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt as _;

use crate::domain::clock::{Clock as _, SystemClock};

/// Writes an answer behind what `text` holds. The `last` one says that the connection closes.
///
/// # Errors
/// The body's.
pub(super) async fn write(
    answer: Response,
    last: bool,
    date: &mut Date,
    text: &mut Vec<u8>,
) -> Result<(), axum::Error> {
    let (head, body) = answer.into_parts();
    // Nearly every one is one piece, and is not copied then.
    let body = body.collect().await?.to_bytes();
    text.extend_from_slice(b"HTTP/1.1 ");
    text.extend_from_slice(head.status.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(head.status.canonical_reason().unwrap_or_default().as_bytes());
    for (name, value) in &head.headers {
        // The router has told it of some bodies; it is told of all of them below.
        if name != header::CONTENT_LENGTH {
            field(name, value.as_bytes(), text);
        }
    }
    if head.status != StatusCode::NO_CONTENT {
        field(&header::CONTENT_LENGTH, itoa::Buffer::new().format(body.len()).as_bytes(), text);
    }
    field(&header::DATE, date.now().as_bytes(), text);
    if last {
        field(&header::CONNECTION, b"close", text);
    }
    text.extend_from_slice(b"\r\n\r\n");
    text.extend_from_slice(&body);
    Ok(())
}

fn field(name: &HeaderName, value: &[u8], text: &mut Vec<u8>) {
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(name.as_str().as_bytes());
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
}

/// The date of answers, written anew when a second has passed.
pub(super) struct Date {
    clock: SystemClock,
    second: u64,
    text: String,
}

impl Date {
    pub(super) fn new() -> Self {
        Self { clock: SystemClock::new(), second: 0, text: String::new() }
    }

    fn now(&mut self) -> &str {
        let second = self.clock.wall().as_micros() / 1_000_000;
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        }
        &self.text
    }
}
