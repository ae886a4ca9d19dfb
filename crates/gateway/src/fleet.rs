//! The gateways that share a chain. Each writes a line about itself into one metadata record of the chain, and reads those of the others.
//! No gateway calls another.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oncegate_core::backoff::jittered;
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::shared_record::METADATA_BYTES_MAX;
use oncegate_core::engine::{Engine, EngineError, Metadata, Topology as _};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Gateway, NamedChain, within};

/// Time between two writes of the own line.
const INTERVAL: Duration = Duration::from_secs(10);

/// Age after which a line ends: its gateway has stopped, or does not reach the store.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Deadline of each call to the store.
const DEADLINE: Duration = Duration::from_millis(500);

/// Writes that lose against those of other gateways, before the next turn.
const WRITES_MAX: usize = 4;

/// Most gateways of a record. As many as fit into its bytes, if that is fewer.
const LINES_MAX: usize = 64;

/// Format of the record. Raised only when an earlier release could not read what a later one writes.
const FORMAT: u32 = 1;

/// Characters of a text of a line. Another gateway has written it, so readers cut it, too.
const TEXT_CHARS_MAX: usize = 64;

/// A gateway, as it says of itself. Members of the record have short names, since all gateways share its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct GatewayLine {
    /// Its ID: the digits at the end of the name of its console's cookie.
    #[serde(rename = "g")]
    pub id: String,
    /// Rises with each write.
    #[serde(rename = "n")]
    number: u64,
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
    /// Epoch of the chain at this gateway.
    #[serde(rename = "e")]
    epoch: u64,
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

/// What a gateway says of itself, for all its chains.
#[derive(Clone, Debug, Default)]
pub struct OwnLine {
    /// See [`GatewayLine::id`].
    pub id: String,
    /// See [`GatewayLine::host`].
    pub host: String,
    /// See [`GatewayLine::version`].
    pub version: String,
    /// See [`GatewayLine::started_at_us`].
    pub started_at: Timestamp,
    /// See [`GatewayLine::stage`].
    pub stage: &'static str,
    /// See [`GatewayLine::settings`].
    pub settings: String,
    /// See [`GatewayLine::attention`].
    pub attention: usize,
    /// See [`GatewayLine::origin`].
    pub origin: String,
}

#[derive(Deserialize, Serialize)]
struct Record {
    format: u32,
    gateways: Vec<GatewayLine>,
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
pub(super) struct Fleet(Mutex<BTreeMap<String, Known>>);

/// What is known of a chain's record.
#[derive(Clone, Default)]
struct Known {
    /// By the ID of the gateway: its line, and when this gateway saw it change, by the monotonic clock.
    lines: BTreeMap<String, (GatewayLine, Duration)>,
    read_at: Option<Timestamp>,
    failure: Option<String>,
    more: bool,
    number: u64,
}

impl Gateway {
    /// Writes the line of this gateway into the record of each shared chain, again and again.
    pub async fn keep_fleet(&self, own: impl Fn() -> OwnLine) {
        loop {
            let line = own();
            for (name, named) in &self.engines.chains {
                self.keep_line(name, named, &line).await;
            }
            sleep(jittered(INTERVAL * 9 / 10, INTERVAL / 5, self.issuer.entropy().bits())).await;
        }
    }

    /// Returns the gateways of each chain. Calls no store.
    pub fn fleet(&self, own: &OwnLine) -> Vec<ChainFleet> {
        let now = self.clock.monotonic();
        let known = self.fleet.known();
        let of = |(name, named): (&String, &NamedChain)| {
            let known = known.get(name).cloned().unwrap_or_default();
            let is_shared = named.policies.engine().capabilities().shared;
            let here = shown(line_of(own, 0, named.chain.status().epoch), Duration::ZERO, true);
            let others = known.lines.values().filter(|(line, _)| line.id != own.id);
            let others = others.map(|(line, at)| shown(line.clone(), now.saturating_sub(*at), false));
            let alone = (!is_shared).then(|| "the store of this chain belongs to one gateway".to_owned());
            ChainFleet {
                chain: name.clone(),
                read_at: known.read_at,
                detail: alone.or(known.failure),
                more: known.more,
                gateways: std::iter::once(here).chain(others).collect(),
            }
        };
        self.engines.chains.iter().map(of).collect()
    }

    async fn keep_line(&self, name: &str, named: &NamedChain, own: &OwnLine) {
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
        self.fleet.known().entry(name.to_owned()).or_default().failure = failure;
    }

    /// Reads the record, and writes it with the own line. Returns false if another gateway has written meanwhile.
    async fn write_line(&self, name: &str, named: &NamedChain, own: &OwnLine) -> Result<bool, EngineError> {
        let record = format!("gateways.{name}");
        let engine: &dyn Engine = &*named.chain;
        let found = within(DEADLINE, engine.get_metadata(&record)).await?;
        let (now, epoch) = (self.clock.monotonic(), named.chain.status().epoch);
        let new = {
            let mut known = self.fleet.known();
            let known = known.entry(name.to_owned()).or_default();
            known.read(found.as_ref(), now)?;
            known.read_at = Some(self.clock.wall());
            known.number += 1;
            known.with(line_of(own, known.number, epoch), now)?
        };
        within(DEADLINE, engine.compare_and_set_metadata(&record, found.as_ref(), &new)).await
    }
}

impl Fleet {
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Reads the record at an instant of the monotonic clock.
    fn read(&mut self, record: Option<&Metadata>, now: Duration) -> Result<(), EngineError> {
        let read = record.map(parse).transpose()?.unwrap_or_default();
        let before = std::mem::take(&mut self.lines);
        for line in read.into_iter().take(LINES_MAX) {
            let at = match before.get(&line.id) {
                Some((known, at)) if (known.number, known.started_at_us) == (line.number, line.started_at_us) => *at,
                _ => now,
            };
            if now.saturating_sub(at) <= FORGOTTEN {
                self.lines.insert(line.id.clone(), (line, at));
            }
        }
        Ok(())
    }

    /// Returns the record with this line, and with as many others as fit.
    fn with(&mut self, own: GatewayLine, now: Duration) -> Result<Metadata, EngineError> {
        let unwritable =
            |why: String| EngineError::incompatible(format!("the line of the gateway cannot be written: {why}"));
        let others = self.lines.values().filter(|(line, at)| line.id != own.id && now.saturating_sub(*at) <= FORGOTTEN);
        let mut gateways: Vec<_> = others.map(|(line, _)| line.clone()).collect();
        gateways.insert(0, own);
        self.more = gateways.len() > LINES_MAX;
        gateways.truncate(LINES_MAX);
        loop {
            let text = serde_json::to_string(&Record { format: FORMAT, gateways: gateways.clone() })
                .map_err(|why| unwritable(why.to_string()))?;
            if text.len() <= METADATA_BYTES_MAX || gateways.len() <= 1 {
                return Metadata::new(text).map_err(|why| unwritable(why.to_string()));
            }
            self.more = true;
            gateways.pop();
        }
    }
}

fn line_of(own: &OwnLine, number: u64, epoch: u64) -> GatewayLine {
    GatewayLine {
        id: own.id.clone(),
        number,
        host: cut(&own.host),
        version: cut(&own.version),
        started_at_us: own.started_at.as_micros(),
        stage: own.stage.to_owned(),
        epoch,
        settings: own.settings.clone(),
        attention: own.attention,
        origin: if own.origin.len() <= TEXT_CHARS_MAX { own.origin.clone() } else { String::new() },
    }
}

fn shown(line: GatewayLine, age: Duration, here: bool) -> ShownGateway {
    ShownGateway {
        id: line.id,
        here,
        host: line.host,
        version: line.version,
        started_at: Timestamp::from_micros(line.started_at_us),
        stage: line.stage,
        epoch: line.epoch,
        settings: line.settings,
        attention: line.attention,
        origin: Some(line.origin).filter(|origin| !origin.is_empty()),
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

fn parse(record: &Metadata) -> Result<Vec<GatewayLine>, EngineError> {
    let unreadable = || EngineError::incompatible("the lines of the gateways cannot be read by this release");
    let record: Record = serde_json::from_str(record.as_str()).map_err(|_| unreadable())?;
    if record.format == FORMAT { Ok(record.gateways) } else { Err(unreadable()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn own(id: &str) -> OwnLine {
        OwnLine {
            id: id.into(),
            host: "og-a".into(),
            version: "1.4.0".into(),
            started_at: Timestamp::from_micros(1_790_841_600_000_000),
            stage: "ready",
            settings: "01234567".into(),
            attention: 3,
            origin: "https://og-a.ops.example".into(),
        }
    }

    #[test]
    fn a_line_lasts_a_minute_after_its_last_change() {
        let (mut writer, mut reader) = (Known::default(), Known::default());
        let first = writer.with(line_of(&own("a"), 1, 2), SECOND).unwrap();
        let ids = |known: &Known| known.lines.keys().cloned().collect::<Vec<_>>();
        reader.read(Some(&first), 100 * SECOND).unwrap();
        reader.read(Some(&first), 160 * SECOND).unwrap();
        assert_eq!(ids(&reader), ["a"]);
        reader.read(Some(&first), 161 * SECOND).unwrap();
        assert_eq!(ids(&reader), [] as [&str; 0], "it has not changed for more than a minute");
        let mut reader = Known::default();
        reader.read(Some(&first), 100 * SECOND).unwrap();
        let both = reader.with(line_of(&own("b"), 1, 2), 150 * SECOND).unwrap();
        let later = reader.with(line_of(&own("b"), 2, 2), 161 * SECOND).unwrap();
        let written = |record: &Metadata| parse(record).unwrap().into_iter().map(|line| line.id).collect::<Vec<_>>();
        assert_eq!((written(&both), written(&later)), (vec!["b".to_owned(), "a".to_owned()], vec!["b".to_owned()]));
    }

    #[test]
    fn a_full_record_keeps_the_own_line_and_says_that_there_are_more() {
        let (mut known, mut record) = (Known::default(), None);
        for number in 0..100 {
            known.read(record.as_ref(), SECOND).unwrap();
            let id = format!("{number:08x}");
            record = Some(known.with(line_of(&own(&id), u64::MAX, u64::MAX), SECOND).unwrap());
            assert_eq!(parse(record.as_ref().unwrap()).unwrap()[0].id, id);
        }
        assert!(known.more && parse(&record.unwrap()).unwrap().len() > 10);
    }

    #[test]
    fn another_format_is_refused() {
        let record = Known::default().with(line_of(&own("a"), 1, 2), SECOND).unwrap();
        let newer = record.as_str().replace("\"format\":1", "\"format\":2");
        for unreadable in ["", "{}", &newer] {
            assert!(Known::default().read(Some(&Metadata::new(unreadable).unwrap()), SECOND).is_err(), "{unreadable}");
        }
    }
}
