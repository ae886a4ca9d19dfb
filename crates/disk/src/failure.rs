//! Failures of the database, as callers and operators read them.

use oncegate_core::engine::EngineError;

/// Returns the error of a read that failed.
pub(super) fn unreadable(error: &fjall::Error) -> EngineError {
    EngineError::unavailable(format!("a read failed: {}", words(error)))
}

/// Returns the reason of a failure of the database in words: the library has none, and shows its types.
pub(super) fn words(error: &fjall::Error) -> String {
    let mut source = Some(error as &(dyn std::error::Error + 'static));
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return io.to_string();
        }
        source = cause.source();
    }
    let why = match error {
        fjall::Error::Poisoned => "an earlier write failed",
        fjall::Error::Locked => "another process has locked it",
        fjall::Error::InvalidVersion(_) => "its files are of another version of the database",
        fjall::Error::JournalRecovery(_) => "its journal is damaged",
        _ => "its files are damaged",
    };
    why.to_owned()
}
