//! Results as the gateway stores them: their JSON, and the marker in place of one that cannot be stored.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// The default of the gateway's `limits.result_bytes`: a longer result is not sent.
pub(crate) const RESULT_BYTES_MAX: usize = 64 << 10;

/// Reason of a result that is not stored, because the gateway has refused it.
pub(crate) const REFUSED: &str = "refused";

/// A result that cannot be sent.
#[derive(Clone, Debug)]
pub(crate) struct Omitted {
    /// The same in every language.
    pub(crate) code: &'static str,
    pub(crate) detail: String,
}

/// Substitute for a result.
#[derive(Serialize, Deserialize)]
struct Marker {
    #[serde(rename = "$oncegate")]
    oncegate: Reason,
}

#[derive(Serialize, Deserialize)]
struct Reason {
    omitted: String,
}

/// Returns the substitute for a result. It tells duplicates why there is none.
pub(crate) fn marker(code: &str) -> Option<Box<RawValue>> {
    to_raw_value(&Marker { oncegate: Reason { omitted: code.to_owned() } }).ok()
}

/// Returns why a result was not stored; `None` if it is one.
pub(crate) fn omitted(result: &RawValue) -> Option<String> {
    // Most results are no markers, and need not be read twice.
    let is_short = result.get().len() < 200 && result.get().contains("$oncegate");
    is_short.then(|| serde_json::from_str::<Marker>(result.get()).ok()).flatten().map(|marker| marker.oncegate.omitted)
}

/// Returns the result as JSON, or why it cannot be sent. The work is done, also if `Serialize` of its result panics.
pub(crate) fn encode<T: Serialize>(result: &T) -> Result<Option<Box<RawValue>>, Omitted> {
    let not_serialisable = |detail| Omitted { code: "not_serialisable", detail };
    let encoded = catch_unwind(AssertUnwindSafe(|| to_raw_value(result)));
    let text = match encoded {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Err(not_serialisable(format!("the result is not JSON: {error}"))),
        Err(_) => return Err(not_serialisable("the result is not JSON: its Serialize panicked".to_owned())),
    };
    match text.get().len() {
        length if length > RESULT_BYTES_MAX => {
            let detail = format!("the result has {length} bytes, more than {RESULT_BYTES_MAX}");
            Err(Omitted { code: "too_large", detail })
        }
        _ if text.get() == "null" => Ok(None),
        _ => Ok(Some(text)),
    }
}
