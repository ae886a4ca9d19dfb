//! The URL of a ZooKeeper engine.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

pub use oncegate_coordination::url::InvalidUrl;
use oncegate_coordination::url::{self, Dialect};
use oncegate_core::terms::Span;

/// The forms of a URL.
pub(super) const FORM: &str = "zookeeper://[USER:PASSWORD@]HOST:2181,HOST:2181,HOST:2181[/CHROOT]";

const PREFIX: &str = "/oncegate";
const SESSION: Duration = Duration::from_secs(6);
const SESSIONS: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(20);

/// The URLs of the engine.
pub(super) static DIALECT: Dialect = Dialect {
    engine: "a ZooKeeper engine",
    scheme: "zookeeper",
    form: FORM,
    port: 2181,
    own_keys: &["session", "heap"],
};

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Url {
    /// Part that all engines of this kind have. Its path is the chroot, which must exist.
    pub(super) common: url::Url,
    /// The node above all nodes of the engine: the prefix within the chroot.
    pub(super) root: String,
    /// Time without a request after which a session ends.
    pub(super) session: Duration,
    /// The heap of a server in bytes, if the URL names it.
    pub(super) heap: Option<u64>,
}

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, InvalidUrl> {
        let common = url::Url::parse(text, &DIALECT)?;
        let root = format!("{}{}", common.path, common.prefix.as_deref().unwrap_or(PREFIX));
        let is_reserved = |name: &str| [".", "..", ""].contains(&name);
        if root.split('/').skip(1).any(is_reserved) || root.starts_with("/zookeeper/") {
            return Err(DIALECT.error("ZooKeeper has no nodes called `.` or `..`, and /zookeeper is its own"));
        }
        let (mut session, mut heap) = (SESSION, None);
        for (key, value) in &common.own {
            if *key == "session" {
                let span = value.parse::<Span>().ok().map(|Span(span)| span).filter(|span| SESSIONS.contains(span));
                session = span.ok_or_else(|| DIALECT.error("session is 2s to 20s, such as session=6s"))?;
            } else {
                let shape = || DIALECT.error("heap is the heap of a server, such as heap=4GiB or 512MiB");
                heap = Some(url::size(value).ok_or_else(shape)?);
            }
        }
        Ok(Self { common, root, session, heap })
    }

    /// Returns the nodes from below the chroot down to the root.
    pub(super) fn above(&self) -> Vec<String> {
        let ends = self.root.match_indices('/').map(|(at, _)| at).chain([self.root.len()]);
        ends.filter(|end| *end > self.common.path.len()).map(|end| self.root[..end].to_owned()).collect()
    }
}

impl fmt::Display for Url {
    /// Writes hosts, ports and the root, without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.common.addresses(), self.root)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed() {
        let url =
            Url::parse("zookeeper://me:s%23cret@z1,z2:2182,[::1]:2181/shop?tick=50ms&session=4s&heap=4GiB").unwrap();
        assert_eq!(url.to_string(), "z1:2181,z2:2182,[::1]:2181/shop/oncegate");
        assert_eq!((url.session, url.heap), (Duration::from_secs(4), Some(4 << 30)));
        let credentials = url.common.credentials.unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("me", "s#cret"));
        for (url, root) in [
            ("zookeeper://z1", "/oncegate"),
            ("zookeepers://z1/", "/oncegate"),
            ("zookeeper://z1/a/b?prefix=c/d", "/a/b/c/d"),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!((url.root.as_str(), url.session, url.heap), (root, SESSION, None));
        }
        assert_eq!(Url::parse("zookeeper://z1/a/b?prefix=c/d").unwrap().above(), ["/a/b/c", "/a/b/c/d"]);
        assert_eq!(Url::parse("zookeeper://z1").unwrap().above(), ["/oncegate"]);
    }

    #[test]
    fn errors_say_what_to_write_and_do_not_repeat_the_url() {
        for (url, hint) in [
            ("zookeeper:/hunter2", "expected zookeeper://"),
            ("zookeeper://u:hunter2@", "expected zookeeper://"),
            ("zookeeper://:hunter2@z1", "no user"),
            ("zookeeper://u:hunter2@z1,z1:2181", "z1:2181 twice"),
            ("zookeeper://u:hunter2@z1/a/../b", "called `.` or `..`"),
            ("zookeeper://u:hunter2@z1/zookeeper/x", "its own"),
            ("zookeeper://u:hunter2@z1?session=60s", "2s to 20s"),
            ("zookeeper://u:hunter2@z1?session=1s", "2s to 20s"),
            ("zookeeper://u:hunter2@z1?heap=4G", "heap=4GiB"),
            ("zookeeper://u:hunter2@z1?ca=a.pem", "for zookeepers://"),
            ("zookeeper://u:hunter2@z1?sesion=6s", "did you mean `session`"),
        ] {
            let error = Url::parse(url).expect_err(url).to_string();
            assert!(error.contains(hint), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let url = Url::parse("zookeeper://me:hunter2@z1").unwrap();
        assert!(!format!("{url:?} {url}").contains("hunter2"));
    }
}
