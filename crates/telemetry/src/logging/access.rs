//! Access log: a JSON object per HTTP response, among the other lines of the log. It never contains contents.

use std::io::Write as _;

use serde::Serialize;

use super::writer::LineWriter;

/// Percentage of the log's buffer that access lines may fill. The rest is kept for more important lines.
const SHARE: usize = 50;

/// Access log of a process.
#[derive(Clone)]
pub struct AccessLog(LineWriter);

/// HTTP response.
#[derive(Serialize)]
pub struct AccessLine<'a> {
    /// Time of the response, in RFC 3339.
    pub timestamp: String,
    /// The HTTP method, if it is a standard one.
    #[serde(rename = "http.method")]
    pub method: &'a str,
    /// Route with placeholders instead of the caller's values.
    #[serde(rename = "http.route")]
    pub route: &'a str,
    /// HTTP status.
    #[serde(rename = "http.status")]
    pub status: u16,
    /// The app, if the request was authenticated.
    #[serde(rename = "app.key", skip_serializing_if = "Option::is_none")]
    pub app: Option<&'a str>,
    /// Time from the request's head to the response.
    pub duration_us: u64,
    /// `X-Request-Id` of the response.
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
            // Without the opening brace.
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
    use std::sync::mpsc;

    use super::*;

    fn line() -> AccessLine<'static> {
        AccessLine {
            timestamp: "2026-10-01T08:00:00Z".into(),
            method: "POST",
            route: "/v1/claims",
            status: 201,
            app: None,
            duration_us: 250,
            request_id: "r-1",
        }
    }

    #[test]
    fn a_line_is_one_json_object() {
        let (out, seen) = std::io::pipe().map(|(reader, writer)| (writer, reader)).unwrap();
        let access = AccessLog::new(LineWriter::start(out, 4096).unwrap());
        access.write(&line());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(seen), &mut line).unwrap();
        assert_eq!(
            line,
            "{\"target\":\"access\",\"timestamp\":\"2026-10-01T08:00:00Z\",\"http.method\":\"POST\",\
             \"http.route\":\"/v1/claims\",\"http.status\":201,\"duration_us\":250,\"request.id\":\"r-1\"}\n"
        );
    }

    /// Blocks until its sender is dropped.
    struct Blocked(mpsc::Receiver<()>);

    impl std::io::Write for Blocked {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_of_requests_leave_space_for_those_of_the_gateway() {
        let (_blocks, until) = mpsc::channel();
        let writer = LineWriter::start(Blocked(until), 4096).unwrap();
        let access = AccessLog::new(writer.clone());
        for _ in 0..1000 {
            access.write(&line());
        }
        let dropped = writer.dropped();
        assert!(dropped > 0);
        writer.push(&[b'x'; 1000], 100);
        assert_eq!(writer.dropped(), dropped);
    }
}
