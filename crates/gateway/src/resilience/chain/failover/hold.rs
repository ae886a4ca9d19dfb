//! Holds: an operator stops the automatic switches of a chain, for a time or until an operator allows them again. A hold is one
//! metadata record at the witness, so that it holds at every gateway; each reads it before it switches.

use std::fmt;

use oncegate_core::clock::Timestamp;
use oncegate_core::engine::{EngineError, Metadata};
use serde::{Deserialize, Serialize};

/// Format of the record. Raised only when an older release could not read what a newer one writes.
const FORMAT: u32 = 1;

/// A hold of automatic switches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Hold {
    /// Its end, by the wall clocks of the gateways; `None`: an operator ends it.
    pub until: Option<Timestamp>,
    /// Name of the operator.
    pub who: String,
    /// Reason: one line.
    pub reason: String,
}

/// The stored record. Without a hold, switches are allowed again: no record is ever deleted.
#[derive(Deserialize, Serialize)]
struct Record {
    format: u32,
    hold: Option<StoredHold>,
}

#[derive(Deserialize, Serialize)]
struct StoredHold {
    /// In microseconds.
    until: Option<u64>,
    who: String,
    reason: String,
}

impl Hold {
    /// Returns whether it holds at this time.
    pub(super) fn is_in_force(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// Returns the hold of a record.
    pub(super) fn of(record: Option<&Metadata>) -> Result<Option<Self>, EngineError> {
        let Some(record) = record else { return Ok(None) };
        match serde_json::from_str(record.as_str()) {
            Ok(Record { format: FORMAT, hold }) => Ok(hold.map(|StoredHold { until, who, reason }| Self {
                until: until.map(Timestamp::from_micros),
                who,
                reason,
            })),
            _ => Err(EngineError::incompatible("the hold of automatic switches cannot be read by this release")),
        }
    }

    /// Returns the record of a hold, or of none.
    pub(super) fn to_record(hold: Option<&Self>) -> Result<Metadata, EngineError> {
        let unwritable = |why: String| EngineError::incompatible(format!("the hold cannot be written: {why}"));
        let stored = |hold: &Self| StoredHold {
            until: hold.until.map(Timestamp::as_micros),
            who: hold.who.clone(),
            reason: hold.reason.clone(),
        };
        let text = serde_json::to_string(&Record { format: FORMAT, hold: hold.map(stored) })
            .map_err(|why| unwritable(why.to_string()))?;
        Metadata::new(text).map_err(|why| unwritable(why.to_string()))
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` holds automatic switches until ", self.who)?;
        match self.until {
            Some(until) => write!(f, "{until}"),
            None => f.write_str("an operator allows them again"),
        }?;
        write!(f, ": {}", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_read_as_it_was_written_and_another_format_is_an_error() {
        let until = Timestamp::from_micros(1_700_000_000_000_000);
        for until in [Some(until), None] {
            // As long as a reason may be.
            let hold = Hold { until, who: "alice".into(), reason: "\"".repeat(500) };
            let record = Hold::to_record(Some(&hold)).unwrap();
            assert_eq!(Hold::of(Some(&record)).unwrap(), Some(hold));
        }
        assert_eq!(Hold::of(None).unwrap(), None);
        assert_eq!(Hold::of(Some(&Hold::to_record(None).unwrap())).unwrap(), None);
        for text in [r#"{"format":2,"hold":null}"#, "[]", r#"{"format":1,"hold":{}}"#] {
            assert!(Hold::of(Some(&Metadata::new(text.to_owned()).unwrap())).is_err(), "{text}");
        }
    }

    #[test]
    fn a_hold_ends_at_its_time() {
        let until = Timestamp::from_micros(1_700_000_000_000_000);
        let hold = Hold { until: Some(until), who: "alice".into(), reason: "INC-1".into() };
        let before = Timestamp::from_micros(until.as_micros() - 1);
        assert_eq!((hold.is_in_force(before), hold.is_in_force(until)), (true, false));
        assert_eq!(hold.to_string(), format!("`alice` holds automatic switches until {until}: INC-1"));
        let hold = Hold { until: None, ..hold };
        assert!(hold.is_in_force(until));
        assert_eq!(hold.to_string(), "`alice` holds automatic switches until an operator allows them again: INC-1");
    }
}
