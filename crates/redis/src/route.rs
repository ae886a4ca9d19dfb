//! Commands for a key, and their route to a server.

use std::sync::Arc;

use super::commands::Commands;
use super::connection::Purpose;
use super::keys::KeyName;
use super::limit::CallTime;
use super::primary::Primary;

/// Commands of a key, which can be sent again.
pub(super) struct Sending<'a> {
    pub(super) key: &'a KeyName,
    pub(super) purpose: Purpose,
    /// Time of the call that it is part of.
    pub(super) time: CallTime,
    pub(super) command: &'a (dyn Fn() -> Commands + Sync),
}

/// Destination of the commands for a key: a server, and a connection to it.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) primary: Arc<Primary>,
    pub(super) worker: usize,
}
