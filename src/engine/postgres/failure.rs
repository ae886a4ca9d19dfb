//! What it means for calls that a statement failed: whether it certainly did nothing, whether its items are to be tried
//! one by one, and whether its connection is still good.

use crate::database::Refused;
use crate::database::connect::{ends_connection, refusal};
use crate::engine::{Determinate, EngineError};

/// A statement that failed.
pub(super) struct Failure {
    /// What a call is told that the statement may have changed something for.
    pub(super) told: EngineError,
    /// What is to be done about it.
    pub(super) remedy: Remedy,
}

/// What a failed statement leaves to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remedy {
    /// It lost against another one, which is done now: the same again.
    Again,
    /// Some item may be to blame: each by itself.
    OneByOne,
    /// Tell its calls.
    Answer,
    /// Tell its calls, and replace the connection.
    Reconnect,
}

impl From<&sqlx::Error> for Failure {
    fn from(error: &sqlx::Error) -> Self {
        let answered = match error {
            // With these words the server ends the connection, whatever it was doing: it may have been done already.
            sqlx::Error::Database(refused) if !ends_connection(error) => refused,
            sqlx::Error::Database(refused) => {
                let told = EngineError::indeterminate(refusal(&code(&**refused), refused.message()).to_string());
                return Self { told, remedy: Remedy::Reconnect };
            }
            error => {
                let told = EngineError::indeterminate(crate::database::connect::failure(error).to_string());
                return Self { told, remedy: Remedy::Reconnect };
            }
        };
        // Refused and rolled back: it certainly did nothing.
        let code = code(&**answered);
        let refused = refusal(&code, answered.message());
        let remedy = match (code.as_str(), &code[..code.len().min(2)]) {
            // A deadlock, a serialisation failure.
            (_, "40") => Remedy::Again,
            // Data, a constraint, a limit of the server's.
            (_, "22" | "23" | "54") => Remedy::OneByOne,
            // What the session was connected to has changed: another server is primary, the schema or our rights are gone,
            // or the statements that we prepared.
            ("25006" | "42501" | "42P01" | "42703" | "42883" | "0A000" | "26000" | "42P05", _) => Remedy::Reconnect,
            _ => Remedy::Answer,
        };
        let told = match (code.as_str(), remedy) {
            ("53100", _) => Determinate::Full("the PostgreSQL server's disk is full".into()),
            // It is the item's fault, or the table's, and not that the server does not serve.
            (_, Remedy::OneByOne) => Determinate::Incompatible(refused.to_string()),
            _ => determinate(refused),
        };
        Self { told: told.into(), remedy }
    }
}

fn code(refused: &dyn sqlx::error::DatabaseError) -> String {
    refused.code().unwrap_or_default().into_owned()
}

/// A refusal of the database, for a call that was not tried.
pub(super) fn determinate(refused: Refused) -> Determinate {
    match refused {
        Refused::Unavailable(why) => Determinate::Unavailable(why),
        Refused::Incompatible(why) => Determinate::Incompatible(why),
    }
}

/// For a call that changes nothing, what is uncertain for others is only not available.
pub(super) fn reading(error: EngineError) -> EngineError {
    match error {
        EngineError::Indeterminate(why) => EngineError::unavailable(why.to_string()),
        certain @ EngineError::Determinate(_) => certain,
    }
}
