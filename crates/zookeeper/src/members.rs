//! The members that the servers name in their shared configuration.

use oncegate_coordination::members;
use oncegate_coordination::url::Address;

/// The node of the configuration.
pub(super) const CONFIGURATION: &str = "/zookeeper/config";

/// The port of members that name none.
const PORT: u16 = 2181;

/// Returns the addresses for clients of the members in the configuration, where they have one.
pub(super) fn listed(configuration: &[u8]) -> Vec<Address> {
    let text = std::str::from_utf8(configuration).unwrap_or_default();
    text.lines().filter_map(address_of).take(members::MEMBERS_MAX).collect()
}

/// Returns the name of the ensemble: the addresses by which its servers know one another. Two ensembles in separate networks may have
/// the same.
pub(super) fn ensemble(configuration: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(configuration).ok()?;
    let server = |line: &str| -> Option<String> {
        let (_, server) = line.strip_prefix("server.")?.split_once('=')?;
        let mut parts = server.split(':');
        Some(format!("{}:{}", members::text(parts.next()?), members::text(parts.next()?)))
    };
    let servers: Vec<_> = text.lines().filter_map(server).take(members::MEMBERS_MAX).collect();
    (!servers.is_empty()).then(|| format!("ZooKeeper of {}", servers.join(", ")))
}

/// Reads a line such as `server.1=host:2888:3888:participant;0.0.0.0:2181`. An address of all interfaces is at the member's host.
fn address_of(line: &str) -> Option<Address> {
    let (server, client) = line.strip_prefix("server.")?.split_once('=')?.1.split_once(';')?;
    let host = server.split(':').next()?;
    let client = client.trim();
    let client = if client.contains(':') { client.to_owned() } else { format!("{host}:{client}") };
    let address = Address::parse(&client, PORT)?;
    let is_everywhere = ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"].contains(&address.host.as_str());
    Some(if is_everywhere { Address { host: host.to_owned(), ..address } } else { address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_learnt_where_they_have_an_address_for_clients() {
        let configuration = b"server.1=z1:2888:3888:participant;0.0.0.0:2181\nserver.2=z2:2888:3888:participant;2182\n\
            server.3=z3:2888:3888:participant;10.0.0.3:2181\nserver.4=z4:2888:3888:participant\nversion=0";
        let members: Vec<_> = listed(configuration).iter().map(ToString::to_string).collect();
        assert_eq!(members, ["z1:2181", "z2:2182", "10.0.0.3:2181"]);
        assert!(listed(b"\xff").is_empty());
        assert_eq!(ensemble(configuration).as_deref(), Some("ZooKeeper of z1:2888, z2:2888, z3:2888, z4:2888"));
        assert_eq!((ensemble(b"version=0"), ensemble(b"\xff")), (None, None));
    }
}
