//! Checks responses against `openapi.yaml` and `openapi-admin.yaml`: finds the operation, the status and the media type, and
//! validates the body. Knows nothing of the gateway.

mod document;

use std::sync::LazyLock;

pub use self::document::Document;
use self::document::{PROBLEM, essence};

/// Path at which each listener serves its document.
const DOCUMENT: &str = "/openapi.yaml";

/// The HTTP contract: both documents.
pub struct Spec {
    /// `openapi.yaml`, the API of callers.
    pub api: Document,
    /// `openapi-admin.yaml`, the admin listener.
    pub admin: Document,
}

impl Spec {
    /// The documents in the repository, read once.
    pub fn load() -> &'static Self {
        static SPEC: LazyLock<Spec> =
            LazyLock::new(|| Spec { api: Document::read("openapi.yaml"), admin: Document::read("openapi-admin.yaml") });
        &SPEC
    }

    /// Validates a response to `method path` (a path as requested, with or without its query).
    ///
    /// A 4xx or 5xx to a request without an operation (an unknown path or a wrong method) is validated as a plain
    /// problem.
    pub fn check_response(
        &self,
        method: &str,
        path: &str,
        status: u16,
        content_type: Option<&str>,
        body: &[u8],
    ) -> Result<(), String> {
        self.response(method, path, status, content_type, body)
            .map_err(|why| format!("{method} {path} answered {status}: {why}\n{}", String::from_utf8_lossy(body)))
    }

    fn response(
        &self,
        method: &str,
        path: &str,
        status: u16,
        content_type: Option<&str>,
        body: &[u8],
    ) -> Result<(), String> {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        if (method, path, status) == ("GET", DOCUMENT, 200) {
            return self.document(content_type, body);
        }
        for document in [&self.api, &self.admin] {
            if let Some(operation) = document.find_operation(method, path) {
                return document.check_response(&operation, status, content_type, body);
            }
        }
        if status < 400 {
            return Err("the documents have no such operation".into());
        }
        if content_type.map(essence).as_deref() != Some(PROBLEM) {
            return Err(format!("a problem is {PROBLEM}, not {content_type:?}"));
        }
        let document = if path.starts_with("/admin/") { &self.admin } else { &self.api };
        document.check_problem(status, body)
    }

    /// Validates a response of `GET /openapi.yaml`, which the documents do not describe because generators warn of its type.
    fn document(&self, content_type: Option<&str>, body: &[u8]) -> Result<(), String> {
        if content_type != Some("application/yaml") {
            return Err(format!("a document is application/yaml, not {content_type:?}"));
        }
        let known = [&self.api, &self.admin].into_iter().any(|document| document.text().as_bytes() == body);
        if known { Ok(()) } else { Err("it is neither document of the repository".into()) }
    }

    /// Validates a problem of no particular operation of the API.
    pub fn check_problem(&self, status: u16, body: &[u8]) -> Result<(), String> {
        self.api.check_problem(status, body)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::document::JSON;
    use super::*;

    const CLAIM: &str = "/v1/claims/c72034d8c477e40bda98523df450ed90";

    fn problem(status: u16, code: &str, title: &str) -> Value {
        json!({
            "type": format!("urn:oncegate:problem:{code}"), "title": title, "status": status, "detail": "Do this.",
            "code": code, "request_id": "r-1",
        })
    }

    fn check(method: &str, path: &str, status: u16, media_type: &str, body: &Value) -> Result<(), String> {
        Spec::load().check_response(method, path, status, Some(media_type), body.to_string().as_bytes())
    }

    fn renewed() -> Value {
        json!({
            "global_id": "c72034d8c477e40bda98523df450ed90", "lease_ms": 29_998,
            "lease_expires_at": "2026-10-20T09:30:55.204Z", "degraded": null,
        })
    }

    #[test]
    fn the_documents_own_examples_are_valid() {
        for document in [&Spec::load().api, &Spec::load().admin] {
            document.check_examples().unwrap_or_else(|why| panic!("{why}"));
        }
    }

    #[test]
    fn a_wrong_example_is_found() {
        let text = Spec::load().api.text().replace("fence: 41", "fence: '41'");
        let why = Document::parse(&text).check_examples().unwrap_err();
        assert!(why.contains("examples/order:") && why.contains("body/fence"), "{why}");
    }

    #[test]
    fn an_answer_as_documented_passes() {
        assert_eq!(
            check("POST", &format!("{CLAIM}/renewal"), 200, "application/json; charset=utf-8", &renewed()),
            Ok(())
        );
        let metrics = Spec::load().check_response("GET", "/metrics", 200, Some("text/plain; version=0.0.4"), b"up 1\n");
        assert_eq!(metrics, Ok(()));
        assert_eq!(check("GET", "/readyz?verbose", 200, JSON, &json!({"status": "ready", "engines": {}})), Ok(()));
    }

    #[test]
    fn a_missing_a_surplus_and_a_wrong_member_are_found_and_named() {
        for (name, value, expected) in [
            ("lease_ms", None, "lease_ms"),
            ("lease_ms", Some(json!(0)), "body/lease_ms"),
            ("lease_expires_at", Some(json!("2026-10-20T09:30:55+00:00")), "body/lease_expires_at"),
            ("attempt", Some(json!("secret")), "attempt"),
        ] {
            let mut body = renewed();
            body.as_object_mut().expect("is one").remove(name);
            if let Some(value) = value {
                body[name] = value;
            }
            let why = check("POST", &format!("{CLAIM}/renewal"), 200, JSON, &body).unwrap_err();
            assert!(why.contains("not as #") && why.contains(expected), "{why}");
        }
    }

    #[test]
    fn what_the_document_does_not_foresee_is_found() {
        assert!(
            check("POST", &format!("{CLAIM}/renewal"), 202, JSON, &renewed()).unwrap_err().contains("no such status")
        );
        assert!(check("POST", &format!("{CLAIM}/renewal"), 200, PROBLEM, &renewed()).unwrap_err().contains(JSON));
        assert!(check("POST", "/v1/renewals", 200, JSON, &renewed()).unwrap_err().contains("no such operation"));
        assert!(Spec::load().check_response("GET", "/livez", 200, None, b"").is_err());
    }

    #[test]
    fn a_path_without_variables_goes_first() {
        let items = json!({"items": [{"status": 202, "global_id": "c72034d8c477e40bda98523df450ed90", "state": "spooled",
            "expires_at": null, "late": null, "degraded": "spool"}]});
        assert_eq!(check("POST", "/v1/outcomes/batch", 200, JSON, &items), Ok(()));
        let why = check("POST", "/v1/claims/batch", 200, JSON, &items).unwrap_err();
        assert!(why.contains("items/0") || why.contains("claims~1batch"), "{why}");
    }

    fn duplicate(state: &str) -> Value {
        let mut duplicate = problem(409, "duplicate", "Duplicate");
        let members = json!({
            "global_id": "c72034d8c477e40bda98523df450ed90", "state": state, "timestamp": 1_792_488_615_123_456_u64,
            "attempt_hash": "47f45317", "claimed_at": "2026-10-20T09:30:15Z", "expires_at": "2026-10-20T09:30:45Z",
        });
        duplicate.as_object_mut().expect("is one").extend(members.as_object().cloned().expect("is one"));
        duplicate
    }

    /// The body with a field set, or removed where the value is `None`.
    fn with(mut body: Value, name: &str, value: Option<Value>) -> Value {
        body.as_object_mut().expect("is one").remove(name);
        if let Some(value) = value {
            body[name] = value;
        }
        body
    }

    #[test]
    fn a_duplicate_has_the_fields_of_its_state_and_no_others() {
        let waiting = with(duplicate("in_progress"), "retry_after_ms", Some(json!(1000)));
        for (body, expected) in [
            (waiting.clone(), None),
            (duplicate("succeeded"), None),
            (with(duplicate("succeeded"), "result", Some(Value::Null)), None),
            (with(duplicate("unknown"), "expires_at", Some(Value::Null)), None),
            (duplicate("in_progress"), Some("retry_after_ms")),
            (with(waiting.clone(), "result", Some(json!(1))), Some("result")),
            (with(waiting.clone(), "expires_at", Some(Value::Null)), Some("expires_at")),
            (with(waiting.clone(), "contents_verified", Some(json!(true))), Some("contents_verified")),
            (with(waiting.clone(), "attempt_hash", None), Some("attempt_hash")),
            (with(waiting, "attempt_nonce", Some(json!("5f0c9a7be2d14836"))), Some("attempt_nonce")),
            (with(duplicate("succeeded"), "retry_after_ms", Some(json!(1000))), Some("retry_after_ms")),
            (with(duplicate("succeeded"), "result_omitted", Some(json!(true))), Some("result_omitted")),
            (with(duplicate("unknown"), "result", Some(json!(1))), Some("result")),
            (with(duplicate("unknown"), "code", Some(json!("superseded"))), Some("superseded")),
        ] {
            let found = check("POST", "/v1/claims", 409, PROBLEM, &body);
            match expected {
                None => assert_eq!(found, Ok(())),
                Some(name) => assert!(found.clone().is_err_and(|why| why.contains(name)), "{body}: {found:?}"),
            }
        }
    }

    #[test]
    fn an_unknown_outcome_carries_the_nonce_of_a_claim_alone() {
        let unknown = problem(503, "outcome_unknown", "Outcome unknown");
        let with_nonce = with(unknown.clone(), "attempt_nonce", Some(json!("5f0c9a7be2d14836")));
        assert!(check("POST", "/v1/claims", 503, PROBLEM, &unknown).unwrap_err().contains("attempt_nonce"));
        assert_eq!(check("POST", "/v1/claims", 503, PROBLEM, &with_nonce), Ok(()));
        let outcome = format!("{CLAIM}/outcome");
        assert!(check("POST", &outcome, 503, PROBLEM, &with_nonce).unwrap_err().contains("attempt_nonce"));
        assert_eq!(check("POST", &outcome, 503, PROBLEM, &unknown), Ok(()));
    }

    #[test]
    fn items_of_a_batch_are_responses_of_the_single_operation() {
        let batch = |item: Value| check("POST", "/v1/claims/batch", 200, JSON, &json!({ "items": [item] }));
        assert_eq!(batch(with(duplicate("succeeded"), "result_omitted", Some(json!(true)))), Ok(()));
        assert!(batch(duplicate("in_progress")).unwrap_err().contains("retry_after_ms"));
        assert!(batch(json!({"status": 201, "state": "in_progress"})).unwrap_err().contains("items/0"));
        assert!(batch(json!({"status": 200})).unwrap_err().contains("status"));
        let omitted = with(duplicate("succeeded"), "result_omitted", Some(json!(true)));
        assert!(batch(with(omitted, "result", Some(json!(1)))).unwrap_err().contains("result"));
        assert!(batch(problem(400, "malformed_json", "Malformed JSON")).unwrap_err().contains("code"));
    }

    #[test]
    fn a_mismatch_may_reveal_nothing() {
        let mut mismatch = problem(422, "fingerprint_mismatch", "Fingerprint mismatch");
        assert_eq!(check("POST", "/v1/claims", 422, PROBLEM, &mismatch), Ok(()));
        mismatch["state"] = json!("succeeded");
        assert!(check("POST", "/v1/claims", 422, PROBLEM, &mismatch).unwrap_err().contains("state"));
    }

    #[test]
    fn problems_are_held_against_the_table() {
        let spec = Spec::load();
        let check = |status, problem: &Value| spec.check_problem(status, problem.to_string().as_bytes());
        assert_eq!(check(404, &problem(404, "not_found", "Not found")), Ok(()));
        assert!(check(405, &problem(404, "not_found", "Not found")).unwrap_err().contains("says status 404"));
        assert!(check(410, &problem(410, "not_found", "Not found")).unwrap_err().contains("has status 404"));
        assert!(check(404, &problem(404, "not_found", "Oh no")).unwrap_err().contains("has title"));
        assert!(check(404, &problem(404, "gone", "Gone")).unwrap_err().contains("x-problem-codes"));
        let mut other_type = problem(404, "not_found", "Not found");
        other_type["type"] = json!("urn:oncegate:problem:gone");
        assert!(check(404, &other_type).unwrap_err().contains("has type"));
    }

    #[test]
    fn outside_of_operations_there_are_only_problems() {
        let body = problem(405, "method_not_allowed", "Method not allowed");
        assert_eq!(check("DELETE", "/v1/claims", 405, PROBLEM, &body), Ok(()));
        assert!(check("DELETE", "/v1/claims", 405, JSON, &body).unwrap_err().contains(PROBLEM));
        assert_eq!(check("GET", "/v1/nothing", 404, PROBLEM, &problem(404, "not_found", "Not found")), Ok(()));
    }

    #[test]
    fn both_documents_are_of_the_version_that_generators_know_best() {
        for document in [&Spec::load().api, &Spec::load().admin] {
            assert_eq!(document.value()["openapi"], "3.0.3");
        }
    }

    #[test]
    fn operations_are_listed_by_method_and_template() {
        let Spec { api, admin, .. } = Spec::load();
        assert!(api.operations().contains(&("GET".into(), "/v1/claims/{global_id}".into())), "{:?}", api.operations());
        assert!(admin.operations().contains(&("GET".into(), "/admin/v1/chains".into())), "{:?}", admin.operations());
    }
}
