//! Addresses of peers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// Addresses with a common prefix: `10.0.0.0/8`, `::1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Reports whether an address is one of these.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u128::from(own.to_bits()), u128::from(other.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        (own ^ other).checked_shr(width - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
            let address: IpAddr = address.parse().ok()?;
            let width = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(width), |bits| bits.parse().ok()).filter(|bits| *bits <= width)?;
            // Peers are compared by their addresses of IPv4, where they have one.
            match address.to_canonical() {
                canonical if canonical.is_ipv4() == address.is_ipv4() => Some(Self { address, bits }),
                mapped => Some(Self { address: mapped, bits: bits.checked_sub(96)? }),
            }
        };
        parse().ok_or_else(|| {
            format!("{text:?} is no address; write one like \"10.0.0.7\", or a network like \"10.0.0.0/8\"")
        })
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Serialize for Network {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_the_addresses_of_its_prefix() {
        let contains =
            |network: &str, address: &str| network.parse::<Network>().unwrap().contains(address.parse().unwrap());
        for (network, address) in [
            ("10.0.0.0/8", "10.9.9.9"),
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0/0", "8.8.8.8"),
            ("::/0", "::1"),
            ("10.0.0.0/8", "::ffff:10.1.1.1"),
        ] {
            assert!(contains(network, address), "{network} {address}");
        }
        for (network, address) in
            [("10.0.0.0/8", "11.0.0.1"), ("127.0.0.1", "127.0.0.2"), ("::/0", "1.1.1.1"), ("fd00::/8", "fe00::1")]
        {
            assert!(!contains(network, address), "{network} {address}");
        }
        for wrong in ["", "x", "10.0.0.0/33", "10.0.0.0/x", "10.0.0.0/8/8"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
