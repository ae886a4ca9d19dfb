//! Views: which stores of a chain each gateway sees out. All views of a chain are one metadata record at the witness.

use std::time::Duration;

use oncegate_core::engine::{EngineError, Metadata};
use serde::{Deserialize, Serialize};

use crate::resilience::chain::member::Seen;
use crate::roster::{self, Entry, Roster};

/// Largest number of views in the record, which has 4096 bytes. Further gateways have no vote.
pub(super) const VIEWS_MAX: usize = 40;

/// The view of one gateway. Its members have short names, since all gateways share one record.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(super) struct GatewayView {
    /// Random name of the process.
    #[serde(rename = "g")]
    pub(super) gateway: String,
    /// Rises with each write.
    #[serde(rename = "n")]
    pub(super) number: u64,
    /// Digest of the chain in its configuration.
    #[serde(rename = "c")]
    pub(super) chain: String,
    /// Longest lease that it may have granted, in milliseconds.
    #[serde(rename = "l")]
    pub(super) lease_ms: u64,
    /// For each engine, in the order of the chain, how long it is out, in milliseconds.
    #[serde(rename = "o")]
    pub(super) out_ms: Vec<Option<u64>>,
}

/// The views that this gateway has read, with their ages.
pub(super) type Views = Roster<GatewayView>;

impl Entry for GatewayView {
    const ENTRIES: &'static str = "views";

    fn gateway(&self) -> &str {
        &self.gateway
    }

    fn is_same_write(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl GatewayView {
    /// Returns how the gateway sees the engine at this position.
    pub(super) fn seen(&self, at: usize) -> Seen {
        match self.out_ms.get(at) {
            Some(None) => Seen::Answers,
            Some(Some(out_ms)) => Seen::Out(Duration::from_millis(*out_ms)),
            None => Seen::Out(Duration::ZERO),
        }
    }
}

impl Views {
    /// Returns the record with this view in it, and without those of gateways that have ended. `None` if there is no room.
    pub(super) fn with(&self, own: &GatewayView, now: Duration) -> Result<Option<Metadata>, EngineError> {
        let others = self.living(&own.gateway, now).map(|known| known.entry.clone());
        let views: Vec<_> = others.chain([own.clone()]).collect();
        if views.len() > VIEWS_MAX { Ok(None) } else { roster::record(&views).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FORGOTTEN: Duration = Duration::from_mins(1);

    fn view(gateway: &str, number: u64) -> GatewayView {
        let out_ms = vec![Some(1_000_000), None];
        GatewayView { gateway: gateway.into(), number, chain: "01234567".into(), lease_ms: 86_400_000, out_ms }
    }

    fn read(views: &mut Views, record: &Metadata, now: Duration) {
        views.read(Some(record), now).unwrap();
    }

    #[test]
    fn a_view_is_as_old_as_its_last_change_at_the_reader() {
        let (mut writer, mut reader) = (Views::default(), Views::default());
        let ages = |reader: &Views| -> Vec<_> {
            reader.others("me").map(|known| (known.entry.number, known.at, known.has_changed)).collect()
        };
        let first = writer.with(&view("a", 1), SECOND).unwrap().unwrap();
        read(&mut reader, &first, 100 * SECOND);
        read(&mut reader, &first, 110 * SECOND);
        assert_eq!(ages(&reader), [(1, 100 * SECOND, false)], "it may be of a gateway that has ended");
        read(&mut writer, &first, SECOND);
        let second = writer.with(&view("a", 2), 2 * SECOND).unwrap().unwrap();
        read(&mut reader, &second, 120 * SECOND);
        assert_eq!(ages(&reader), [(2, 120 * SECOND, true)]);
        assert_eq!(reader.others("a").count(), 0, "its own is not one of the others");
    }

    #[test]
    fn a_writer_keeps_the_others_and_removes_those_that_have_ended() {
        let mut views = Views::default();
        let record = views.with(&view("a", 1), SECOND).unwrap().unwrap();
        read(&mut views, &record, SECOND);
        let names = |record: &Metadata| -> Vec<_> {
            roster::parse(record).unwrap().into_iter().map(|view: GatewayView| (view.gateway, view.number)).collect()
        };
        let both = views.with(&view("b", 1), SECOND + FORGOTTEN).unwrap().unwrap();
        assert_eq!(names(&both), [("a".into(), 1), ("b".into(), 1)]);
        let one = views.with(&view("b", 2), 2 * SECOND + FORGOTTEN).unwrap().unwrap();
        assert_eq!(names(&one), [("b".into(), 2)]);
    }

    #[test]
    fn the_record_holds_as_many_views_as_it_may_and_then_no_more() {
        let (mut views, mut record) = (Views::default(), None);
        for at in 0..VIEWS_MAX {
            let longest = GatewayView { number: u64::MAX, ..view(&format!("{at:08x}"), 1) };
            record = views.with(&longest, SECOND).unwrap();
            read(&mut views, record.as_ref().expect("room"), SECOND);
        }
        assert_eq!(views.with(&view("one more", 1), SECOND), Ok(None));
        assert!(views.with(&view("00000001", 2), SECOND).unwrap().is_some(), "one that is in it");
        assert_eq!(roster::parse::<GatewayView>(&record.unwrap()).unwrap().len(), VIEWS_MAX);
    }

    #[test]
    fn another_format_is_refused_and_a_view_of_fewer_engines_vouches_for_none() {
        let record = Views::default().with(&view("a", 1), SECOND).unwrap().unwrap();
        let newer = record.as_str().replace("\"format\":1", "\"format\":2");
        for unreadable in ["", "{}", &newer] {
            assert!(Views::default().read(Some(&Metadata::new(unreadable).unwrap()), SECOND).is_err(), "{unreadable}");
        }
        let own = view("a", 1);
        assert_eq!((own.seen(0), own.seen(1)), (Seen::Out(1000 * SECOND), Seen::Answers));
        assert_eq!(own.seen(2), Seen::Out(Duration::ZERO));
    }
}
