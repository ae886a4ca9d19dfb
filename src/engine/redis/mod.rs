//! The Redis engine: claims in a server of version 7.0 or later, shared by any number of gateways.
//!
//! A claim is one `SET … NX GET PX`; outcomes, renewals and take-overs are one script each, so that every transition
//! is atomic and every time is judged by the server's clock. How commands get there and back is in `lane` and `link`.

mod certificates;
mod health;
mod lane;
mod link;
mod options;
mod reply;
mod script;
mod status;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::health::Health;
use self::lane::{BATCH, Lane, Lost};
use self::link::Shared;
use self::options::{Address, CONNECTIONS};
pub use self::options::{InvalidUrl, Options};
use self::reply::{GRACE, Snapshot, checked, unexpected};
use self::script::{SCRIPTS, Script};
use self::status::Status;
use super::{Capabilities, ClaimSink, Determinate, Engine, EngineError, Metadata, millis, runtimes, value};
use crate::domain::claim::{
    self, ClaimRequest, ClaimResponse, Effect, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest,
    RenewalResponse,
};
use crate::domain::hex;
use crate::domain::operator::{ListRequest, ListedClaim, ReleaseRequest, ReleaseResponse};
use crate::domain::record::{Key, LiveClaim};
use crate::domain::terms::Retention;

/// How often a claim is tried anew because what stood in its way was gone or changed when looked at.
const CLAIM_ROUNDS: usize = 3;

/// Claims kept in a Redis server.
pub struct Redis {
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    tasks: TaskTracker,
    closing: CancellationToken,
    /// Ends the lanes when the engine is dropped.
    _guard: DropGuard,
}

impl Redis {
    /// Whether [`Redis::open`] would take this URL. Asks no server, and reads no file.
    ///
    /// # Errors
    /// What is wrong with the URL, without repeating it.
    pub fn check(url: &str) -> Result<(), InvalidUrl> {
        Address::parse(url).map(drop)
    }

    /// Whether the files are any good that a URL names. Blocks.
    ///
    /// # Errors
    /// What is wrong with the URL or a file, without repeating either.
    pub fn check_files(url: &str) -> Result<(), InvalidUrl> {
        Address::parse(url)?.client().map(drop)
    }

    /// An engine on the server of this URL: `redis://[user[:password]@]host[:port][/db]`, or `rediss://` for TLS, with
    /// `?prefix=`, `allow_eviction=true` and `connections=` (one for each core unless told, from 2 to 8); for TLS also `ca=`, and `client_certificate=`
    /// with `client_key=`, files in PEM. Reads these, so it may block for a while.
    ///
    /// The server need not be there yet: the engine goes on trying, and calls fail as unavailable until it is.
    ///
    /// # Errors
    /// What is wrong with the URL or a file that it names, without repeating either.
    ///
    /// # Panics
    /// Outside a tokio runtime: the connections live in tasks of their own.
    pub fn open(url: &str, options: Options) -> Result<Self, InvalidUrl> {
        let address = Address::parse(url)?;
        // What is wrong now is told now; what goes wrong later, when a connection is made anew.
        address.client()?;
        let (health, status) = (Health::new(&address, &options), Status::new(address.to_string()));
        let of_cores = options.cores.len().clamp(*CONNECTIONS.start(), *CONNECTIONS.end());
        let cores = runtimes(&options.cores).take(address.connections.unwrap_or(of_cores));
        let shared = Arc::new(Shared { address, options, health, status });
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let start = |core| Lane::start(shared.clone(), closing.clone(), &tasks, &core);
        let lanes = cores.map(start).collect();
        Ok(Self { shared, lanes, tasks, _guard: closing.clone().drop_guard(), closing })
    }

    /// The braces make a cluster place a key by its global ID.
    fn name(&self, key: &Key) -> String {
        let id = &mut [0; 32];
        [&self.shared.address.prefix, "og:{", hex::write(key.global_id.as_bytes(), id), "}:", key.app.as_ref()].concat()
    }

    /// A lane of the caller's own core, whose task is woken without waking a thread; where it has several or none, by the
    /// key. So the calls of one core on one key are sent in their order.
    fn lane(&self, key: &Key) -> &Lane {
        &self.lanes[self.lane_number(key)]
    }

    fn lane_number(&self, key: &Key) -> usize {
        // A global ID is a digest, so each of its bytes is as good as a hash.
        let place = usize::from(key.global_id.as_bytes()[0]);
        let own = Handle::current().id();
        let of_core = || (0..self.lanes.len()).filter(|number| self.lanes[*number].core() == own);
        let count = of_core().count();
        let own = if count == 0 { None } else { of_core().nth(place % count) };
        own.unwrap_or(place % self.lanes.len())
    }

    async fn run(&self, script: &Script, key: &Key, arguments: &[&str], claims: bool) -> Result<Value, Lost> {
        Self::run_on(self.lane(key), script, &self.name(key), arguments, claims).await
    }

    async fn run_on(lane: &Lane, script: &Script, name: &str, arguments: &[&str], claims: bool) -> Result<Value, Lost> {
        match lane.call(script.call(name, arguments), claims).await? {
            // A flush, or a restart that this connection has not noticed. Nothing was done.
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                lane.call(script.teach(name, arguments), claims).await
            }
            reply => Ok(reply),
        }
    }

    /// Where notes are asked for: always over the same lane, and the key of this one.
    fn note_place(&self, name: &str) -> Result<(&Lane, String), EngineError> {
        let lane = self.lanes.first().ok_or_else(|| EngineError::unavailable("the engine is closed"))?;
        Ok((lane, format!("{}og:note:{name}", self.shared.address.prefix)))
    }

    /// What stands, as of one instant.
    async fn snapshot(&self, key: &Key) -> Result<Option<Snapshot>, EngineError> {
        let reply = self.run(&SCRIPTS.read, key, &[], false).await.map_err(reading)?;
        reply::snapshot(reply).map_err(|error| match error {
            EngineError::Indeterminate(why) => EngineError::unavailable(why.to_string()),
            certain @ EngineError::Determinate(_) => certain,
        })
    }

    /// Goes on with a claim whose key was found taken: looks at what stands there, and takes it over or tries again where
    /// that may be done.
    async fn claim_found(
        &self,
        ask: &ClaimRequest,
        record: &str,
        px: u64,
        found: Set,
    ) -> Result<ClaimResponse, EngineError> {
        let mut set = found;
        for round in 1..=CLAIM_ROUNDS {
            let found = self.snapshot(&ask.key).await.map_err(|error| match (&set, error) {
                // This attempt holds the claim since an earlier try: it must not be told that nothing has happened.
                (Set::Found { own: true }, EngineError::Determinate(Determinate::Unavailable(why))) => {
                    EngineError::indeterminate(why)
                }
                (_, error) => error,
            })?;
            match (found, set) {
                (Some(Snapshot { value: judged, held }), _) => {
                    let (effect, answer) = claim::claim(Some(&held), ask, None);
                    if !matches!(effect, Effect::Put(..)) {
                        return Ok(answer);
                    }
                    // A script takes text, and what was read as a record is text.
                    let arguments = [&*String::from_utf8_lossy(&judged), record, &px.to_string()];
                    let taken = self.run(&SCRIPTS.take_over, &ask.key, &arguments, true).await.map_err(writing)?;
                    if checked(taken)? == Value::Int(1) {
                        return Ok(answer);
                    }
                }
                (None, Set::Full(why)) => return Err(why.into()),
                // Gone between the two looks.
                (None, Set::Granted | Set::Found { .. }) => {}
            }
            if round == CLAIM_ROUNDS {
                break;
            }
            set = self.set_if_absent(ask, record, px).await?;
            if matches!(set, Set::Granted) {
                return Ok(claim::granted(ask, None, false));
            }
        }
        Err(EngineError::unavailable("the claim kept changing hands while it was looked at"))
    }

    async fn set_if_absent(&self, ask: &ClaimRequest, record: &str, px: u64) -> Result<Set, EngineError> {
        let set = self.set(ask, record, px);
        Set::read(ask, self.lane(&ask.key).call(set, true).await.map_err(writing)?)
    }

    fn set(&self, ask: &ClaimRequest, record: &str, px: u64) -> Cmd {
        let name = self.name(&ask.key);
        // The words and numbers around them are shorter than this.
        let mut set = Cmd::with_capacity(7, name.len() + record.len() + 64);
        set.arg("SET").arg(name).arg(record).arg("NX").arg("GET").arg("PX").arg(px);
        set
    }

    /// Claims that go over the same lane, in one call.
    async fn claim_over(&self, lane: &Lane, asks: &[&ClaimRequest], places: &[usize], tell: ClaimSink<'_>) {
        let written: Vec<_> = places.iter().map(|place| (*place, asks[*place], to_write(asks[*place]))).collect();
        let commands = written.iter().map(|(_, ask, (record, px))| self.set(ask, record, *px)).collect();
        let replies = match lane.call_all(commands, true).await {
            Ok(replies) => replies,
            Err(lost) => return places.iter().for_each(|place| tell(*place, Err(writing(lost.clone())))),
        };
        // What was found is looked at by each itself.
        let mut found = Vec::new();
        for ((place, ask, (record, px)), reply) in written.iter().zip(replies) {
            match Set::read(ask, reply) {
                Ok(Set::Granted) => tell(*place, Ok(claim::granted(ask, None, false))),
                Ok(set) => found.push(async { tell(*place, self.claim_found(ask, record, *px, set).await) }),
                Err(failure) => tell(*place, Err(failure)),
            }
        }
        join_all(found).await;
    }
}

/// The record that a claim puts into the store, and for how many milliseconds.
fn to_write(ask: &ClaimRequest) -> (String, u64) {
    let record = ask.record();
    // A claim that turns `unknown` must still be there when its lease has ended.
    let grace = if record.outlives_lease() { millis(GRACE) } else { 0 };
    (value::encode(&record), millis(ask.terms.lease).saturating_add(grace))
}

/// What came of a `SET … NX GET`.
enum Set {
    Granted,
    /// Something stands there: what this very attempt left earlier, or another's.
    Found {
        own: bool,
    },
    /// The server refuses the command at its maxmemory, even where it would only read.
    Full(Determinate),
}

impl Set {
    fn read(ask: &ClaimRequest, reply: Value) -> Result<Self, EngineError> {
        match checked(reply) {
            Ok(Value::Nil) => Ok(Self::Granted),
            Ok(Value::BulkString(found)) => Ok(Self::Found { own: begins_with(&found, &ask.attempt.to_string()) }),
            Ok(_) => Err(unexpected()),
            Err(full @ Determinate::Full(_)) => Ok(Self::Full(full)),
            Err(why) => Err(why.into()),
        }
    }
}

/// The value begins with the attempt, so that who holds a claim can be told without reading the rest.
fn begins_with(value: &[u8], attempt: &str) -> bool {
    value.strip_prefix(attempt.as_bytes()).is_some_and(|rest| rest.first() == Some(&b' '))
}

/// A write without a reply may have happened.
fn writing(lost: Lost) -> EngineError {
    match lost {
        Lost::NotSent(why) => why.into(),
        Lost::Unanswered(why) => EngineError::indeterminate(why),
    }
}

/// A read without a reply has changed nothing.
fn reading(lost: Lost) -> EngineError {
    match lost {
        Lost::NotSent(why) => why.into(),
        Lost::Unanswered(why) => EngineError::unavailable(why),
    }
}

#[async_trait]
impl Engine for Redis {
    async fn claim(&self, ask: &ClaimRequest) -> Result<ClaimResponse, EngineError> {
        let (record, px) = to_write(ask);
        match self.set_if_absent(ask, &record, px).await? {
            Set::Granted => Ok(claim::granted(ask, None, false)),
            // Kept out of what every claim takes memory for.
            found => Box::pin(self.claim_found(ask, &record, px, found)).await,
        }
    }

    /// What goes over one lane goes out together, as far as a batch of the lane may be long.
    async fn claim_batch(&self, asks: &[&ClaimRequest], tell: ClaimSink<'_>) {
        let mut of_lanes = vec![Vec::new(); self.lanes.len()];
        for (place, ask) in asks.iter().enumerate() {
            of_lanes[self.lane_number(&ask.key)].push(place);
        }
        let together = self.lanes.iter().zip(&of_lanes).flat_map(|(lane, places)| {
            places.chunks(BATCH).map(move |places| self.claim_over(lane, asks, places, tell))
        });
        join_all(together).await;
    }

    async fn settle(&self, ask: &OutcomeRequest) -> Result<OutcomeResponse, EngineError> {
        let (outcome, result, retention) = match &ask.outcome {
            Outcome::Success { result, retention } => {
                let result = result.as_ref().map(|result| format!("\n{result}"));
                ("s", result.unwrap_or_default(), retention.map(|retention| retention.to_string()).unwrap_or_default())
            }
            Outcome::Failure => ("f", String::new(), String::new()),
            Outcome::Unknown => ("u", String::new(), String::new()),
        };
        let late = ask.late_record();
        let late_ms = late.as_ref().map(|record| milliseconds(record.settled_retention())).unwrap_or_default();
        let late = late.as_ref().map(value::encode).unwrap_or_default();
        let arguments = [&*ask.attempt.to_string(), outcome, &result, &retention, &late, &late_ms];
        reply::settled(self.run(&SCRIPTS.settle, &ask.key, &arguments, false).await.map_err(writing)?)
    }

    async fn renew(&self, ask: &RenewalRequest) -> Result<RenewalResponse, EngineError> {
        let lease = ask.lease.map(|lease| millis(lease).to_string()).unwrap_or_default();
        let arguments = [&*ask.attempt.to_string(), &lease];
        reply::renewed(self.run(&SCRIPTS.renew, &ask.key, &arguments, false).await.map_err(writing)?)
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        Ok(self.snapshot(key).await?.map(|snapshot| snapshot.held))
    }

    async fn release(&self, ask: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        let arguments = [&*ask.attempt.to_string()];
        reply::released(self.run(&SCRIPTS.release, &ask.key, &arguments, false).await.map_err(writing)?)
    }

    async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        // SCAN goes through every key of the server, in no order, and may tell one twice.
        Err(EngineError::unavailable("the Redis engine cannot list claims"))
    }

    async fn get_metadata(&self, name: &str) -> Result<Option<Metadata>, EngineError> {
        let (lane, key) = self.note_place(name)?;
        let mut get = redis::cmd("GET");
        get.arg(key);
        reply::note(lane.call(get, false).await.map_err(reading)?)
    }

    async fn compare_and_set_metadata(
        &self,
        name: &str,
        expected: Option<&Metadata>,
        new: &Metadata,
    ) -> Result<bool, EngineError> {
        let (lane, key) = self.note_place(name)?;
        let arguments: Vec<_> = [Some(new), expected].into_iter().flatten().map(Metadata::as_str).collect();
        let reply =
            Self::run_on(lane, &SCRIPTS.compare_and_set_metadata, &key, &arguments, false).await.map_err(writing)?;
        match checked(reply)? {
            Value::Int(put @ (0 | 1)) => Ok(put == 1),
            _ => Err(unexpected()),
        }
    }

    async fn probe(&self) -> Result<(), EngineError> {
        let ping = |lane| async move {
            let reply = Lane::call(lane, Cmd::new().arg("PING").to_owned(), false).await.map_err(reading)?;
            checked(reply).map(drop).map_err(EngineError::from)
        };
        try_join_all(self.lanes.iter().map(ping)).await?;
        self.shared.health.refusal_of_claims().map_or(Ok(()), |why| Err(why.into()))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            strict_fence: false,
            durable: self.shared.health.durable(),
            shared: true,
            forever: true,
            lists: false,
        }
    }

    fn data_lost(&self) -> u64 {
        self.shared.health.data_lost()
    }

    async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A retention as the settle script takes it: milliseconds, -1 for ever.
fn milliseconds(retention: Retention) -> String {
    retention.duration().map_or_else(|| "-1".into(), |duration| millis(duration).to_string())
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("address", &self.shared.address)
            .field("options", &self.shared.options)
            .field("health", &self.shared.health)
            .finish_non_exhaustive()
    }
}
