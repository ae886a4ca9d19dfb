//! What engines on coordination services check in the same way when an operator asks whether a configuration fits the
//! servers.

use std::time::Duration;

use oncegate_core::engine::Determinate;

use super::url::Address;

/// Limit of each request of an inspection.
pub const TIMEOUT: Duration = Duration::from_secs(3);

/// Returns the problem of a member without a connection.
pub fn no_connection(member: &Address, why: &Determinate) -> String {
    match why {
        Determinate::Incompatible(why) => format!("{member}: {why}"),
        why => format!(
            "{member} does not answer: {}. Start it, correct its address, or leave it out of the URL",
            why.reason()
        ),
    }
}

/// Returns a number of bytes in MiB, rounded up.
pub fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!((mib(0).as_str(), mib(1).as_str(), mib(3 << 20).as_str()), ("0 MiB", "1 MiB", "3 MiB"));
    }
}
