//! The access log: a JSON object for each answered request, between the other lines of the log. It never has contents.

use std::io::Write as _;

use serde::Serialize;

use super::writer::LineWriter;

/// Part of the log's buffer, in percent, that lines of the access log may fill. The rest is for what is more important.
const SHARE: usize = 50;

/// The access log of a process.
#[derive(Clone)]
pub struct AccessLog(LineWriter);

/// An answered request.
#[derive(Serialize)]
pub struct AccessLine<'a> {
    /// Time of the answer, in RFC 3339.
    pub timestamp: String,
    /// The HTTP method, if it is a standard one.
    #[serde(rename = "http.method")]
    pub method: &'a str,
    /// The route, without what the caller put into its place-holders.
    #[serde(rename = "http.route")]
    pub route: &'a str,
    /// The status of the answer.
    #[serde(rename = "http.status")]
    pub status: u16,
    /// The app, if the request was authenticated.
    #[serde(rename = "app.key", skip_serializing_if = "Option::is_none")]
    pub app: Option<&'a str>,
    /// Time from the request's head to its answer.
    pub duration_us: u64,
    /// The `X-Request-Id` of the answer.
    #[serde(rename = "request.id")]
    pub request_id: &'a str,
}

impl AccessLog {
    pub(super) fn new(writer: LineWriter) -> Self {
        Self(writer)
    }

    /// Writes a line, or counts it as dropped.
    pub fn write(&self, line: &AccessLine<'_>) {
        let mut text = Vec::with_capacity(256);
        let written = text.write_all(b"{\"target\":\"access\",").and_then(|()| {
            let object = serde_json::to_vec(line)?;
            // Without its opening brace.
            text.write_all(object.get(1..).unwrap_or_default())?;
            text.write_all(b"\n")
        });
        if written.is_ok() {
            self.0.push(&text, SHARE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object() {
        let (out, seen) = std::io::pipe().map(|(reader, writer)| (writer, reader)).unwrap();
        let access = AccessLog::new(LineWriter::start(out, 4096).unwrap());
        access.write(&AccessLine {
            timestamp: "2026-10-01T08:00:00Z".into(),
            method: "POST",
            route: "/v1/claims",
            status: 201,
            app: None,
            duration_us: 250,
            request_id: "r-1",
        });
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(seen), &mut line).unwrap();
        assert_eq!(
            line,
            "{\"target\":\"access\",\"timestamp\":\"2026-10-01T08:00:00Z\",\"http.method\":\"POST\",\
             \"http.route\":\"/v1/claims\",\"http.status\":201,\"duration_us\":250,\"request.id\":\"r-1\"}\n"
        );
    }
}
