//! Contents of an operation, and their one canonical form (RFC 8785) in every language.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Write as _};
use std::time::SystemTime;

use md5::{Digest as _, Md5};

use crate::error::{NotCanonical, Reason};
use crate::json_text::{self, Number};
use crate::time::{self, NoInstant};

pub(crate) const DEPTH_MAX: usize = 32;
const DECIMAL_CHARS_MAX: usize = 128;
const INTEGER_MAX: i128 = (1 << 53) - 1;

/// Values that identify an operation. Names are always written, as in a map: a name that follows from an identifier
/// would change with it.
///
/// Texts, integers, booleans, `Option`, lists, maps and `serde_json::Value` convert into contents; `f64` and bytes do not.
#[derive(Clone, PartialEq, Debug)]
pub enum Contents {
    /// Nothing; the member is kept.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer below 2^53.
    Integer(i128),
    /// A binary float, refused: write integer minor units, a decimal or text.
    Float(f64),
    /// Text.
    Text(String),
    /// A decimal number, such as `11.10` or `1E+3`. Its canonical form is text in plain notation.
    Decimal(String),
    /// An instant in RFC 3339, with its zone.
    Timestamp(String),
    /// A calendar date, such as `2026-11-22`.
    Date(String),
    /// A UUID, in upper or lower case.
    Uuid(String),
    /// Contents that are JSON already, read as the gateway reads them.
    Json(String),
    /// A list.
    List(Vec<Contents>),
    /// Members with their names.
    Map(Vec<(String, Contents)>),
}

impl Contents {
    /// Returns a decimal number.
    pub fn decimal(number: impl Display) -> Self {
        Self::Decimal(number.to_string())
    }

    /// Returns an instant from RFC 3339 text. A `SystemTime` converts without it.
    pub fn timestamp(text: impl Display) -> Self {
        Self::Timestamp(text.to_string())
    }

    /// Returns a calendar date.
    pub fn date(date: impl Display) -> Self {
        Self::Date(date.to_string())
    }

    /// Returns a UUID.
    pub fn uuid(uuid: impl Display) -> Self {
        Self::Uuid(uuid.to_string())
    }

    /// Returns contents that are JSON already.
    pub fn json(text: impl Into<String>) -> Self {
        Self::Json(text.into())
    }

    /// Returns a map with these members.
    pub fn map<N: Into<String>, V: Into<Self>>(members: impl IntoIterator<Item = (N, V)>) -> Self {
        Self::Map(members.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Makes a map of contents: names and values of any type that converts into [`Contents`].
#[macro_export]
macro_rules! contents {
    ($($name:expr => $value:expr),* $(,)?) => {
        $crate::Contents::Map(::std::vec![$((::std::string::String::from($name), $crate::Contents::from($value))),*])
    };
}

macro_rules! from_integers {
    ($($integer:ty)*) => {
        $(impl From<$integer> for Contents {
            fn from(integer: $integer) -> Self {
                Self::Integer(i128::from(integer))
            }
        })*
    };
}

// Without u8: bytes are no list of integers.
from_integers!(i8 i16 i32 i64 i128 u16 u32 u64);

impl From<usize> for Contents {
    fn from(integer: usize) -> Self {
        Self::Integer(i128::try_from(integer).unwrap_or(i128::MAX))
    }
}

impl From<bool> for Contents {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Contents {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Contents {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Contents {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<SystemTime> for Contents {
    fn from(at: SystemTime) -> Self {
        let (seconds, nanos) = time::parts_of(at);
        Self::Timestamp(time::write(seconds, nanos))
    }
}

impl<T: Into<Self>> From<Option<T>> for Contents {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl<T: Into<Self>> From<Vec<T>> for Contents {
    fn from(list: Vec<T>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Self>, const N: usize> From<[T; N]> for Contents {
    fn from(list: [T; N]) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl<N: Into<String>, T: Into<Self>> From<BTreeMap<N, T>> for Contents {
    fn from(map: BTreeMap<N, T>) -> Self {
        Self::map(map)
    }
}

impl<N: Into<String>, T: Into<Self>, S> From<HashMap<N, T, S>> for Contents {
    fn from(map: HashMap<N, T, S>) -> Self {
        Self::map(map)
    }
}

impl From<serde_json::Value> for Contents {
    fn from(value: serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(value),
            Value::Number(number) => match number.as_i128() {
                Some(integer) => Self::Integer(integer),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Self::Text(text),
            Value::Array(list) => list.into(),
            Value::Object(map) => Self::map(map),
        }
    }
}

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

/// Writes one value in canonical form.
pub(crate) struct Speller {
    pub(crate) out: String,
    pub(crate) path: String,
    /// There is a number, a boolean or a text with a character in it: one unset ID must not name every order.
    pub(crate) has_value: bool,
}

type Spelled = Result<(), NotCanonical>;

impl Speller {
    pub(crate) fn refuse(&self, reason: Reason, detail: impl Into<String>) -> NotCanonical {
        NotCanonical { reason, path: self.path.clone(), detail: detail.into() }
    }

    pub(crate) fn too_deep(&self) -> NotCanonical {
        self.refuse(Reason::TooDeep, format!("nested deeper than {DEPTH_MAX} levels: send it as text"))
    }

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

/// Appends `.name`, or `["a name"]` where the name has other characters.
pub(crate) fn push_step(path: &mut String, name: &str) {
    if !name.is_empty() && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric()) {
        path.push('.');
        path.push_str(name);
    } else {
        path.push('[');
        push_quoted(path, name);
        path.push(']');
    }
}

/// Appends a JSON string in the form of ECMAScript: with required escapes only.
pub(crate) fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            char if char < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push('"');
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}
