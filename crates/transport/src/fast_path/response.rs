//! The text of a response: its head with length and date, then its body.

use std::time::{Duration, UNIX_EPOCH};

use axum::http::{HeaderName, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt as _;

use oncegate_core::clock::{Clock as _, SystemClock};

/// Appends a response to `text`, and reports whether it closes the connection: because the gateway is `stopping`, or because
/// the response has `Connection: close`.
pub(super) async fn write(
    response: Response,
    stopping: bool,
    date: &mut Date,
    text: &mut Vec<u8>,
) -> Result<bool, axum::Error> {
    let (head, body) = response.into_parts();
    // Nearly every body is one piece, which is not copied.
    let body = body.collect().await?.to_bytes();
    text.extend_from_slice(b"HTTP/1.1 ");
    text.extend_from_slice(head.status.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(head.status.canonical_reason().unwrap_or_default().as_bytes());
    let mut closes = stopping;
    for (name, value) in &head.headers {
        if name == header::CONNECTION {
            closes |= value.as_bytes().eq_ignore_ascii_case(b"close");
        } else if name != header::CONTENT_LENGTH {
            // Some responses have a length already; the length of every body is written below.
            field(name, value.as_bytes(), text);
        }
    }
    if head.status != StatusCode::NO_CONTENT {
        field(&header::CONTENT_LENGTH, itoa::Buffer::new().format(body.len()).as_bytes(), text);
    }
    field(&header::DATE, date.now().as_bytes(), text);
    if closes {
        field(&header::CONNECTION, b"close", text);
    }
    text.extend_from_slice(b"\r\n\r\n");
    text.extend_from_slice(&body);
    Ok(closes)
}

fn field(name: &HeaderName, value: &[u8], text: &mut Vec<u8>) {
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(name.as_str().as_bytes());
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
}

/// The date of responses. Formatted again when a second has passed.
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

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[tokio::test]
    async fn a_response_has_its_fields_one_length_and_a_date() {
        let response =
            Response::builder().header("content-length", "9").header("x-a", "b").body(Body::from("{}")).unwrap();
        let (mut date, mut text) = (Date::new(), Vec::new());
        assert!(!write(response, false, &mut date, &mut text).await.unwrap());
        let expected = format!("HTTP/1.1 200 OK\r\nx-a: b\r\ncontent-length: 2\r\ndate: {}\r\n\r\n{{}}", date.text);
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[tokio::test]
    async fn a_response_closes_if_it_says_so_or_the_gateway_stops() {
        for (value, stopping, closes) in
            [("Close", false, true), ("keep-alive", false, false), ("keep-alive", true, true)]
        {
            let response = Response::builder().header("connection", value).body(Body::empty()).unwrap();
            let mut text = Vec::new();
            assert_eq!(write(response, stopping, &mut Date::new(), &mut text).await.unwrap(), closes, "{value}");
            assert_eq!(String::from_utf8(text).unwrap().contains("connection: close"), closes, "{value}");
        }
    }

    #[test]
    fn the_date_is_of_this_second() {
        let mut date = Date { second: 1, text: "of another second".into(), ..Date::new() };
        let shown = httpdate::parse_http_date(date.now()).unwrap();
        let now = UNIX_EPOCH + Duration::from_micros(SystemClock::new().wall().as_micros());
        let age = now.duration_since(shown).unwrap();
        assert!(age < Duration::from_mins(1), "{age:?}");
    }
}
