//! The limits of a listener and its connections.

use std::time::Duration;

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections that are open at once.
    pub connections: usize,
    /// Header fields of a request.
    pub header_fields: usize,
    /// Bytes of a request's head: its request line and its header fields.
    pub head_bytes: usize,
    /// Bytes of a body that is read, or skipped because its request was refused before.
    pub body_bytes: usize,
    /// Time for a client to send the rest of a head.
    pub head_timeout: Duration,
    /// Time for a client to send a body.
    pub body_timeout: Duration,
    /// Time for a client to send its next request.
    pub idle_timeout: Duration,
    /// Time for a client to read a response.
    pub write_timeout: Duration,
    /// Bytes of all responses that wait for their clients to read them.
    pub unread_bytes: usize,
}
