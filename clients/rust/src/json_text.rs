//! JSON text in canonical form, as the gateway reads it: no key twice, no lone surrogate, no number that a double does not keep.

use std::fmt::Write as _;

use crate::error::{NotCanonical, Reason};
use crate::speller::{DEPTH_MAX, Speller, push_quoted, push_step};

type Read<T> = Result<T, NotCanonical>;

pub(crate) fn spell(speller: &mut Speller, text: &str, depth: usize) -> Read<()> {
    let root = speller.path.clone();
    let mut parser = Parser { speller, text, bytes: text.as_bytes(), at: 0, root };
    let written = parser.value(depth)?;
    parser.space();
    if parser.at < parser.bytes.len() {
        return Err(parser.fail("something follows the value"));
    }
    parser.speller.out.push_str(&written);
    Ok(())
}

struct Parser<'a> {
    speller: &'a mut Speller,
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    root: String,
}

impl Parser<'_> {
    fn fail(&self, detail: &str) -> NotCanonical {
        let detail = format!("not JSON at byte {}: {detail}", self.at);
        NotCanonical { reason: Reason::NotJson, path: self.root.clone(), detail }
    }

    fn next(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Skips white space and this byte, if it is next.
    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.next() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Read<String> {
        self.space();
        match self.next() {
            None => return Err(self.fail("it ends too early")),
            Some(b'{' | b'[') if depth == DEPTH_MAX => return Err(self.speller.too_deep()),
            Some(b'{') => return self.object(depth),
            Some(b'[') => return self.list(depth),
            Some(b'"') => {
                let text = self.string()?;
                self.speller.has_value |= !text.is_empty();
                return Ok(quoted(&text));
            }
            _ => {}
        }
        for word in ["null", "true", "false"] {
            if self.bytes[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                self.speller.has_value |= word != "null";
                return Ok(word.to_owned());
            }
        }
        self.number()
    }

    fn list(&mut self, depth: usize) -> Read<String> {
        self.at += 1;
        if self.take(b']') {
            return Ok("[]".to_owned());
        }
        let mut items = Vec::new();
        loop {
            let length = self.speller.path.len();
            let _ = write!(self.speller.path, "[{}]", items.len());
            items.push(self.value(depth + 1)?);
            self.speller.path.truncate(length);
            if self.take(b']') {
                return Ok(format!("[{}]", items.join(",")));
            }
            if !self.take(b',') {
                return Err(self.fail("a comma or ] is missing"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Read<String> {
        self.at += 1;
        if self.take(b'}') {
            return Ok("{}".to_owned());
        }
        let mut members = Vec::<(String, String)>::new();
        loop {
            self.space();
            if self.next() != Some(b'"') {
                return Err(self.fail("a name is missing"));
            }
            let name = self.string()?;
            if !self.take(b':') {
                return Err(self.fail("a colon is missing"));
            }
            let length = self.speller.path.len();
            push_step(&mut self.speller.path, &name);
            let value = self.value(depth + 1)?;
            self.speller.path.truncate(length);
            members.push((name, value));
            if self.take(b'}') {
                break;
            }
            if !self.take(b',') {
                return Err(self.fail("a comma or } is missing"));
            }
        }
        members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(self.fail("a key occurs twice in its object"));
        }
        let members: Vec<String> = members.iter().map(|(name, value)| format!("{}:{value}", quoted(name))).collect();
        Ok(format!("{{{}}}", members.join(",")))
    }

    /// Reads a string, beginning at its quote.
    fn string(&mut self) -> Read<String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let begin = self.at;
            while self.next().is_some_and(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
                self.at += 1;
            }
            out.push_str(&self.text[begin..self.at]);
            match self.next() {
                None => return Err(self.fail("a string does not end")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                Some(_) => return Err(self.fail("a control character in a string")),
            }
        }
    }

    fn escape(&mut self) -> Read<char> {
        let simple = match self.bytes.get(self.at + 1) {
            None => return Err(self.fail("a string does not end")),
            Some(byte @ (b'"' | b'\\' | b'/')) => Some(char::from(*byte)),
            Some(b'b') => Some('\u{8}'),
            Some(b'f') => Some('\u{c}'),
            Some(b'n') => Some('\n'),
            Some(b'r') => Some('\r'),
            Some(b't') => Some('\t'),
            Some(_) => None,
        };
        if let Some(char) = simple {
            self.at += 2;
            return Ok(char);
        }
        let first = self.unit().ok_or_else(|| self.fail("an unknown escape"))?;
        let units = match first {
            0xd800..=0xdbff => [first, self.unit().unwrap_or_default()],
            _ => [first, 0],
        };
        let length = if (0xd800..=0xdbff).contains(&first) { 2 } else { 1 };
        match char::decode_utf16(units[..length].iter().copied()).next() {
            Some(Ok(char)) => Ok(char),
            _ => Err(self.speller.refuse(Reason::Surrogate, "half of a surrogate pair")),
        }
    }

    /// Reads one escape of the form `\u0041`.
    fn unit(&mut self) -> Option<u16> {
        let digits = self.bytes.get(self.at..self.at + 6)?.strip_prefix(b"\\u")?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let unit = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        self.at += 6;
        Some(unit)
    }

    fn number(&mut self) -> Read<String> {
        let is_part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
        let length = self.bytes[self.at..].iter().take_while(|byte| is_part(byte)).count();
        let literal = &self.text[self.at..self.at + length];
        let (Some(number), Ok(double)) = (Number::read(literal, false), literal.parse::<f64>()) else {
            return Err(self.fail("no value"));
        };
        self.at += length;
        self.speller.has_value = true;
        let refused = if double.is_infinite() {
            (Reason::NotFinite, "a number larger than any double: send it as text")
        } else if number.digits.is_empty() {
            return Ok("0".to_owned());
        } else if double == 0.0 {
            (Reason::NotFinite, "a number so small that it would become 0: send it as text")
        } else if number.loses_digits() || (9_007_199_254_740_992.0..1e21).contains(&double.abs()) {
            (Reason::IntegerTooLarge, "a number beyond 2^53 - 1, where digits get lost: send it as text")
        } else if number.digits.len() > 17 {
            (Reason::TooLong, "a number of more than 17 significant digits: send it as text")
        } else {
            // As ECMAScript writes it. `Display` rounds a tie between two shortest texts differently.
            return Ok(ryu_js::Buffer::new().format_finite(double).to_owned());
        };
        Err(self.speller.refuse(refused.0, refused.1))
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

/// A number: 0.d1d2d3… × 10^point, without leading and trailing zeros; zero has no digits.
pub(crate) struct Number {
    pub(crate) negative: bool,
    pub(crate) digits: String,
    pub(crate) point: i64,
}

impl Number {
    /// Reads a number in JSON's notation; leniently, digits before or after the point may be missing, as decimals are written elsewhere.
    pub(crate) fn read(literal: &str, lenient: bool) -> Option<Self> {
        let rest = literal.strip_prefix('-');
        let negative = rest.is_some();
        let rest = rest.unwrap_or(literal);
        let (mantissa, exponent) = match rest.find(['e', 'E']) {
            None => (rest, 0),
            Some(at) => (&rest[..at], exponent(&rest[at + 1..])?),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || (whole.is_empty() && fraction.is_empty()) {
            return None;
        }
        let pointed = mantissa.contains('.');
        let malformed =
            whole.is_empty() || (pointed && fraction.is_empty()) || (whole.len() > 1 && whole.starts_with('0'));
        if !lenient && malformed {
            return None;
        }
        let digits = format!("{whole}{fraction}");
        let trimmed = digits.trim_start_matches('0');
        let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX / 4);
        let point = length(whole) + exponent - (length(&digits) - length(trimmed));
        Some(Self { negative, digits: trimmed.trim_end_matches('0').to_owned(), point })
    }

    /// Returns true if its exact size is from 2^53 to 10^21: its double may be on the other side of a bound.
    fn loses_digits(&self) -> bool {
        (17..=21).contains(&self.point) || (self.point == 16 && self.digits.as_str() >= "9007199254740992")
    }
}

/// Reads an exponent. Beyond nine digits every number is too large or too small in the same way.
fn exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let size = digits.trim_start_matches('0').parse().unwrap_or(if digits.trim_start_matches('0').is_empty() {
        0
    } else {
        i64::MAX
    });
    let size = size.min(999_999_999);
    Some(if text.starts_with('-') { -size } else { size })
}
