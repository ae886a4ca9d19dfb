//! Bytes as hex digits and back.

use std::fmt::Write as _;

/// Two lowercase digits a byte.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Exactly `N` bytes from twice as many digits, of either case; nothing else is taken.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let digit = |letter: u8| char::from(letter).to_digit(16);
        *byte = u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back_as_written() {
        assert_eq!(encode(&[0, 0x7f, 0xff]), "007fff");
        assert_eq!(decode("007FfF"), Some([0, 0x7f, 0xff]));
        for wrong in ["", "00", "007ff", "007ffff", "+07fff", "00 fff", "00é7f"] {
            assert_eq!(decode::<3>(wrong), None, "{wrong}");
        }
    }
}
