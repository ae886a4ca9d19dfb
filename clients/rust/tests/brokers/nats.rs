//! NATS JetStream with async-nats.

use std::env;
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context, Message};
use futures_util::StreamExt;
use oncegate_client::consumers::Recipe;
use oncegate_client::consumers::nats::Subjects;
use oncegate_client::{Client, Consumer, Options, contents};

use crate::run::{Broker, Job, OPERATION, each_effect_once};
use crate::servers::{CREDENTIAL, Folder, Server, free_port, gateway};

struct Nats {
    server: Server,
    url: String,
    jetstream: Context,
}

impl Nats {
    async fn start(folder: &Path) -> Self {
        let port = free_port();
        let program = env::var("NATS_SERVER").unwrap_or_else(|_| "nats-server".to_owned());
        let mut command = Command::new(program);
        command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"]).arg(folder.join("jetstream"));
        let server = Server::start(command, port, &folder.join("broker.log"));
        let url = format!("nats://127.0.0.1:{port}");
        let jetstream = connect(&url).await;
        for name in ["orders", "parked", "dead"] {
            let stream = Config { name: name.to_owned(), subjects: vec![name.to_owned()], ..Config::default() };
            let stream = jetstream.create_stream(stream).await.expect("a stream");
            let durable = Some("workers".to_owned());
            let consumer = pull::Config { durable_name: durable, ack_wait: ACK_WAIT, ..pull::Config::default() };
            stream.create_consumer(consumer).await.expect("a consumer");
        }
        Self { server, url, jetstream }
    }

    async fn take(&self, stream: &str) -> Vec<String> {
        let mut orders = Vec::new();
        let consumer = consumer_of(&self.jetstream, stream).await;
        let mut messages = consumer.fetch().max_messages(1000).messages().await.expect("an answer");
        while let Some(message) = messages.next().await {
            let message = message.expect("a message");
            message.double_ack().await.expect("it is acknowledged");
            orders.push(body(&message));
        }
        orders
    }
}

/// The server delivers a message again after it, unless its work is reported to continue.
const ACK_WAIT: Duration = Duration::from_millis(600);

impl Broker for Nats {
    const NAME: &str = "NATS JetStream, async-nats";
    const WORKER: &str = "nats::worker";

    async fn restart(&mut self) {
        self.server.restart();
        self.jetstream = connect(&self.url).await;
        while self.jetstream.get_stream("orders").await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    async fn send(&mut self, order: &str) {
        let sent = self.jetstream.publish("orders", order.to_owned().into()).await.expect("it is sent");
        sent.await.expect("it is stored");
    }

    async fn parked(&mut self) -> Vec<String> {
        self.take("parked").await
    }

    async fn dead(&mut self) -> Vec<String> {
        self.take("dead").await
    }

    async fn is_drained(&mut self) -> bool {
        let mut consumer = consumer_of(&self.jetstream, "orders").await;
        let info = consumer.info().await.expect("an answer");
        info.num_pending == 0 && info.num_ack_pending == 0
    }
}

fn body(message: &Message) -> String {
    String::from_utf8_lossy(&message.payload).into_owned()
}

async fn connect(url: &str) -> Context {
    jetstream::new(async_nats::connect(url).await.expect("a connection"))
}

async fn consumer_of(jetstream: &Context, stream: &str) -> PullConsumer {
    jetstream.get_consumer_from_stream("workers", stream).await.expect("a consumer")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker process of the test below"]
async fn worker() {
    let Some(job) = Job::of_this_process() else { return };
    let consumer = consumer_of(&connect(&job.url).await, "orders").await;
    if job.is_without_gateway {
        return acknowledge_after_the_work(&consumer, &job).await;
    }
    let subjects = Subjects::new("parked", "dead").workers(4);
    subjects.consume(&consumer, &job.recipe(body), job.stop()).await.expect("no error");
}

/// A consumer in the usual form.
async fn acknowledge_after_the_work(consumer: &PullConsumer, job: &Job) {
    let mut messages = consumer.stream().max_messages_per_batch(1).messages().await.expect("messages");
    let mut stop = pin!(job.stop());
    loop {
        tokio::select! {
            () = &mut stop => return,
            message = messages.next() => {
                let message = message.expect("one more").expect("no error");
                job.work(body(&message)).await;
                message.double_ack().await.expect("it is acknowledged");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a broker, and takes 10 s: clients/rust/brokers runs it"]
async fn each_order_once_at_nats() {
    let folder = Folder::new("nats");
    let mut broker = Nats::start(&folder.0).await;
    each_effect_once(&mut broker, &folder).await;
}

/// Handles messages in this process, whose work takes three times the wait of the server. Returns how often the server delivered one, and
/// how many were at work at the same time.
async fn deliveries_of(orders: &[&str], workers: u16, folder: &Folder) -> (u64, usize) {
    let mut broker = Nats::start(&folder.0).await;
    let (_gateway, gateway) = gateway(&folder.0, "unknown");
    for order in orders {
        broker.send(order).await;
    }
    let client = Client::new([&gateway], Options::default().credential(CREDENTIAL)).expect("a client");
    let contents = |message: &Message| Ok(contents! { "order" => body(message) });
    let (at_work, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&at_work), Arc::clone(&most));
    let recipe = Recipe::new(Consumer::new(&client, OPERATION), contents, move |_, _| {
        let (at_work, most) = counts.clone();
        async move {
            most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(ACK_WAIT * 3).await;
            at_work.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let mut consumer = consumer_of(&broker.jetstream, "orders").await;
    let stop = async {
        while !broker.is_drained().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    Subjects::new("parked", "dead").workers(workers).consume(&consumer, &recipe, stop).await.expect("no error");
    let deliveries = consumer.info().await.expect("an answer").delivered.consumer_sequence;
    (deliveries, most.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a broker: clients/rust/brokers runs it"]
async fn a_message_is_delivered_once_although_its_work_is_long_at_nats() {
    let folder = Folder::new("nats-long");
    assert_eq!(deliveries_of(&["A-1"], 2, &folder).await, (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a broker: clients/rust/brokers runs it"]
async fn no_message_is_fetched_before_its_work_can_begin_at_nats() {
    let folder = Folder::new("nats-workers");
    assert_eq!(deliveries_of(&["A-1", "A-2"], 1, &folder).await, (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a broker: clients/rust/brokers runs it"]
async fn a_repeat_waits_while_its_order_is_in_progress_at_nats() {
    let folder = Folder::new("nats-repeat");
    let (deliveries, _) = deliveries_of(&["A-1", "A-1"], 2, &folder).await;
    assert!((3..=8).contains(&deliveries), "{deliveries} deliveries");
}
