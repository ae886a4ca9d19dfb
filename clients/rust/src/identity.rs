//! Identity of an operation: the one canonical form of its contents (RFC 8785), and its global ID, the same in every language.

use std::fmt::Write as _;

use md5::{Digest as _, Md5};

use crate::contents::Contents;
use crate::error::{NotCanonical, Reason};
use crate::json_text::{self, Number};
use crate::speller::{DEPTH_MAX, Speller, push_quoted, push_step};
use crate::time::{self, NoInstant};

const DECIMAL_CHARS_MAX: usize = 128;
const INTEGER_MAX: i128 = (1 << 53) - 1;

/// Returns the canonical form of contents, or why others could read them as something else.
///
/// # Errors
///
/// A refused value, or contents without a value.
pub fn canonical(contents: &Contents) -> Result<String, NotCanonical> {
    let (text, has_value) = spell(contents)?;
    if has_value {
        return Ok(text);
    }
    let detail = "contents hold no value, only null, \"\", {} or []: pass the fields that distinguish this operation";
    Err(NotCanonical { reason: Reason::Empty, path: "$".to_owned(), detail: detail.to_owned() })
}

/// Returns MD5 of app key, operation and canonical contents, in hex: the same operation has the same ID in every language.
///
/// # Errors
///
/// Contents that are not canonical.
pub fn global_id(app: &str, operation: &str, contents: &Contents) -> Result<String, NotCanonical> {
    canonical(contents).map(|text| global_id_of(app, operation, &text))
}

pub(crate) fn global_id_of(app: &str, operation: &str, text: &str) -> String {
    let mut md5 = Md5::new();
    for piece in [app, "\n", operation, "\n", text] {
        md5.update(piece.as_bytes());
    }
    hex(&md5.finalize())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]].map(char::from))
        .collect()
}

/// Returns the canonical form, and true if it holds a value: a fingerprint may be without one.
pub(crate) fn spell(contents: &Contents) -> Result<(String, bool), NotCanonical> {
    let mut speller = Speller { out: String::with_capacity(64), path: "$".to_owned(), has_value: false };
    speller.any(contents, 0)?;
    Ok((speller.out, speller.has_value))
}

type Spelled = Result<(), NotCanonical>;

impl Speller {
    fn any(&mut self, contents: &Contents, depth: usize) -> Spelled {
        match contents {
            Contents::Null => self.out.push_str("null"),
            Contents::Bool(value) => {
                self.has_value = true;
                self.out.push_str(if *value { "true" } else { "false" });
            }
            Contents::Integer(integer) => {
                if integer.unsigned_abs() > INTEGER_MAX.unsigned_abs() {
                    return Err(self.refuse(Reason::IntegerTooLarge, "an integer of 2^53 or more: send it as text"));
                }
                self.has_value = true;
                let _ = write!(self.out, "{integer}");
            }
            Contents::Float(_) => {
                let detail = "a binary float: send integer minor units, a decimal, or text";
                return Err(self.refuse(Reason::Float, detail));
            }
            Contents::Text(text) => self.text(text),
            Contents::Decimal(literal) => return self.decimal(literal),
            Contents::Timestamp(text) => return self.timestamp(text),
            Contents::Date(text) => {
                if !time::is_date(text) {
                    return Err(self.refuse(Reason::UnsupportedType, "not a date: write 2026-11-22"));
                }
                self.text(text);
            }
            Contents::Uuid(text) => {
                if !is_uuid(text) {
                    return Err(self.refuse(Reason::UnsupportedType, "not a UUID in 36 characters"));
                }
                self.text(&text.to_ascii_lowercase());
            }
            Contents::Json(text) => return json_text::spell(self, text, depth),
            Contents::List(items) => return self.list(items, depth),
            Contents::Map(members) => return self.map(members, depth),
        }
        Ok(())
    }

    fn list(&mut self, items: &[Contents], depth: usize) -> Spelled {
        if depth == DEPTH_MAX {
            return Err(self.too_deep());
        }
        self.out.push('[');
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.out.push(',');
            }
            let length = self.path.len();
            let _ = write!(self.path, "[{at}]");
            self.any(item, depth + 1)?;
            self.path.truncate(length);
        }
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, members: &[(String, Contents)], depth: usize) -> Spelled {
        if depth == DEPTH_MAX {
            return Err(self.too_deep());
        }
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(self.refuse(Reason::UnsupportedType, format!("the name {:?} occurs twice", twice[0].0)));
        }
        self.out.push('{');
        for (at, (name, value)) in sorted.into_iter().enumerate() {
            if at > 0 {
                self.out.push(',');
            }
            let length = self.path.len();
            push_step(&mut self.path, name);
            push_quoted(&mut self.out, name);
            self.out.push(':');
            self.any(value, depth + 1)?;
            self.path.truncate(length);
        }
        self.out.push('}');
        Ok(())
    }

    fn text(&mut self, text: &str) {
        self.has_value |= !text.is_empty();
        push_quoted(&mut self.out, text);
    }

    fn timestamp(&mut self, text: &str) -> Spelled {
        match time::read(text) {
            Ok((seconds, nanos)) => {
                self.text(&time::write(seconds, nanos));
                Ok(())
            }
            Err(NoInstant::NoZone) => {
                Err(self.refuse(Reason::NoZone, "an instant without a zone: write 2026-11-22T09:30:00Z"))
            }
            Err(NoInstant::Malformed) => {
                Err(self.refuse(Reason::UnsupportedType, "not an instant: write 2026-11-22T09:30:00Z"))
            }
        }
    }

    /// Writes a decimal in plain notation, without trailing zeros.
    fn decimal(&mut self, literal: &str) -> Spelled {
        let bare = literal.trim_start_matches(['+', '-']).to_ascii_lowercase();
        if matches!(bare.as_str(), "nan" | "snan" | "inf" | "infinity") {
            return Err(self.refuse(Reason::NotFinite, "a decimal that is not a finite number"));
        }
        let Some(number) = Number::read(literal.strip_prefix('+').unwrap_or(literal), true) else {
            let shown: String = literal.chars().take(40).collect();
            return Err(
                self.refuse(Reason::UnsupportedType, format!("{shown:?} is not a decimal: write 11.10 or 1E+3"))
            );
        };
        if number.digits.is_empty() {
            self.text("0");
            return Ok(());
        }
        let length = number.digits.len();
        let point = usize::try_from(number.point.unsigned_abs()).unwrap_or(usize::MAX);
        if length.saturating_add(point) > 2 * DECIMAL_CHARS_MAX {
            return Err(self.too_long());
        }
        let plain = if number.point <= 0 {
            format!("0.{}{}", "0".repeat(point), number.digits)
        } else if point >= length {
            format!("{}{}", number.digits, "0".repeat(point - length))
        } else {
            format!("{}.{}", &number.digits[..point], &number.digits[point..])
        };
        let text = if number.negative { format!("-{plain}") } else { plain };
        if text.len() > DECIMAL_CHARS_MAX {
            return Err(self.too_long());
        }
        self.text(&text);
        Ok(())
    }

    fn too_long(&self) -> NotCanonical {
        let detail = format!("a decimal of more than {DECIMAL_CHARS_MAX} characters: send it as text");
        self.refuse(Reason::TooLong, detail)
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}
