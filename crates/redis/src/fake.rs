//! A server for unit tests, at the other end of a stream.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::time::sleep;

use super::stream::Stream;

/// A reply, and how long the server takes for it.
pub(super) type FakeReply = (Duration, String);

/// Opens a stream to a server that answers each command by its words. It answers `ECHO` alone.
pub(super) fn stream(mut answer: impl FnMut(&[String]) -> FakeReply + Send + 'static) -> Stream {
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let mut far = BufReader::new(far);
        while let Some(words) = command(&mut far).await {
            let (takes, reply) = match &words[..] {
                [echo, token] if echo == "ECHO" => (Duration::ZERO, format!("${}\r\n{token}\r\n", token.len())),
                words => answer(words),
            };
            sleep(takes).await;
            if far.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    });
    Box::new(near)
}

/// Reads a command; nothing at the end of the stream.
async fn command(far: &mut BufReader<DuplexStream>) -> Option<Vec<String>> {
    let count = header(far).await?;
    let mut words = Vec::new();
    for _ in 0..count {
        // The line end belongs to the word.
        let mut word = vec![0; header(far).await? + 2];
        far.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8(word).unwrap().trim_end().to_owned());
    }
    Some(words)
}

/// Reads a count of words or of bytes.
async fn header(far: &mut BufReader<DuplexStream>) -> Option<usize> {
    let mut line = String::new();
    far.read_line(&mut line).await.ok()?;
    line.trim_end().get(1..)?.parse().ok()
}
