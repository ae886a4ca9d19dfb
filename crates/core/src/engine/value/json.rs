//! A quick check whether text may be JSON. The scripts of the Redis engine make the same check, byte by byte, so that
//! all calls treat the same values as damaged.

/// Returns whether strings are closed, brackets are paired, and everything outside of strings may occur there in JSON. A
/// backslash hides the next byte.
pub(super) fn may_be_json(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (mut braces, mut brackets) = (0_i64, 0_i64);
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => match end_of_string(bytes, at) {
                Some(end) => at = end,
                None => return false,
            },
            b'{' => braces += 1,
            b'}' => braces -= 1,
            b'[' => brackets += 1,
            b']' => brackets -= 1,
            b'0'..=b'9' | b'+' | b'-' | b'.' | b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => {}
            b'\\' if at < bytes.len() => at += 1,
            byte if byte.is_ascii_alphabetic() => {
                let word = bytes[at..].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
                if !matches!(&bytes[at - 1..at + word], b"true" | b"false" | b"null" | b"e" | b"E") {
                    return false;
                }
                at += word;
            }
            _ => return false,
        }
    }
    !bytes.is_empty() && braces == 0 && brackets == 0
}

/// Returns the end of a string that began before this byte.
fn end_of_string(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_passes_and_damaged_json_does_not() {
        for text in
            ["null", "-1.5e+30", "\"a\\\"b\"", "\"\\\\\"", r#"{"a":[1,true,false,null,"x{]"],"ü":{}}"#, "[1,\n\t2]\r\n"]
        {
            assert!(may_be_json(text), "{text}");
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "{nope",
            "nope",
            "{\"a\":1",
            "[1",
            "nullx",
            "\"a",
            "\"a\\\"",
            "tr\"x\"ue",
            "tr\\xue",
            "ü",
            "\\",
            "NaN",
            "0x1",
        ] {
            assert!(!may_be_json(text), "{text}");
        }
        assert!(may_be_json("\\x1"), "a backslash hides the next byte");
    }
}
