//! Calls whose response comes much later than their request.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Answer, CallError, Connection, READ_BYTES, Target};

impl Connection {
    /// Returns a connection for calls that take up to `longest`.
    pub(crate) fn waiting(target: Arc<Target>, longest: Duration) -> Self {
        Self { longest, ..Self::new(target) }
    }

    /// Sends a request. [`Self::answer`] reads its response.
    pub(crate) async fn send(&mut self, path: &str, body: &str) -> Result<(), CallError> {
        let mut stream = self.ready().await?;
        self.write_head("POST", path, "", body.len());
        self.sent.extend_from_slice(body.as_bytes());
        let sending = timeout(self.longest, stream.send(&self.sent)).await;
        sending.map_err(|_| CallError::TimedOut)?.map_err(|_| CallError::Broken)?;
        self.stream = Some(stream);
        Ok(())
    }

    /// Reads the response to the request that [`Self::send`] has sent.
    pub(crate) async fn answer(&mut self) -> Result<Answer<'_>, CallError> {
        let mut stream = self.stream.take().ok_or(CallError::NotConnected)?;
        self.received.reserve(READ_BYTES);
        let receiving = timeout(self.longest, Self::receive(&mut self.received, &mut stream)).await;
        let head = receiving.map_err(|_| CallError::TimedOut)??;
        Ok(self.completed(stream, &head))
    }
}
