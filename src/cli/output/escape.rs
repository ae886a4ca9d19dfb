//! Text made safe for terminals: control characters and characters that reorder text are written out.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns a value as the text of a table cell: strings without their quotes, and a dash for an absent value.
pub(in crate::cli) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    }
}

/// Returns text with every unsafe character written as an escape.
pub(in crate::cli) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if is_unsafe(char) {
            escaped.extend(char.escape_default());
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// Returns indented JSON in which every unsafe character is escaped. It has the same meaning: such characters only
/// occur in strings.
pub(super) fn json(data: &Value) -> String {
    let text = format!("{data:#}");
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        // Line feeds are those of the indentation: within strings they are escaped already.
        if is_unsafe(char) && char != '\n' {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(char));
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// Control characters, line and paragraph separators, and marks that change the direction of text. All of them are
/// below U+10000.
fn is_unsafe(char: char) -> bool {
    let reorders =
        matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || reorders || matches!(char, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_text_can_control_a_terminal() {
        assert_eq!(escaped("a\u{1b}[2Jb\u{9b}31m\n"), "a\\u{1b}[2Jb\\u{9b}31m\\n");
        assert_eq!(escaped("paid \u{202e}001"), "paid \\u{202e}001");
        assert_eq!([cell(&Value::Null), cell(&"ü".into()), cell(&7.into())], ["-", "ü", "7"]);
    }

    #[test]
    fn escaped_json_keeps_its_meaning() {
        let data = json!({ "text": "a\u{1b}\u{9b}\u{7f}\u{2028}\u{202e}\nü😀", "list": [1, null] });
        let text = json(&data);
        assert!(!text.contains(|char: char| is_unsafe(char) && char != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), data);
    }
}
