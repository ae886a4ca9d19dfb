//! What a queue knows of its lock: reads of the record, and the state that it keeps between two rounds.

use std::time::Duration;

use oncegate_core::engine::{EngineError, RecordView, Records as _};

use super::super::actions::{LockResponse, Pending, fail};
use super::super::known::Known;
use super::{CACHED_BYTES, CACHED_FOR, Queue};

impl Queue {
    pub(super) async fn read(&self, deadline: Duration) -> Result<Known, EngineError> {
        let sent_at = self.clock.monotonic();
        let view = self.chain.get_record(&self.name, deadline).await.map_err(EngineError::of_read)?;
        self.known_of(view, sent_at)
    }

    /// Reads the lock from an engine that may grant, so that holds can be granted again. Where nothing may be granted, requests whose
    /// grant would be a repeat fail; the others go on with the known state.
    pub(super) async fn read_for_repeats(
        &self,
        known: Known,
        batch: &mut Vec<Pending>,
        responses: &[LockResponse],
        deadline: Duration,
    ) -> Known {
        let sent_at = self.clock.monotonic();
        let read = self.chain.get_granted(&self.name, deadline).await;
        match read.and_then(|view| self.known_of(view, sent_at)) {
            Ok(read) => Known { may_repeat_grants: true, ..read },
            Err(why) => {
                let mut repeats = responses.iter().map(LockResponse::repeats_grant);
                fail(batch.extract_if(.., |_| repeats.next().unwrap_or_default()).collect(), &why);
                known
            }
        }
    }

    pub(super) fn known_of(&self, view: RecordView, sent_at: Duration) -> Result<Known, EngineError> {
        Known::of(view, sent_at, self.clock.monotonic())
    }

    pub(super) fn take_known(&self) -> Option<Known> {
        let known = self.inbox().known.take()?;
        let is_young = self.clock.monotonic().saturating_sub(known.at) < CACHED_FOR;
        is_young.then_some(known)
    }

    pub(super) fn keep(&self, known: Known) {
        let is_small = known.stored.as_ref().is_none_or(|stored| stored.as_stored().len() <= CACHED_BYTES);
        self.inbox().known = is_small.then_some(Known { is_fresh: false, may_repeat_grants: false, ..known });
    }
}
