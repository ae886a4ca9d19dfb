//! Holds answers against `openapi.yaml`: finds the operation, the status and the media type, and validates the body with
//! every `$ref` resolved over the whole document. Also checks the document's own examples.
//!
//! Knows nothing of the gateway; the table of problem codes is the document's `x-problem-codes`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, ValidationError, Validator};
use serde_json::{Map, Value, json};

/// The methods an OpenAPI path item may have.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";

/// The HTTP contract as the document tells it.
pub(crate) struct Spec {
    document: Value,
    /// Compiled schemas, by JSON pointer into the document.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Spec {
    /// The document in the repository, read once.
    pub(crate) fn load() -> &'static Self {
        static SPEC: LazyLock<Spec> = LazyLock::new(|| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.yaml");
            let text = std::fs::read_to_string(path).expect("openapi.yaml stands beside Cargo.toml");
            Spec::parse(&text)
        });
        &SPEC
    }

    fn parse(text: &str) -> Self {
        let document = serde_yaml_ng::from_str(text).expect("openapi.yaml is YAML that JSON can hold");
        Self { document, validators: Mutex::default() }
    }

    /// The whole document.
    pub(crate) fn document(&self) -> &Value {
        &self.document
    }

    /// Every operation as its method in capitals and its path template.
    pub(crate) fn operations(&self) -> Vec<(String, String)> {
        let pairs = object(&self.document["paths"]).flat_map(|(path, item)| METHODS.map(|method| (method, path, item)));
        pairs
            .filter(|(method, _, item)| item.get(method).is_some())
            .map(|(method, path, _)| (method.to_uppercase(), path.clone()))
            .collect()
    }

    /// Whether the document foresees this answer of `method path` (a path as requested, with or without its query).
    ///
    /// A 4xx or 5xx to what is no operation, an unknown path or a wrong method, is held against the plain problem.
    pub(crate) fn check_response(
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
        let essence = content_type.map(essence);
        let Some(operation) = self.find_operation(method, path) else {
            if status < 400 {
                return Err("openapi.yaml has no such operation".into());
            }
            if essence.as_deref() != Some(PROBLEM) {
                return Err(format!("a problem is {PROBLEM}, not {content_type:?}"));
            }
            return self.check_problem(status, body);
        };
        let responses = &self.document.pointer(&operation).expect("was just found")["responses"];
        if responses.get(status.to_string()).is_none() {
            let known: Vec<_> = object(responses).map(|(status, _)| status.as_str()).collect();
            return Err(format!("the operation has no such status, only {}", known.join(", ")));
        }
        let response = self.follow(&format!("{operation}/responses/{status}"))?;
        let content = &self.document.pointer(&response).expect("was just followed")["content"];
        let known = || object(content).map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let media_type = essence.filter(|essence| content.get(essence).is_some());
        let media_type = media_type.ok_or_else(|| format!("is {content_type:?}, not {}", known()))?;
        let body = if media_type.ends_with("json") {
            serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?
        } else {
            Value::from(std::str::from_utf8(body).map_err(|error| error.to_string())?)
        };
        self.validate(&format!("{response}/content/{}/schema", escape(&media_type)), &body)?;
        if media_type == PROBLEM && body["status"] != status {
            return Err(format!("the body says status {}", body["status"]));
        }
        self.check_codes(&body)
    }

    /// Whether a body is a problem without members of its own, such as any path may answer with, and its code, status,
    /// type and title agree with the table.
    pub(crate) fn check_problem(&self, status: u16, body: &[u8]) -> Result<(), String> {
        let problem: Value =
            serde_json::from_slice(body).map_err(|error| format!("the problem is not JSON: {error}"))?;
        self.validate("/components/schemas/Problem", &problem)?;
        if problem["status"] != status {
            return Err(format!("answered {status}, but the problem says status {}", problem["status"]));
        }
        self.check_codes(&problem)
    }

    /// Holds a problem, or the problems among the items of a batch, against the table of codes.
    fn check_codes(&self, body: &Value) -> Result<(), String> {
        for problem in body["items"].as_array().into_iter().flatten().chain([body]) {
            let Some(code) = problem["code"].as_str() else { continue };
            let row = self.document["x-problem-codes"].get(code);
            let row = row.ok_or_else(|| format!("{code} is not among x-problem-codes"))?;
            let other_titles = row["other_titles"].as_array().into_iter().flatten();
            let titles: Vec<_> = other_titles.chain([&row["title"]]).collect();
            if problem["status"] != row["status"] {
                return Err(format!("{code} has status {}, not {}", row["status"], problem["status"]));
            }
            if problem["type"] != format!("urn:oncegate:problem:{code}") {
                return Err(format!("{code} has type urn:oncegate:problem:{code}, not {}", problem["type"]));
            }
            if !titles.contains(&&problem["title"]) {
                return Err(format!("{code} has title {}, not {}", row["title"], problem["title"]));
            }
        }
        Ok(())
    }

    /// Whether every example, of requests, answers, parameters, headers and schemas, is valid under its schema, and every
    /// problem among them agrees with the table.
    pub(crate) fn check_example_all(&self) -> Result<(), String> {
        let mut examples = Vec::new();
        collect_examples(&self.document, "", &mut examples);
        let mut wrong = String::new();
        for (place, schema, example) in examples {
            let valid = self.validate(&schema, example);
            if let Err(why) = valid.and_then(|()| self.check_codes(example)) {
                writeln!(wrong, "example {place}: {why}").expect("a string takes all");
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// The pointer of the operation that a request goes to: of all templates that fit, the one with the fewest variables.
    fn find_operation(&self, method: &str, path: &str) -> Option<String> {
        let fitting = object(&self.document["paths"]).filter(|(template, _)| fits(template, path));
        let (template, item) = fitting.min_by_key(|(template, _)| template.matches('{').count())?;
        let method = METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(method))?;
        item.get(method).map(|_| format!("/paths/{}/{method}", escape(template)))
    }

    /// The pointer that `pointer` leads to once `$ref` is followed.
    fn follow(&self, pointer: &str) -> Result<String, String> {
        let mut pointer = pointer.to_owned();
        loop {
            let target = self.document.pointer(&pointer).ok_or_else(|| format!("nothing at #{pointer}"))?;
            match target["$ref"].as_str() {
                Some(reference) => reference.trim_start_matches('#').clone_into(&mut pointer),
                None => return Ok(pointer),
            }
        }
    }

    /// Validates against the schema at a pointer of the document.
    fn validate(&self, pointer: &str, instance: &Value) -> Result<(), String> {
        let validator = self.validator(pointer)?;
        let errors: Vec<_> = validator.iter_errors(instance).map(|error| explain(&error)).collect();
        if errors.is_empty() { Ok(()) } else { Err(format!("not as #{pointer} says: {}", errors.join("; "))) }
    }

    fn validator(&self, pointer: &str) -> Result<Arc<Validator>, String> {
        let mut validators = self.validators.lock().expect("no test panics in here");
        if let Some(known) = validators.get(pointer) {
            return Ok(Arc::clone(known));
        }
        // The document itself is the schema, so that `#/components/…` means the same as in the document.
        let mut root = self.document.clone();
        root["$ref"] = json!(format!("#{}", pointer.replace('{', "%7B").replace('}', "%7D")));
        let options = jsonschema::options().with_draft(Draft::Draft202012).should_validate_formats(true);
        let validator = options.build(&root).map_err(|error| format!("#{pointer} is no schema: {error}"))?;
        let validator = Arc::new(validator);
        validators.insert(pointer.to_owned(), Arc::clone(&validator));
        Ok(validator)
    }
}

/// Gathers (where, pointer of its schema, example) of everything below `value`.
fn collect_examples<'a>(value: &'a Value, pointer: &str, found: &mut Vec<(String, String, &'a Value)>) {
    let Value::Object(members) = value else {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            collect_examples(item, &format!("{pointer}/{index}"), found);
        }
        return;
    };
    if members.contains_key("schema") {
        let schema = format!("{pointer}/schema");
        if let Some(example) = members.get("example") {
            found.push((format!("#{pointer}/example"), schema.clone(), example));
        }
        for (name, example) in members.get("examples").map(object).into_iter().flatten() {
            found.push((format!("#{pointer}/examples/{name}"), schema.clone(), &example["value"]));
        }
    } else if let Some(Value::Array(examples)) = members.get("examples") {
        for (index, example) in examples.iter().enumerate() {
            found.push((format!("#{pointer}/examples/{index}"), pointer.to_owned(), example));
        }
    }
    for (name, member) in members {
        // What stands under these is data, not document.
        if !["example", "examples", "value", "default", "const", "enum"].contains(&name.as_str()) {
            collect_examples(member, &format!("{pointer}/{}", escape(name)), found);
        }
    }
}

/// One line for one error, with the reasons of the branch that came nearest where none of several fits.
fn explain(error: &ValidationError<'_>) -> String {
    let place = match error.instance_path().as_str() {
        "" => "body".to_owned(),
        path => format!("body{path}"),
    };
    match error.kind() {
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            // The branch that is meant fits in status, code and state, so it errs least in what tells branches apart.
            let distance = |branch: &Vec<ValidationError<'_>>| {
                let telling = |error: &ValidationError<'_>| {
                    ["/status", "/code", "/state"].iter().any(|end| error.instance_path().as_str().ends_with(end))
                };
                (branch.iter().filter(|error| telling(error)).count(), branch.len())
            };
            let nearest = context.iter().min_by_key(|branch| distance(branch));
            let reasons = nearest.into_iter().flatten().map(explain).collect::<Vec<_>>().join(", ");
            format!("{place} fits none of the alternatives, the nearest because: {reasons}")
        }
        _ => format!("{place}: {error} (by {})", error.schema_path()),
    }
}

/// Whether a requested path is one of a template's.
fn fits(template: &str, path: &str) -> bool {
    let variable = |segment: &str| segment.starts_with('{') && segment.ends_with('}');
    let segment_fits = |(known, asked): (&str, &str)| known == asked || (variable(known) && !asked.is_empty());
    template.split('/').count() == path.split('/').count() && template.split('/').zip(path.split('/')).all(segment_fits)
}

/// The media type without its parameters.
fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A key as a segment of a JSON pointer.
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The members of an object; of anything else, none.
fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

#[cfg(test)]
mod tests {
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
        Spec::load().check_example_all().unwrap_or_else(|why| panic!("{why}"));
    }

    #[test]
    fn a_wrong_example_is_found() {
        let text = Spec::load().document().to_string().replace(r#""fence":41"#, r#""fence":"41""#);
        let why = Spec::parse(&text).check_example_all().unwrap_err();
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
        assert!(why.contains("ClaimBatchAnswer") || why.contains("claims~1batch"), "{why}");
    }

    #[test]
    fn among_alternatives_the_nearest_explains_itself() {
        let mut duplicate = problem(409, "duplicate", "Duplicate");
        let members = json!({
            "global_id": "c72034d8c477e40bda98523df450ed90", "state": "in_progress", "timestamp": 1_792_488_615_123_456_u64,
            "attempt_hash": "47f45317", "claimed_at": "2026-10-20T09:30:15Z", "expires_at": "2026-10-20T09:30:45Z",
        });
        duplicate.as_object_mut().expect("is one").extend(members.as_object().cloned().expect("is one"));
        let why = check("POST", "/v1/claims", 409, PROBLEM, &duplicate).unwrap_err();
        assert!(why.contains("retry_after_ms") && why.contains("DuplicateInProgress"), "{why}");
        duplicate["retry_after_ms"] = json!(1000);
        assert_eq!(check("POST", "/v1/claims", 409, PROBLEM, &duplicate), Ok(()));
        duplicate["result"] = json!(1);
        assert!(check("POST", "/v1/claims", 409, PROBLEM, &duplicate).unwrap_err().contains("result"));
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
        assert!(check(404, &problem(404, "gone", "Gone")).unwrap_err().contains("body/code"));
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
    fn operations_are_listed_by_method_and_template() {
        let operations = Spec::load().operations();
        assert!(operations.contains(&("GET".into(), "/v1/claims/{global_id}".into())), "{operations:?}");
        assert_eq!(operations.len(), 26, "{operations:?}");
    }
}
