//! How what a gateway answered is shown to people: as plain text, which no terminal takes for a command.

use serde_json::Value;

/// A value as a word: texts without their quotes, and a dash for what is not there.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        other => plain(&other.to_string()),
    }
}

/// Text with control characters written out.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            plain.extend(char.escape_default());
        } else {
            plain.push(char);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminal_as_a_command() {
        assert_eq!(plain("a\u{1b}[2Jb\u{9b}31m\n"), "a\\u{1b}[2Jb\\u{9b}31m\\n");
        assert_eq!([text(&Value::Null), text(&"ü".into()), text(&7.into())], ["-", "ü", "7"]);
    }
}
