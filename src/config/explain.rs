//! Explains serde's errors: the nearest known key, the valid choices, the default as an example. A value of the wrong
//! type is never repeated: it may be a secret.

use oncegate_core::nearest::nearest;
use toml::Value;

use super::path::KeyPath;

/// Lists whose items are tables.
const LISTS_OF_TABLES: &[&str] = &["routes", "issuers", "keys"];

/// Tables for which a single value is often written, each with an example of its content.
const TABLES: &[(&str, &str)] = &[("on_outage", "claim = \"fail_open\""), ("quota", "requests_per_second = 100")];

/// Explains serde's message about a key, which has this default.
pub(super) fn explain(message: &str, key: &KeyPath, default: Option<&Value>) -> String {
    let message = message.trim();
    if let Some(expected) = message.strip_prefix(&format!("unknown field `{}`, expected ", key.last())) {
        return unknown_key(key.last(), &names(expected));
    }
    if let Some((found, expected)) =
        message.strip_prefix("unknown variant `").and_then(|rest| rest.rsplit_once("`, expected "))
    {
        let choices: Vec<_> = names(expected).iter().map(|name| format!("\"{name}\"")).collect();
        return format!("\"{}\" is not a valid choice; write {}", found.escape_debug(), choices.join(" or "));
    }
    if let Some(field) = missing_field(message) {
        return format!("`{field}` is missing");
    }
    if message == "invalid socket address syntax" {
        return format!("an address is an IP address and a port{}", default_shown(key, default));
    }
    let what = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))
        .and_then(|rest| rest.rsplit_once(", expected "))
        .map_or_else(|| message.to_owned(), |(found, expected)| mismatch(key, found, expected));
    what + &default_shown(key, default)
}

/// Returns the missing key that serde's message names. `None` if the message is about something else.
pub(super) fn missing_field(message: &str) -> Option<&str> {
    message.trim().strip_prefix("missing field `")?.strip_suffix('`')
}

/// Returns the default of a key as an example, where there is one.
fn default_shown(key: &KeyPath, default: Option<&Value>) -> String {
    match default {
        Some(default @ (Value::String(_) | Value::Integer(_) | Value::Boolean(_))) => {
            format!("; the default is `{} = {default}`", key.last())
        }
        _ => String::new(),
    }
}

/// Describes an unknown key, with the known ones of its table.
pub(super) fn unknown_key(found: &str, known: &[&str]) -> String {
    if ["port", "host", "bind", "address"].contains(&found) && known.contains(&"listen") {
        return "unknown key; host and port are one address: `listen = \"127.0.0.1:8080\"`".to_owned();
    }
    match nearest(found, known) {
        Some(nearest) => format!("unknown key; did you mean `{nearest}`? Known keys: {}", known.join(", ")),
        None => format!("unknown key; known keys: {}", known.join(", ")),
    }
}

/// Returns the names in a list such as "one of `a`, `b`".
pub(super) fn names(list: &str) -> Vec<&str> {
    list.split('`').skip(1).step_by(2).collect()
}

/// Describes a wrong type in TOML's terms, and says what to write.
fn mismatch(key: &KeyPath, found: &str, expected: &str) -> String {
    let found = match found.split_once(' ').map_or(found, |(kind, _)| kind) {
        "string" => "a text",
        "integer" => &found.replace("integer", "the number").replace('`', ""),
        "floating" => "a number with a fraction",
        "boolean" => "true or false",
        "sequence" => "a list",
        "map" => "a table",
        _ => "something else",
    };
    let expected = match expected {
        "a string" | "string" | "path string" | "socket address" => "a text",
        "a sequence" => "a list",
        "a map" => "a table",
        "a boolean" => "true or false",
        "usize" | "u32" => "a whole number from 0",
        structure if structure.starts_with("struct ") => "a table",
        choice if choice.starts_with("enum ") || choice.starts_with("string or") => "a text",
        text if let Some(example) = text.strip_prefix("a string such as ") => &format!("a text such as {example}"),
        other => other,
    };
    format!("expected {expected}, found {found}{}", advice(key, found, expected))
}

/// Returns how to write a list or a table, where that is not the form that was found.
fn advice(key: &KeyPath, found: &str, expected: &str) -> String {
    let name = key.last();
    let has_tables = LISTS_OF_TABLES.contains(&name);
    match (expected, found) {
        ("a list", "a table") if has_tables => {
            format!("; write [[{key}]], with two brackets, above each of them, and its name as `name = \"…\"`")
        }
        ("a list", "a text") if !has_tables => format!("; write it in brackets: {name} = [\"…\"]"),
        ("a table", _) => {
            let example = TABLES.iter().find(|(table, _)| *table == name);
            example.map(|(table, content)| format!("; write {table} = {{ {content} }}")).unwrap_or_default()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(message: &str, key: &str, default: Option<&str>) -> String {
        explain(message, &KeyPath::of(key.split('.')), default.map(Value::from).as_ref())
    }

    #[test]
    fn an_unknown_key_comes_with_the_nearest_known_one() {
        assert_eq!(
            explained("unknown field `listn`, expected one of `listen`, `data_dir`", "server.listn", None),
            "unknown key; did you mean `listen`? Known keys: listen, data_dir"
        );
        assert_eq!(
            explained("unknown field `x`, expected `listen` or `data_dir`", "server.x", None),
            "unknown key; known keys: listen, data_dir"
        );
        let odd = "` or `, expected `";
        assert_eq!(
            explained(&format!("unknown field `{odd}`, expected `engines`"), odd, None),
            "unknown key; known keys: engines"
        );
    }

    #[test]
    fn a_wrong_choice_comes_with_the_right_ones() {
        assert_eq!(
            explained("unknown variant `on`, expected `enforce` or `observe`", "mode", Some("enforce")),
            "\"on\" is not a valid choice; write \"enforce\" or \"observe\""
        );
    }

    #[test]
    fn a_wrong_type_comes_with_the_default_and_without_the_text() {
        assert_eq!(
            explained("invalid type: integer `30`, expected a string\n", "lease", Some("30s")),
            "expected a text, found the number 30; the default is `lease = \"30s\"`"
        );
        assert_eq!(
            explained("invalid type: string \"s3cret, expected\", expected a sequence", "secrets", None),
            "expected a list, found a text; write it in brackets: secrets = [\"…\"]"
        );
        assert_eq!(
            explained("invalid type: map, expected a sequence", "proxy.routes", None),
            "expected a list, found a table; write [[proxy.routes]], with two brackets, above each of them, and its name as `name = \"…\"`"
        );
        assert_eq!(
            explained("invalid type: integer `100`, expected struct QuotaOptions", "apps.shop.quota", None),
            "expected a table, found the number 100; write quota = { requests_per_second = 100 }"
        );
    }
}
