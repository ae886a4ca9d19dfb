//! Versions of etcd that are fit to be used.

use oncegate_core::engine::Determinate;

/// Checks the version that a member reports.
///
/// # Errors
/// Members of this version disagree or lose writes, or it is too old to be known.
pub(super) fn check(version: &str) -> Result<(), Determinate> {
    let refuse = |why: &str| {
        let version: String = version.chars().filter(|char| !char.is_control()).take(40).collect();
        Err(Determinate::Incompatible(format!("etcd {version} {why}; use 3.4.23 or later, 3.5.6 or later, or 3.6")))
    };
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor)), Some(Some(patch))) = (parts.next(), parts.next(), parts.next()) else {
        return refuse("has a version that cannot be read");
    };
    match (major, minor, patch) {
        (3, 5, ..=5) => refuse("may lose writes, and its members may disagree"),
        (3, 4, 23..) | (3, 5.., _) => Ok(()),
        (..=3, ..) => refuse("is too old"),
        _ => refuse("is not known to this release"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_lose_writes_or_are_not_known_are_refused() {
        for good in ["3.4.23", "3.4.30", "3.5.6", "3.5.21", "3.6.0", "3.7.1", "3.6.0-rc.1"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["3.3.27", "3.4.22", "3.5.0", "3.5.5", "2.3.8", "4.0.0", "", "3.5", "x\n"] {
            assert!(matches!(check(bad), Err(Determinate::Incompatible(_))), "{bad}");
        }
    }
}
