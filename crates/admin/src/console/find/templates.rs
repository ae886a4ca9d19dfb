//! Templates that make contents of what an operator has of an operation, such as the number of an order.

use serde_json::Number;
use serde_json::value::RawValue;

/// Place of a text, in a string of the template.
const TEXT: &str = "{text}";

/// Place of a number, as a string of the template.
const NUMBER: &str = "\"{number}\"";

/// Reports whether this is JSON with one place for a text or a number.
pub(in crate::console) fn is_find_template(template: &str) -> bool {
    let sample = if template.contains(NUMBER) { "1" } else { "x" };
    template.matches(TEXT).count() + template.matches(NUMBER).count() == 1 && contents(template, sample).is_some()
}

/// Returns the contents that a template makes of a text, or nothing if the text is no number and the template needs one.
pub(super) fn contents(template: &str, text: &str) -> Option<String> {
    let made = if template.contains(NUMBER) {
        serde_json::from_str::<Number>(text).ok()?;
        template.replacen(NUMBER, text, 1)
    } else {
        let quoted = serde_json::to_string(text).ok()?;
        template.replacen(TEXT, quoted.strip_prefix('"')?.strip_suffix('"')?, 1)
    };
    serde_json::from_str::<&RawValue>(&made).ok()?;
    Some(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_or_a_number_is_put_into_its_place() {
        let order = r#"{"order_id": "{text}"}"#;
        assert_eq!(contents(order, "A-1001").unwrap(), r#"{"order_id": "A-1001"}"#);
        assert_eq!(contents(order, "a\"},{\\").unwrap(), r#"{"order_id": "a\"},{\\"}"#, "it stays in its place");
        assert_eq!(contents(order, "\"").unwrap(), r#"{"order_id": "\""}"#);
        assert_eq!(contents(r#"["ORD-{text}"]"#, "7").unwrap(), r#"["ORD-7"]"#);
        let number = r#"{"invoice": "{number}"}"#;
        assert_eq!(contents(number, "12345678901234567890123").unwrap(), r#"{"invoice": 12345678901234567890123}"#);
        for text in ["A-1", "1,\"x\":2", "", "[1]", "\"1\""] {
            assert_eq!(contents(number, text), None, "{text}");
        }
    }

    #[test]
    fn a_template_is_json_with_one_place() {
        for good in [r#"{"order_id": "{text}"}"#, r#""{text}""#, r#"{"n": "{number}"}"#] {
            assert!(is_find_template(good), "{good}");
        }
        for bad in [
            "",
            "{text}",
            r#"{"a": 1}"#,
            r#"{"a": "{text}", "b": "{text}"}"#,
            r#"{"a": {number}}"#,
            r#"{"a": "{text}""#,
        ] {
            assert!(!is_find_template(bad), "{bad}");
        }
    }
}
