//! Sizes as the configuration writes them.

use serde::{Deserialize, Deserializer, Serialize};

/// A number of bytes as configuration writes it: `65536`, `"64KiB"`, `"1MiB"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Bytes(pub usize);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(usize),
            Text(String),
        }
        let bytes = match Form::deserialize(deserializer)? {
            Form::Number(bytes) => Some(bytes),
            Form::Text(text) => [("KiB", 10), ("MiB", 20), ("B", 0)].into_iter().find_map(|(unit, shift)| {
                let count = text.strip_suffix(unit)?.trim_end().parse::<usize>().ok()?;
                count.checked_mul(1 << shift)
            }),
        };
        bytes.map(Self).ok_or_else(|| serde::de::Error::custom("a size is a number of bytes, or \"64KiB\" or \"1MiB\""))
    }
}
