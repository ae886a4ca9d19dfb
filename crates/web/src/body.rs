//! Reads the body of a request: media type, size, timeout, JSON. Each error says what to do.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::BoxError;
use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use oncegate_core::limits::Limits;
use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde_json::value::RawValue;

use super::explain::{explain, malformed};
use super::problem::{Code, Problem};

/// Deepest nesting of a result. Common JSON readers accept it by default.
const RESULT_DEPTH_MAX: usize = 128;

/// The bytes of a complete body with the media type of JSON. May be something else than JSON. Clones share them.
#[derive(Clone, Default)]
pub struct JsonBytes(Bytes);

impl JsonBytes {
    /// Reads a body within these limits.
    ///
    /// # Errors
    /// Its media type is not JSON, or it is too long, or it does not arrive in time.
    pub async fn receive(headers: &HeaderMap, body: impl RequestBody, limits: &Limits) -> Result<Self, Problem> {
        let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let detail = "Send the header `Content-Type: application/json` and JSON in UTF-8.";
            return Err(Problem::new(Code::UnsupportedMediaType, detail));
        }
        let mut read = pin!(read(body, limits.body_bytes));
        // Most bodies are complete already, and need no timer.
        if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
            return read;
        }
        tokio::time::timeout(limits.body_read_timeout.0, read).await.unwrap_or_else(|_| {
            let within = limits.body_read_timeout;
            Err(Problem::invalid(format!("The body did not arrive within {within}; send it in one go.")))
        })
    }
}

/// The state of a router, whose handlers may take [`JsonBytes`] as a parameter.
pub trait HasLimits: Send + Sync {
    /// Returns the limits of requests.
    fn limits(&self) -> &Limits;
}

impl<State: HasLimits> FromRequest<Arc<State>> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &Arc<State>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        Self::receive(&parts.headers, body, state.limits()).await
    }
}

/// The body of a request before it is read.
pub trait RequestBody: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin {}

impl<Any: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin> RequestBody for Any {}

async fn read(mut body: impl RequestBody, bytes_max: usize) -> Result<JsonBytes, Problem> {
    // A body that announces too many bytes is not read.
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large("The body", bytes_max));
    }
    // Nearly every body is one piece, which is not copied.
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::invalid("The body broke off; send as many bytes as the head says."))?;
        // Trailers are ignored.
        let Ok(piece) = frame.into_data() else { continue };
        if first.len() + all.len() + piece.len() > bytes_max {
            return Err(too_large("The body", bytes_max));
        }
        if first.is_empty() && all.is_empty() {
            first = piece;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&piece);
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(JsonBytes(if all.is_empty() { first } else { all.freeze() }))
}

/// Returns the problem of a value that is larger than its limit.
pub fn too_large(what: &str, bytes_max: usize) -> Problem {
    let detail =
        format!("{what} may be {bytes_max} bytes long at most; send a digest or a reference of what is longer.");
    Problem::new(Code::BodyTooLarge, detail)
}

impl JsonBytes {
    /// Parses the body as this type.
    ///
    /// # Errors
    /// The body is not JSON, or a field is wrong. The problem names the field and its correct form.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Problem> {
        // Checks UTF-8 once, not string by string.
        let text = str::from_utf8(&self.0).map_err(|error| {
            let at = error.valid_up_to() + 1;
            Problem::new(Code::MalformedJson, format!("The body is not valid UTF-8: see byte {at}. JSON is UTF-8."))
        })?;
        object(text).map_err(|problem| match serde_json::from_str::<IgnoredAny>(text) {
            Ok(_) => problem,
            Err(error) => Problem::new(Code::MalformedJson, malformed(text, &error)),
        })
    }
}

/// Parses the JSON object in a text as this type.
///
/// # Errors
/// The wrong field and its correct form. Does not say whether the text is JSON at all.
pub fn object<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Problem> {
    // Serde would also take an array of the fields' values.
    if !text.trim_ascii_start().starts_with('{') {
        return Err(Problem::invalid(
            "The body has to be a JSON object, {\"field\": value, …}; GET /openapi.yaml has the fields.",
        ));
    }
    serde_json::from_str(text).map_err(|_| {
        // Parses again to find the field. Only wrong bodies pay for that.
        let mut json = serde_json::Deserializer::from_str(text);
        let explained = serde_path_to_error::deserialize::<_, T>(&mut json).err().map(|failure| {
            let is_field = failure.path().iter().next().is_some();
            let path = if is_field { failure.path().to_string() } else { String::new() };
            explain(&path, &failure.inner().to_string())
        });
        Problem::invalid(explained.unwrap_or_default())
    })
}

/// Deserializes fields where `null` is a value: `None` only if the field is absent.
pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Returns the JSON text of a result.
pub fn result(raw: &RawValue, bytes_max: usize) -> Result<Box<str>, Problem> {
    let text = raw.get();
    if text.len() > bytes_max {
        return Err(too_large("`result`", bytes_max));
    }
    if depth(text) > RESULT_DEPTH_MAX {
        return Err(Problem::invalid(format!(
            "`result` is nested deeper than {RESULT_DEPTH_MAX}; flatten it or send it as a string."
        )));
    }
    Ok(text.into())
}

/// Returns the depth of nesting of valid JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_ignores_brackets_in_strings() {
        for (json, expected) in [("1", 0), ("[]", 1), (r#"{"a":[{"b":"[[[\"{{"}]}"#, 3), (r#"["\\",["]"]]"#, 2)] {
            assert_eq!(depth(json), expected, "{json}");
        }
    }
}
