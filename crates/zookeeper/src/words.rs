//! Reports of a member: the four-letter words `srvr`, which every server allows by default, and `mntr`.

use oncegate_coordination::url::{Address, Url};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::client;

/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The first release that loses no acknowledged write while a member synchronises, as far as is known.
const DURABLE: (u32, u32, u32) = (3, 9, 4);

/// Asks a member. `None`: it does not answer, or does not allow the word.
pub(super) async fn ask(url: &Url, member: &Address, word: &str) -> Option<String> {
    send(url, member, word).await.filter(|answer| is_allowed(answer))
}

/// Asks a member. `None`: it does not answer.
pub(super) async fn send(url: &Url, member: &Address, word: &str) -> Option<String> {
    let mut stream = client::dial(url, member).await.ok()?;
    stream.write_all(word.as_bytes()).await.ok()?;
    stream.flush().await.ok()?;
    let mut answer = Vec::new();
    // An end of TLS that is not announced is an error, after all was read.
    let _ = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
    String::from_utf8(answer).ok().filter(|answer| !answer.is_empty())
}

/// Returns whether this is the answer to a word that the member allows.
pub(super) fn is_allowed(answer: &str) -> bool {
    !answer.contains("whitelist")
}

/// Returns the mode in the answer to `srvr`: `leader`, `follower`, `observer`, `standalone`.
pub(super) fn mode(srvr: &str) -> Option<&str> {
    srvr.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::trim)
}

/// Returns the version in the answer to `srvr`.
pub(super) fn version(srvr: &str) -> Option<&str> {
    let version = srvr.lines().find_map(|line| line.strip_prefix("Zookeeper version: "))?;
    version.split(['-', ',', ' ']).next()
}

/// Returns whether servers of this version keep acknowledged writes.
pub(super) fn is_durable(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Some(major)), Some(Some(minor)), Some(Some(patch))) => (major, minor, patch) >= DURABLE,
        _ => false,
    }
}

/// Returns the bytes of all nodes in the answer to `mntr`.
pub(super) fn data_bytes(mntr: &str) -> Option<u64> {
    mntr.lines().find_map(|line| line.strip_prefix("zk_approximate_data_size")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let srvr = "Zookeeper version: 3.9.4-7246445ec281f3dbf53dc54e970c914f39713903, built on 2025-08-19 19:53 UTC\nMode: leader\n";
        assert_eq!(version(srvr), Some("3.9.4"));
        assert_eq!((mode(srvr), mode("Mode:")), (Some("leader"), None));
        assert!(is_allowed(srvr));
        assert!(!is_allowed("srvr is not executed because it is not in the whitelist."));
        assert_eq!(version("This ZooKeeper instance is not currently serving requests"), None);
        assert_eq!(data_bytes("zk_version\t3.9.4\nzk_approximate_data_size\t1234\n"), Some(1234));
        assert_eq!(data_bytes("zk_approximate_data_size\tx"), None);
    }

    #[test]
    fn releases_that_may_lose_writes_are_not_durable() {
        for durable in ["3.9.4", "3.9.5", "3.10.0", "4.0.0"] {
            assert!(is_durable(durable), "{durable}");
        }
        for not in ["3.8.0", "3.8.6", "3.9.3", "3.9", "", "x.y.z"] {
            assert!(!is_durable(not), "{not}");
        }
    }
}
