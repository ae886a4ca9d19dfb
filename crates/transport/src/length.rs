//! Lengths of bodies.

/// Returns the length that a `Content-Length` has, in digits only and without white space (RFC 9110, 8.6).
pub fn length(value: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_digits_only() {
        assert_eq!([&b"0"[..], b"003", b"18446744073709551615"].map(length), [Some(0), Some(3), Some(u64::MAX)]);
        for wrong in ["", "+3", "-3", " 3", "3 ", "3,", "0x3", "3.0", "\u{663}", "18446744073709551616"] {
            assert_eq!(length(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
