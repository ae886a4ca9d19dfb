//! RabbitMQ with lapin.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use oncegate_client::consumers::rabbitmq::Queue;

use crate::run::{Broker, Job, each_effect_once};
use crate::servers::{Folder, Server, free_port};

struct RabbitMq {
    server: Option<Server>,
    epmd: u16,
    url: String,
    connection: Connection,
    channel: Channel,
}

impl RabbitMq {
    async fn start(folder: &Path) -> Self {
        let (port, epmd) = (free_port(), free_port());
        // The one in the path of Debian changes the user, and loses its environment.
        let debian = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmq-server");
        let mut command = Command::new(if debian.exists() { debian } else { "rabbitmq-server".into() });
        for name in ["HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE"] {
            command.env(name, folder);
        }
        command
            .env("RABBITMQ_NODENAME", format!("oncegate{port}@localhost"))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1");
        command.env("RABBITMQ_NODE_PORT", port.to_string()).env("RABBITMQ_DIST_PORT", free_port().to_string());
        command
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"))
            .env("RABBITMQ_PID_FILE", folder.join("pid"));
        command.env("ERL_EPMD_PORT", epmd.to_string());
        let server = Server::start(command, port, &folder.join("broker.log"));
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        let (connection, channel) = connect(&url).await;
        channel
            .queue_declare("orders".into(), QueueDeclareOptions::durable(), FieldTable::default())
            .await
            .expect("a queue");
        Queue::new("orders").declare(&channel).await.expect("the queues beside it");
        Self { server: Some(server), epmd, url, connection, channel }
    }

    async fn take(&self, queue: &str) -> Vec<String> {
        let mut orders = Vec::new();
        while let Some(got) =
            self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.expect("an answer")
        {
            orders.push(body(&got.delivery));
        }
        orders
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        // The other is a daemon, of another group of processes.
        drop(self.server.take());
        // It does not end before it has seen the end of its broker.
        for _ in 0..100 {
            match Command::new("epmd").args(["-port", &self.epmd.to_string(), "-kill"]).output() {
                Ok(output) if !output.stdout.starts_with(b"Killed") => std::thread::sleep(Duration::from_millis(50)),
                _ => break,
            }
        }
    }
}

impl Broker for RabbitMq {
    const NAME: &str = "RabbitMQ, lapin";
    const WORKER: &str = "rabbitmq::worker";

    async fn restart(&mut self) {
        self.server.as_mut().expect("it runs").restart();
        (self.connection, self.channel) = connect(&self.url).await;
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    async fn send(&mut self, order: &str) {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let sent = self.channel.basic_publish(
            "".into(),
            "orders".into(),
            BasicPublishOptions::default(),
            order.as_bytes(),
            properties,
        );
        sent.await.expect("it is sent").await.expect("it is confirmed");
    }

    async fn parked(&mut self) -> Vec<String> {
        self.take("orders.parked").await
    }

    async fn dead(&mut self) -> Vec<String> {
        self.take("orders.dead").await
    }

    /// Without messages in work: the broker counts ready messages only.
    async fn is_drained(&mut self) -> bool {
        for queue in ["orders", "orders.retry.1s", "orders.retry.5s"] {
            let options = QueueDeclareOptions::default().passive();
            let found =
                self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.expect("it exists");
            if found.message_count() > 0 {
                return false;
            }
        }
        true
    }
}

fn body(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.data).into_owned()
}

/// Connects when the broker is ready.
async fn connect(url: &str) -> (Connection, Channel) {
    loop {
        if let Ok(connection) = Connection::connect(url, ConnectionProperties::default()).await {
            let channel = connection.create_channel().await.expect("a channel");
            channel.confirm_select(ConfirmSelectOptions::default()).await.expect("it confirms");
            return (connection, channel);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the worker process of the test below"]
async fn worker() {
    let Some(job) = Job::of_this_process() else { return };
    let (_connection, channel) = connect(&job.url).await;
    if job.is_without_gateway {
        return acknowledge_after_the_work(&channel, &job).await;
    }
    let queue = Queue::new("orders").workers(4);
    queue.consume(&channel, &job.recipe(body), job.stop()).await.expect("no error");
}

/// A consumer in the usual form.
async fn acknowledge_after_the_work(channel: &Channel, job: &Job) {
    // Then all remaining messages count as ready at the broker.
    channel.basic_qos(1, BasicQosOptions::default()).await.expect("a limit");
    let mut deliveries = channel
        .basic_consume("orders".into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await
        .expect("a consumer");
    let mut stop = pin!(job.stop());
    loop {
        tokio::select! {
            () = &mut stop => return,
            delivery = deliveries.next() => {
                let delivery = delivery.expect("one more").expect("no error");
                job.work(body(&delivery)).await;
                delivery.ack(BasicAckOptions::default()).await.expect("it is acknowledged");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a broker, and takes 10 s: clients/rust/brokers runs it"]
async fn each_order_once_at_rabbitmq() {
    let folder = Folder::new("rabbitmq");
    let mut broker = RabbitMq::start(&folder.0).await;
    each_effect_once(&mut broker, &folder).await;
}
