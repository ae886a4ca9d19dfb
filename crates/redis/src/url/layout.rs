//! The servers of a URL: one server, Sentinels with the name of their primary, or seeds of a cluster.

use crate::address::Address;
use crate::invalid_url::InvalidUrl;

/// Port of a server whose URL names none.
const PORT: u16 = 6379;
/// Port of a Sentinel whose URL names none.
const SENTINEL_PORT: u16 = 26379;

const CLUSTER_SHAPE: &str = "expected redis+cluster://[user[:password]@]host[:port],host[:port],…, or rediss+cluster:// for \
                             TLS, with special characters in user and password percent-encoded";
const SENTINEL_SHAPE: &str = "expected redis+sentinel://[user[:password]@]host[:port],host[:port],…/NAME[/db], where NAME \
                              is the name of the primary in the Sentinels' configuration, or rediss+sentinel:// for TLS";

/// The servers of a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) enum Layout {
    /// One server.
    Single,
    /// The primary that Sentinels know by a name.
    Sentinel {
        /// The Sentinels.
        sentinels: Vec<Address>,
        /// The name.
        name: String,
    },
    /// A cluster.
    Cluster {
        /// Nodes that are asked first.
        seeds: Vec<Address>,
    },
}

/// Splits a URL into its servers and an equivalent URL of one server: the first one, with the same user and query.
pub(super) fn split(text: &str) -> Result<(Layout, String), InvalidUrl> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok((Layout::Single, text.into())) };
    let (base, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(at);
    let (user, hosts) = authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
    if kind.is_empty() {
        if hosts.contains(',') {
            return Err(InvalidUrl::new(
                "redis:// names one host; several are written as redis+cluster://h1:6379,h2:6379, or as \
                 redis+sentinel://s1:26379,s2:26379/NAME",
            ));
        }
        return Ok((Layout::Single, text.into()));
    }
    let (shape, port) = match kind {
        "cluster" => (CLUSTER_SHAPE, PORT),
        "sentinel" => (SENTINEL_SHAPE, SENTINEL_PORT),
        _ => {
            return Err(InvalidUrl::new(
                "a scheme is redis, redis+sentinel or redis+cluster, or one of rediss for TLS",
            ));
        }
    };
    let (path, query) = tail.split_at(tail.find(['?', '#']).unwrap_or(tail.len()));
    let hosts = addresses(hosts, port, shape)?;
    let user = if authority.contains('@') { format!("{user}@") } else { String::new() };
    let (layout, db) = if kind == "cluster" {
        if !matches!(path, "" | "/" | "/0") {
            return Err(InvalidUrl::new(
                "a cluster has database 0 only; leave out what follows the hosts, or write /0",
            ));
        }
        (Layout::Cluster { seeds: hosts.clone() }, "")
    } else {
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let name = parts.next().unwrap_or_default();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(InvalidUrl::new(SENTINEL_SHAPE));
        }
        (Layout::Sentinel { sentinels: hosts.clone(), name: name.into() }, parts.next().unwrap_or_default())
    };
    let first = hosts.first().ok_or_else(|| InvalidUrl::new(shape))?;
    Ok((layout, format!("{base}://{user}{first}/{db}{query}")))
}

fn addresses(hosts: &str, port: u16, shape: &str) -> Result<Vec<Address>, InvalidUrl> {
    let mut addresses = Vec::new();
    for host in hosts.split(',') {
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        let address = if has_port { Address::parse(host) } else { Address::parse(&format!("{host}:{port}")) };
        // An address in brackets apart, colons separate host and port once.
        let address = address.filter(|address| host.starts_with('[') || !address.host.contains(':'));
        let address = address.ok_or_else(|| InvalidUrl::new(shape))?;
        if addresses.contains(&address) {
            return Err(InvalidUrl::new(format!("it names {address} twice; name each host once")));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_split_and_ports_have_defaults() {
        let (layout, first) = split("redis+cluster://me:p%40w@a:7000,[::1]:7001,c?prefix=x:").unwrap();
        let Layout::Cluster { seeds } = layout else { panic!("{layout:?}") };
        assert_eq!(seeds.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a:7000", "[::1]:7001", "c:6379"]);
        assert_eq!(first, "redis://me:p%40w@a:7000/?prefix=x:");

        let (layout, first) = split("rediss+sentinel://:pw@s1,s2:5/mymaster/2?ca=x").unwrap();
        let Layout::Sentinel { sentinels, name } = layout else { panic!("{layout:?}") };
        assert_eq!(sentinels.iter().map(ToString::to_string).collect::<Vec<_>>(), ["s1:26379", "s2:5"]);
        assert_eq!((&*name, &*first), ("mymaster", "rediss://:pw@s1:26379/2?ca=x"));
        assert_eq!(split("redis://u:p@h:1/2?a").unwrap(), (Layout::Single, "redis://u:p@h:1/2?a".into()));
    }
}
