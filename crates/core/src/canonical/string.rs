//! Strings: reading and writing of escapes, and the order of keys.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::NotCanonical;
use super::parser::Parser;

impl<'a> Parser<'a> {
    /// Reads a string: a slice of the text if it has no escapes.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, NotCanonical> {
        let mut string = Cow::Borrowed("");
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let unescaped = rest.bytes().position(is_special).unwrap_or(rest.len());
            string += &rest[..unescaped];
            self.at += unescaped;
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => string.to_mut().push(self.escape()?),
                Some(_) => return Err(self.expected("control characters to be escaped")),
                None => return Err(self.expected("a closing quote")),
            }
        }
        self.at += 1;
        Ok(string)
    }

    fn escape(&mut self) -> Result<char, NotCanonical> {
        self.at += 1;
        let character = match self.peek() {
            Some(b'u') => return self.unicode_escape(),
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => return Err(self.expected("one of `\"\\/bfnrtu` after a backslash")),
        };
        self.at += 1;
        Ok(character)
    }

    fn unicode_escape(&mut self) -> Result<char, NotCanonical> {
        let first = self.code_unit()?;
        let second = if matches!(first, 0xD800..=0xDBFF) && self.text[self.at..].starts_with("\\u") {
            self.at += 1;
            Some(self.code_unit()?)
        } else {
            None
        };
        match char::decode_utf16([first].into_iter().chain(second)).next() {
            Some(Ok(character)) => Ok(character),
            _ => Err(NotCanonical::LoneSurrogate { path: self.path() }),
        }
    }

    /// Reads the `uXXXX` of an escape.
    fn code_unit(&mut self) -> Result<u16, NotCanonical> {
        self.at += 1;
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let digit = digit.and_then(|digit| u16::try_from(digit).ok());
            unit = unit * 16 + digit.ok_or_else(|| self.expected("four hex digits after `\\u`"))?;
            self.at += 1;
        }
        Ok(unit)
    }
}

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
fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | ..b' ')
}

/// Compares keys by RFC 8785, 3.2.3. Not the order of UTF-8: here U+1F600, a surrogate pair, comes before U+FB33.
pub(super) fn utf16_cmp(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}
