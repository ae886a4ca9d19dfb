//! Strings in canonical form: their escapes, and the order of keys. `parser::read_string` reads them.

use std::cmp::Ordering;

/// Writes a string with the escapes of RFC 8785, 3.2.2.2, and no others.
pub(super) fn write_string(out: &mut String, string: &str) {
    out.push('"');
    let mut rest = string;
    while let Some(at) = rest.bytes().position(is_special) {
        out.push_str(&rest[..at]);
        write_escape(out, rest.as_bytes()[at]);
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

fn write_escape(out: &mut String, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => char::from(byte),
        0x08 => 'b',
        b'\t' => 't',
        b'\n' => 'n',
        0x0c => 'f',
        b'\r' => 'r',
        _ => {
            out.push_str(if byte < 0x10 { "\\u000" } else { "\\u001" });
            out.extend(char::from_digit(u32::from(byte & 0xf), 16));
            return;
        }
    };
    out.extend(['\\', short]);
}

/// Returns whether a byte needs an escape in a string.
pub(super) fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | ..b' ')
}

/// Compares keys by RFC 8785, 3.2.3. Not the order of UTF-8: here U+1F600, a surrogate pair, comes before U+FB33.
pub(super) fn utf16_cmp(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}
