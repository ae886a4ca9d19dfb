//! Failures of statements: whether the statement certainly did nothing, whether its calls are to be tried one by one, and
//! whether the connection is still good.

use oncegate_core::engine::{Determinate, EngineError};
use oncegate_database::DatabaseError;
use oncegate_database::error::ends_connection;

/// A statement that failed.
pub(super) struct Failure {
    /// The answer to a call for which the statement may have changed something.
    pub(super) answer: EngineError,
    /// How to go on.
    pub(super) remedy: Remedy,
}

/// How to go on after a failed statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remedy {
    /// Run it again: it conflicted with another statement, which has ended.
    Again,
    /// Run it for each call by itself: one of them may be the cause.
    OneByOne,
    /// Answer its calls.
    Answer,
    /// Answer its calls, and replace the connection.
    Reconnect,
}

impl From<&sqlx::Error> for Failure {
    fn from(error: &sqlx::Error) -> Self {
        let answered = match error {
            // A fatal error ends the connection, whatever the server was doing: the statement may have been executed already.
            sqlx::Error::Database(refused) if !ends_connection(error) => refused,
            sqlx::Error::Database(refused) => {
                let answer = EngineError::indeterminate(
                    DatabaseError::of_code(&code(&**refused), refused.message()).to_string(),
                );
                return Self { answer, remedy: Remedy::Reconnect };
            }
            error => {
                let answer = EngineError::indeterminate(DatabaseError::from(error).to_string());
                return Self { answer, remedy: Remedy::Reconnect };
            }
        };
        // Refused and rolled back: certainly nothing was done.
        let code = code(&**answered);
        let refused = DatabaseError::of_code(&code, answered.message());
        let remedy = match (code.as_str(), &code[..code.len().min(2)]) {
            // A deadlock, a serialisation failure.
            (_, "40") => Remedy::Again,
            // Data, a constraint, a limit of the server's.
            (_, "22" | "23" | "54") => Remedy::OneByOne,
            // The server of the session has changed: it is not the primary any more, or the schema, our rights or our prepared
            // statements are gone.
            ("25006" | "42501" | "42P01" | "42703" | "42883" | "0A000" | "26000" | "42P05", _) => Remedy::Reconnect,
            _ => Remedy::Answer,
        };
        let answer = match (code.as_str(), remedy) {
            ("53100", _) => Determinate::Full("the PostgreSQL server's disk is full".into()),
            // The cause is the item or the table, and not that the server does not serve.
            (_, Remedy::OneByOne) => Determinate::Incompatible(refused.to_string()),
            _ => determinate(refused),
        };
        Self { answer: answer.into(), remedy }
    }
}

fn code(refused: &dyn sqlx::error::DatabaseError) -> String {
    refused.code().unwrap_or_default().into_owned()
}

/// Returns a refusal of the database as the failure of a call that was not sent.
pub(super) fn determinate(refused: DatabaseError) -> Determinate {
    match refused {
        DatabaseError::Unavailable(why) => Determinate::Unavailable(why),
        DatabaseError::Incompatible(why) => Determinate::Incompatible(why),
    }
}
