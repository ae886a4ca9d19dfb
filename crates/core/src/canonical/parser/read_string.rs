//! Reading of strings and their escapes.

use std::borrow::Cow;

use super::super::NotCanonical;
use super::super::string::is_special;
use super::Parser;

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
