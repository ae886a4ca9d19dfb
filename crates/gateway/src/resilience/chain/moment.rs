//! A moment of a chain, for claims that are answered together. A claim of a batch is answered with the last of them, and by then the
//! chain may have been switched.

use std::sync::Arc;

use oncegate_core::engine::EngineError;
use oncegate_core::record::Key;

use super::core::View;
use super::{Chain, switched};

/// A moment of a chain.
pub struct Moment(Arc<View>);

impl Chain {
    /// Returns the present moment.
    pub fn moment(&self) -> Moment {
        Moment(self.core.view())
    }

    /// Checks that a grant of the store since this moment may be delivered now, as each call does when the store answers.
    ///
    /// # Errors
    /// The chain has started to close since, or its store has lost its data: another gateway may grant the same.
    pub fn check_grant(&self, since: &Moment, key: &Key) -> Result<(), EngineError> {
        let engine = self.engine(&since.0)?;
        let shard = self.core.freeze.shard_of(engine, key);
        if self.core.is_current(&since.0, shard) { Ok(()) } else { Err(switched()) }
    }
}
