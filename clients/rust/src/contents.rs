//! Contents of an operation: the values that identify it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::time::SystemTime;

use crate::time;

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
