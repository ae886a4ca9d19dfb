//! The traits that an engine implements for its protocol.

use futures_util::future::BoxFuture;
use oncegate_core::engine::Determinate;

use super::{Queue, Server};

/// A queued call.
pub trait Call: Send + 'static {
    /// Answers that the call was not sent.
    fn refuse(self, why: &Determinate);
}

/// Opens connections for one worker.
pub trait Connector: Send + Sync + 'static {
    /// The connections.
    type Connection: Connection;

    /// Returns the server that the connections lead to. The worker reports to it when they are opened and lost.
    fn server(&self) -> &Server;

    /// Opens a connection and checks that the server is fit to be used. Bounded in time by the implementation.
    ///
    /// # Errors
    /// The reason why there is no connection. Queued calls are refused for the same reason.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, Determinate>> + Send;
}

/// An open connection. One worker owns it, and drops it after its first failure: from then on replies cannot be matched
/// to calls.
pub trait Connection: Send + 'static {
    /// Type of the queued calls.
    type Call: Call;
    /// Result of an exchange, for the connection.
    type Done: Send + 'static;

    /// Returns how many exchanges may be under way at once on this connection.
    fn exchanges_max(&self) -> usize {
        1
    }

    /// Returns whether another exchange may begin. If not, calls wait for the next connection.
    fn fitness(&self) -> Fitness {
        Fitness::Good
    }

    /// Takes from the queue the calls that go out together, and sends them. Nothing, if no call is left to send. Exchanges
    /// are polled in the order in which they were returned, and must not send anything before.
    fn send(&mut self, queue: &mut Queue<Self::Call>) -> Option<Exchange<Self::Done>>;

    /// Sends a command that checks the connection, and the presence of the server's data.
    fn heartbeat(&mut self) -> Exchange<Self::Done>;

    /// Checks again what [`Connector::connect`] has checked.
    fn check(&mut self) -> Exchange<Self::Done> {
        self.heartbeat()
    }

    /// Learns from a finished exchange, before the next one is sent. `queue` holds calls that waited for it.
    fn finish(&mut self, done: Self::Done, queue: &mut Queue<Self::Call>) -> Fitness;
}

/// Commands that were sent together, up to their replies. It answers its calls itself; a call that is dropped without an
/// answer has an uncertain outcome.
pub type Exchange<Done> = BoxFuture<'static, Result<Done, Lost>>;

/// Fitness of a connection for further use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fitness {
    /// May be used again.
    Good,
    /// May not be used again. It is replaced once the exchanges in progress have finished.
    Retire(&'static str),
}

/// Reason for the loss of a connection.
pub struct Lost {
    /// The reason.
    pub why: String,
    /// No new connection is opened before this has finished; calls are refused until then.
    pub reconnect_after: Option<BoxFuture<'static, ()>>,
}

impl From<String> for Lost {
    fn from(why: String) -> Self {
        Self { why, reconnect_after: None }
    }
}
