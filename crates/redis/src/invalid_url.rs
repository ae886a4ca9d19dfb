//! The one error of a URL, and of the files that it names. It never repeats the URL, which holds a password.

/// The URL is not one of a Redis store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the URL of a Redis store: {0}")]
pub struct InvalidUrl(String);

impl InvalidUrl {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}
