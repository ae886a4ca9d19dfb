//! Values that no other test and no earlier run has used.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Ports below the range of outgoing connections: such a connection could take the port of a server while it is down.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Returns a port of the loopback interface without a listener. This process returns each port only once.
pub fn port() -> u16 {
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        let [low, high, ..] = number().to_le_bytes();
        AtomicU16::new(u16::from_le_bytes([low, high]))
    });
    for _ in PORTS {
        let port = PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Returns a number for new contents, or for a seed. A test prints its seed, so that it can be run again.
#[expect(clippy::disallowed_methods, reason = "tests are where seeds come from")]
pub fn number() -> u64 {
    rand::random()
}

/// Returns contents that were never claimed; text, since contents may not hold so large a number.
pub fn contents() -> serde_json::Value {
    format!("{:016x}", number()).into()
}
