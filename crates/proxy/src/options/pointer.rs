//! Pointers into JSON bodies (RFC 6901), as the configuration writes them: `/id`, `/variables/input/idempotencyKey`.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A pointer to a member of a JSON body.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct JsonPointer(String);

impl TryFrom<String> for JsonPointer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_escaped = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        if text.len() > 1 && text.starts_with('/') && is_escaped {
            return Ok(Self(text));
        }
        Err(format!(
            "{text:?} is no JSON pointer to a member; write one like \"/id\", with `~1` for a slash in a name and `~0` for a tilde"
        ))
    }
}

impl From<JsonPointer> for String {
    fn from(pointer: JsonPointer) -> Self {
        pointer.0
    }
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonPointer {
    /// Returns the value that it names.
    pub(crate) fn find<'a>(&self, json: &'a Value) -> Option<&'a Value> {
        json.pointer(&self.0)
    }

    /// Removes the member or element that it names.
    pub(crate) fn remove(&self, json: &mut Value) {
        let Some((parent, name)) = self.0.rsplit_once('/') else { return };
        let name = name.replace("~1", "/").replace("~0", "~");
        match json.pointer_mut(parent) {
            Some(Value::Object(members)) => drop(members.remove(&name)),
            Some(Value::Array(elements)) => {
                // As `find` reads it: without signs and leading zeros.
                let place = name.parse().ok().filter(|place: &usize| place.to_string() == name);
                if let Some(place) = place.filter(|place| *place < elements.len()) {
                    elements.remove(place);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pointer(text: &str) -> JsonPointer {
        JsonPointer::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn a_pointer_names_a_member() {
        for wrong in ["", "/", "id", "/a~", "/a~2", "#/id"] {
            assert!(JsonPointer::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
        let json = json!({ "id": 1, "a": { "b/c": "x", "~": [1, 2] } });
        for (text, found) in [
            ("/id", Some(json!(1))),
            ("/a/b~1c", Some(json!("x"))),
            ("/a/~0/1", Some(json!(2))),
            ("/a/~0/01", None),
            ("/a/x", None),
            ("/id/x", None),
        ] {
            assert_eq!(pointer(text).find(&json), found.as_ref(), "{text}");
            let mut rest = json.clone();
            pointer(text).remove(&mut rest);
            assert_eq!(rest != json, found.is_some(), "{text}: {rest}");
        }
    }
}
