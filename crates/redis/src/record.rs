//! Shared records: metadata, locks and degraded grants.

use std::time::Duration;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{
    ChangePurpose, ChangeResponse, EngineError, RecordChange, RecordName, RecordView, SharedRecord, millis,
};
use redis::Value;

use super::Redis;
use super::connection::Purpose;
use super::reply::{checked, unexpected};
use super::script::SCRIPTS;

/// The latest instant that a script counts exactly: its numbers are doubles.
const LATEST: u64 = (1 << 53) - 1;

impl Redis {
    pub(super) async fn record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        let key = self.keys.record(name);
        let reply = self.run::<&str>(&SCRIPTS.get_record, &key, &[], Purpose::Other, self.time(deadline)).await;
        reply.and_then(|reply| view(reply, 0)).map_err(EngineError::of_read)
    }

    pub(super) async fn change(
        &self,
        change: &RecordChange,
        deadline: Duration,
    ) -> Result<ChangeResponse, EngineError> {
        let lasts_ms = change.lasts.map(|lasts| millis(lasts).to_string()).unwrap_or_default();
        let [from, before] = [change.from, change.before].map(|instant| instant.as_micros().min(LATEST).to_string());
        let expected = change.expected.as_ref().map(SharedRecord::version);
        let notifies: &[u8] = if change.notifies { b"1" } else { b"0" };
        let arguments = [
            change.new.as_stored(),
            change.new.version(),
            lasts_ms.as_bytes(),
            from.as_bytes(),
            before.as_bytes(),
            notifies,
        ];
        let arguments: Vec<_> = arguments.into_iter().chain(expected).collect();
        let (script, purpose) = match change.purpose {
            ChangePurpose::Grant => (&SCRIPTS.grant_record, Purpose::Grant),
            ChangePurpose::Keep => (&SCRIPTS.change_record, Purpose::Other),
        };
        let key = self.keys.record(&change.name);
        let reply = checked(self.run(script, &key, &arguments, purpose, self.time(deadline)).await?)?;
        match &reply {
            Value::Array(items) => match &items[..] {
                [Value::Int(1), Value::Int(now)] => Ok(ChangeResponse::Stored(instant(*now)?)),
                [Value::Int(0), ..] => Ok(ChangeResponse::Refused { view: view(reply, 1)?, maybe_stored: false }),
                _ => Err(unexpected()),
            },
            _ => Err(unexpected()),
        }
    }
}

/// Reads a view, whose items begin at this position.
fn view(reply: Value, at: usize) -> Result<RecordView, EngineError> {
    let Value::Array(items) = checked(reply)? else { return Err(unexpected()) };
    let mut items = items.into_iter().skip(at);
    let (Some(Value::Int(now)), record) = (items.next(), items.next()) else { return Err(unexpected()) };
    let record = match record {
        None | Some(Value::Nil) => None,
        Some(Value::BulkString(bytes)) => Some(SharedRecord::from_stored(bytes)?),
        Some(_) => return Err(unexpected()),
    };
    Ok(RecordView { record, now: instant(now)?, clock_gain: Duration::ZERO })
}

fn instant(micros: i64) -> Result<Timestamp, EngineError> {
    u64::try_from(micros).map(Timestamp::from_micros).map_err(|_| unexpected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_an_unexpected_form_are_uncertain() {
        let text = || Value::BulkString(b"{}".to_vec());
        let replies =
            [Value::Okay, Value::Array(vec![]), Value::Array(vec![text()]), Value::Array(vec![Value::Int(-1)])];
        for reply in replies {
            assert!(matches!(view(reply.clone(), 0), Err(EngineError::Indeterminate(_))), "{reply:?}");
        }
        let whole = view(Value::Array(vec![Value::Int(7), text()]), 0).unwrap();
        assert_eq!((whole.now.as_micros(), whole.record.unwrap().value()), (7, &b"{}"[..]));
        assert_eq!(view(Value::Array(vec![Value::Int(7), Value::Nil]), 0).unwrap().record, None);
    }
}
