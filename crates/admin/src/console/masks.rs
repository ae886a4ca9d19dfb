//! Values in contents and results that no page shows: those that an app masks, and the bodies of stored responses.

use oncegate_core::tenant::Operation;
use serde_json::Value;
use serde_json::value::RawValue;

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

/// Returns JSON text without the values at these pointers.
pub(super) fn masked(json: &RawValue, masks: &[String]) -> Untrusted {
    if masks.is_empty() {
        return Untrusted::from(json.get());
    }
    let Ok(mut value) = serde_json::from_str::<Value>(json.get()) else { return Untrusted::from(MASK) };
    hide(&mut value, masks);
    Untrusted::from(value.to_string())
}

/// Masks contents and results of all claims in an answer of the admin API. A claim names its app, or the call did.
pub(super) fn mask_claims(answer: &mut Value, app: Option<&str>, masks: &dyn Fn(&str) -> Vec<String>) {
    match answer {
        Value::Array(items) => items.iter_mut().for_each(|item| mask_claims(item, app, masks)),
        Value::Object(members) => {
            let own = members.get("app").and_then(Value::as_str).map(str::to_owned);
            let app = own.as_deref().or(app);
            let operation = members.get("operation").and_then(Value::as_str);
            let is_of_proxy = operation.is_some_and(|operation| operation.starts_with(Operation::PROXY_PREFIX));
            for (name, member) in members.iter_mut() {
                if matches!(name.as_str(), "contents" | "result") {
                    hide(member, &of_record(app.map(masks).unwrap_or_default(), is_of_proxy));
                } else {
                    mask_claims(member, app, masks);
                }
            }
        }
        _ => {}
    }
}

fn hide(value: &mut Value, masks: &[String]) {
    for mask in masks {
        if let Some(hidden) = value.pointer_mut(mask) {
            *hidden = Value::from(MASK);
        }
    }
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
    fn masked_values_are_in_no_answer() {
        let claim = serde_json::json!({ "app": "shop", "contents": { "email": "a@b" }, "result": { "email": "a@b" } });
        let bare = serde_json::json!({ "contents": { "email": "c@d" } });
        let masks = |app: &str| if app == "shop" { vec!["/email".to_owned()] } else { Vec::new() };
        let mut answer = serde_json::json!({ "claims": [claim, bare] });
        mask_claims(&mut answer, None, &masks);
        assert!(!answer.to_string().contains("a@b") && answer.to_string().contains("c@d"), "{answer}");
        mask_claims(&mut answer, Some("shop"), &masks);
        assert!(!answer.to_string().contains("c@d"), "the app of the call: {answer}");
    }

    #[test]
    fn bodies_of_stored_responses_are_in_no_answer() {
        let claim = |operation: &str| serde_json::json!({ "operation": operation, "result": { "body": "YUBi", "status": 201 } });
        let mut answer = serde_json::json!({ "claims": [claim("proxy:orders"), claim("orders")] });
        mask_claims(&mut answer, None, &|_: &str| Vec::new());
        let results = |at: usize| answer["claims"][at]["result"].clone();
        assert_eq!(results(0), serde_json::json!({ "body": MASK, "status": 201 }));
        assert_eq!(results(1)["body"], "YUBi");
    }
}
