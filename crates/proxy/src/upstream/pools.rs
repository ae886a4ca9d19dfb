//! Pools of connections to the servers of an upstream, one for each core: a connection is served by the core that
//! opened it, and a request on a connection of another core would wake both cores.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Buf;
use hyper::body::Body;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::connector::Connector;

/// Idle connections that are kept open to each server, by all pools together.
const IDLE_CONNECTIONS_MAX: usize = 256;

thread_local! {
    /// Number of this thread among those that have sent requests.
    static NUMBER: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// The pools of one use.
pub(crate) struct Pools<B>(Box<[Client<Connector, B>]>);

impl<B> Pools<B>
where
    B: Body + Send + 'static,
    B::Data: Buf + Send,
{
    /// Returns pools that close connections once they are idle for this time.
    pub(crate) fn new(connector: &Connector, idle: Duration) -> Self {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(idle);
        builder.http1_max_buf_size(super::BUFFER_BYTES);
        builder.pool_max_idle_per_host(IDLE_CONNECTIONS_MAX.div_ceil(count));
        Self((0..count).map(|_| builder.build(connector.clone())).collect())
    }

    /// Returns the pool of this thread.
    pub(crate) fn here(&self) -> &Client<Connector, B> {
        &self.0[NUMBER.with(|number| number % self.0.len())]
    }
}
