//! Failures of statements. Each one tells whether the statement certainly did nothing, whether to try its calls one by
//! one, and whether the connection is still good.

use oncegate_core::engine::{Determinate, EngineError};
use oncegate_database::DatabaseError;
use oncegate_database::error::ends_connection;

/// A statement that failed.
pub(super) struct Failure {
    /// Answer to a call if the statement may have changed something for it.
    pub(super) answer: EngineError,
    /// Next step.
    pub(super) remedy: Remedy,
}

/// Next step after a failed statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remedy {
    /// Run it again for the calls that have no answer. It conflicted with another statement, which has ended.
    Again,
    /// Run it for each call separately: one of them may be the cause.
    OneByOne,
    /// Answer its calls.
    Answer,
    /// Answer its calls, and replace the connection.
    Reconnect,
}

impl From<&sqlx::Error> for Failure {
    fn from(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(refused) if !ends_connection(error) => {
                Self::of_refusal(&refused.code().unwrap_or_default(), refused.message())
            }
            // A fatal error ends the connection at any point: the statement may have been executed already.
            error => {
                let answer = EngineError::indeterminate(DatabaseError::from(error).to_string());
                Self { answer, remedy: Remedy::Reconnect }
            }
        }
    }
}

impl Failure {
    /// Returns the failure of a statement that was refused and rolled back: certainly nothing was done.
    pub(super) fn of_refusal(code: &str, message: &str) -> Self {
        let refused = DatabaseError::of_code(code, message);
        let remedy = match (code, &code[..code.len().min(2)]) {
            // A deadlock, a serialisation failure.
            (_, "40") => Remedy::Again,
            // Data, a constraint, a limit of the server's.
            (_, "22" | "23" | "54") => Remedy::OneByOne,
            // The server of the session has changed: it is not the primary any more, or the schema, our rights or our prepared
            // statements are gone.
            ("25006" | "42501" | "42P01" | "42703" | "42883" | "0A000" | "26000" | "42P05", _) => Remedy::Reconnect,
            _ => Remedy::Answer,
        };
        let answer = match (code, remedy) {
            ("53100", _) => Determinate::Full("the PostgreSQL server's disk is full".into()),
            // The cause is the item or the table, and not that the server does not serve.
            (_, Remedy::OneByOne) => Determinate::Incompatible(refused.to_string()),
            _ => determinate(refused),
        };
        Self { answer: answer.into(), remedy }
    }
}

/// Returns a refusal of the database as the failure of a call that was not sent.
pub(super) fn determinate(refused: DatabaseError) -> Determinate {
    match refused {
        DatabaseError::Unavailable(why) => Determinate::Unavailable(why),
        DatabaseError::Incompatible(why) => Determinate::Incompatible(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_certain_and_its_code_says_how_to_go_on() {
        for (code, remedy, is_incompatible) in [
            ("40P01", Remedy::Again, false),
            ("40001", Remedy::Again, false),
            ("22021", Remedy::OneByOne, true),
            ("23514", Remedy::OneByOne, true),
            ("54000", Remedy::OneByOne, true),
            ("25006", Remedy::Reconnect, false),
            ("42501", Remedy::Reconnect, true),
            ("42P01", Remedy::Reconnect, true),
            ("26000", Remedy::Reconnect, false),
            ("57014", Remedy::Answer, false),
            ("XX000", Remedy::Answer, false),
            ("", Remedy::Answer, false),
        ] {
            let failure = Failure::of_refusal(code, "some text");
            assert_eq!(failure.remedy, remedy, "{code}");
            let is = matches!(failure.answer, EngineError::Determinate(Determinate::Incompatible(_)));
            assert_eq!(is, is_incompatible, "{code}: {}", failure.answer);
            assert!(!failure.answer.is_uncertain(), "{code}");
        }
        let full = Failure::of_refusal("53100", "could not extend file");
        assert!(matches!(full.answer, EngineError::Determinate(Determinate::Full(_))), "{}", full.answer);
    }

    #[test]
    fn what_the_client_library_reports_is_uncertain() {
        let failure = Failure::from(&sqlx::Error::RowNotFound);
        assert!(failure.answer.is_uncertain() && failure.remedy == Remedy::Reconnect);
    }

    /// An error of a server with an unknown severity, which counts as fatal.
    #[derive(Debug)]
    struct Fatal;

    impl std::fmt::Display for Fatal {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(sqlx::error::DatabaseError::message(self))
        }
    }

    impl std::error::Error for Fatal {}

    impl sqlx::error::DatabaseError for Fatal {
        fn message(&self) -> &'static str {
            "terminating connection due to administrator command"
        }
        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some("57P01".into())
        }
        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }
        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }
        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }
        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    #[test]
    fn an_error_that_ends_the_connection_is_uncertain_and_says_why() {
        let failure = Failure::from(&sqlx::Error::Database(Box::new(Fatal)));
        assert!(failure.answer.is_uncertain() && failure.remedy == Remedy::Reconnect);
        assert!(failure.answer.to_string().contains("57P01: the PostgreSQL server refuses: it is shutting down"));
    }
}
