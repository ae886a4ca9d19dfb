//! Path of a setting: the names of its tables and its own.

use std::fmt;

use serde_path_to_error::{Path, Segment};

/// Path of a key, such as `apps.shop.operations."coupon.redeem".lease`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// Returns the key with these names.
    pub fn of<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self(names.into_iter().map(Into::into).collect())
    }

    /// Returns the key of a serde error. For an item of a list, that is the key of the list.
    pub(super) fn of_error(path: &Path) -> Self {
        Self(
            path.iter()
                .map_while(|segment| match segment {
                    Segment::Map { key } => Some(key.clone()),
                    Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown => None,
                })
                .collect(),
        )
    }

    /// Returns the key of this name in this table.
    #[must_use]
    pub fn child(&self, name: impl Into<String>) -> Self {
        let mut names = self.0.clone();
        names.push(name.into());
        Self(names)
    }

    /// Returns the key of another name in the same table.
    pub(super) fn renamed(&self, name: impl Into<String>) -> Self {
        let tables = self.0.split_last().map_or(&[][..], |(_, tables)| tables);
        Self(tables.to_vec()).child(name)
    }

    /// Returns the names, the key's own last.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Returns the key's own name.
    pub fn last(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }
}

/// Place inside a list: an item, and the names of the keys below it.
pub(super) struct Item {
    /// Its position, from 0.
    pub(super) index: usize,
    pub(super) names: Vec<String>,
}

impl Item {
    /// Returns the place of a serde error inside the list whose key [`KeyPath::of_error`] returns.
    pub(super) fn of_error(path: &Path) -> Option<Self> {
        let mut segments = path.iter().skip_while(|segment| matches!(segment, Segment::Map { .. }));
        let Some(Segment::Seq { index }) = segments.next() else { return None };
        let names = segments.map_while(|segment| match segment {
            Segment::Map { key } => Some(key.clone()),
            Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown => None,
        });
        Some(Self { index: *index, names: names.collect() })
    }
}

impl fmt::Display for KeyPath {
    /// Writes the path in TOML syntax.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, name) in self.0.iter().enumerate() {
            let dot = if place == 0 { "" } else { "." };
            let bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            if !name.is_empty() && name.bytes().all(bare) {
                write!(f, "{dot}{name}")?;
            } else {
                write!(f, "{dot}\"{}\"", name.escape_debug())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_in_toml_syntax() {
        let path = KeyPath::of(["apps", "shop", "operations"]).child("coupon.redeem").child("lease");
        assert_eq!(path.to_string(), r#"apps.shop.operations."coupon.redeem".lease"#);
        assert_eq!(KeyPath::of(["", "a\nb"]).to_string(), r#"""."a\nb""#);
    }
}
