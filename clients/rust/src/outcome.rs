//! Outcome of work, as a handler or a report says it.

/// Outcome of an operation.
///
/// With the middleware a handler says it by this value in the extensions of its response, by the field `Oncegate-Outcome`, or by
/// [`Grant::mark`](crate::Grant::mark).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The work is finished, and must never run again.
    Success,
    /// Nothing happened: the operation can be claimed again at once.
    Failure,
    /// Unknown whether it happened: repeats are stopped.
    Unknown,
}

impl Outcome {
    /// Returns its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Unknown => "unknown",
        }
    }
}
