//! The run at each broker: every order is sent twice, workers are processes that are killed in every phase, and parked messages are looked
//! up and taken over. `BROKERS_MODE` is `unknown` (each effect once), `release`, or `none` for a worker without the gateway: with these, a
//! kill doubles effects, and the run counts them. `BROKERS_ORDERS` and `BROKERS_KILLS` make a run longer.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use oncegate_client::consumers::Recipe;
use oncegate_client::{BoxError, Client, Consumer, Contents, Grant, Options, Terms, WorkError, contents};

use crate::servers::{CREDENTIAL, Folder, LIMIT, gateway};

const WORKERS: usize = 2;
pub(crate) const OPERATION: &str = "order.submit";
/// A message whose work never has an effect.
const FAILS: &str = "fails";
/// A message whose work ends with an error: its outcome is unknown.
const BREAKS: &str = "breaks";

/// A broker with its queues, as the test sees it.
pub(crate) trait Broker {
    /// Name of the test that has its worker.
    const WORKER: &str;
    fn url(&self) -> String;
    async fn send(&mut self, order: &str);
    /// Takes the messages that were parked since the last call.
    async fn parked(&mut self) -> Vec<String>;
    /// Takes the dead letters.
    async fn dead(&mut self) -> Vec<String>;
    /// Returns true if each message is acknowledged.
    async fn is_drained(&mut self) -> bool;
}

/// How large the run is, and what becomes of a claim whose worker is killed.
struct Plan {
    mode: String,
    orders: usize,
    kills: usize,
}

impl Plan {
    fn of_the_environment() -> Self {
        let number = |name, otherwise| env::var(name).map_or(otherwise, |text| text.parse().expect("a number"));
        let mode = env::var("BROKERS_MODE").unwrap_or_else(|_| "unknown".to_owned());
        assert!(["unknown", "release", "none"].contains(&mode.as_str()), "BROKERS_MODE is unknown, release or none");
        Self { mode, orders: number("BROKERS_ORDERS", 60), kills: number("BROKERS_KILLS", 6) }
    }

    fn has_gateway(&self) -> bool {
        self.mode != "none"
    }
}

/// What a worker process finds in its environment.
pub(crate) struct Job {
    pub(crate) url: String,
    folder: PathBuf,
    gateway: String,
    /// The worker calls no gateway, for comparison.
    pub(crate) is_without_gateway: bool,
}

impl Job {
    /// Nothing in the process of the test itself.
    pub(crate) fn of_this_process() -> Option<Self> {
        let folder = env::var("WORKER_FOLDER").ok()?.into();
        let (url, gateway) = (env::var("WORKER_URL").ok()?, env::var("WORKER_GATEWAY").ok()?);
        Some(Self { url, folder, gateway, is_without_gateway: !Plan::of_the_environment().has_gateway() })
    }

    /// Does the work of a message as it is.
    pub(crate) async fn work(&self, order: String) {
        drop(work(self.folder.clone(), order).await);
    }

    pub(crate) fn recipe<M: Send + Sync + 'static>(&self, body: fn(&M) -> String) -> Recipe<M> {
        let options = Options::default().credential(CREDENTIAL).settle_within(Duration::from_secs(60));
        let client = Client::new([&self.gateway], options).expect("a client");
        let consumer = Consumer::new(&client, OPERATION)
            .terms(Terms::new().lease(Duration::from_secs(1)))
            .redeliver_after(Duration::from_millis(200))
            .max_failures(2);
        let folder = self.folder.clone();
        let contents = move |message: &M| -> Result<Contents, BoxError> { Ok(contents! { "order" => body(message) }) };
        Recipe::new(consumer, contents, move |message: Arc<M>, _: Grant| work(folder.clone(), body(&message)))
    }

    /// Ends when the test asks the workers to stop.
    pub(crate) async fn stop(&self) {
        while !self.folder.join("stop").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn work(folder: PathBuf, order: String) -> Result<(), WorkError> {
    match order.as_str() {
        FAILS => return Err(WorkError::nothing_happened("out of stock")),
        BREAKS => return Err("no answer".into()),
        _ => {}
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    effect(&folder, &order);
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

/// One line, whole, and there at once: it survives its process.
fn effect(folder: &Path, order: &str) {
    let mut file = fs::File::options().append(true).create(true).open(folder.join("effects")).expect("a file");
    file.write_all(format!("{order}\n").as_bytes()).expect("it is written");
}

fn effects(folder: &Path) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for order in fs::read_to_string(folder.join("effects")).unwrap_or_default().lines() {
        *counts.entry(order.to_owned()).or_default() += 1;
    }
    counts
}

/// Worker processes: this program again, with only the test of the worker.
struct Workers<'a> {
    start: Box<dyn Fn() -> Child + 'a>,
    processes: Vec<Child>,
}

impl Workers<'_> {
    fn kill(&mut self, at: usize) {
        let process = &mut self.processes[at % WORKERS];
        process.kill().expect("it is killed");
        process.wait().expect("it ends");
    }

    /// Starts those again that have ended, as a supervisor does.
    fn keep(&mut self) {
        for process in &mut self.processes {
            if process.try_wait().expect("a status").is_some() {
                *process = (self.start)();
            }
        }
    }
}

impl Drop for Workers<'_> {
    fn drop(&mut self) {
        for process in &mut self.processes {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

pub(crate) async fn each_effect_once<B: Broker>(broker: &mut B, folder: &Folder) {
    let (folder, plan) = (&folder.0, Plan::of_the_environment());
    let on_lease_end = if plan.mode == "release" { "release" } else { "unknown" };
    let (_gateway, gateway) = gateway(folder, on_lease_end);
    let client = Client::new([&gateway], Options::default().credential(CREDENTIAL)).expect("a client");
    let orders: Vec<String> = (0..plan.orders).map(|at| format!("A-{at}")).collect();
    // The repeat of an order is some messages away from it.
    for at in 0..plan.orders {
        broker.send(&orders[at]).await;
        broker.send(&orders[(at + plan.orders - 7) % plan.orders]).await;
    }
    broker.send(FAILS).await;
    broker.send(BREAKS).await;
    let url = broker.url();
    let start = || {
        let log = fs::File::options().append(true).create(true).open(folder.join("workers.log")).expect("a log");
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", B::WORKER, "--ignored", "--nocapture"]).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        command.env("WORKER_URL", &url).env("WORKER_GATEWAY", &gateway).env("WORKER_FOLDER", folder);
        command.spawn().expect("a worker")
    };
    let mut workers = Workers { processes: (0..WORKERS).map(|_| start()).collect(), start: Box::new(start) };
    let (mut kills, mut dead, mut parked) = (0, Vec::new(), Vec::new());
    let ends = Instant::now() + LIMIT;
    loop {
        let done = effects(folder);
        if kills < plan.kills && done.len() >= (kills + 1) * plan.orders / (plan.kills + 2) {
            workers.kill(kills);
            kills += 1;
        }
        workers.keep();
        for order in broker.parked().await {
            if order != BREAKS {
                look_up(&client, &order, folder).await;
            }
            parked.push(order);
        }
        dead.extend(broker.dead().await);
        let settled = if plan.has_gateway() {
            let aside = parked.iter().any(|order| order == BREAKS) && !dead.is_empty();
            aside && kills == plan.kills && are_settled(&client, &orders).await
        } else {
            done.len() == plan.orders
        };
        if kills == plan.kills && settled && broker.is_drained().await {
            break;
        }
        let log = || fs::read_to_string(folder.join("workers.log")).unwrap_or_default();
        assert!(
            Instant::now() < ends,
            "not in time: {kills} kills, dead {dead:?}, parked {parked:?}, {done:?}; {}",
            log()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fs::write(folder.join("stop"), "").expect("a file");
    for process in &mut workers.processes {
        assert!(process.wait().expect("it ends").success(), "a worker that is asked to stop has no error");
    }
    let done = effects(folder);
    let once: BTreeMap<String, usize> = orders.into_iter().map(|order| (order, 1)).collect();
    assert!(done.keys().eq(once.keys()), "none is lost, and none is another");
    if plan.mode == "unknown" {
        assert_eq!(done, once);
    }
    if plan.has_gateway() {
        assert_eq!(dead, [FAILS]);
    }
    let doubled = done.values().filter(|count| **count > 1).count();
    println!(
        "{} {}: {} messages, {kills} kills, {} parked, {doubled} of {} orders done twice",
        B::WORKER,
        plan.mode,
        plan.orders * 2 + 2,
        parked.len(),
        plan.orders
    );
}

/// What a program does with a parked message: looks at the effect, takes the claim over, settles it.
async fn look_up(client: &Client, order: &str, folder: &Path) {
    let terms = Terms::new().take_over().lease(Duration::from_secs(10)).wait(Duration::from_secs(10));
    let work = async |_: Grant| {
        if !effects(folder).contains_key(order) {
            effect(folder, order);
        }
        Ok(())
    };
    client.once_with(OPERATION, contents! { "order" => order }, terms, work).await.expect("it is settled");
}

async fn are_settled(client: &Client, orders: &[String]) -> bool {
    for order in orders {
        let global_id = client.global_id(OPERATION, contents! { "order" => order.as_str() }).expect("an ID");
        match client.lookup(&global_id).await {
            Ok(Some(record)) if record.state == "succeeded" => {}
            _ => return false,
        }
    }
    true
}
