//! One OpenAPI document, made strict: `nullable` becomes JSON Schema, objects take no fields they do not list, and the rules
//! of `tests/openapi/rules.yaml` are added. Validates responses and the document's own examples.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, ValidationError, Validator};
use serde_json::{Map, Value, json};

/// The methods an OpenAPI path item may have.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
pub(super) const JSON: &str = "application/json";
pub(super) const PROBLEM: &str = "application/problem+json";

/// An OpenAPI document and its compiled schemas.
pub struct Document {
    text: String,
    strict: Value,
    /// By JSON pointer into the document.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Document {
    /// Reads a document of the repository.
    pub fn read(name: &str) -> Self {
        Self::parse(&text_of(name))
    }

    pub fn parse(text: &str) -> Self {
        let mut strict: Value = serde_yaml_ng::from_str(text).expect("the document is YAML that JSON can hold");
        let rules: Value = serde_yaml_ng::from_str(&text_of("tests/openapi/rules.yaml")).expect("rules are YAML");
        let (components, paths) = (&mut strict["components"]["schemas"], "paths");
        make_strict(components);
        for (name, rule) in object(&rules["schemas"]) {
            if let Some(schema) = components.get_mut(name) {
                schema["allOf"] = json!([rule]);
            }
        }
        make_strict(&mut strict[paths]);
        strict["x-rules"] = rules["responses"].clone();
        Self { text: text.to_owned(), strict, validators: Mutex::default() }
    }

    /// The text of the document.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole document, made strict.
    pub fn value(&self) -> &Value {
        &self.strict
    }

    /// Every operation as its method in capitals and its path template.
    pub fn operations(&self) -> Vec<(String, String)> {
        let pairs = object(&self.strict["paths"]).flat_map(|(path, item)| METHODS.map(|method| (method, path, item)));
        pairs
            .filter(|(method, _, item)| item.get(method).is_some())
            .map(|(method, path, _)| (method.to_uppercase(), path.clone()))
            .collect()
    }

    /// The pointer of the operation of a request: among all templates that fit, the one with the fewest variables.
    pub fn find_operation(&self, method: &str, path: &str) -> Option<String> {
        let fitting = object(&self.strict["paths"]).filter(|(template, _)| fits(template, path));
        let (template, item) = fitting.min_by_key(|(template, _)| template.matches('{').count())?;
        let method = METHODS.into_iter().find(|known| known.eq_ignore_ascii_case(method))?;
        item.get(method).map(|_| format!("/paths/{}/{method}", escape(template)))
    }

    /// Validates a response of the operation at a pointer.
    pub fn check_response(
        &self,
        operation: &str,
        status: u16,
        content_type: Option<&str>,
        body: &[u8],
    ) -> Result<(), String> {
        let (content, pointer) = self.content(operation, status)?;
        let known = || object(content).map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let media_type = content_type.map(essence).filter(|essence| content.get(essence).is_some());
        let media_type = media_type.ok_or_else(|| format!("is {content_type:?}, not {}", known()))?;
        let body = if media_type.ends_with("json") {
            serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))?
        } else {
            Value::from(std::str::from_utf8(body).map_err(|error| error.to_string())?)
        };
        self.check_body(operation, status, &format!("{pointer}/content/{}", escape(&media_type)), &body)
    }

    /// The content of the response of an operation to a status, and the pointer of the response.
    fn content(&self, operation: &str, status: u16) -> Result<(&Value, String), String> {
        let responses = &self.at(operation)["responses"];
        if responses.get(status.to_string()).is_none() {
            let known: Vec<_> = object(responses).map(|(status, _)| status.as_str()).collect();
            return Err(format!("the operation has no such status, only {}", known.join(", ")));
        }
        let pointer = self.follow(&format!("{operation}/responses/{status}"))?;
        Ok((&self.at(&pointer)["content"], pointer))
    }

    /// Validates a body against its schema, the rules of its operation, and the codes of its response.
    fn check_body(&self, operation: &str, status: u16, media_type: &str, body: &Value) -> Result<(), String> {
        self.validate(&format!("{media_type}/schema"), body)?;
        let rule = format!("/x-rules/{}/{status}", self.at(operation)["operationId"].as_str().unwrap_or_default());
        if self.strict.pointer(&rule).is_some() {
            self.validate(&rule, body)?;
        }
        if media_type.ends_with(&escape(PROBLEM)) {
            if body["status"] != status {
                return Err(format!("the body says status {}", body["status"]));
            }
            let response = media_type.split_once("/content/").map_or(media_type, |(response, _)| response);
            let codes = self.at(response)["x-codes"].as_array().ok_or_else(|| format!("#{response} has no x-codes"))?;
            if !codes.contains(&body["code"]) {
                return Err(format!("#{response} does not list {} among its x-codes", body["code"]));
            }
            return self.check_code(body);
        }
        match self.at(operation)["x-item-operation"].as_str() {
            Some(single) => self.check_items(single, body),
            None => Ok(()),
        }
    }

    /// Validates each item of a batch as a response of the single operation.
    fn check_items(&self, operation_id: &str, body: &Value) -> Result<(), String> {
        let operation = self.operation_named(operation_id)?;
        for (index, item) in body["items"].as_array().into_iter().flatten().enumerate() {
            let status = item["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or_default();
            let mut single = item.clone();
            let fields = single.as_object_mut().ok_or("an item is no object")?;
            // Only items have these: in a single response the head has the status, and no result is left out.
            fields.remove("result_omitted");
            if status < 400 {
                fields.remove("status");
            }
            let check = || {
                let (_, response) = self.content(&operation, status)?;
                let media_type = if status < 400 { JSON } else { PROBLEM };
                self.check_body(&operation, status, &format!("{response}/content/{}", escape(media_type)), &single)
            };
            check().map_err(|why| format!("items/{index}: {why}"))?;
        }
        Ok(())
    }

    fn operation_named(&self, operation_id: &str) -> Result<String, String> {
        let mut pointers =
            self.operations().into_iter().filter_map(|(method, path)| self.find_operation(&method, &path));
        pointers
            .find(|pointer| self.at(pointer)["operationId"] == operation_id)
            .ok_or_else(|| format!("no operation is called {operation_id}"))
    }

    /// Validates a problem of no particular operation, such as any path may answer with.
    pub fn check_problem(&self, status: u16, body: &[u8]) -> Result<(), String> {
        let problem: Value =
            serde_json::from_slice(body).map_err(|error| format!("the problem is not JSON: {error}"))?;
        self.validate("/components/schemas/Problem", &problem)?;
        if problem["status"] != status {
            return Err(format!("answered {status}, but the problem says status {}", problem["status"]));
        }
        self.check_code(&problem)
    }

    /// Compares a problem with the table of codes.
    fn check_code(&self, problem: &Value) -> Result<(), String> {
        let code = problem["code"].as_str().unwrap_or_default();
        let row = self.strict["x-problem-codes"].get(code);
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
        Ok(())
    }

    /// Validates all examples: of requests, parameters, headers and schemas under their schemas, of responses as responses.
    pub fn check_examples(&self) -> Result<(), String> {
        let mut examples = Vec::new();
        collect_examples(&self.strict, "", &mut examples);
        let mut wrong = String::new();
        for (place, schema, example) in examples {
            if let Err(why) = self.validate(&schema, example) {
                writeln!(wrong, "example {place}: {why}").expect("a string takes all");
            }
        }
        for (method, path) in self.operations() {
            let operation = self.find_operation(&method, &path).expect("listed just now");
            for (status, _) in object(&self.at(&operation)["responses"]) {
                let status = status.parse().map_err(|_| format!("{operation} has status {status}"))?;
                let (content, response) = self.content(&operation, status)?;
                for (media_type, body) in object(content) {
                    let pointer = format!("{response}/content/{}", escape(media_type));
                    for (name, example) in object(&body["examples"]) {
                        if let Err(why) = self.check_body(&operation, status, &pointer, &example["value"]) {
                            writeln!(wrong, "example #{pointer}/examples/{name}: {why}").expect("a string takes all");
                        }
                    }
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn at(&self, pointer: &str) -> &Value {
        self.strict.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The pointer that `pointer` leads to once `$ref` is followed.
    fn follow(&self, pointer: &str) -> Result<String, String> {
        let mut pointer = pointer.to_owned();
        loop {
            let target = self.strict.pointer(&pointer).ok_or_else(|| format!("nothing at #{pointer}"))?;
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
        let mut root = self.strict.clone();
        root["$ref"] = json!(format!("#{}", pointer.replace('{', "%7B").replace('}', "%7D")));
        let options = jsonschema::options().with_draft(Draft::Draft202012).should_validate_formats(true);
        let validator = options.build(&root).map_err(|error| format!("#{pointer} is no schema: {error}"))?;
        let validator = Arc::new(validator);
        validators.insert(pointer.to_owned(), Arc::clone(&validator));
        Ok(validator)
    }
}

fn text_of(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Turns the schemas below `value` from OpenAPI 3.0 into JSON Schema, closes objects and requires instants in UTC.
fn make_strict(value: &mut Value) {
    if let Value::Object(schema) = value {
        if schema.get("type").is_some_and(|name| name == "object") && schema.contains_key("properties") {
            schema.entry("additionalProperties").or_insert(json!(false));
        }
        if schema.get("format").is_some_and(|format| format == "date-time") {
            schema.insert("pattern".into(), json!(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$"));
        }
        if schema.get("nullable") == Some(&json!(true)) {
            let name = schema["type"].take();
            schema["type"] = json!([name, "null"]);
        }
    }
    match value {
        // Examples and negated schemas are no places for closed objects.
        Value::Object(members) => members
            .iter_mut()
            .filter(|(name, _)| !["example", "examples", "not"].contains(&name.as_str()))
            .for_each(|(_, member)| make_strict(member)),
        Value::Array(items) => items.iter_mut().for_each(make_strict),
        _ => {}
    }
}

/// Collects (where, pointer of its schema, example) of everything below `value`.
fn collect_examples<'a>(value: &'a Value, pointer: &str, found: &mut Vec<(String, String, &'a Value)>) {
    let Value::Object(members) = value else {
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            collect_examples(item, &format!("{pointer}/{index}"), found);
        }
        return;
    };
    // Next to `schema`, an example is of a body or a parameter. Otherwise it is of the schema that contains it.
    let schema = if members.contains_key("schema") { format!("{pointer}/schema") } else { pointer.to_owned() };
    if let Some(example) = members.get("example") {
        found.push((format!("#{pointer}/example"), schema.clone(), example));
    }
    for (name, example) in members.get("examples").map(object).into_iter().flatten() {
        found.push((format!("#{pointer}/examples/{name}"), schema.clone(), &example["value"]));
    }
    for (name, member) in members {
        // The values of these are data, and not part of the document.
        if !["example", "examples", "value", "default", "const", "enum"].contains(&name.as_str()) {
            collect_examples(member, &format!("{pointer}/{}", escape(name)), found);
        }
    }
}

/// One line for one error, with the reasons of the nearest branch where none of several fits.
fn explain(error: &ValidationError<'_>) -> String {
    let place = match error.instance_path().as_str() {
        "" => "body".to_owned(),
        path => format!("body{path}"),
    };
    match error.kind() {
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            let nearest = context.iter().min_by_key(|branch| branch.len());
            let reasons = nearest.into_iter().flatten().map(explain).collect::<Vec<_>>().join(", ");
            format!("{place} fits none of the alternatives, the nearest because: {reasons}")
        }
        _ => format!("{place}: {error} (by {})", error.schema_path()),
    }
}

/// Returns true if a requested path is one of a template's.
fn fits(template: &str, path: &str) -> bool {
    let variable = |segment: &str| segment.starts_with('{') && segment.ends_with('}');
    let segment_fits = |(known, asked): (&str, &str)| known == asked || (variable(known) && !asked.is_empty());
    template.split('/').count() == path.split('/').count() && template.split('/').zip(path.split('/')).all(segment_fits)
}

/// The media type without its parameters.
pub(super) fn essence(content_type: &str) -> String {
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
