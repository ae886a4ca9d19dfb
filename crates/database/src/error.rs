//! Failures of a PostgreSQL server, sorted by SQLSTATE: it cannot serve now, or must not be used in its present state. No message
//! repeats a value or a password.

use std::fmt;
use std::io::ErrorKind;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// A failed connection, lookup or migration. It changed no claim.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DatabaseError {
    /// No server that accepts writes can be reached now.
    #[error("{0}")]
    Unavailable(String),
    /// The database must not be used in its present state.
    #[error("{0}")]
    Incompatible(String),
}

impl DatabaseError {
    /// Returns the error for an SQLSTATE.
    pub fn of_code(code: &str, message: &str) -> Self {
        let why = match code {
            "28P01" | "28000" => "it does not accept the user and password of the URL",
            "3D000" => "it has no database of that name; create it, or name another one in the URL",
            // Messages of these name a table, a column or a function, and no data.
            "42501" => {
                return Self::incompatible(code, message, "the user lacks a privilege; see docs/engines/postgres.md");
            }
            "42P01" | "42703" | "42883" | "3F000" => {
                return Self::incompatible(code, message, "the schema is missing; run `oncegate migrate`");
            }
            "25006" => "it accepts no writes",
            "53300" => "it has no free connection; raise max_connections, or lower `connections` in the URL",
            "57P01" | "57P02" => "it is shutting down",
            "57P03" => "it is starting up or shutting down",
            "26000" | "42P05" | "08P01" => {
                "a pooler switches connections between transactions; add ?pooler=transaction to the URL"
            }
            // Only errors about connections and the server: messages of other errors may repeat data that was sent.
            _ if matches!(code.get(..2), Some("08" | "53" | "55" | "57" | "58" | "XX" | "40")) => {
                return Self::Unavailable(refusal(code, without_names(message)));
            }
            _ => return Self::Unavailable(format!("the PostgreSQL server answered with the error {code}")),
        };
        Self::Unavailable(refusal(code, why))
    }

    fn incompatible(code: &str, message: &str, why: &str) -> Self {
        Self::Incompatible(refusal(code, format_args!("{}: {why}", bounded(message))))
    }

    /// Prefixes the reason.
    pub(super) fn within(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Unavailable(why) => Self::Unavailable(format!("{what}: {why}")),
            Self::Incompatible(why) => Self::Incompatible(format!("{what}: {why}")),
        }
    }
}

impl From<&sqlx::Error> for DatabaseError {
    fn from(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => Self::of_code(&error.code().unwrap_or_default(), error.message()),
            sqlx::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
                Self::Unavailable("the PostgreSQL server refuses connections".into())
            }
            // A failed TLS handshake is reported as an error of the connection.
            sqlx::Error::Io(error) if error.kind() == ErrorKind::InvalidData => no_tls(error),
            sqlx::Error::Io(error) => {
                Self::Unavailable(format!("the connection to the PostgreSQL server failed: {error}"))
            }
            sqlx::Error::Tls(error) => no_tls(error),
            error => Self::Unavailable(format!("the exchange with the PostgreSQL server failed: {error}")),
        }
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        Self::from(&error)
    }
}

/// Returns whether the server has ended the connection with this error.
pub fn ends_connection(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let error = error.try_downcast_ref::<PgDatabaseError>();
            error.is_none_or(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
        }
        _ => true,
    }
}

fn refusal(code: &str, why: impl fmt::Display) -> String {
    format!("{code}: the PostgreSQL server refuses: {why}")
}

fn no_tls(error: impl fmt::Display) -> DatabaseError {
    DatabaseError::Unavailable(format!(
        "no TLS with the PostgreSQL server: {error}; check sslmode and sslrootcert in the URL"
    ))
}

/// Returns a message of the server up to the first name or value in it.
fn without_names(message: &str) -> String {
    bounded(message.split(['"', '\'', '(']).next().unwrap_or_default())
}

fn bounded(message: &str) -> String {
    let message: String = message.chars().filter(|char| !char.is_control()).take(120).collect();
    message.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_need_an_operator_differ_from_temporary_ones() {
        for (code, incompatible) in
            [("42P01", true), ("42501", true), ("57P03", false), ("25006", false), ("28P01", false), ("99999", false)]
        {
            let error = DatabaseError::of_code(code, "a message");
            assert_eq!(matches!(error, DatabaseError::Incompatible(_)), incompatible, "{error:?}");
            assert!(error.to_string().contains(code));
        }
    }

    #[test]
    fn a_missing_right_or_table_is_named() {
        for (code, message) in [
            ("42501", "permission denied for table oncegate_locks"),
            ("42P01", "relation \"oncegate_locks\" does not exist"),
        ] {
            let text = DatabaseError::of_code(code, message).to_string();
            assert!(text.contains(&format!("refuses: {message}: the ")), "{text}");
        }
    }

    #[test]
    fn frequent_refusals_say_what_to_do() {
        for (code, part) in [
            ("28P01", "user and password"),
            ("28000", "user and password"),
            ("3D000", "no database of that name"),
            ("25006", "accepts no writes"),
            ("53300", "max_connections"),
            ("57P01", "shutting down"),
            ("57P03", "starting up"),
            ("26000", "?pooler=transaction"),
            ("08P01", "?pooler=transaction"),
        ] {
            let text = DatabaseError::of_code(code, "a message").to_string();
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_failed_connection_says_why() {
        let text = |kind| DatabaseError::from(sqlx::Error::Io(std::io::Error::new(kind, "a reason"))).to_string();
        assert_eq!(text(ErrorKind::ConnectionRefused), "the PostgreSQL server refuses connections");
        assert!(text(ErrorKind::InvalidData).starts_with("no TLS with the PostgreSQL server: a reason"));
        assert!(text(ErrorKind::TimedOut).ends_with("failed: a reason"));
        assert!(ends_connection(&sqlx::Error::WorkerCrashed));
    }

    #[test]
    fn data_that_was_sent_is_not_repeated() {
        let error = DatabaseError::of_code("22021", "invalid byte sequence: hunter2").to_string();
        assert!(!error.contains("hunter2"), "{error}");
        let error = DatabaseError::of_code("53100", "could not extend file \"base/1/2\": No space").to_string();
        assert_eq!(error, "53100: the PostgreSQL server refuses: could not extend file");
    }
}
