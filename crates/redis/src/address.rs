//! Address of a server.

use std::fmt;

/// Host and port of a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Address {
    /// Name or IP address, without brackets.
    pub(super) host: String,
    /// Port.
    pub(super) port: u16,
}

impl Address {
    /// Parses `host:port`, also of an IPv6 address without brackets, as servers write it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| Self { host: host.into(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_are_parsed() {
        for (text, shown) in [("10.0.0.1:7000", "10.0.0.1:7000"), ("::1:7000", "[::1]:7000"), ("a.b:1", "a.b:1")] {
            assert_eq!(Address::parse(text).map(|address| address.to_string()).as_deref(), Some(shown));
        }
        for wrong in ["", "a", "a:", ":1", "a:0", "a:70000"] {
            assert_eq!(Address::parse(wrong), None, "{wrong}");
        }
    }
}
