//! Properties that hold for all bytes: a fuzzer looks for others (`make fuzz`), and tests try edited samples. Each function panics
//! where its property does not hold.

use serde_json::Value;

use crate::canonical::canonicalize_any;
use crate::engine::value;

/// An edit of a sample: position, kind, and a byte for it.
pub type Edit = (u16, u8, u8);

/// Characters with a meaning for the parsers.
const SYNTAX: &[u8] = b"\"\\{}[]:,.-+eE0%;=/ \r\n\t\0";

/// Returns a sample with these edits: bytes are replaced, inserted, removed, repeated, or cut off.
pub fn edited(sample: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    for (at, kind, byte) in edits {
        let at = usize::from(*at) % (bytes.len() + 1);
        match kind % 6 {
            0 => bytes.insert(at, *byte),
            1 if at < bytes.len() => bytes[at] = *byte,
            2 if at < bytes.len() => drop(bytes.remove(at)),
            // Control characters of a syntax are found sooner from a list.
            3 => bytes.insert(at, SYNTAX[usize::from(*byte) % SYNTAX.len()]),
            4 => bytes.truncate(at),
            _ => {
                let repeated: Vec<_> = bytes[at..].iter().take(usize::from(*byte)).copied().collect();
                bytes.splice(at..at, repeated);
            }
        }
    }
    bytes
}

/// The canonical form of a text is its own canonical form, and another reader finds the same values in both.
pub fn canonical_json(json: &[u8]) {
    let Ok(canonical) = canonicalize_any(json, "contents") else { return };
    let text = canonical.as_str().as_bytes();
    assert_eq!(canonicalize_any(text, "contents").as_ref(), Ok(&canonical));
    let read = |json| serde_json::from_slice::<Value>(json).ok();
    assert!(read(json).zip(read(text)).is_some_and(|(before, after)| is_same(&before, &after)));
}

/// A value that can be read is read in the same way after it was written again.
pub fn stored_value(text: &[u8]) {
    let Ok(record) = value::decode(text) else { return };
    assert_eq!(value::decode(value::encode(&record).as_bytes()).as_ref(), Ok(&record));
}

/// Compares values. The other reader does not round all numbers correctly.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one
            .as_f64()
            .zip(other.as_f64())
            .is_some_and(|(one, other)| (one - other).abs() <= one.abs() * 1e-15 + f64::MIN_POSITIVE),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, one)| other.get(name).is_some_and(|other| is_same(one, other)))
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    const JSON: [&[u8]; 3] = [
        include_bytes!("../../../fuzz/seeds/canonical_json/order"),
        include_bytes!("../../../fuzz/seeds/canonical_json/numbers"),
        include_bytes!("../../../fuzz/seeds/canonical_json/spaces"),
    ];

    const VALUES: [&[u8]; 4] = [
        include_bytes!("../../../fuzz/seeds/stored_value/running"),
        include_bytes!("../../../fuzz/seeds/stored_value/succeeded"),
        include_bytes!("../../../fuzz/seeds/stored_value/digest"),
        include_bytes!("../../../fuzz/seeds/stored_value/unknown"),
    ];

    #[test]
    fn every_sample_can_be_read() {
        assert!(JSON.iter().all(|json| canonicalize_any(json, "contents").is_ok()));
        assert!(VALUES.iter().all(|text| value::decode(text).is_ok()));
    }

    proptest! {
        #[test]
        fn all_bytes_have_the_properties(of in any::<usize>(), edits in any::<Vec<Edit>>()) {
            canonical_json(&edited(JSON[of % JSON.len()], &edits));
            stored_value(&edited(VALUES[of % VALUES.len()], &edits));
        }

        #[test]
        fn edits_change_a_sample(edits in any::<Vec<Edit>>()) {
            prop_assert!(edited(b"sample", &edits).len() <= 6 + edits.len() * 255);
        }
    }
}
