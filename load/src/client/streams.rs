//! Bodies that are longer than any buffer, both ways.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{CallError, Connection, Head, READ_BYTES, Stream};

/// Longest time for a whole body.
const STREAM_TIMEOUT: Duration = Duration::from_mins(5);

/// Bytes written or read at once.
const PIECE: usize = 64 * 1024;

impl Connection {
    /// Sends a body of this length. Returns the status and the response's body as a number.
    pub(crate) async fn upload(&mut self, path: &str, bytes: u64) -> Result<(u16, Option<u64>), CallError> {
        let mut stream = self.ready().await?;
        self.write_head("POST", path, "", bytes);
        let sending = async {
            stream.send(&self.sent).await.map_err(|_| CallError::Broken)?;
            let (piece, mut left) = (vec![b'x'; PIECE], bytes);
            while left > 0 {
                let next = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
                stream.write_all(&piece[..next]).await.map_err(|_| CallError::Broken)?;
                left -= length(next);
            }
            stream.flush().await.map_err(|_| CallError::Broken)
        };
        timeout(STREAM_TIMEOUT, sending).await.map_err(|_| CallError::TimedOut)??;
        let receiving = Self::receive(&mut self.received, &mut stream);
        let head = timeout(STREAM_TIMEOUT, receiving).await.map_err(|_| CallError::TimedOut)??;
        let body = std::str::from_utf8(&self.received[head.begins..head.ends]).ok();
        Ok((head.status, body.and_then(|body| body.parse().ok())))
    }

    /// Sends a request with a key and reads its response without keeping it. Returns its status and length.
    pub(crate) async fn download(&mut self, path: &str, key: &str) -> Result<(u16, u64), CallError> {
        let mut stream = self.ready().await?;
        self.write_head("POST", path, key, 0);
        let exchange = async {
            stream.send(&self.sent).await.map_err(|_| CallError::Broken)?;
            self.received.clear();
            let head = Self::read_head(&mut self.received, &mut stream).await?;
            let mut got = length(self.received.len() - head.begins);
            let mut piece = vec![0; PIECE];
            while got < length(head.ends - head.begins) {
                match stream.read(&mut piece).await {
                    Ok(0) | Err(_) => return Err(CallError::Broken),
                    Ok(read) => got += length(read),
                }
            }
            Ok((head.status, got))
        };
        timeout(STREAM_TIMEOUT, exchange).await.map_err(|_| CallError::TimedOut)?
    }

    async fn read_head(received: &mut Vec<u8>, stream: &mut Stream) -> Result<Head, CallError> {
        loop {
            received.reserve(READ_BYTES);
            match stream.read_buf(received).await {
                Ok(0) | Err(_) => return Err(CallError::Broken),
                Ok(_) => {}
            }
            if let Some(head) = Head::read(received).map_err(|()| CallError::Unreadable)? {
                return Ok(head);
            }
        }
    }
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
