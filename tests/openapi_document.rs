//! Holds `openapi.yaml` and `openapi-admin.yaml` to themselves: they are complete, references resolve, and examples are valid
//! and true, down to every global ID, digest and attempt hash. `it` tests over sockets that the gateway answers accordingly.

use std::collections::{BTreeMap, BTreeSet};

use md5::{Digest as _, Md5};
use oncegate_testkit::openapi::{Document, Spec};
use serde_json::{Value, json};
use sha2::Sha256;

/// The app of an open gateway, which all examples are of.
const APP: &str = "default";

#[test]
fn every_operation_is_named_and_tells_what_can_go_wrong() {
    for document in documents() {
        let mut names = BTreeSet::new();
        for (method, path) in document.operations() {
            let operation = &document.value()["paths"][&path][method.to_lowercase()];
            let name =
                operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no operationId"));
            assert!(names.insert(name.to_owned()), "{name} is used twice");
            for text in ["summary", "description"] {
                assert!(operation[text].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {text}");
            }
            assert!(operation["tags"].as_array().is_some_and(|tags| !tags.is_empty()), "{name} has no tags");
            let responses = operation["responses"].as_object().expect("an operation has responses");
            assert!(responses.keys().any(|status| status.starts_with('2')), "{name} never succeeds");
            assert!(responses.keys().any(|status| status.starts_with('5')), "{name} never fails");
            if path.starts_with("/v1/") || path.starts_with("/admin/v1/") {
                for status in ["400", "401", "403", "500", "503"] {
                    assert!(responses.contains_key(status), "{name} has no {status}");
                }
            }
            for (status, response) in responses {
                check_response(document, name, status, resolve(document, response));
            }
        }
    }
}

/// Checks the media type, the headers and the list of codes of a response.
fn check_response(document: &Document, name: &str, status: &str, response: &Value) {
    let problem = response["content"].get("application/problem+json").is_some();
    assert_eq!(problem, status >= "400", "{name}: {status} has the wrong media type");
    assert!(response["headers"].get("X-Request-Id").is_some(), "{name}: {status} has no X-Request-Id");
    let codes = response["x-codes"].as_array();
    assert_eq!(problem, codes.is_some_and(|codes| !codes.is_empty()), "{name}: {status} has no or needless x-codes");
    for code in codes.into_iter().flatten() {
        let row = &document.value()["x-problem-codes"][code.as_str().expect("a code is text")];
        assert_eq!(row["status"].to_string(), status, "{name}: {code} among the codes of {status}");
    }
}

#[test]
fn every_body_has_an_example() {
    let mut bodies = 0;
    for document in documents() {
        walk(document.value(), &mut |value| {
            for (media_type, body) in members(&value["content"]) {
                bodies += 1;
                let examples = body["examples"].as_object().is_some_and(|examples| !examples.is_empty());
                assert!(examples, "no example of {media_type} {}", body["schema"]);
            }
        });
    }
    assert!(bodies > 40, "only {bodies} bodies were found");
}

#[test]
fn every_reference_resolves_and_every_component_is_used() {
    for document in documents().map(Document::value) {
        let mut used = BTreeSet::new();
        walk(document, &mut |value| {
            if let Some(reference) = value["$ref"].as_str() {
                let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} leaves the document"));
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
                used.insert(pointer.to_owned());
            }
        });
        for (kind, components) in members(&document["components"]).filter(|(kind, _)| *kind != "securitySchemes") {
            for (name, _) in members(components) {
                assert!(used.contains(&format!("/components/{kind}/{name}")), "nothing uses {kind}/{name}");
            }
        }
    }
}

#[test]
fn every_schema_is_one() {
    for document in documents() {
        for (name, schema) in members(&document.value()["components"]["schemas"]) {
            if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
                panic!("{name}: {error}");
            }
        }
    }
}

#[test]
fn what_both_documents_describe_is_the_same_in_both() {
    let [api, admin] = documents().map(Document::value);
    let schemas = |document: &'static Value| members(&document["components"]["schemas"]);
    for (name, schema) in schemas(api).filter(|(name, _)| *name != "Problem") {
        assert!(admin["components"]["schemas"].get(name).is_none_or(|other| other == schema), "{name}");
    }
    // The problems of the admin document have all base fields of the other, and describe them alike.
    for (name, property) in members(&api["components"]["schemas"]["Problem"]["properties"]) {
        let other = admin["components"]["schemas"]["Problem"]["properties"].get(name);
        assert!(other.is_none_or(|other| other == property), "Problem.{name}");
    }
    for (code, row) in members(&api["x-problem-codes"]) {
        let other = admin["x-problem-codes"].get(code);
        assert!(
            other.is_none_or(|other| (&other["status"], &other["title"]) == (&row["status"], &row["title"])),
            "{code}"
        );
    }
    assert_eq!(api["info"]["version"], admin["info"]["version"]);
    assert_eq!(api["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn every_rule_is_about_something() {
    let rules: Value = serde_yaml_ng::from_str(include_str!("openapi/rules.yaml")).expect("rules are YAML");
    let known = documents().map(Document::value);
    for (name, rule) in members(&rules["schemas"]) {
        let schemas = known.iter().filter_map(|document| document["components"]["schemas"].get(name));
        assert!(
            schemas.clone().count() > 0 && schemas.clone().all(|schema| schema["allOf"] == json!([rule])),
            "{name}"
        );
    }
    for (operation_id, statuses) in members(&rules["responses"]) {
        let operation = documents().into_iter().flat_map(|document| {
            document
                .operations()
                .into_iter()
                .map(|(method, path)| &document.value()["paths"][path][method.to_lowercase()])
        });
        let operation = operation.into_iter().find(|operation| operation["operationId"] == **operation_id);
        for (status, _) in members(statuses) {
            assert!(operation.is_some_and(|found| found["responses"].get(status).is_some()), "{operation_id} {status}");
        }
    }
}

#[test]
fn the_tables_of_codes_are_complete_and_every_code_has_an_example() {
    let (mut all, mut shown) = (BTreeSet::new(), BTreeSet::new());
    for document in documents().map(Document::value) {
        for (code, row) in members(&document["x-problem-codes"]) {
            assert!(row["status"].as_u64().is_some_and(|status| (400..600).contains(&status)), "{code}");
            for text in ["title", "when", "what_to_do"] {
                assert!(row[text].as_str().is_some_and(|text| !text.is_empty()), "{code} has no {text}");
            }
        }
        let mut listed = BTreeSet::new();
        walk(document, &mut |value| {
            listed.extend(value["x-codes"].as_array().into_iter().flatten().filter_map(Value::as_str));
        });
        // No operation lists these: any path answers them to a method that it does not have, and to an unknown transfer coding.
        listed.extend(["method_not_allowed", "not_supported"]);
        let table: BTreeSet<_> = members(&document["x-problem-codes"]).map(|(code, _)| code.as_str()).collect();
        assert_eq!(table, listed);
        all.extend(table);
    }
    for_each_example(&mut |example| {
        shown.extend(example["code"].as_str());
    });
    shown.insert("method_not_allowed");
    assert_eq!(all, shown);
}

#[test]
fn every_global_id_in_the_examples_is_true() {
    let mut true_ids = BTreeSet::new();
    for_each_example(&mut |example| {
        if let Some(contents) = example.get("contents") {
            let operation = example.get("operation").map_or(Some("default"), Value::as_str);
            let computed =
                global_id(operation.expect("where contents are known so is the operation"), &canonical(contents));
            if let Some(shown) = example["global_id"].as_str() {
                assert_eq!(shown, computed, "{example}");
            }
            true_ids.insert(computed);
        }
    });
    for_each_example(&mut |example| {
        if let Some(shown) = example["global_id"].as_str() {
            assert!(true_ids.contains(shown), "no example shows contents with the ID of {example}");
        }
    });
    // The one in the guide is the first order's.
    assert!(include_str!("../docs/reference/http.md").contains(&global_id("order.submit", r#"{"order_id":"A-1001"}"#)));
}

#[test]
fn an_answer_belongs_to_the_request_example_whose_name_begins_its_own() {
    for path in ["/v1/claims", "/v1/claims/batch", "/v1/global-ids"] {
        let operation = operation("POST", path);
        let asked = &operation["requestBody"]["content"]["application/json"]["examples"];
        for (_, content) in
            ["200", "201", "409"].iter().flat_map(|status| members(&operation["responses"][status]["content"]))
        {
            for (name, answer) in members(&content["examples"]) {
                let (_, request) = members(asked)
                    .filter(|(asked, _)| name.starts_with(asked.as_str()))
                    .max_by_key(|(asked, _)| asked.len())
                    .unwrap_or_else(|| panic!("{path}: no request example for {name}"));
                let (request, answer) = (&request["value"], &answer["value"]);
                let pairs: Vec<_> = match (request["items"].as_array(), answer["items"].as_array()) {
                    (Some(asked), Some(answered)) => asked.iter().zip(answered).collect(),
                    _ => vec![(request, answer)],
                };
                for (request, answer) in pairs {
                    answers(request, answer);
                }
            }
        }
    }
}

/// Checks that an example of an answer can be the answer to an example of a claim.
fn answers(request: &Value, answer: &Value) {
    let canonical = canonical(&request["contents"]);
    if let Some(shown) = answer["global_id"].as_str() {
        assert_eq!(shown, global_id(request["operation"].as_str().unwrap_or("default"), &canonical), "{answer}");
    }
    if let Some(shown) = answer["canonical"].as_str() {
        assert_eq!(shown, canonical, "{answer}");
    }
    if let (Some(nonce), Some(attempt)) = (request["attempt_nonce"].as_str(), answer["attempt"].as_str()) {
        assert!(attempt.ends_with(&format!("-{nonce}")), "{answer}");
    }
}

#[test]
fn attempts_hashes_timestamps_and_digests_in_the_examples_are_true() {
    let mut timestamps_by_hash = BTreeMap::new();
    let mut digests = BTreeSet::new();
    for_each_example(&mut |example| {
        if let Some(attempt) = example["attempt"].as_str() {
            let timestamp: u64 =
                attempt.split_once('-').and_then(|(digits, _)| digits.parse().ok()).expect("an attempt");
            timestamps_by_hash.insert(sha256(attempt)[..8].to_owned(), timestamp);
            assert!(example.get("timestamp").is_none_or(|shown| *shown == timestamp), "{example}");
        }
        if let Some(contents) = example.get("contents") {
            let canonical = canonical(contents);
            digests.insert((sha256(&canonical), canonical.len()));
        }
    });
    for_each_example(&mut |example| {
        if let Some(hash) = example["attempt_hash"].as_str() {
            let timestamp = timestamps_by_hash.get(hash).map(|at| Value::from(*at));
            // A request names an attempt by its hash alone.
            let shown = example.get("timestamp").or(timestamp.as_ref());
            assert!(shown.is_some() && shown == timestamp.as_ref(), "{example}");
        }
        if let (Some(digest), Some(bytes)) = (example["contents_sha256"].as_str(), example["contents_bytes"].as_u64()) {
            let bytes = usize::try_from(bytes).expect("a length");
            assert!(digests.contains(&(digest.to_owned(), bytes)), "{example}");
        }
        if let (Some(timestamp), Some(claimed_at)) = (example["timestamp"].as_i64(), example["claimed_at"].as_str()) {
            let claimed_at: jiff::Timestamp = claimed_at.parse().expect("an instant");
            assert_eq!(claimed_at.as_microsecond(), timestamp, "{example}");
        }
    });
}

fn operation(method: &str, path: &str) -> &'static Value {
    &Spec::load().api.value()["paths"][path][method.to_lowercase()]
}

fn documents() -> [&'static Document; 2] {
    [&Spec::load().api, &Spec::load().admin]
}

/// The target of a reference, and any other value itself.
fn resolve<'a>(document: &'a Document, value: &'a Value) -> &'a Value {
    let Some(reference) = value["$ref"].as_str() else { return value };
    document.value().pointer(&reference[1..]).expect("references resolve")
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Visits a value and all below it.
fn walk<'a>(value: &'a Value, visit: &mut impl FnMut(&'a Value)) {
    visit(value);
    let below = value.as_array().into_iter().flatten().chain(members(value).map(|(_, member)| member));
    for value in below {
        walk(value, visit);
    }
}

/// Visits the value of every example of a body, and of every item of one that is a batch.
fn for_each_example(visit: &mut impl FnMut(&'static Value)) {
    for document in documents() {
        walk(document.value(), &mut |value| {
            for (_, body) in members(&value["content"]) {
                for (_, example) in members(&body["examples"]) {
                    let example = &example["value"];
                    example["items"].as_array().into_iter().flatten().chain([example]).for_each(&mut *visit);
                }
            }
        });
    }
}

fn canonical(contents: &Value) -> String {
    serde_json_canonicalizer::to_string(contents).expect("contents of examples are canonical")
}

fn global_id(operation: &str, canonical: &str) -> String {
    hex(&Md5::digest(format!("{APP}\n{operation}\n{canonical}")))
}

fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}
