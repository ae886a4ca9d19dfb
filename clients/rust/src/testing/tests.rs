//! The gateway in memory gives the answers of the scripted gateway of the behaviour vectors.

use std::path::Path;

use serde_json::Map;

use super::*;
use crate::Options;

/// The calls of another caller that lead to an answer.
const SEEDS: [(&str, &[&str]); 6] = [
    ("granted", &[]),
    ("duplicate_succeeded", &["claim", "success"]),
    ("in_progress", &["claim"]),
    ("duplicate_unknown", &["claim", "unknown"]),
    ("hold", &[]),
    ("lock_held", &["acquire"]),
];
/// The answers that follow a first one, without a fault.
const FOLLOWS: [&str; 6] = ["succeeded", "released", "unknown", "renewed", "hold_released", "hold_renewed"];
const COMPARED: [&str; 9] = ["code", "state", "global_id", "late", "result", "repeated", "name", "mode", "holds"];

/// Sends the requests of vectors with its nonce, and keeps its attempt.
struct Caller<'a> {
    gateway: &'a MemoryGateway,
    nonce: String,
    attempt: String,
}

impl<'a> Caller<'a> {
    fn new(gateway: &'a MemoryGateway, nonce: &str) -> Self {
        Self { gateway, nonce: nonce.repeat(32), attempt: String::new() }
    }

    async fn send(&mut self, request: &Value) -> (u16, Value) {
        let body = request["body"].to_string().replace("1792488615123456-$nonce", &self.attempt);
        let body = Bytes::from(body.replace("$nonce", &self.nonce));
        let method = Method::try_from(request["method"].as_str().expect("a method")).expect("a method");
        let path = request["path"].as_str().expect("a path");
        let (status, answer) = self.gateway.call("shop", &method, path, &body).await.expect("an answer");
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        if let Some(attempt) = answer["attempt"].as_str() {
            attempt.clone_into(&mut self.attempt);
        }
        (status, answer)
    }
}

/// Returns a request by its name, or one with another result.
fn plain_request(common: &Value, named: &Value) -> Option<Value> {
    if let Some(name) = named.as_str() {
        return Some(common["requests"][name].clone());
    }
    let mut request = common["requests"][named["use"].as_str()?].clone();
    let (members, body) = (named.as_object()?, named["body"].as_object()?);
    let is_plain = members.len() == 2 && body.keys().eq(["result"]);
    request["body"]["result"] = body.get("result")?.clone();
    is_plain.then_some(request)
}

#[tokio::test]
async fn it_answers_as_the_gateway_of_the_vectors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/behaviour");
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("a file of vectors")).expect("JSON")
    };
    let common = read(&folder.join("common.json"));
    let mut answered = 0;
    for entry in folder.read_dir().expect("the folder") {
        let path = entry.expect("an entry").path();
        for case in read(&path)["cases"].as_array().into_iter().flatten() {
            answered += exchanges_of(&common, case, &format!("{}: {}", path.display(), case["name"])).await;
        }
    }
    assert!(answered >= 50, "{answered} exchanges");
}

/// Sends the exchanges of a case up to the first that the gateway in memory answers differently. Returns the number of
/// answers.
async fn exchanges_of(common: &Value, case: &Value, name: &str) -> usize {
    let gateway = MemoryGateway::new();
    let mut caller = Caller::new(&gateway, "a");
    for (at, exchange) in case["exchanges"].as_array().into_iter().flatten().enumerate() {
        let answer = exchange["answer"].as_str().unwrap_or_default();
        let seeds = SEEDS.iter().find(|(name, _)| *name == answer).filter(|_| at == 0);
        let request = plain_request(common, &exchange["expect"]);
        let Some(request) = request.filter(|_| seeds.is_some() || at > 0 && FOLLOWS.contains(&answer)) else {
            return at;
        };
        let wanted = &common["answers"][answer];
        let mut other = Caller::new(&gateway, "b");
        for step in seeds.map_or(&[][..], |(_, steps)| steps) {
            let mut before = common["requests"][step].clone();
            if *step == "success" {
                before["body"]["result"] = wanted["body"]["result"].clone();
            }
            other.send(&before).await;
        }
        let (status, got) = caller.send(&request).await;
        assert_eq!(Some(u64::from(status)), wanted["status"].as_u64(), "{name}, exchange {at}: {got}");
        let members: &Map<String, Value> = wanted["body"].as_object().expect("an object");
        for member in COMPARED.into_iter().filter(|member| members.contains_key(*member)) {
            assert_eq!(got[member], members[member], "{name}, exchange {at}: {member}");
        }
    }
    case["exchanges"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_cautious_claim_is_unknown_when_its_lease_ends() {
    let gateway = MemoryGateway::new();
    let client = gateway.client(Options::default());
    let terms = crate::Terms::new().unknown_on_lease_end();
    drop(client.claim_with("o", "a", terms).await.expect("a grant"));
    gateway.advance(Duration::from_secs(365 * 86_400));
    let claims = gateway.claims();
    assert_eq!((claims.len(), &claims[0].state), (1, &crate::State::Unknown));
}
