//! Turns serde's messages about a field into advice for its sender, in terms of JSON: no repetition, no Rust types, the nearest
//! known field. Values are not repeated, because one may be a misplaced secret.

use oncegate_core::nearest::nearest;

/// Explains serde's message about the field at `path`. An empty path is the object itself.
pub(super) fn explain(path: &str, message: &str) -> String {
    // serde_json adds a position, but the path is more useful.
    let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
    if let Some((found, known)) =
        message.strip_prefix("unknown field `").and_then(|rest| rest.rsplit_once("`, expected "))
    {
        return unknown_field(found, &names(known));
    }
    if let Some(field) = quoted(message, "missing field `") {
        return format!("`{field}` is missing.");
    }
    if let Some(field) = quoted(message, "duplicate field `") {
        return format!("`{field}`: duplicate field; send it once.");
    }
    let mismatch = message.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "));
    let what = mismatch.map_or_else(|| message.to_owned(), |(found, expected)| mismatched(found, expected));
    let end = if what.ends_with('?') { "" } else { "." };
    if path.is_empty() { format!("{what}{end}") } else { format!("`{path}`: {what}{end}") }
}

/// Explains where a text stops being JSON.
pub(super) fn malformed(text: &str, error: &serde_json::Error) -> String {
    if text.trim_ascii().is_empty() {
        return "The body is empty; send a JSON object.".to_owned();
    }
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let what = match message.rsplit_once(" at line ").map_or(&*message, |(what, _)| what) {
        what if what.starts_with("EOF while parsing") => "it ends too early",
        "expected value" => {
            "a value has to follow: an object, an array, a string in double quotes, a number, true, false or null"
        }
        "key must be a string" | "expected `\"`" => "the name of a field has to follow, in double quotes",
        "trailing comma" => "a comma is too many",
        "trailing characters" => "something follows its end",
        what => what,
    };
    format!("The body is not JSON: {what} (line {line}, column {column}).")
}

fn unknown_field(found: &str, known: &[&str]) -> String {
    let shown: String = found.chars().filter(|char| !char.is_control()).take(40).collect();
    let list = known.join(", ");
    match nearest(found, known) {
        Some(nearest) => format!("`{shown}`: no such field; did you mean `{nearest}`? There are: {list}."),
        None => format!("`{shown}`: no such field; there are: {list}."),
    }
}

/// Returns the names in a list such as "expected one of `a`, `b`".
fn names(list: &str) -> Vec<&str> {
    list.split('`').skip(1).step_by(2).collect()
}

/// Returns the name between the backquotes at the end of the message.
fn quoted<'a>(message: &'a str, start: &str) -> Option<&'a str> {
    message.strip_prefix(start)?.strip_suffix('`')
}

/// Explains a value of the wrong type.
fn mismatched(found: &str, expected: &str) -> String {
    let found = match found.split([' ', ',']).next().unwrap_or(found) {
        "string" => "a string",
        "integer" | "floating" | "number" => "a number",
        "boolean" => "true or false",
        "sequence" => "an array",
        "map" => "an object",
        "null" | "unit" | "Option" => "null",
        _ => "something else",
    };
    let expected = match expected {
        "string" | "borrowed string" | "a borrowed string" => "a string",
        "a boolean" => "true or false",
        "a sequence" => "an array",
        "a map" => "an object",
        structure if structure.starts_with("struct ") => "an object",
        other => other,
    };
    format!("expected {expected}, found {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_field_is_named_once_with_the_nearest_known_one() {
        let message = "unknown field `operaton`, expected one of `contents`, `operation` at line 1 column 12";
        let expected = "`operaton`: no such field; did you mean `operation`? There are: contents, operation.";
        assert_eq!(explain("operaton", message), expected);
        assert_eq!(explain("x", "unknown field `x`, expected `attempt`"), "`x`: no such field; there are: attempt.");
        let odd = "unknown field `a`, b\n`, expected `attempt` or `lease` at line 1 column 2";
        assert_eq!(explain("", odd), "`a`, b`: no such field; there are: attempt, lease.");
    }

    #[test]
    fn a_body_that_is_not_json_is_explained_without_terms_of_a_parser() {
        for (text, part) in [
            ("", "The body is empty; send a JSON object."),
            (" \n", "The body is empty"),
            ("{", "it ends too early (line 1, column 1)"),
            ("{\"a\": \"b", "it ends too early"),
            ("{'a': 1}", "in double quotes (line 1, column 2)"),
            ("{\"a\": 1,}", "in double quotes (line 1, column 9)"),
            ("a=1", "a value has to follow: an object"),
            ("{\"a\": 1}}", "something follows its end"),
        ] {
            let error = serde_json::from_str::<serde::de::IgnoredAny>(text).unwrap_err();
            let said = malformed(text, &error);
            assert!(said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn a_wrong_type_is_named_in_terms_of_json_and_without_the_value() {
        for (message, expected) in [
            ("invalid type: integer `30`, expected a string at line 1 column 9", "expected a string, found a number"),
            ("invalid type: floating point `1.5`, expected a boolean", "expected true or false, found a number"),
            ("invalid type: string \"s3cret, expected\", expected a sequence", "expected an array, found a string"),
            (
                "invalid type: integer `600`, expected a string such as \"30s\" at line 1 column 9",
                "expected a string such as \"30s\", found a number",
            ),
            ("invalid type: null, expected struct BatchBody", "expected an object, found null"),
            ("invalid type: map, expected a string", "expected a string, found an object"),
        ] {
            assert_eq!(explain("items[3].a", message), format!("`items[3].a`: {expected}."));
        }
        assert_eq!(explain("", "missing field `items` at line 1 column 2"), "`items` is missing.");
        assert_eq!(explain("", "duplicate field `lease`"), "`lease`: duplicate field; send it once.");
        assert_eq!(explain("lease", "a lease is short"), "`lease`: a lease is short.");
    }
}
