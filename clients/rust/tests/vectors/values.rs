//! Typed values of the vectors.

use std::time::Duration;

use oncegate_client::{Contents, FOREVER};
use serde_json::Value;

/// Returns the contents, or nothing if Rust has no such value.
pub(crate) fn typed(value: &Value) -> Option<Contents> {
    match value {
        Value::Array(list) => Some(Contents::List(list.iter().map(typed).collect::<Option<_>>()?)),
        Value::Object(members) => match members.iter().next() {
            Some((name, inner)) if members.len() == 1 && name.starts_with('$') => typed_value(name, inner),
            _ => {
                let members = members.iter().map(|(name, value)| Some((name.clone(), typed(value)?)));
                Some(Contents::Map(members.collect::<Option<_>>()?))
            }
        },
        other => Some(Contents::from(other.clone())),
    }
}

fn typed_value(name: &str, inner: &Value) -> Option<Contents> {
    let text = inner.as_str().unwrap_or_default();
    Some(match name {
        // Not every integer of the vectors is one of Rust.
        "$int" => Contents::Integer(text.parse().unwrap_or(i128::MAX)),
        "$decimal" => Contents::decimal(text),
        "$float" => Contents::Float(text.parse().expect("a float")),
        "$instant" | "$local" => Contents::timestamp(text),
        "$date" => Contents::date(text),
        "$uuid" => Contents::uuid(text),
        "$json" => Contents::json(text),
        "$utf16" => {
            let digits: Vec<char> = text.chars().collect();
            let unit = |four: &[char]| u16::from_str_radix(&four.iter().collect::<String>(), 16).expect("hex digits");
            let units: Vec<u16> = digits.chunks(4).map(unit).collect();
            Contents::Text(String::from_utf16(&units).ok()?)
        }
        "$bytes" | "$set" | "$object" | "$int_key" => return None,
        other => panic!("unknown value {other}"),
    })
}

/// Reads `300ms`, `30s`, `1d` or `forever`.
pub(crate) fn duration(text: &str) -> Duration {
    if text == "forever" {
        return FOREVER;
    }
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let count: u64 = digits.parse().expect("a number");
    Duration::from_millis(match &text[digits.len()..] {
        "ms" => count,
        "s" => count * 1000,
        "m" => count * 60_000,
        "h" => count * 3_600_000,
        "d" => count * 86_400_000,
        unit => panic!("unknown unit {unit}"),
    })
}
