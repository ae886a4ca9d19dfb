//! Kafka with rdkafka. `KAFKA_JARS` names the folder with the jars of the broker.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use std::{env, fs};

use oncegate_client::consumers::Recipe;
use oncegate_client::consumers::kafka::Topics;
use oncegate_client::{Client, Consumer, Options, contents};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, StreamConsumer};
use rdkafka::message::OwnedMessage;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::run::{Broker, Job, OPERATION, each_effect_once};
use crate::servers::{CREDENTIAL, Folder, Server, free_port, gateway};

const PARTITIONS: i32 = 6;
/// A consumer that does not poll for this time loses its partitions. A machine that stalls for this time fails these
/// tests, too.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(4);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// One node, controller and broker in one process.
struct Kafka {
    server: Server,
    url: String,
    sent: i32,
    producer: FutureProducer,
    parked: BaseConsumer,
    dead: BaseConsumer,
    group: BaseConsumer,
}

impl Kafka {
    async fn start(folder: &Path) -> Self {
        let (port, controller) = (free_port(), free_port());
        let properties = folder.join("server.properties");
        fs::write(&properties, settings(folder, port, controller)).expect("a file");
        let format = ["kafka.tools.StorageTool", "format", "-t", "b25jZWdhdGUtdGVzdHM0Mg", "-c"];
        let formatted = java(folder).args(format).arg(&properties).output().expect("java");
        assert!(formatted.status.success(), "{formatted:?}");
        let mut command = java(folder);
        command.arg("kafka.Kafka").arg(&properties);
        let server = Server::start(command, port, &folder.join("broker.log"));
        let url = format!("127.0.0.1:{port}");
        declare(&url).await;
        let aside = |topic| {
            let consumer: BaseConsumer = group(&url, "lookup").create().expect("a consumer");
            consumer.assign(&offsets(topic, 1, Offset::Beginning)).expect("a partition");
            consumer
        };
        let (parked, dead) = (aside("orders.parked"), aside("orders.dead"));
        let producer = config(&url).set("acks", "all").create().expect("a producer");
        let group = group(&url, "workers").create().expect("a consumer");
        Self { server, url, sent: 0, producer, parked, dead, group }
    }

    /// Returns the committed offset of each partition. Nothing while the group has no coordinator.
    fn committed(&self) -> BTreeMap<i32, i64> {
        let asked = offsets("orders", PARTITIONS, Offset::Invalid);
        let Ok(committed) = self.group.committed_offsets(asked, ANSWER_WITHIN) else { return BTreeMap::new() };
        committed.elements().iter().map(|at| (at.partition(), at.offset().to_raw().unwrap_or(0).max(0))).collect()
    }
}

fn java(folder: &Path) -> Command {
    let jars = env::var("KAFKA_JARS").expect("KAFKA_JARS: run it with clients/rust/brokers");
    let mut command = Command::new("java");
    command.args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", &format!("{jars}/*")]).current_dir(folder);
    command
}

fn settings(folder: &Path, port: u16, controller: u16) -> String {
    let own = [
        ("controller.quorum.voters", format!("1@127.0.0.1:{controller}")),
        ("listeners", format!("PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}")),
        ("advertised.listeners", format!("PLAINTEXT://127.0.0.1:{port}")),
        ("log.dirs", folder.join("kafka").display().to_string()),
    ];
    let fixed = [
        ("process.roles", "broker,controller"),
        ("node.id", "1"),
        ("controller.listener.names", "CONTROLLER"),
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        ("auto.create.topics.enable", "false"),
        ("offsets.topic.num.partitions", "1"),
        ("offsets.topic.replication.factor", "1"),
        // A broker that was killed may register again, soon.
        ("broker.session.timeout.ms", "1000"),
        ("broker.heartbeat.interval.ms", "200"),
        // A killed worker's partitions go to others soon.
        ("group.min.session.timeout.ms", "500"),
        ("group.initial.rebalance.delay.ms", "0"),
    ];
    let fixed = fixed.map(|(name, value)| (name, value.to_owned()));
    own.into_iter().chain(fixed).map(|(name, value)| [name, "=", &value, "\n"].concat()).collect()
}

async fn declare(url: &str) {
    let admin: AdminClient<DefaultClientContext> = config(url).create().expect("a client");
    let topics = [("orders", PARTITIONS), ("orders.parked", 1), ("orders.dead", 1)];
    let topics = topics.map(|(name, partitions)| NewTopic::new(name, partitions, TopicReplication::Fixed(1)));
    let options = AdminOptions::new().operation_timeout(Some(ANSWER_WITHIN));
    for made in admin.create_topics(&topics, &options).await.expect("an answer") {
        made.expect("a topic");
    }
}

fn config(url: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", url);
    config
}

fn group(url: &str, id: &str) -> ClientConfig {
    let mut config = config(url);
    config.set("group.id", id).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    config.set("session.timeout.ms", "1500").set("heartbeat.interval.ms", "300");
    config.set("max.poll.interval.ms", MAX_POLL_INTERVAL.as_millis().to_string());
    config
}

fn offsets(topic: &str, partitions: i32, offset: Offset) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, offset).expect("an offset");
    }
    list
}

fn take(consumer: &BaseConsumer) -> Vec<String> {
    let mut orders = Vec::new();
    while let Some(record) = consumer.poll(Duration::from_millis(1)) {
        // An error is about the connection: rdkafka makes another one.
        orders.extend(record.ok().map(|record| body(&record.detach())));
    }
    orders
}

impl Broker for Kafka {
    const NAME: &str = "Kafka, rdkafka";
    const WORKER: &str = "kafka::worker";

    async fn restart(&mut self) {
        self.server.restart();
        while self.group.fetch_metadata(Some("orders"), MAX_POLL_INTERVAL).is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    /// Without a key: the two messages of an order are in any two partitions.
    async fn send(&mut self, order: &str) {
        let partition = self.sent % PARTITIONS;
        self.sent += 1;
        let record = FutureRecord::<(), _>::to("orders").payload(order).partition(partition);
        self.producer.send(record, ANSWER_WITHIN).await.expect("it is stored");
    }

    async fn parked(&mut self) -> Vec<String> {
        take(&self.parked)
    }

    async fn dead(&mut self) -> Vec<String> {
        take(&self.dead)
    }

    async fn is_drained(&mut self) -> bool {
        self.committed().values().sum::<i64>() == i64::from(self.sent)
    }
}

fn body(record: &OwnedMessage) -> String {
    String::from_utf8_lossy(record.payload().unwrap_or_default()).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker process of the test below"]
async fn worker() {
    let Some(job) = Job::of_this_process() else { return };
    if job.is_without_gateway {
        return commit_after_the_work(&job).await;
    }
    let topics = Topics::new(["orders"]).workers(4).buffered(10);
    let (consumer, producer) = (group(&job.url, "workers"), config(&job.url));
    topics.consume(&consumer, &producer, &job.recipe(body), job.stop()).await.expect("no error");
}

/// A consumer in the usual form.
async fn commit_after_the_work(job: &Job) {
    let consumer: StreamConsumer = group(&job.url, "workers").create().expect("a consumer");
    consumer.subscribe(&["orders"]).expect("a topic");
    let mut stop = std::pin::pin!(job.stop());
    loop {
        tokio::select! {
            () = &mut stop => return,
            record = consumer.recv() => {
                let Ok(record) = record else { continue };
                job.work(body(&record.detach())).await;
                drop(consumer.commit_message(&record, CommitMode::Sync));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a broker, and takes 20 s: clients/rust/brokers runs it"]
async fn each_order_once_at_kafka() {
    let folder = Folder::new("kafka");
    let mut broker = Kafka::start(&folder.0).await;
    each_effect_once(&mut broker, &folder).await;
}

/// Handles records in this process, on one thread, until they are committed or `limit` is over. A second consumer joins the group while the
/// first is at work if there are two. Returns how many runs began, and the broker.
async fn runs_of(orders: i32, consumers: u32, work: Duration, limit: Duration, folder: &Folder) -> (i32, Kafka) {
    let mut broker = Kafka::start(&folder.0).await;
    let (_gateway, gateway) = gateway(&folder.0, "unknown");
    for at in 0..orders {
        broker.send(&format!("A-{at}")).await;
    }
    let client = Client::new([&gateway], Options::default().credential(CREDENTIAL)).expect("a client");
    let started = Arc::new(AtomicI32::new(0));
    let count = Arc::clone(&started);
    let contents = move |record: &OwnedMessage| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(contents! { "order" => body(record) })
    };
    let recipe = Recipe::new(Consumer::new(&client, OPERATION), contents, move |_, _| async move {
        tokio::time::sleep(work).await;
        Ok(())
    });
    let (mut consumer, producer) = (group(&broker.url, "workers"), config(&broker.url));
    // No process is killed here: a heartbeat that is late is no end.
    consumer.set("session.timeout.ms", MAX_POLL_INTERVAL.as_millis().to_string());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let topics = Topics::new(["orders"]).buffered(1);
    let until_stopped = || {
        let mut stopped = stopped.clone();
        async move { drop(stopped.wait_for(|is_stopped| *is_stopped).await) }
    };
    let first = topics.consume(&consumer, &producer, &recipe, until_stopped());
    let second = async {
        if consumers < 2 {
            return Ok(());
        }
        while started.load(Ordering::SeqCst) < PARTITIONS {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        topics.consume(&consumer, &producer, &recipe, until_stopped()).await
    };
    let committed = async {
        while !broker.is_drained().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let until = async {
        drop(tokio::time::timeout(limit, committed).await);
        stop.send_replace(true);
    };
    let (first, second, ()) = tokio::join!(first, second, until);
    first.and(second).expect("no error");
    (started.load(Ordering::SeqCst), broker)
}

#[tokio::test]
#[ignore = "starts a broker: clients/rust/brokers runs it"]
async fn long_work_causes_no_rebalance_at_kafka() {
    let folder = Folder::new("kafka-long");
    // The last of them waits behind the first of its partition, which is paused.
    let (started, mut broker) = runs_of(PARTITIONS + 1, 1, MAX_POLL_INTERVAL * 2, ANSWER_WITHIN, &folder).await;
    assert!(broker.is_drained().await);
    // A record whose partition was lost runs again.
    assert_eq!(started, PARTITIONS + 1);
}

#[tokio::test]
#[ignore = "starts a broker: clients/rust/brokers runs it"]
async fn a_consumer_that_stops_finishes_and_commits_what_it_began_at_kafka() {
    let folder = Folder::new("kafka-stop");
    // No work ends within it.
    let (started, broker) = runs_of(PARTITIONS * 2, 1, MAX_POLL_INTERVAL * 2, MAX_POLL_INTERVAL, &folder).await;
    assert_eq!(started, PARTITIONS);
    assert_eq!(broker.committed(), (0..PARTITIONS).map(|partition| (partition, 1)).collect());
}

#[tokio::test]
#[ignore = "starts a broker: clients/rust/brokers runs it"]
async fn work_of_a_revoked_partition_ends_before_its_next_owner_begins_at_kafka() {
    let folder = Folder::new("kafka-revoked");
    let (started, mut broker) = runs_of(PARTITIONS * 3, 2, Duration::from_secs(1), ANSWER_WITHIN, &folder).await;
    assert!(broker.is_drained().await);
    assert_eq!(started, PARTITIONS * 3);
}
