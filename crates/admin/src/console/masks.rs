//! Values in contents and results that no page shows: those that an app masks, and the bodies of stored responses.

use std::collections::BTreeMap;

use oncegate_core::tenant::Operation;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::untrusted::Untrusted;

/// Replacement of a masked value.
const MASK: &str = "•••";

/// The pointer to the body of a stored response, in the result of a record of the proxy.
const BODY: &str = "/body";

/// Returns the pointers that are hidden in a record: those that its app masks, and the body of a stored response.
pub(super) fn of_record(mut masks: Vec<String>, is_of_proxy: bool) -> Vec<String> {
    if is_of_proxy {
        masks.push(BODY.to_owned());
    }
    masks
}

/// Returns JSON text without the values at these pointers. All other values keep their text: parsing them would change numbers.
pub(super) fn masked(json: &RawValue, masks: &[String]) -> Untrusted {
    if masks.is_empty() { Untrusted::from(json.get()) } else { Untrusted::from(hide(json, masks).get()) }
}

/// Masks contents and results of all claims in an answer of the admin API. A claim names its app, or the call did.
pub(super) fn mask_claims(answer: &RawValue, app: Option<&str>, masks: &dyn Fn(&str) -> Vec<String>) -> Box<RawValue> {
    if let Ok(items) = serde_json::from_str::<Vec<Box<RawValue>>>(answer.get()) {
        return written(&items.iter().map(|item| mask_claims(item, app, masks)).collect::<Vec<_>>());
    }
    let Ok(mut members) = members(answer) else { return answer.to_owned() };
    let text = |name: &str| members.get(name).and_then(|member| serde_json::from_str::<String>(member.get()).ok());
    let (own, operation) = (text("app"), text("operation"));
    let app = own.as_deref().or(app);
    let is_of_proxy = operation.is_some_and(|operation| operation.starts_with(Operation::PROXY_PREFIX));
    for (name, member) in &mut members {
        *member = if matches!(name.as_str(), "contents" | "result") {
            hide(member, &of_record(app.map(masks).unwrap_or_default(), is_of_proxy))
        } else {
            mask_claims(member, app, masks)
        };
    }
    written(&members)
}

fn hide(json: &RawValue, masks: &[String]) -> Box<RawValue> {
    masks.iter().fold(json.to_owned(), |json, mask| hide_at(&json, mask))
}

/// Returns JSON text without the value at this pointer. Each object of the path is written again: of two members with the same name
/// only the last one stays, and the other one is not shown.
fn hide_at(json: &RawValue, pointer: &str) -> Box<RawValue> {
    let Some(rest) = pointer.strip_prefix('/') else { return written(MASK) };
    let (name, rest) = rest.find('/').map_or((rest, ""), |end| rest.split_at(end));
    if let Ok(mut members) = members(json) {
        if let Some(member) = members.get_mut(&name.replace("~1", "/").replace("~0", "~")) {
            *member = hide_at(member, rest);
        }
        return written(&members);
    }
    let Ok(mut items) = serde_json::from_str::<Vec<Box<RawValue>>>(json.get()) else { return json.to_owned() };
    if let Some(item) = name.parse::<usize>().ok().and_then(|index| items.get_mut(index)) {
        *item = hide_at(item, rest);
    }
    written(&items)
}

fn members(json: &RawValue) -> serde_json::Result<BTreeMap<String, Box<RawValue>>> {
    serde_json::from_str(json.get())
}

/// Returns the JSON text of a value.
fn written(value: &(impl Serialize + ?Sized)) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_values_are_not_shown() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let json = raw(r#"{"customer":{"email":"a@b","id":7},"big":12345678901234567890123}"#);
        assert_eq!(masked(&json, &[]).raw(), json.get(), "unchanged");
        let shown = masked(&json, &["/customer/email".to_owned(), "/none".to_owned()]);
        assert!(!shown.raw().contains("a@b") && shown.raw().contains(r#""email":"•••""#), "{}", shown.raw());
        assert_eq!(masked(&raw(r#""a@b""#), &[String::new()]).raw(), "\"•••\"", "the whole value");
    }

    #[test]
    fn values_that_are_not_masked_keep_their_text() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let shown = |json: &str, mask: &str| masked(&raw(json), &[mask.to_owned()]).raw().to_owned();
        let numbers = r#"{"a/b":{"~":"a@b"},"big":12345678901234567890123,"price":1.10}"#;
        let expected = r#"{"a/b":{"~":"•••"},"big":12345678901234567890123,"price":1.10}"#;
        assert_eq!(shown(numbers, "/a~1b/~0"), expected);
        assert_eq!(shown(r#"[1.10,{"e":"a@b"}]"#, "/1/e"), r#"[1.10,{"e":"•••"}]"#);
        assert_eq!(shown(r#"{"a":{"e":"a@b"},"a":{}}"#, "/a/e"), r#"{"a":{}}"#, "only the last of two members counts");
        let answer = raw(r#"{"claims":[{"app":"shop","contents":{"e":"a@b","price":1.10}}]}"#);
        let answer = mask_claims(&answer, None, &|_: &str| vec!["/e".to_owned()]);
        assert_eq!(answer.get(), r#"{"claims":[{"app":"shop","contents":{"e":"•••","price":1.10}}]}"#);
    }

    #[test]
    fn masked_values_are_in_no_answer() {
        let claim = serde_json::json!({ "app": "shop", "contents": { "email": "a@b" }, "result": { "email": "a@b" } });
        let bare = serde_json::json!({ "contents": { "email": "c@d" } });
        let masks = |app: &str| if app == "shop" { vec!["/email".to_owned()] } else { Vec::new() };
        let answer = written(&serde_json::json!({ "claims": [claim, bare] }));
        let answer = mask_claims(&answer, None, &masks);
        assert!(!answer.get().contains("a@b") && answer.get().contains("c@d"), "{answer}");
        let answer = mask_claims(&answer, Some("shop"), &masks);
        assert!(!answer.get().contains("c@d"), "the app of the call: {answer}");
    }

    #[test]
    fn bodies_of_stored_responses_are_in_no_answer() {
        let claim = |operation: &str| serde_json::json!({ "operation": operation, "result": { "body": "YUBi", "status": 201 } });
        let answer = written(&serde_json::json!({ "claims": [claim("proxy:orders"), claim("orders")] }));
        let answer = mask_claims(&answer, None, &|_: &str| Vec::new());
        let answer: serde_json::Value = serde_json::from_str(answer.get()).unwrap();
        let results = |at: usize| answer["claims"][at]["result"].clone();
        assert_eq!(results(0), serde_json::json!({ "body": MASK, "status": 201 }));
        assert_eq!(results(1)["body"], "YUBi");
    }
}
