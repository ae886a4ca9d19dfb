//! The members that the servers name in their shared configuration.

use oncegate_coordination::url::Address;

/// The node of the configuration.
pub(super) const CONFIGURATION: &str = "/zookeeper/config";

/// Most members that are known at once.
const MEMBERS_MAX: usize = 31;

/// The port of members that name none.
const PORT: u16 = 2181;

/// Returns these members, and the members in the configuration that have an address for clients.
pub(super) fn with_listed(members: &[Address], configuration: &[u8]) -> Vec<Address> {
    let mut members = members.to_vec();
    let text = std::str::from_utf8(configuration).unwrap_or_default();
    for address in text.lines().filter_map(listed) {
        if !members.contains(&address) && members.len() < MEMBERS_MAX {
            members.push(address);
        }
    }
    members
}

/// Reads a line such as `server.1=host:2888:3888:participant;0.0.0.0:2181`. An address of all interfaces is at the member's host.
fn listed(line: &str) -> Option<Address> {
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
        let own = [Address { host: "z1".into(), port: 2181 }];
        let configuration = b"server.1=z1:2888:3888:participant;0.0.0.0:2181\nserver.2=z2:2888:3888:participant;2182\n\
            server.3=z3:2888:3888:participant;10.0.0.3:2181\nserver.4=z4:2888:3888:participant\nversion=0";
        let members: Vec<_> = with_listed(&own, configuration).iter().map(ToString::to_string).collect();
        assert_eq!(members, ["z1:2181", "z2:2182", "10.0.0.3:2181"]);
        assert_eq!(with_listed(&own, b"\xff"), own);
    }
}
