//! The canonical form as a whole: samples of the RFC, errors and their paths, and random values in random notation.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn canonical(json: &str) -> Result<String, NotCanonical> {
    canonicalize_any(json.as_bytes(), "contents").map(|canonical| canonical.as_str().to_owned())
}

fn message(json: &str) -> String {
    canonicalize(json.as_bytes()).expect_err("no canonical form").to_string()
}

/// RFC 8785, 3.2.2 and 3.2.4.
#[test]
fn the_example_of_the_rfc_has_its_canonical_form() {
    let json = r#"{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"#;
    let expected = concat!(
        r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"#,
        r#""string":"€$\u000f\nA'B\"\\\\\"/"}"#
    );
    assert_eq!(canonical(json).as_deref(), Ok(expected));
}

/// RFC 8785, 3.2.2.2.
#[test]
fn control_characters_without_a_short_escape_are_four_hex_digits() {
    assert_eq!(canonical(r#""\u000F\u0010\u001f""#).as_deref(), Ok(r#""\u000f\u0010\u001f""#));
}

/// RFC 8785, 3.2.3.
#[test]
fn keys_are_sorted_by_their_utf_16_code_units() {
    let json = r#"{
        "\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
        "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"
    }"#;
    let expected = concat!(
        r#"{"\r":"Carriage Return","1":"One",""#,
        "\u{80}",
        r#"":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","#,
        r#""😀":"Emoji: Grinning Face",""#,
        "\u{fb33}",
        r#"":"Hebrew Letter Dalet With Dagesh"}"#
    );
    assert_eq!(canonical(json).as_deref(), Ok(expected));
}

#[test]
fn only_required_escapes_are_written() {
    let json = "\"\\u0000\\u0008\\t\\n\\u000b\\f\\r\\u001F\\u0020\\/\\u007f\u{7f}\\u2028\\ud83d\\uDE00\\b\\\"\\\\\"";
    let expected = "\"\\u0000\\b\\t\\n\\u000b\\f\\r\\u001f /\u{7f}\u{7f}\u{2028}😀\\b\\\"\\\\\"";
    assert_eq!(canonical(json).as_deref(), Ok(expected));
}

#[test]
fn syntax_errors_say_where() {
    let bad = [
        ("", 0, "a JSON value"),
        (" \u{feff}1", 1, "a JSON value"),
        ("\u{a0}1", 0, "a JSON value"),
        ("tru", 0, "a JSON value"),
        ("True", 0, "a JSON value"),
        ("NaN", 0, "a JSON value"),
        ("'a'", 0, "a JSON value"),
        ("+1", 0, "a JSON value"),
        ("01", 1, "the end"),
        ("nulls", 4, "the end"),
        ("1 // one", 2, "the end"),
        ("-", 1, "a digit"),
        ("[1.]", 3, "a digit"),
        ("[1,]", 3, "a JSON value"),
        ("[1 2]", 3, "`,` or `]`"),
        ("[1", 2, "`,` or `]`"),
        ("{\"a\":1,}", 7, "a key in quotes"),
        ("{a:1}", 1, "a key in quotes"),
        ("{\"a\" 1}", 5, "`:`"),
        ("{\"a\":1", 6, "`,` or `}`"),
        ("\"abc", 4, "a closing quote"),
        ("\"a\nb\"", 2, "control characters to be escaped"),
        ("\"\\x\"", 2, "one of `\"\\/bfnrtu` after a backslash"),
        ("\"\\u+123\"", 3, "four hex digits after `\\u`"),
        ("\"\\u12\"", 5, "four hex digits after `\\u`"),
    ];
    for (json, offset, expected) in bad {
        let root = "fingerprint";
        let refused = NotCanonical::Syntax { root, offset, expected };
        assert_eq!(canonicalize_any(json.as_bytes(), root), Err(refused), "{json:?}");
    }
    let invalid_utf8 = canonicalize(b"\"a\xff\"").map_err(|error| error.to_string());
    assert_eq!(invalid_utf8, Err("contents: not valid JSON at byte 2: expected UTF-8".to_owned()));
}

#[test]
fn a_fingerprint_may_be_without_a_value_and_contents_may_not() {
    for json in ["null", " \"\" ", "{}", "[]", r#"{"order_id":null}"#, r#"{"order_id":""}"#, r#"[null,"",{"a":[]}]"#] {
        assert_eq!(canonicalize(json.as_bytes()), Err(NotCanonical::Empty), "{json}");
        assert_eq!(canonical(json).as_deref(), Ok(json.trim()));
    }
    for json in ["0", "false", r#"" ""#, r#"{"a":null,"b":0}"#, r#"[[],"x"]"#, r#"{"a":{},"b":[{"c":false}]}"#] {
        assert!(canonicalize(json.as_bytes()).is_ok(), "{json}");
    }
    let refused = canonicalize_any(b"[9007199254740993]", "fingerprint").map_err(|error| error.to_string());
    assert!(refused.is_err_and(|message| message.starts_with("fingerprint[0]: ")));
}

#[test]
fn equal_keys_are_rejected_also_if_they_are_escaped_differently() {
    let path = |path: &str| Err(NotCanonical::DuplicateKey { path: path.to_owned() });
    assert_eq!(canonical(r#"{"a":1,"a":1}"#), path("contents.a"));
    assert_eq!(canonical(r#"{"a":1,"b":{},"\u0061":2}"#), path("contents.a"));
    assert_eq!(canonical(r#"[{"b":[{"d":1,"c":1,"d":1}],"a":0}]"#), path("contents[0].b[0].d"));
    assert_eq!(canonical(r#"{"":1,"":2}"#), path(r#"contents[""]"#));
}

#[test]
fn numbers_without_a_canonical_form_hide_no_other_fault() {
    let read = |json: &str| canonicalize_but_numbers(json.as_bytes(), "body");
    assert_eq!(read(r#"{"b":-1e400,"a":[12345678901234567890,1.50]}"#).unwrap(), r#"{"a":[0,1.5],"b":0}"#);
    assert_eq!(read(r#"[1e400,{"a":1,"a":1}]"#), Err(NotCanonical::DuplicateKey { path: "body[1].a".into() }));
    assert!(matches!(read("[1e400,-]"), Err(NotCanonical::Syntax { .. })));
}

#[test]
fn half_of_a_surrogate_pair_is_rejected() {
    for half in [r"\ud800", r"\udc00", r"\ud83d\u0041", r"\ud83d\ud83d\ude00", r"\ude00\ud83d", r"\ud83d\n"] {
        let refused = Err(NotCanonical::LoneSurrogate { path: "contents.a[1]".to_owned() });
        assert_eq!(canonical(&format!(r#"{{"a":[0,"x{half}"]}}"#)), refused, "{half}");
        let refused = Err(NotCanonical::LoneSurrogate { path: "contents.a".to_owned() });
        assert_eq!(canonical(&format!(r#"{{"a":{{"{half}":0}}}}"#)), refused, "{half}");
    }
}

#[test]
fn thirty_two_levels_are_accepted_and_no_more() {
    let arrays = |levels| "[".repeat(levels) + &"]".repeat(levels);
    let objects = |levels| r#"{"a":"#.repeat(levels) + "0" + &"}".repeat(levels);
    assert!(canonical(&arrays(32)).is_ok());
    assert!(canonical(&objects(32)).is_ok());
    for json in [arrays(33), objects(33), arrays(1_000_000), "[".repeat(33)] {
        assert!(matches!(canonical(&json), Err(NotCanonical::TooDeep { .. })));
    }
}

#[test]
fn an_error_names_the_path_and_what_to_do() {
    assert_eq!(
        message(r#"{"order":{"items":[0,0,0,{"odd key":12345678901234567}]}}"#),
        r#"contents.order.items[3]["odd key"]: the number is beyond 2^53 - 1, where digits get lost; send it as a string"#
    );
    assert_eq!(message("1e400"), "contents: the number is larger than any double; send it as a string");
}

#[test]
fn an_error_is_short_and_has_no_control_characters() {
    let shown = message(&format!(r#"{{"{}":[1e99999]}}"#, "k".repeat(10_000)));
    assert!(shown.starts_with("contents[\"kkkkkkkkkkkkk…kkkkk"), "{shown}");
    let key = r"\n\u001b[31m\u202e";
    let shown = message(&(format!(r#"{{"{key}":"#).repeat(31) + "[1e99999]" + &"}".repeat(31)));
    assert!(shown.chars().count() <= 200 && shown.contains(r"\u{202e}"), "{shown}");
    assert!(!shown.contains(|c: char| c.is_control() || c == '\u{202e}'), "{shown}");
}

#[test]
fn contents_are_never_displayed() {
    let contents = canonicalize(br#"{"card":"4111"}"#);
    assert_eq!(format!("{contents:?}"), "Ok(Canonical(15 bytes))");
    assert!(!message(r#"{"card":"4111\ud800"}"#).contains("4111"));
}

/// Any JSON, with keys that sort differently in UTF-8 and UTF-16, and numbers of all sizes.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e6).prop_map(|number: f64| Value::from((number * 100.0).round() / 100.0)),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let keys = prop_oneof!["[a-cé\u{fb33}\u{1f600}\"\\\\\n]{0,3}", any::<String>()];
    leaf.prop_recursive(5, 40, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(keys.clone(), inner, 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn numbers_fit(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|it| !(9_007_199_254_740_992.0..1e21).contains(&it.abs())),
        Value::Array(items) => items.iter().all(numbers_fit),
        Value::Object(members) => members.values().all(numbers_fit),
        _ => true,
    }
}

/// Writes a value with random order of keys, white space, escapes and notation of numbers.
struct Untidy(u64);

impl Untidy {
    fn random(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 48).expect("16 bits") % below
    }

    fn one_of(&mut self, choices: &[&'static str]) -> &'static str {
        choices[self.random(choices.len())]
    }

    fn space(&mut self) -> &'static str {
        self.one_of(&["", "", " ", "\n\t", "\r\n  "])
    }

    fn string(&mut self, string: &str) -> String {
        let characters = string.chars().map(|character| {
            if self.random(3) == 0 {
                let units = character.encode_utf16(&mut [0; 2]).to_vec();
                let escapes: Vec<_> = units.iter().map(|unit| format!("\\u{unit:04X}")).collect();
                escapes.concat()
            } else {
                let quoted = Value::from(character.to_string()).to_string();
                quoted[1..quoted.len() - 1].to_owned()
            }
        });
        format!("\"{}\"", characters.collect::<String>())
    }

    fn value(&mut self, value: &Value) -> String {
        let text = match value {
            Value::String(string) => self.string(string),
            Value::Number(number) => match number.to_string() {
                number if number.contains('e') => number.replace('e', "E"),
                number if number.contains('.') => number + self.one_of(&["", "0", "e0", "00E+00"]),
                number => number + self.one_of(&["", ".0", "e-0", ".000E00"]),
            },
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| self.value(item)).collect();
                format!("[{}{}]", self.space(), items.join(","))
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().map(|member| (self.random(1000), member)).collect();
                members.sort_by_key(|(order, _)| *order);
                let members: Vec<_> = members
                    .into_iter()
                    .map(|(_, (key, value))| {
                        format!("{}{}{}:{}", self.space(), self.string(key), self.space(), self.value(value))
                    })
                    .collect();
                format!("{{{}{}}}", members.join(","), self.space())
            }
            other => other.to_string(),
        };
        format!("{}{text}{}", self.space(), self.space())
    }
}

proptest! {
    #[test]
    fn accepted_values_agree_with_another_implementation(value in values()) {
        match canonical(&value.to_string()) {
            Ok(ours) => {
                prop_assert!(numbers_fit(&value));
                prop_assert_eq!(ours, serde_json_canonicalizer::to_string(&value)?);
            }
            Err(refused) => {
                prop_assert!(matches!(refused, NotCanonical::Number { .. }), "{}", refused);
                prop_assert!(!numbers_fit(&value));
            }
        }
    }

    #[test]
    fn order_of_keys_white_space_and_escapes_never_matter(value in values(), seed: u64) {
        let untidy = Untidy(seed).value(&value);
        let tidy = canonical(&value.to_string());
        prop_assert_eq!(canonical(&untidy).ok(), tidy.clone().ok(), "{}", untidy);
        if let Ok(tidy) = tidy {
            prop_assert_eq!(canonical(&tidy), Ok(tidy));
        }
    }

    #[test]
    fn the_grammar_agrees_with_another_parser(value in values(), seed: u64, at: prop::sample::Index, byte: u8) {
        let mut json = Untidy(seed).value(&value).into_bytes();
        let at = at.index(json.len());
        json[at] = *br#"{}[]",:\u0123456789aefnrt.+- "#.get(usize::from(byte)).unwrap_or(&byte);
        match (canonicalize_any(&json, "contents"), serde_json::from_slice::<Value>(&json)) {
            (Ok(_), theirs) => prop_assert!(theirs.is_ok(), "{:?}", theirs),
            (Err(NotCanonical::Syntax { .. }), theirs) => prop_assert!(theirs.is_err(), "{:?}", theirs),
            (Err(_), _) => {}
        }
    }

    #[test]
    fn no_bytes_cause_a_panic(bytes: Vec<u8>, jsonish in "[\\[\\]{}\",:\\\\u0-9a-ftrnl.eE+ -]{0,64}") {
        for json in [bytes.as_slice(), jsonish.as_bytes()] {
            if let Ok(once) = canonicalize_any(json, "contents") {
                prop_assert_eq!(canonicalize_any(once.as_str().as_bytes(), "contents"), Ok(once));
            }
        }
    }
}
