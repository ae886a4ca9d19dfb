//! The parser: reads strict JSON (RFC 8259) and writes its canonical form in the same pass. For untrusted input: the depth is
//! bounded, and the memory by the length of the text.

mod read_string;

use std::borrow::Cow;
use std::ops::Range;

use super::number::Decimal;
use super::string::{utf16_cmp, write_string};
use super::{DEPTH_MAX, NotCanonical};

/// Maximum length of a path in an error, and of each key in it.
const PATH_CHARS_MAX: usize = 120;
const KEY_CHARS_MAX: usize = 40;

/// A canonical text.
pub(super) struct Parsed {
    pub(super) text: String,
    /// True if it contains a number, a boolean or a string that is not empty. Keys do not count.
    pub(super) holds_value: bool,
}

/// Treatment of a number that has no canonical form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InexactNumber {
    /// It is an error.
    Refused,
    /// It is written as `0`.
    Zero,
}

/// Returns the canonical form of a text. Errors call it `root`.
pub(super) fn canonicalize(json: &[u8], root: &'static str, inexact: InexactNumber) -> Result<Parsed, NotCanonical> {
    let text = std::str::from_utf8(json).map_err(|error| NotCanonical::Syntax {
        root,
        offset: error.valid_up_to(),
        expected: "UTF-8",
    })?;
    let out = String::with_capacity(text.len());
    let mut parser =
        Parser { root, inexact, text, at: 0, out, holds_value: false, members: Vec::new(), path: Vec::new() };
    parser.space();
    parser.value()?;
    parser.space();
    match parser.peek() {
        None => Ok(Parsed { text: parser.out, holds_value: parser.holds_value }),
        Some(_) => Err(parser.expected("the end")),
    }
}

/// The state of a parse.
pub(super) struct Parser<'a> {
    root: &'static str,
    inexact: InexactNumber,
    text: &'a str,
    /// Position in bytes.
    at: usize,
    out: String,
    /// As [`Parsed::holds_value`], so far.
    holds_value: bool,
    /// The members so far of all open objects, the innermost last.
    members: Vec<Member<'a>>,
    /// One step for each open array and object, so its length is the depth.
    path: Vec<Step>,
}

/// A member of an object: its key, unescaped, and the range of key and value in the output.
struct Member<'a> {
    key: Cow<'a, str>,
    written: Range<usize>,
}

enum Step {
    /// An index of `Parser::members`.
    Member(usize),
    Item(usize),
}

impl Parser<'_> {
    fn value(&mut self) -> Result<(), NotCanonical> {
        match self.peek() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => {
                let string = self.string()?;
                self.holds_value |= !string.is_empty();
                write_string(&mut self.out, &string);
                Ok(())
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn object(&mut self) -> Result<(), NotCanonical> {
        self.open('{')?;
        let (first_member, first_byte) = (self.members.len(), self.out.len());
        let mut sorted = true;
        if !self.take(b'}') {
            loop {
                if self.peek() != Some(b'"') {
                    return Err(self.expected("a key in quotes"));
                }
                let key = self.string()?;
                if let Some(previous) = self.members[first_member..].last() {
                    sorted = sorted && utf16_cmp(&previous.key, &key).is_lt();
                }
                let start = self.out.len();
                write_string(&mut self.out, &key);
                self.members.push(Member { key, written: start..start });
                self.space();
                self.require(b':', "`:`")?;
                self.out.push(':');

                let member = self.members.len() - 1;
                self.path.push(Step::Member(member));
                self.value()?;
                self.path.pop();
                self.members[member].written.end = self.out.len();

                self.space();
                if self.take(b'}') {
                    break;
                }
                self.require(b',', "`,` or `}`")?;
                self.out.push(',');
            }
        }
        if !sorted {
            self.sort_members(first_member, first_byte)?;
        }
        self.members.truncate(first_member);
        self.out.push('}');
        Ok(())
    }

    /// Sorts the members of the innermost object, after all are written.
    fn sort_members(&mut self, first: usize, first_byte: usize) -> Result<(), NotCanonical> {
        let members = &mut self.members[first..];
        members.sort_by(|a, b| utf16_cmp(&a.key, &b.key));
        if let Some(twice) = members.windows(2).position(|pair| pair[0].key == pair[1].key) {
            self.path.push(Step::Member(first + twice));
            return Err(NotCanonical::DuplicateKey { path: self.path() });
        }
        let unsorted = self.out.split_off(first_byte);
        for (index, Member { written, .. }) in members.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            let member = &unsorted[written.start - first_byte..written.end - first_byte];
            self.out.push_str(member);
        }
        Ok(())
    }

    fn array(&mut self) -> Result<(), NotCanonical> {
        self.open('[')?;
        if !self.take(b']') {
            for index in 0.. {
                self.path.push(Step::Item(index));
                self.value()?;
                self.path.pop();
                self.space();
                if self.take(b']') {
                    break;
                }
                self.require(b',', "`,` or `]`")?;
                self.out.push(',');
            }
        }
        self.out.push(']');
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<(), NotCanonical> {
        if self.path.len() == DEPTH_MAX {
            return Err(NotCanonical::TooDeep { path: self.path() });
        }
        self.out.push(bracket);
        self.at += 1;
        self.space();
        Ok(())
    }

    fn number(&mut self) -> Result<(), NotCanonical> {
        match Decimal::scan(&self.text.as_bytes()[self.at..]) {
            Ok((number, length)) => {
                self.at += length;
                self.holds_value = true;
                match number.write(&mut self.out) {
                    // Nothing of it is written.
                    Err(_) if self.inexact == InexactNumber::Zero => {
                        self.out.push('0');
                        Ok(())
                    }
                    written => written.map_err(|fault| NotCanonical::Number { path: self.path(), fault }),
                }
            }
            Err(length) => {
                self.at += length;
                Err(self.expected("a digit"))
            }
        }
    }

    fn word(&mut self) -> Result<(), NotCanonical> {
        let rest = &self.text[self.at..];
        let Some(word) = ["true", "false", "null"].into_iter().find(|it| rest.starts_with(it)) else {
            return Err(self.expected("a JSON value"));
        };
        self.at += word.len();
        self.holds_value |= word != "null";
        self.out.push_str(word);
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Takes a separator and the space after it.
    fn require(&mut self, byte: u8, expected: &'static str) -> Result<(), NotCanonical> {
        if !self.take(byte) {
            return Err(self.expected(expected));
        }
        self.space();
        Ok(())
    }

    fn expected(&self, expected: &'static str) -> NotCanonical {
        NotCanonical::Syntax { root: self.root, offset: self.at, expected }
    }

    /// Returns the current path, such as `contents.order.items[3]["odd key"]`.
    fn path(&self) -> String {
        let mut path = String::from(self.root);
        for step in &self.path {
            match step {
                Step::Item(index) => path.extend(["[", &index.to_string(), "]"]),
                Step::Member(member) => write_key(&mut path, &self.members[*member].key),
            }
        }
        middle_cut(&path, PATH_CHARS_MAX).into_owned()
    }
}

/// Adds a key to a path: `.key`, or `["odd key"]` with special characters escaped.
fn write_key(path: &mut String, key: &str) {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let shown = middle_cut(key, KEY_CHARS_MAX);
    if !key.is_empty() && shown.bytes().all(is_word) {
        path.extend([".", &shown]);
    } else {
        path.extend(["[", &format!("{shown:?}"), "]"]);
    }
}

/// Removes the middle of a text that is too long: both ends of a path help to find it.
fn middle_cut(text: &str, chars_max: usize) -> Cow<'_, str> {
    let chars = text.chars().count();
    if chars <= chars_max {
        return Cow::Borrowed(text);
    }
    let head = chars_max / 3;
    let tail = chars_max - head - 1;
    let head = text.chars().take(head);
    Cow::Owned(head.chain(['…']).chain(text.chars().skip(chars - tail)).collect())
}
