//! Bytes as hex digits, and back.

/// The digits of each byte.
const PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 0xf]];
        byte += 1;
    }
    pairs
};

/// Returns two lowercase digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = vec![0; bytes.len() * 2];
    write(bytes, &mut text).to_owned()
}

/// Writes two lowercase digits for each byte into `text`, which is twice as long. Every answer has hex digits, so this uses
/// neither a formatter nor the heap.
pub fn write_bytes<'t>(bytes: &[u8], text: &'t mut [u8]) -> &'t [u8] {
    for (byte, pair) in bytes.iter().zip(text.as_chunks_mut::<2>().0) {
        *pair = PAIRS[usize::from(*byte)];
    }
    text
}

/// Writes the same digits, and returns them as text.
pub fn write<'t>(bytes: &[u8], text: &'t mut [u8]) -> &'t str {
    // Digits are ASCII.
    std::str::from_utf8(write_bytes(bytes, text)).unwrap_or_default()
}

/// Reads `N` bytes from exactly twice as many digits, of either case.
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
