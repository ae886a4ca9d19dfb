//! The gateways that share a chain. Each writes a line about itself into one metadata record of the chain, and reads those of the others.
//! No gateway calls another.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::backoff::jittered;
use oncegate_core::clock::{Timestamp, millis};
use oncegate_core::engine::{Engine, EngineError, Metadata, Topology as _};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::roster::{self, Entry, Known, Roster};
use super::{Gateway, NamedChain, within};

/// Time between two writes of the own line.
const INTERVAL: Duration = Duration::from_secs(10);

/// Deadline of each call to the store.
const DEADLINE: Duration = Duration::from_millis(500);

/// Writes that lose against those of other gateways, before the next turn.
const WRITES_MAX: usize = 4;

/// Characters of a text of a line.
const TEXT_CHARS_MAX: usize = 64;

/// The line that a gateway writes about itself, for all its chains.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
pub struct GatewayLine {
    /// Its ID: the digits at the end of the name of its console's cookie.
    #[serde(rename = "g")]
    pub id: String,
    /// The name of its host.
    #[serde(rename = "h")]
    pub host: String,
    /// Its version.
    #[serde(rename = "v")]
    pub version: String,
    /// When it was started, by its own clock.
    #[serde(rename = "s")]
    pub started_at_us: u64,
    /// Its stage.
    #[serde(rename = "t")]
    pub stage: String,
    /// Digest of the settings that gateways of a fleet have in common.
    #[serde(rename = "c")]
    pub settings: String,
    /// Number of things that need a person.
    #[serde(rename = "a")]
    pub attention: usize,
    /// Origin of its console, if it has one.
    #[serde(rename = "o", default, skip_serializing_if = "String::is_empty")]
    pub origin: String,
}

/// The entry of a gateway in the record of a chain.
#[derive(Clone, Deserialize, Serialize)]
struct ChainLine {
    #[serde(flatten)]
    gateway: GatewayLine,
    /// Rises with each write.
    #[serde(rename = "n")]
    number: u64,
    /// Epoch of the chain at the gateway.
    #[serde(rename = "e")]
    epoch: u64,
}

impl Entry for ChainLine {
    const ENTRIES: &'static str = "gateways";

    fn gateway(&self) -> &str {
        &self.gateway.id
    }

    fn is_same_write(&self, other: &Self) -> bool {
        (self.number, self.gateway.started_at_us) == (other.number, other.gateway.started_at_us)
    }
}

/// The gateways of a chain, as this one has last read them.
#[derive(Clone, Debug, Serialize)]
pub struct ChainFleet {
    /// The chain.
    pub chain: String,
    /// When the record was last read; `None` if it was not.
    pub read_at: Option<Timestamp>,
    /// Why it was not read since, or why there is none.
    pub detail: Option<String>,
    /// Gateways are left out, since the record has no room for them.
    pub more: bool,
    /// The gateways, this one first.
    pub gateways: Vec<ShownGateway>,
}

/// A gateway of a chain.
#[derive(Clone, Debug, Serialize)]
pub struct ShownGateway {
    /// Its ID.
    pub id: String,
    /// It is the one that answers.
    pub here: bool,
    /// The name of its host.
    pub host: String,
    /// Its version.
    pub version: String,
    /// When it was started, by its own clock.
    pub started_at: Timestamp,
    /// Its stage.
    pub stage: String,
    /// Epoch of the chain at this gateway.
    pub epoch: u64,
    /// Digest of the settings that gateways of a fleet have in common.
    pub settings: String,
    /// Number of things that need a person.
    pub attention: usize,
    /// Origin of its console.
    pub origin: Option<String>,
    /// Time since its line was seen to change.
    pub age_ms: u64,
}

/// The records of all chains.
#[derive(Default)]
pub(super) struct Fleet(Mutex<BTreeMap<String, ChainRecord>>);

/// The record of a chain, as this gateway knows it.
#[derive(Clone, Default)]
struct ChainRecord {
    lines: Roster<ChainLine>,
    /// When it was last read, by the monotonic clock, and by the wall clock.
    read: Option<(Duration, Timestamp)>,
    failure: Option<String>,
    more: bool,
    number: u64,
}

impl Gateway {
    /// Writes the line of this gateway into the record of each shared chain, again and again.
    pub async fn keep_fleet(&self, own: impl Fn() -> GatewayLine) {
        loop {
            let line = own();
            for (name, named) in &self.engines.chains {
                self.keep_line(name, named, &line).await;
            }
            sleep(jittered(INTERVAL * 9 / 10, INTERVAL / 5, self.issuer.entropy().bits())).await;
        }
    }

    /// Returns the gateways of each chain. Calls no store.
    pub fn fleet(&self, own: &GatewayLine) -> Vec<ChainFleet> {
        let now = self.clock.monotonic();
        let records = self.fleet.records();
        let of = |(name, named): (&String, &NamedChain)| {
            let record = records.get(name).cloned().unwrap_or_default();
            let here = line_of(own, 0, named.chain.status().epoch);
            let others = record.others(&own.id).map(|known| shown(&known.entry, now.saturating_sub(known.at), false));
            let is_shared = named.chain.capabilities().shared;
            let alone = (!is_shared).then(|| "the store of this chain belongs to one gateway".to_owned());
            ChainFleet {
                chain: name.clone(),
                gateways: std::iter::once(shown(&here, Duration::ZERO, true)).chain(others).collect(),
                read_at: record.read.map(|(_, at)| at),
                detail: alone.or(record.failure),
                more: record.more,
            }
        };
        self.engines.chains.iter().map(of).collect()
    }

    async fn keep_line(&self, name: &str, named: &NamedChain, own: &GatewayLine) {
        if !named.chain.capabilities().shared {
            return;
        }
        let mut written = Ok(false);
        for _ in 0..WRITES_MAX {
            written = self.write_line(name, named, own).await;
            // Otherwise another gateway was faster.
            if written != Ok(false) {
                break;
            }
        }
        let failure = match written {
            Ok(true) => None,
            Ok(false) => Some("other gateways have written at the same time".to_owned()),
            Err(why) => Some(why.to_string()),
        };
        self.fleet.records().entry(name.to_owned()).or_default().failure = failure;
    }

    /// Reads the record, and writes it with the own line. Returns false if another gateway has written in between.
    async fn write_line(&self, name: &str, named: &NamedChain, own: &GatewayLine) -> Result<bool, EngineError> {
        let record = format!("gateways.{name}");
        let engine: &dyn Engine = &*named.chain;
        let found = within(DEADLINE, engine.get_metadata(&record)).await?;
        let (now, epoch) = (self.clock.monotonic(), named.chain.status().epoch);
        let new = {
            let mut records = self.fleet.records();
            let known = records.entry(name.to_owned()).or_default();
            known.read(found.as_ref(), now, self.clock.wall())?;
            known.number += 1;
            known.with(line_of(own, known.number, epoch), now)?
        };
        within(DEADLINE, engine.compare_and_set_metadata(&record, found.as_ref(), &new)).await
    }
}

impl Fleet {
    fn records(&self) -> MutexGuard<'_, BTreeMap<String, ChainRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChainRecord {
    /// Reads the record at an instant of the monotonic clock, and of the wall clock.
    fn read(&mut self, record: Option<&Metadata>, now: Duration, at: Timestamp) -> Result<(), EngineError> {
        self.lines.read(record, now)?;
        self.read = Some((now, at));
        Ok(())
    }

    /// Returns the lines of the other gateways that were not forgotten when the record was last read.
    fn others(&self, own: &str) -> impl Iterator<Item = &Known<ChainLine>> {
        self.lines.living(own, self.read.map(|(now, _)| now).unwrap_or_default())
    }

    /// Returns the record with this line, and with as many others as fit.
    fn with(&mut self, own: ChainLine, now: Duration) -> Result<Metadata, EngineError> {
        let others = self.lines.living(&own.gateway.id, now).map(|known| known.entry.clone());
        let mut lines: Vec<_> = others.collect();
        lines.insert(0, own);
        self.more = false;
        loop {
            match roster::record(&lines) {
                Err(_) if lines.len() > 1 => {
                    self.more = true;
                    lines.pop();
                }
                written => return written,
            }
        }
    }
}

fn line_of(own: &GatewayLine, number: u64, epoch: u64) -> ChainLine {
    let cut = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect();
    let origin = if own.origin.len() <= TEXT_CHARS_MAX { own.origin.clone() } else { String::new() };
    let gateway = GatewayLine { host: cut(&own.host), version: cut(&own.version), origin, ..own.clone() };
    ChainLine { gateway, number, epoch }
}

fn shown(line: &ChainLine, age: Duration, here: bool) -> ShownGateway {
    let ChainLine { gateway, epoch, .. } = line.clone();
    ShownGateway {
        id: gateway.id,
        here,
        host: gateway.host,
        version: gateway.version,
        started_at: Timestamp::from_micros(gateway.started_at_us),
        stage: gateway.stage,
        epoch,
        settings: gateway.settings,
        attention: gateway.attention,
        origin: Some(gateway.origin).filter(|origin| !origin.is_empty()),
        age_ms: millis(age),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn own(id: &str) -> GatewayLine {
        GatewayLine {
            id: id.into(),
            host: "og-a".into(),
            version: "1.4.0".into(),
            started_at_us: 1_790_841_600_000_000,
            stage: "ready".into(),
            settings: "01234567".into(),
            attention: 3,
            origin: "https://og-a.ops.example".into(),
        }
    }

    fn lines(record: &Metadata) -> Vec<ChainLine> {
        roster::parse(record).unwrap()
    }

    #[test]
    fn a_line_lasts_a_minute_after_its_last_change() {
        let (mut writer, mut reader) = (ChainRecord::default(), ChainRecord::default());
        let first = writer.with(line_of(&own("a"), 1, 2), SECOND).unwrap();
        let ids = |reader: &ChainRecord| -> Vec<String> {
            reader.others("").map(|known| known.entry.gateway.id.clone()).collect()
        };
        let read = |reader: &mut ChainRecord, now| reader.read(Some(&first), now, Timestamp::default()).unwrap();
        read(&mut reader, 100 * SECOND);
        read(&mut reader, 160 * SECOND);
        assert_eq!(ids(&reader), ["a"]);
        read(&mut reader, 161 * SECOND);
        assert_eq!(ids(&reader), [] as [&str; 0], "it has not changed for more than a minute");
        let mut reader = ChainRecord::default();
        read(&mut reader, 100 * SECOND);
        let both = reader.with(line_of(&own("b"), 1, 2), 150 * SECOND).unwrap();
        let later = reader.with(line_of(&own("b"), 2, 2), 161 * SECOND).unwrap();
        let written = |record: &Metadata| lines(record).into_iter().map(|line| line.gateway.id).collect::<Vec<_>>();
        assert_eq!((written(&both), written(&later)), (vec!["b".to_owned(), "a".to_owned()], vec!["b".to_owned()]));
    }

    #[test]
    fn a_full_record_keeps_the_own_line_and_says_that_there_are_more() {
        let (mut known, mut record) = (ChainRecord::default(), None);
        for number in 0..100 {
            known.read(record.as_ref(), SECOND, Timestamp::default()).unwrap();
            let id = format!("{number:08x}");
            record = Some(known.with(line_of(&own(&id), u64::MAX, u64::MAX), SECOND).unwrap());
            assert_eq!(lines(record.as_ref().unwrap())[0].gateway.id, id);
        }
        assert!(known.more && lines(&record.unwrap()).len() > 10);
    }

    #[test]
    fn another_format_is_refused() {
        let record = ChainRecord::default().with(line_of(&own("a"), 1, 2), SECOND).unwrap();
        let newer = record.as_str().replace("\"format\":1", "\"format\":2");
        for unreadable in ["", "{}", &newer] {
            let record = Metadata::new(unreadable).unwrap();
            assert!(ChainRecord::default().read(Some(&record), SECOND, Timestamp::default()).is_err(), "{unreadable}");
        }
    }
}
