//! The Redis engine: claims in servers of version 7.0 or later, shared by any number of gateways.
//!
//! Three parts that depend little on each other. First, `keys` has the names. Second, `topology` with `cluster` and
//! `sentinel`, and below it `primary` and `connection`, sends the commands of a key to a server. Third, `claim`,
//! `script`, `reply` and the Lua files are the claim protocol: every transition is one command or one script, so it is
//! atomic, and the server's clock decides every time.

mod acknowledged;
mod acknowledgement;
mod address;
mod callers;
mod certificates;
mod claim;
mod cluster;
mod commands;
mod connection;
#[cfg(test)]
mod fake;
pub mod fuzzing;
mod health;
mod info;
mod invalid_url;
mod keys;
mod library;
mod limit;
mod listening;
mod marker;
mod options;
mod primary;
mod record;
mod redirect;
mod replication;
mod reply;
mod resp;
mod route;
mod script;
mod seen;
mod sentinel;
mod slots;
mod stream;
mod target;
mod topology;
mod transaction;
mod unknowns;
mod url;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use oncegate_core::claim::{
    ClaimRequest, ClaimResponse, Outcome, OutcomeRequest, OutcomeResponse, RenewalRequest, RenewalResponse,
};
use oncegate_core::engine::{
    Backup, BatchClaim, Capabilities, ChangeResponse, Channel, ClaimSink, Claims, EngineError, Node, RecordChange,
    RecordName, RecordView, Records, StoreIdentity, Subscription, millis, value,
};
use oncegate_core::operator::{
    ListRequest, ListedClaim, LockListRequest, LockPage, ReleaseRequest, ReleaseResponse, UnknownsPage, UnknownsRequest,
};
use oncegate_core::record::{ClaimState, Key, LiveClaim, Record};
use oncegate_core::terms::{LeaseEnd, Retention};
use oncegate_driver::listener;
use oncegate_driver::scheme::{OpenError, Promise, Scheme};
use redis::Value;

use self::acknowledgement::Acknowledgement;
use self::connection::Purpose;
pub use self::invalid_url::InvalidUrl;
use self::keys::{KeyName, Keys};
use self::limit::{CallTime, DEADLINE};
pub use self::options::Options;
use self::route::Sending;
use self::script::{SCRIPTS, Script};
use self::seen::Seen;
use self::topology::Topology;
use self::unknowns::Unknowns;
use self::url::Url;

/// The scheme of the Redis engine.
pub static SCHEME: Scheme = Scheme {
    names: &["redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"],
    forms: &[
        "redis://HOST:PORT/DB",
        "rediss://HOST:PORT/DB",
        "redis+sentinel://HOST:PORT,HOST:PORT/NAME",
        "redis+cluster://HOST:PORT,HOST:PORT",
    ],
    parse: |url| Redis::check(url).map_err(OpenError::new),
    check_files: |url| Redis::check_files(url).map_err(OpenError::new),
    addresses: |url| Url::parse(url).map_or_else(|_| Vec::new(), |url| url.addresses()),
    // Durable if the server is configured so.
    capabilities: Capabilities { strict_fence: false, durable: true, shared: true, forever: true, lists: false },
    promise: |url| Url::parse(url).map_or_else(|error| Promise::new(error.to_string()), |url| url.promise()),
    restore: None,
    inspect: None,
    open: |url, host| {
        let options = Options { cores: host.cores, ..Options::default() };
        Ok(Arc::new(Redis::open(url, options).map_err(OpenError::new)?))
    },
};

/// Claims stored in Redis.
pub struct Redis {
    keys: Keys,
    topology: Arc<Topology>,
    acknowledgement: Option<Acknowledgement>,
    seen: Seen,
    unknowns: Arc<Unknowns>,
}

impl Redis {
    /// Checks that [`Redis::open`] would accept this URL. Connects to no server, and reads no file.
    ///
    /// # Errors
    /// The error in the URL, without repeating the URL.
    pub fn check(url: &str) -> Result<(), InvalidUrl> {
        Url::parse(url).map(drop)
    }

    /// Checks the certificate and key files that a URL names. Blocks.
    ///
    /// # Errors
    /// The error in the URL or a file, without repeating either.
    pub fn check_files(url: &str) -> Result<(), InvalidUrl> {
        Url::parse(url)?.client(None).map(drop)
    }

    /// Opens an engine on the server of this URL: `redis://[user[:password]@]host[:port][/db]`; on a primary that Sentinels
    /// name: `redis+sentinel://…host[:port],host[:port]/NAME[/db]`; or on a cluster: `redis+cluster://…host[:port],host[:port]`.
    /// `rediss` in place of `redis` is TLS. The keys of the query are in `docs/engines/redis.md`; some name files in PEM,
    /// which are read, so it may block for a while.
    ///
    /// The server need not be up: the engine keeps connecting, and calls fail as unavailable until it succeeds.
    ///
    /// # Errors
    /// The error in the URL or a file that it names, without repeating either.
    ///
    /// # Panics
    /// Outside a tokio runtime: the connections live in separate tasks.
    pub fn open(url: &str, options: Options) -> Result<Self, InvalidUrl> {
        let url = Url::parse(url)?;
        // Bad files are reported now; files that go bad later, when a connection is opened.
        url.client(None)?;
        tracing::info!(engine = "redis", server = %url, "{}", url.promise().text);
        let (keys, acknowledgement, seen) = (Keys::new(&url), url.acknowledgement, Seen::new(options.remembered_keys));
        let topology = Arc::new(Topology::open(Arc::new(url), options));
        Ok(Self { keys, acknowledgement, seen, unknowns: Unknowns::new(topology.clone()), topology })
    }

    /// Returns the time of a call that starts now.
    fn time(&self, deadline: Duration) -> CallTime {
        CallTime::start(deadline, self.acknowledgement.is_some())
    }

    /// Runs a script on a key.
    async fn run<Argument: AsRef<[u8]> + Sync>(
        &self,
        script: &Script,
        key: &KeyName,
        arguments: &[Argument],
        purpose: Purpose,
        time: CallTime,
    ) -> Result<Value, EngineError> {
        let call = || script.call(&key.text, arguments);
        match self.topology.send(Sending { key, purpose, time, command: &call }).await? {
            // The server was restarted or its scripts flushed. Nothing was executed.
            Value::ServerError(error) if error.code() == "NOSCRIPT" => {
                let load_and_call = || script.load_and_call(&key.text, arguments);
                self.topology.send(Sending { key, purpose, time, command: &load_and_call }).await
            }
            reply => Ok(reply),
        }
    }
}

#[async_trait]
impl Claims for Redis {
    async fn claim(&self, request: &ClaimRequest, deadline: Duration) -> Result<ClaimResponse, EngineError> {
        match request.terms.on_lease_end {
            LeaseEnd::Release => self.claim_one(request, deadline).await,
            // Boxed: every claim would take memory for this.
            LeaseEnd::Unknown => Box::pin(self.claim_indexed(request, self.claim_one(request, deadline))).await,
        }
    }

    async fn claim_batch(&self, claims: &[BatchClaim<'_>], sink: ClaimSink<'_>) {
        let turns = |claim: &BatchClaim<'_>| claim.request.terms.on_lease_end == LeaseEnd::Unknown;
        if claims.iter().any(turns) {
            return Box::pin(self.claim_many_indexed(claims, sink)).await;
        }
        self.claim_many(claims, sink).await;
    }

    async fn settle(&self, request: &OutcomeRequest, deadline: Duration) -> Result<OutcomeResponse, EngineError> {
        let (outcome, result, retention) = match &request.outcome {
            Outcome::Success { result, retention } => {
                let result = result.as_ref().map(|result| format!("\n{result}"));
                ("s", result.unwrap_or_default(), retention.map(|retention| retention.to_string()).unwrap_or_default())
            }
            Outcome::Failure => ("f", String::new(), String::new()),
            Outcome::Unknown => ("u", String::new(), String::new()),
        };
        // The script appends the result: it may be long, so it is sent only once.
        let late = request.late_record().map(|record| Record { result: None, ..record });
        let late_ms = late.as_ref().map(|record| milliseconds(record.settled_retention())).unwrap_or_default();
        let late = late.as_ref().map(value::encode).unwrap_or_default();
        let arguments = [&*request.attempt.to_string(), outcome, &result, &retention, &late, &late_ms];
        let key = self.keys.claim(&request.key);
        let reply = self.run(&SCRIPTS.settle, &key, &arguments, Purpose::Other, self.time(deadline)).await?;
        let (answer, has_entry) = reply::settled(reply)?;
        match answer {
            OutcomeResponse::Done { state: Some(ClaimState::Unknown), .. } => self.became_unknown(&request.key).await,
            OutcomeResponse::Done { .. } if has_entry => self.unknowns.remove(&self.keys, &request.key),
            _ => {}
        }
        Ok(answer)
    }

    async fn renew(&self, request: &RenewalRequest, deadline: Duration) -> Result<RenewalResponse, EngineError> {
        let lease = request.lease.map(|lease| millis(lease).to_string()).unwrap_or_default();
        let arguments = [&*request.attempt.to_string(), &lease];
        let key = self.keys.claim(&request.key);
        reply::renewed(self.run(&SCRIPTS.renew, &key, &arguments, Purpose::Other, self.time(deadline)).await?)
    }

    async fn read(&self, key: &Key) -> Result<Option<LiveClaim>, EngineError> {
        Ok(self.snapshot(&self.keys.claim(key), self.time(DEADLINE)).await?.map(|snapshot| snapshot.held))
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<ReleaseResponse, EngineError> {
        let result = request.result.as_ref().map(|result| format!("\n{result}")).unwrap_or_default();
        let arguments = [&*request.attempt.to_string(), &result];
        let key = self.keys.claim(&request.key);
        reply::released(self.run(&SCRIPTS.release, &key, &arguments, Purpose::Other, self.time(DEADLINE)).await?)
    }

    async fn list(&self, _: &ListRequest) -> Result<Vec<ListedClaim>, EngineError> {
        // SCAN goes through every key of the server, in no order, and may return one twice.
        Err(EngineError::unavailable("the Redis engine cannot list claims"))
    }

    async fn unknowns(&self, request: &UnknownsRequest) -> Result<UnknownsPage, EngineError> {
        self.unknowns_of(request).await
    }
}

#[async_trait]
impl Records for Redis {
    async fn get_record(&self, name: &RecordName, deadline: Duration) -> Result<RecordView, EngineError> {
        self.record(name, deadline).await
    }

    async fn change_record(&self, change: &RecordChange, deadline: Duration) -> Result<ChangeResponse, EngineError> {
        self.change(change, deadline).await
    }

    async fn list_records(&self, _: &LockListRequest) -> Result<LockPage, EngineError> {
        Err(EngineError::unavailable("the Redis engine cannot list locks"))
    }

    async fn subscribe(&self, channel: &Channel) -> Subscription {
        match self.topology.hub(&self.keys.channel(channel)) {
            Some(hub) => listener::subscribe(&hub, channel).await,
            None => Subscription::none(),
        }
    }
}

#[async_trait]
impl oncegate_core::engine::Topology for Redis {
    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: self.topology.is_durable(), ..SCHEME.capabilities }
    }

    fn shards(&self) -> Vec<u16> {
        self.topology.shards()
    }

    fn shard_of(&self, key: &Key) -> u16 {
        self.topology.shard_of(key)
    }

    fn shard_of_record(&self, name: &RecordName) -> u16 {
        self.topology.shard_of_key(&self.keys.record(name).text)
    }

    fn metadata_name(&self, shard: u16, name: &str) -> String {
        self.topology.metadata_name(shard, name)
    }

    async fn probe(&self) -> Result<(), EngineError> {
        self.topology.probe().await
    }

    async fn probe_shard(&self, shard: u16) -> Result<(), EngineError> {
        self.topology.probe_shard(shard).await
    }

    fn losses(&self, shard: u16) -> u64 {
        self.topology.losses(shard)
    }

    fn data_lost(&self) -> u64 {
        self.topology.data_losses()
    }

    fn waits_for_replicas(&self) -> bool {
        self.acknowledgement.is_some()
    }

    fn nodes(&self) -> Vec<Node> {
        self.topology.nodes()
    }

    fn identity(&self) -> Option<StoreIdentity> {
        self.topology.identity()
    }

    async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        Ok(None)
    }

    async fn close(&self) {
        self.topology.close().await;
    }
}

/// Writes a retention as the settle script takes it: milliseconds, -1 for no end.
fn milliseconds(retention: Retention) -> String {
    retention.duration().map_or_else(|| "-1".into(), |duration| millis(duration).to_string())
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.topology.primaries().iter().map(|primary| &**primary)).finish()
    }
}

#[cfg(test)]
mod tests {

    use oncegate_core::engine::Topology as _;

    use super::cluster::tests::{NODES, URL, cluster};
    use super::*;

    #[tokio::test]
    async fn the_shards_of_a_cluster_are_those_of_the_engine() {
        for (url, waits) in [(URL.to_owned(), false), (format!("{URL}?replicas=1"), true)] {
            let parsed = Url::parse(&url).unwrap();
            let (keys, acknowledgement) = (Keys::new(&parsed), parsed.acknowledgement);
            let topology = Arc::new(Topology::Cluster(cluster(&url, NODES)));
            let unknowns = Unknowns::new(topology.clone());
            let redis = Redis { keys, acknowledgement, topology, seen: Seen::new(0), unknowns };
            assert_eq!((redis.shards(), redis.waits_for_replicas()), (vec![0, 1, 2], waits));
            let lock =
                |name: &str| redis.shard_of_record(&RecordName::Lock("shop".parse().unwrap(), name.parse().unwrap()));
            let of_locks: std::collections::BTreeSet<_> = (0..50).map(|number| lock(&format!("n{number}"))).collect();
            let claim = |number: u8| {
                let global_id = oncegate_core::global_id::GlobalId::from_bytes([number; 16]);
                redis.shard_of(&Key {
                    app: "shop".parse().unwrap(),
                    realm: oncegate_core::record::Realm::Api,
                    global_id,
                })
            };
            let of_claims: std::collections::BTreeSet<_> = (0..50).map(claim).collect();
            assert!(of_locks.len() == 3 && of_claims.len() == 3);
            let kept = RecordName::Metadata(redis.metadata_name(1, "kept.main").into());
            assert_eq!(redis.shard_of_record(&kept), 1);
            assert_eq!((redis.losses(1), redis.data_lost()), (0, 0));
            let nodes = redis.nodes();
            assert_eq!(
                nodes.iter().map(|node| (node.shard, node.up)).collect::<Vec<_>>(),
                [(0, false), (1, false), (2, false)]
            );
            assert!(redis.probe_shard(1).await.is_err() && redis.probe_shard(7).await.is_ok());
        }
    }
}
