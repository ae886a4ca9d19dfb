//! The claim call of one try at an operation.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::about::About;
use crate::call::{object, quoted, written};
use crate::client::{Client, nonce};
use crate::contents::Contents;
use crate::error::Error;
use crate::identity::{canonical, global_id_of, spell};
use crate::terms::Terms;

/// One try at an operation: all repeats send the same parts.
pub(crate) struct ClaimCall {
    /// The contents in canonical form.
    pub(crate) contents: String,
    pub(crate) global_id: String,
    pub(crate) body: String,
    pub(crate) wait: Duration,
    pub(crate) about: About,
    pub(crate) nonce: String,
    /// A try may have had an effect although no answer came.
    pub(crate) is_uncertain: AtomicBool,
}

impl Client {
    pub(crate) fn claim_call(&self, operation: &str, contents: &Contents, terms: &Terms) -> Result<ClaimCall, Error> {
        let contents = canonical(contents)?;
        let global_id = global_id_of(&self.0.app, operation, &contents);
        let fingerprint = terms.fingerprint.as_ref().map(spell).transpose()?.map(|(text, _)| text);
        let length =
            |length: Option<Duration>| length.map(|length| written(length).map(|text| quoted(&text))).transpose();
        let (lease, retention) = (length(terms.lease)?, length(terms.retention)?);
        let nonce = nonce()?;
        let (quoted_operation, quoted_nonce) = (quoted(operation), quoted(&nonce));
        let members = [
            ("operation", Some(quoted_operation.as_str())),
            ("contents", Some(contents.as_str())),
            ("attempt_nonce", Some(quoted_nonce.as_str())),
            ("fingerprint", fingerprint.as_deref()),
            ("lease", lease.as_deref()),
            ("retention", retention.as_deref()),
            ("take_over", terms.take_over.then_some("true")),
            ("on_lease_end", terms.unknown_on_lease_end.then_some("\"unknown\"")),
        ];
        let body = object(members.into_iter().filter_map(|(name, value)| Some((name, value?))));
        let about = self.about(operation, Some(&global_id));
        Ok(ClaimCall {
            contents,
            global_id,
            body,
            wait: terms.wait,
            about,
            nonce,
            is_uncertain: AtomicBool::new(false),
        })
    }
}
