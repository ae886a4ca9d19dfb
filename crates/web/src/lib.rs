//! Common part of the HTTP interfaces: problems, JSON bodies, the rules of every head, request IDs, the auth throttle.
//! No routes.

pub mod auth_throttle;
pub mod body;
pub mod choice;
mod explain;
pub mod fields;
pub mod head;
pub mod lock;
pub mod nothing;
pub mod prefer;
pub mod problem;
pub mod recent;
pub mod record;
pub mod rejection;
pub mod request_id;
pub mod response;

use oncegate_core::limits::Limits;

/// Returns the part of the limits that a listener applies.
pub fn listener_limits(limits: &Limits) -> oncegate_transport::Limits {
    oncegate_transport::Limits {
        connections: limits.connections,
        header_fields: limits.headers,
        head_bytes: limits.header_bytes,
        body_bytes: limits.body_bytes,
        head_timeout: limits.header_read_timeout.0,
        body_timeout: limits.body_read_timeout.0,
        idle_timeout: limits.idle_timeout.0,
        write_timeout: limits.write_timeout.0,
        unread_bytes: limits.unread_answer_bytes,
    }
}
