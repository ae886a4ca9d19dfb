//! Redis Streams with redis-rs.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use oncegate_client::consumers::redis_streams::Stream;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamRangeReply, StreamReadReply};

use crate::run::{Broker, Job, each_effect_once};
use crate::servers::{Folder, Server, free_port};

struct Redis {
    server: Server,
    url: String,
    connection: MultiplexedConnection,
}

impl Redis {
    async fn start(folder: &Path) -> Self {
        let port = free_port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]).current_dir(folder);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        let server = Server::start(command, port, &folder.join("broker.log"));
        let url = format!("redis://127.0.0.1:{port}/");
        let client = redis::Client::open(url.as_str()).expect("a URL");
        for _ in 0..2 {
            stream("any").declare(&client).await.expect("a group, also of a stream that has it");
        }
        let connection = connect(&url).await;
        Self { server, url, connection }
    }

    async fn take(&mut self, stream: &str) -> Vec<String> {
        let mut read = redis::cmd("XRANGE");
        let read: StreamRangeReply =
            read.arg(stream).arg("-").arg("+").query_async(&mut self.connection).await.expect("an answer");
        for entry in &read.ids {
            let mut delete = redis::cmd("XDEL");
            delete.arg(stream).arg(&entry.id).query_async::<()>(&mut self.connection).await.expect("it is deleted");
        }
        read.ids.iter().map(body).collect()
    }

    async fn number_of(&mut self, field: &str) -> usize {
        let groups: Vec<HashMap<String, redis::Value>> =
            redis::cmd("XINFO").arg("GROUPS").arg("orders").query_async(&mut self.connection).await.expect("groups");
        redis::from_redis_value_ref(&groups[0][field]).expect("a number")
    }
}

/// Longer than the lease of the workers.
const CLAIM_IDLE: Duration = Duration::from_millis(1200);

fn stream(consumer: &str) -> Stream {
    Stream::new("orders", "workers", consumer).workers(4).claim_idle(CLAIM_IDLE)
}

impl Broker for Redis {
    const NAME: &str = "Redis Streams, redis-rs";
    const WORKER: &str = "redis_streams::worker";

    async fn restart(&mut self) {
        self.server.restart();
        self.connection = connect(&self.url).await;
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    async fn send(&mut self, order: &str) {
        let mut add = redis::cmd("XADD");
        add.arg("orders").arg("*").arg("order").arg(order);
        add.query_async::<()>(&mut self.connection).await.expect("it is stored");
    }

    async fn parked(&mut self) -> Vec<String> {
        self.take("orders:parked").await
    }

    async fn dead(&mut self) -> Vec<String> {
        self.take("orders:dead").await
    }

    async fn is_drained(&mut self) -> bool {
        self.number_of("pending").await == 0 && self.number_of("lag").await == 0
    }
}

/// Connects when the server has read its file.
async fn connect(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("a URL");
    loop {
        if let Ok(mut connection) = client.get_multiplexed_async_connection().await
            && redis::cmd("PING").query_async::<()>(&mut connection).await.is_ok()
        {
            return connection;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn body(entry: &StreamId) -> String {
    entry.get("order").expect("a text")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker process of the test below"]
async fn worker() {
    let Some(job) = Job::of_this_process() else { return };
    let client = redis::Client::open(job.url.as_str()).expect("a URL");
    let name = std::process::id().to_string();
    if job.is_without_gateway {
        return acknowledge_after_the_work(&client, &name, &job).await;
    }
    stream(&name).consume(&client, &job.recipe(body), job.stop()).await.expect("no error");
}

/// A consumer in the usual form.
async fn acknowledge_after_the_work(client: &redis::Client, name: &str, job: &Job) {
    let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
    let mut stop = std::pin::pin!(job.stop());
    while tokio::time::timeout(Duration::ZERO, &mut stop).await.is_err() {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim.arg("orders").arg("workers").arg(name).arg(1200).arg("0-0").arg("COUNT").arg(1);
        let claimed: StreamAutoClaimReply = claim.query_async(&mut connection).await.expect("an answer");
        let mut read = redis::cmd("XREADGROUP");
        read.arg(&["GROUP", "workers", name, "COUNT", "1", "STREAMS", "orders", ">"]);
        let read: Option<StreamReadReply> = read.query_async(&mut connection).await.expect("an answer");
        let new = read.into_iter().flat_map(|read| read.keys).flat_map(|key| key.ids);
        let entries: Vec<_> = claimed.claimed.into_iter().chain(new).collect();
        for entry in &entries {
            job.work(body(entry)).await;
            let mut ack = redis::cmd("XACK");
            ack.arg(&["orders", "workers", &entry.id]);
            ack.query_async::<()>(&mut connection).await.expect("it is acknowledged");
        }
        if entries.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a broker, and takes 10 s: clients/rust/brokers runs it"]
async fn each_order_once_at_redis() {
    let folder = Folder::new("redis");
    let mut broker = Redis::start(&folder.0).await;
    each_effect_once(&mut broker, &folder).await;
}
