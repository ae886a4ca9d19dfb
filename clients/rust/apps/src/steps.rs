//! The steps of a request, and the runs of the handler: the same for every framework.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use oncegate_client::Grant;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// Runs by case, in the order of their start.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<Mutex<HashMap<String, Vec<Value>>>>);

/// One run of the handler.
#[derive(Clone)]
pub(crate) struct Run {
    runs: Runs,
    case: String,
    position: usize,
}

impl Runs {
    pub(crate) fn begin(&self, case: &str, accept_encoding: Option<&str>) -> Run {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_case = runs.entry(case.to_owned()).or_default();
        let position = of_case.len();
        of_case.push(json!({ "run": position + 1, "accept_encoding": accept_encoding }));
        Run { runs: self.clone(), case: case.to_owned(), position }
    }

    pub(crate) fn of_case(&self, case: &str) -> Value {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.get(case).cloned().unwrap_or_default().into()
    }
}

impl Run {
    pub(crate) fn set(&self, name: &str, value: impl Into<Value>) {
        let mut runs = self.runs.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = runs.get_mut(&self.case).and_then(|of_case| of_case.get_mut(self.position)) {
            run[name] = value.into();
        }
    }

    pub(crate) fn body(&self, body: &[u8]) {
        self.set("length", body.len());
        let digest = Sha256::digest(body);
        let mut text = String::new();
        for byte in digest {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        self.set("sha256", text);
    }

    /// Returns the run as the handler answers it.
    pub(crate) fn json(&self) -> Value {
        let runs = self.runs.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.get(&self.case).and_then(|of_case| of_case.get(self.position)).cloned().unwrap_or_default()
    }
}

/// The parsed steps of a request.
#[derive(Clone)]
pub(crate) struct Steps(Vec<Value>);

impl Steps {
    pub(crate) fn read(field: Option<&str>) -> Self {
        let steps = field.and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
        Self(steps.unwrap_or_default())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find_map(|step| step.get(name))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().filter_map(Value::as_object).flatten().map(|(name, value)| (name.as_str(), value))
    }
}

pub(crate) fn millis(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap_or(0))
}

/// A response that a step describes.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// Returns the response of `respond`.
pub(crate) fn response(step: &Value) -> Response {
    Response { status: status(step), headers: headers(step), body: text(&step["body"]).into_bytes() }
}

/// Returns a text, or one that is repeated.
fn text(given: &Value) -> String {
    match given {
        Value::String(text) => text.clone(),
        Value::Object(given) => {
            let text = given["repeat"][0].as_str().unwrap_or_default();
            text.repeat(usize::try_from(given["repeat"][1].as_u64().unwrap_or(0)).unwrap_or(0))
        }
        _ => String::new(),
    }
}

fn status(step: &Value) -> u16 {
    step["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(201)
}

fn headers(step: &Value) -> Vec<(String, String)> {
    let lines = step["headers"].as_array().into_iter().flatten();
    lines.map(|line| (text(&line[0]), text(&line[1]))).collect()
}

/// Rows that are sent one by one.
pub(crate) struct Rows {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) texts: Vec<String>,
    pub(crate) every: Duration,
    pub(crate) breaks_after: Option<usize>,
    pub(crate) trailers: Vec<(String, String)>,
}

/// Returns the rows of `stream`.
pub(crate) fn rows(step: &Value) -> Rows {
    let number = |name: &str| step[name].as_u64().and_then(|number| usize::try_from(number).ok());
    let row = step["row"].as_str().unwrap_or("row {}\n");
    let pad = "x".repeat(number("pad").unwrap_or(0));
    let rows: Vec<_> = (0..number("rows").unwrap_or(0)).map(|at| row.replace("{}", &at.to_string()) + &pad).collect();
    let mut headers = headers(step);
    if step["length"] == true {
        headers.push(("content-length".to_owned(), rows.iter().map(String::len).sum::<usize>().to_string()));
    }
    let trailers: Vec<_> = step["trailers"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.to_ascii_lowercase(), text(value)))
        .collect();
    if !trailers.is_empty() {
        let names: Vec<_> = trailers.iter().map(|(name, _)| name.as_str()).collect();
        headers.push(("trailer".to_owned(), names.join(", ")));
    }
    Rows {
        status: status(step),
        headers,
        texts: rows,
        every: millis(&step["every"]),
        breaks_after: number("break_after"),
        trailers,
    }
}

/// Returns true as soon as the caller has left, or false after this time.
pub(crate) async fn poll(grant: Option<&Grant>, time: Duration) -> bool {
    let Some(grant) = grant else {
        tokio::time::sleep(time).await;
        return false;
    };
    tokio::time::timeout(time, grant.until_caller_gone()).await.is_ok()
}

/// The end of a run: it has raised, unless it says that it returned.
pub(crate) struct Ending(Option<Run>);

impl Ending {
    pub(crate) fn of(run: &Run) -> Self {
        Self(Some(run.clone()))
    }

    pub(crate) fn returned(mut self) {
        self.set_returned();
    }

    pub(crate) fn set_returned(&mut self) {
        if let Some(run) = self.0.take() {
            run.set("ended", "returned");
        }
    }

    /// Leaves the end to the body.
    pub(crate) fn later(mut self) {
        self.0 = None;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run.set("ended", "raised");
        }
    }
}
