//! Replies that mean "not executed, not here or not now". A command with such a reply may be sent again.

use redis::{ServerErrorKind, Value};

use super::address::Address;

/// Place or time for sending a command again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Redirect {
    /// Another node owns the slot now. No address: the node that replied does not know it.
    Moved { slot: u16, to: Option<Address> },
    /// The slot is moving to another node, which has the key.
    Ask { to: Option<Address> },
    /// Later, and perhaps at another node. Holds the code.
    Later(&'static str),
}

impl Redirect {
    /// Reads a reply; `from` is the address of the node that sent it. Nothing, if the command was executed or finally refused. NOREPLICAS is
    /// not among them: it lasts for as long as replicas are missing.
    pub(super) fn of(reply: &Value, from: Option<&str>) -> Option<Self> {
        let Value::ServerError(error) = reply else { return None };
        let kind = error.kind()?;
        let mut words = error.details().unwrap_or_default().split(' ');
        let slot = words.next().and_then(|slot| slot.parse().ok()).filter(|slot| *slot < super::slots::SLOTS);
        let to = || address(words.next().unwrap_or_default(), from);
        Some(match kind {
            ServerErrorKind::Moved => Self::Moved { slot: slot?, to: { to }() },
            ServerErrorKind::Ask => Self::Ask { to: { to }() },
            ServerErrorKind::TryAgain => Self::Later("TRYAGAIN"),
            ServerErrorKind::ClusterDown => Self::Later("CLUSTERDOWN"),
            ServerErrorKind::ReadOnly => Self::Later("READONLY"),
            ServerErrorKind::BusyLoading => Self::Later("LOADING"),
            ServerErrorKind::MasterDown => Self::Later("MASTERDOWN"),
            _ => return None,
        })
    }

    /// Returns the code of the reply.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Moved { .. } => "MOVED",
            Self::Ask { .. } => "ASK",
            Self::Later(code) => code,
        }
    }
}

/// Parses the address in a redirect. A node that does not know a host's name leaves it out, or writes `?`; it means its own
/// then.
pub(super) fn address(text: &str, from: Option<&str>) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    if host.is_empty() || host == "?" {
        let port = port.parse().ok()?;
        return from.and_then(Address::parse).map(|from| Address { port, ..from });
    }
    Address::parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<Redirect> {
        Redirect::of(&redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap(), Some("n1:1"))
    }

    #[test]
    fn replies_of_commands_that_were_not_executed_are_told_apart() {
        let at = |host: &str, port| Some(Address { host: host.into(), port });
        assert_eq!(read("MOVED 3999 10.0.0.1:6381"), Some(Redirect::Moved { slot: 3999, to: at("10.0.0.1", 6381) }));
        assert_eq!(read("MOVED 3999 ::1:6381"), Some(Redirect::Moved { slot: 3999, to: at("::1", 6381) }));
        assert_eq!(read("MOVED 3999 :6381"), Some(Redirect::Moved { slot: 3999, to: at("n1", 6381) }));
        assert_eq!(read("ASK 3999 ?:6381"), Some(Redirect::Ask { to: at("n1", 6381) }));
        for code in ["TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING", "MASTERDOWN"] {
            assert_eq!(read(&format!("{code} why")).map(|redirect| redirect.code()), Some(code));
        }
        for other in
            ["NOREPLICAS x", "ERR x", "OOM x", "NOSCRIPT x", "CROSSSLOT x", "MOVED x", "MOVED 16384 h:1", "UNBLOCKED x"]
        {
            assert_eq!(read(other), None, "{other}");
        }
        assert_eq!(Redirect::of(&Value::Nil, None), None);
    }
}
