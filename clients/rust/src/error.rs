//! Errors of calls and of the work. A duplicate is no error.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Any error that can cross threads.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Code of a grant whose global ID is not the client's own.
pub(crate) const IDENTITY_DIFFERS: &str = "identity_differs";

/// An error of a call.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No gateway answered in time. The work was not started. Holds the last failure of each gateway that was tried.
    Unavailable {
        /// In the order of the tries.
        causes: Vec<Cause>,
        /// True if a try may have had an effect although its answer did not come: what it asked for may be granted, and then blocks
        /// others until its lease ends.
        may_have_acted: bool,
    },
    /// A mistake of the caller, a quota that stayed exhausted until time was over, or a gateway that names the
    /// operation differently.
    Rejected(Rejected),
    /// A 409 on the outcome. After a success, `superseded` means perhaps done twice: raise an alarm.
    OutcomeRefused {
        /// `superseded`, `already_succeeded` or `expired`.
        code: String,
    },
    /// The work is done, and no gateway has accepted its outcome.
    NotSettled {
        /// JSON text: keep it, and pass it to [`crate::Client::settle`] later. It holds the attempt: keep it like a secret.
        report: String,
        /// [`Error::Unavailable`] or [`Error::Rejected`].
        cause: Box<Error>,
    },
    /// Contents that other readers could understand differently, or that have no value. Nothing was sent.
    NotCanonical(NotCanonical),
    /// The lock was held until the wait was over, or was refused.
    LockNotAcquired {
        /// Name of the lock.
        name: String,
        /// `lock_held`, `upgrade_refused`, `limit_differs` or `withdrawn`.
        code: String,
        /// Time after which a repeat is useful.
        retry_after: Duration,
        /// The limit in use, with `limit_differs`.
        limit: Option<u32>,
    },
    /// The stored result of a duplicate is of another type than that of the work: read it by [`crate::Client::claim`].
    ResultNotRead(String),
    /// A wrong URL, option or report. Nothing was sent.
    Argument(String),
}

/// An answer with a 4xx, or (`identity_differs`) a grant of another identity than the client's own, which was released, or of another
/// lock, which was withdrawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// Status of the answer.
    pub status: u16,
    /// Stable code of the problem.
    pub code: String,
    /// Explanation of the error, and its correction.
    pub detail: String,
    /// ID of the request in the gateway's log.
    pub request_id: Option<String>,
    /// Time after which a repeat is useful, on a 429.
    pub retry_after: Option<Duration>,
}

/// The last failure of one gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    /// URL of the gateway.
    pub url: String,
    /// Kind of the failure.
    pub kind: Kind,
    /// Explanation for people.
    pub detail: String,
    /// Status of the answer, if the gateway gave one.
    pub status: Option<u16>,
    /// Code of the answer.
    pub code: Option<String>,
    /// ID of the request in the gateway's log.
    pub request_id: Option<String>,
}

/// Kind of a [`Cause`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The host name has no address.
    Dns,
    /// The port refused the connection.
    Refused,
    /// No answer in time.
    Timeout,
    /// The certificate, or no TLS.
    Tls,
    /// The connection was closed or broke.
    Connection,
    /// Something else answered: check the URL.
    NotAGateway,
    /// The gateway answered 429 or 5xx.
    Answer,
    /// The grant arrived after its lease had ended; it was released.
    TooLate,
}

/// Contents that other readers could understand differently, or that have no value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotCanonical {
    /// Rule that the contents break.
    pub reason: Reason,
    /// `$`, then `.name` or `[0]` for each step.
    pub path: String,
    /// Correct form.
    pub detail: String,
}

/// Reason of [`NotCanonical`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// No value at all.
    Empty,
    /// A binary float.
    Float,
    /// An integer of 2^53 or more.
    IntegerTooLarge,
    /// No finite number.
    NotFinite,
    /// An instant without a zone.
    NoZone,
    /// Half of a surrogate pair.
    Surrogate,
    /// More than 32 levels.
    TooDeep,
    /// Too many digits.
    TooLong,
    /// A value without the form of its type.
    UnsupportedType,
    /// Text that is not JSON.
    NotJson,
}

/// An error of the work. Any error becomes one with `?`; its outcome is then unknown, because the effect may have happened.
pub struct WorkError {
    pub(crate) nothing_happened: bool,
    pub(crate) error: BoxError,
}

impl WorkError {
    /// Returns an error of work that had no effect: the operation is released at once.
    pub fn nothing_happened(error: impl Into<BoxError>) -> Self {
        Self { nothing_happened: true, error: error.into() }
    }

    /// Returns true if the work had no effect.
    pub fn is_nothing_happened(&self) -> bool {
        self.nothing_happened
    }

    /// Returns the error itself.
    pub fn into_inner(self) -> BoxError {
        self.error
    }
}

// Without `impl Error for WorkError`, which would overlap with this.
impl<E: Into<BoxError>> From<E> for WorkError {
    fn from(error: E) -> Self {
        Self { nothing_happened: false, error: error.into() }
    }
}

impl fmt::Debug for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkError")
            .field("nothing_happened", &self.nothing_happened)
            .field("error", &self.error)
            .finish()
    }
}

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Errors of the work that are declared harmless.
#[derive(Clone, Default)]
pub(crate) struct Harmless(Vec<IsHarmless>);

type IsHarmless = Arc<dyn Fn(&(dyn StdError + 'static)) -> bool + Send + Sync>;

impl Harmless {
    pub(crate) fn add<E: StdError + 'static>(&mut self, is_harmless: impl Fn(&E) -> bool + Send + Sync + 'static) {
        self.0.push(Arc::new(move |error| error.downcast_ref::<E>().is_some_and(&is_harmless)));
    }

    pub(crate) fn includes(&self, error: &BoxError) -> bool {
        self.0.iter().any(|is_harmless| is_harmless(&**error))
    }
}

impl fmt::Debug for Harmless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules", self.0.len())
    }
}

/// An error of [`crate::Client::once`].
pub enum OnceError<T> {
    /// The error of the work itself. Its outcome was reported.
    Work(WorkError),
    /// An error of the claim or of the report.
    Call {
        /// Error of the report.
        error: Error,
        /// Result of the work, if it has run.
        result: Option<T>,
    },
}

impl<T> OnceError<T> {
    /// Returns the error of the call, if it is one.
    pub fn call(&self) -> Option<&Error> {
        match self {
            Self::Work(_) => None,
            Self::Call { error, .. } => Some(error),
        }
    }
}

impl<T> From<Error> for OnceError<T> {
    fn from(error: Error) -> Self {
        Self::Call { error, result: None }
    }
}

impl<T> fmt::Debug for OnceError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => f.debug_tuple("Work").field(error).finish(),
            Self::Call { error, .. } => f.debug_struct("Call").field("error", error).finish_non_exhaustive(),
        }
    }
}

impl<T> fmt::Display for OnceError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => error.fmt(f),
            Self::Call { error, .. } => error.fmt(f),
        }
    }
}

impl<T> StdError for OnceError<T> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Work(error) => Some(&*error.error),
            Self::Call { error, .. } => error.source(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { causes, .. } => {
                f.write_str("no gateway answered")?;
                for (at, cause) in causes.iter().enumerate() {
                    write!(f, "{} {cause}", if at == 0 { ":" } else { ";" })?;
                }
                Ok(())
            }
            Self::Rejected(rejected) => rejected.fmt(f),
            Self::OutcomeRefused { code } => write!(f, "the outcome was refused: {code}"),
            Self::NotSettled { cause, .. } => write!(f, "no gateway has accepted the outcome: {cause}"),
            Self::NotCanonical(why) => write!(f, "contents are not canonical at {}: {}", why.path, why.detail),
            Self::LockNotAcquired { name, code, limit: Some(limit), .. } => {
                write!(f, "lock {name} was not acquired: {code}; its holders have a limit of {limit}")
            }
            Self::LockNotAcquired { name, code, .. } => write!(f, "lock {name} was not acquired: {code}"),
            Self::ResultNotRead(why) => write!(f, "the stored result is of another type: {why}"),
            Self::Argument(detail) => f.write_str(detail),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::NotSettled { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

impl Error {
    /// Returns the error of a call that these causes tell all of.
    pub(crate) fn unavailable(causes: Vec<Cause>) -> Self {
        let may_have_acted = causes.iter().any(Cause::may_have_acted);
        Self::Unavailable { causes, may_have_acted }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rejected: {} {}: {}", self.status, self.code, self.detail)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.url, self.kind.name(), self.detail)
    }
}

impl Cause {
    pub(crate) fn of(url: &str, kind: Kind, detail: impl Into<String>) -> Self {
        Self { url: url.to_owned(), kind, detail: detail.into(), status: None, code: None, request_id: None }
    }

    /// Returns true if the call may have had an effect. A gateway that is overloaded or draining has not started it, and what
    /// came too late was released.
    pub(crate) fn may_have_acted(&self) -> bool {
        match self.kind {
            Kind::Dns | Kind::Refused | Kind::Tls | Kind::TooLate => false,
            Kind::Answer => self.status == Some(500) || self.code.as_deref() == Some("outcome_unknown"),
            _ => true,
        }
    }
}

impl Kind {
    /// Returns its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Connection => "connection",
            Self::NotAGateway => "not_a_gateway",
            Self::Answer => "answer",
            Self::TooLate => "too_late",
        }
    }
}

impl Reason {
    /// Returns its name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Float => "float",
            Self::IntegerTooLarge => "integer_too_large",
            Self::NotFinite => "not_finite",
            Self::NoZone => "no_zone",
            Self::Surrogate => "surrogate",
            Self::TooDeep => "too_deep",
            Self::TooLong => "too_long",
            Self::UnsupportedType => "unsupported_type",
            Self::NotJson => "not_json",
        }
    }
}

impl From<NotCanonical> for Error {
    fn from(why: NotCanonical) -> Self {
        Self::NotCanonical(why)
    }
}
