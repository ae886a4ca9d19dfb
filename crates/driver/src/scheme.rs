//! The scheme of an engine: its URLs, its capabilities, and how it is opened. Each engine exports one; the table of all is in
//! the program.

use std::fmt;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use oncegate_core::clock::Clock;
use oncegate_core::engine::{Capabilities, Engine};

use crate::backup::Summary;

/// The scheme of an engine.
pub struct Scheme {
    /// The parts of its URLs before the colon.
    pub names: &'static [&'static str],
    /// The forms of its URLs, for messages.
    pub forms: &'static [&'static str],
    /// Parses a URL; reads no file, and connects to no server.
    pub parse: fn(url: &str) -> Result<(), OpenError>,
    /// Checks the certificate and key files that a URL names. Blocks.
    pub check_files: fn(url: &str) -> Result<(), OpenError>,
    /// Returns the addresses of the servers that a URL names, in lower case. URLs of this scheme that have one in common name one store
    /// server. Empty if the store is on this machine, or the URL is not valid.
    pub addresses: fn(url: &str) -> Vec<String>,
    /// The capabilities of such an engine at best; an open one may have fewer.
    pub capabilities: Capabilities,
    /// Returns a sentence about the faults that the engine of a valid URL survives, and the shortest deadline that
    /// suits it.
    pub promise: fn(url: &str) -> Promise,
    /// Opens the engine. The store need not be up, unless it is a folder of this machine. Reads files, so it may block.
    pub open: fn(url: &str, host: Host) -> Opened,
    /// Restores a backup into an empty store. `None` if the engine makes no backups. Blocks.
    pub restore: Option<Restore>,
    /// Checks the servers of a valid URL, or its folder, and says more than that the engine answers. `None` if opening such an
    /// engine and probing it is the check.
    pub inspect: Option<Inspect>,
}

/// Checks the servers or the folder of a valid URL. Writes nothing, and keeps no gateway from its work.
pub type Inspect = fn(url: String) -> BoxFuture<'static, Inspection>;

/// Answer of a check of servers. No text contains a password.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inspection {
    /// Facts, one line each.
    pub facts: Vec<String>,
    /// Facts that an operator should know, and what to do.
    pub warnings: Vec<String>,
    /// Reasons why the engine cannot be used, or not all of its servers, and what to do.
    pub problems: Vec<String>,
    /// The server, or the cluster, as it names itself.
    pub server: Option<ServerName>,
}

/// Name that a server or a cluster has given itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerName {
    /// The name.
    pub name: String,
    /// No other has the same.
    pub is_unique: bool,
}

impl Inspection {
    /// Returns the answer of a check that found nothing but this problem.
    pub fn of_problem(problem: impl Into<String>) -> Self {
        Self { problems: vec![problem.into()], ..Self::default() }
    }
}

/// Restores a backup into the store of a URL, completely or not at all.
pub type Restore = fn(url: &str, backup: &mut dyn Read) -> Result<Summary, OpenError>;

/// Faults that an engine survives, for operators.
#[derive(Debug)]
pub struct Promise {
    /// In one sentence.
    pub text: String,
    /// Calls with a shorter deadline would fail; zero if any deadline suits.
    pub deadline_min: Duration,
    /// Longest result that a claim may have, where the store has a limit.
    pub result_bytes_max: Option<usize>,
}

impl Promise {
    /// Returns a promise of an engine that suits any deadline, and any result that a gateway accepts.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), deadline_min: Duration::ZERO, result_bytes_max: None }
    }
}

/// An open engine, or the reason why it could not be opened.
pub type Opened = Result<Arc<dyn Engine>, OpenError>;

/// Resources that a process provides to its engines.
pub struct Host {
    /// The clock, for stores that have none.
    pub clock: Arc<dyn Clock>,
    /// Runtimes for connections, used round-robin, so that calls from them find a connection on their own core. If empty, the
    /// current runtime is used.
    pub cores: Vec<Handle>,
}

/// The reason why an engine could not be opened. Never repeats a password.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(String);

impl OpenError {
    /// Creates an error: the problem with the URL or the store, and what to write instead.
    pub fn new(why: impl fmt::Display) -> Self {
        Self(why.to_string())
    }
}

/// The addresses of a store on this machine.
pub fn no_servers(_: &str) -> Vec<String> {
    Vec::new()
}

/// The file check of an engine whose URLs name no files.
pub fn no_files(_: &str) -> Result<(), OpenError> {
    Ok(())
}
