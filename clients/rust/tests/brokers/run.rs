//! The run at each broker. Every order is sent twice. Workers (processes), the gateway and the broker are killed in the
//! middle. Parked messages are looked up and taken over. `BROKERS_MODE` is `unknown` (each effect once), `release`, or
//! `none` for a worker without the gateway: with these, a kill doubles effects, and the run counts them.
//! `BROKERS_ORDERS` and `BROKERS_KILLS` make a run longer. Prints its row of the table in docs/clients/guarantees.md.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, mem};

use oncegate_client::consumers::Recipe;
use oncegate_client::{BoxError, Client, Consumer, Contents, Grant, Options, Terms, WorkError, contents};

use crate::servers::{CREDENTIAL, Folder, LIMIT, gateway};

const WORKERS: usize = 3;
/// By then a request that the killed broker has not answered has ended its worker with an error, and the worker was started again.
const UNANSWERED: Duration = Duration::from_secs(6);
pub(crate) const OPERATION: &str = "order.submit";
/// A message whose work never has an effect.
const FAILS: &str = "fails";
/// A message whose work ends with an error: its outcome is unknown.
const BREAKS: &str = "breaks";

/// A broker with its queues, as the test sees it.
pub(crate) trait Broker {
    /// Name in the table.
    const NAME: &str;
    /// Name of the test that has its worker.
    const WORKER: &str;
    /// Kills the broker, and starts it again.
    async fn restart(&mut self);
    fn url(&self) -> String;
    async fn send(&mut self, order: &str);
    /// Takes the messages that were parked since the last call.
    async fn parked(&mut self) -> Vec<String>;
    /// Takes the dead letters.
    async fn dead(&mut self) -> Vec<String>;
    /// Returns true if each message is acknowledged.
    async fn is_drained(&mut self) -> bool;
}

/// Size of the run, and the fate of a claim whose worker is killed.
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

/// Values in the environment of a worker process.
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

    /// Does the work of a message without a claim.
    pub(crate) async fn work(&self, order: String) {
        write_line(&self.folder, "deliveries", &order);
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
        let contents = {
            let folder = folder.clone();
            move |message: &M| -> Result<Contents, BoxError> {
                write_line(&folder, "deliveries", &body(message));
                Ok(contents! { "order" => body(message) })
            }
        };
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
    write_line(&folder, "effects", &order);
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

/// One line, whole, and there at once: it survives its process.
fn write_line(folder: &Path, file: &str, order: &str) {
    let mut file = fs::File::options().append(true).create(true).open(folder.join(file)).expect("a file");
    file.write_all(format!("{order}\n").as_bytes()).expect("it is written");
}

/// Counts the lines of each order.
fn counted(folder: &Path, file: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let lines = fs::read_to_string(folder.join(file)).unwrap_or_default();
    for order in lines.lines().filter(|order| ![FAILS, BREAKS].contains(order)) {
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

/// Kills of one run.
#[derive(Default)]
struct Kills {
    workers: usize,
    gateways: usize,
    brokers: usize,
}

pub(crate) async fn each_effect_once<B: Broker>(broker: &mut B, folder: &Folder) {
    let (folder, plan) = (&folder.0, Plan::of_the_environment());
    let on_lease_end = if plan.mode == "release" { "release" } else { "unknown" };
    let (mut gate, gateway) = gateway(folder, on_lease_end);
    let client = Client::new([&gateway], Options::default().credential(CREDENTIAL)).expect("a client");
    let orders: Vec<String> = (0..plan.orders).map(order).collect();
    // The repeat of an order is some messages away from it.
    let messages: Vec<&str> = (0..plan.orders * 2)
        .map(|at| (at / 2 + at % 2 * (plan.orders - 7)) % plan.orders)
        .map(|at| &*orders[at])
        .collect();
    let (first, mut rest) = messages.split_at(messages.len() * 9 / 10);
    for order in [&[FAILS, BREAKS], first].concat() {
        broker.send(order).await;
    }
    let url = broker.url();
    let start = || {
        let log = fs::File::options().append(true).create(true).open(folder.join("workers.log")).expect("a log");
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", B::WORKER, "--ignored", "--nocapture"]).stdin(Stdio::null());
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        command.env("WORKER_URL", &url).env("WORKER_GATEWAY", &gateway).env("WORKER_FOLDER", folder);
        command.spawn().expect("a worker")
    };
    let log = || fs::read_to_string(folder.join("workers.log")).unwrap_or_default();
    let mut workers = Workers { processes: (0..WORKERS).map(|_| start()).collect(), start: Box::new(start) };
    let (mut kills, mut dead, mut parked) = (Kills::default(), Vec::new(), Vec::new());
    let (mut deliveries, mut ends, mut killed_at) = (0, Instant::now() + LIMIT, Instant::now());
    loop {
        let done = counted(folder, "effects");
        // Share of the orders sent before the last kill that are done.
        let is_past = |share: usize, of: usize| done.len() * of * 10 >= plan.orders * share * 9;
        if plan.has_gateway() && kills.gateways == 0 && is_past(1, 3) {
            gate.restart();
            kills.gateways += 1;
        }
        if kills.brokers == 0 && is_past(2, 3) {
            broker.restart().await;
            kills.brokers += 1;
            killed_at = Instant::now();
        }
        if kills.workers < plan.kills && is_past(kills.workers + 1, plan.kills + 1) {
            workers.kill(kills.workers);
            kills.workers += 1;
        }
        workers.keep();
        let all_killed = kills.workers == plan.kills && kills.brokers == 1;
        if all_killed {
            // No run may end before its kills.
            for order in mem::take(&mut rest) {
                broker.send(order).await;
            }
        }
        for order in broker.parked().await {
            if order != BREAKS {
                look_up(&client, &order, folder).await;
            }
            parked.push(order);
        }
        dead.extend(broker.dead().await);
        let aside = !plan.has_gateway() || parked.iter().any(|order| order == BREAKS) && !dead.is_empty();
        let is_done = all_killed
            && killed_at.elapsed() > UNANSWERED
            && aside
            && done.len() == plan.orders
            && broker.is_drained().await;
        if is_done && (!plan.has_gateway() || are_settled(&client, &orders).await) {
            break;
        }
        let delivered = counted(folder, "deliveries").values().sum();
        if delivered > deliveries {
            (deliveries, ends) = (delivered, Instant::now() + LIMIT);
        }
        assert!(
            Instant::now() < ends,
            "no delivery: {} kills, dead {dead:?}, parked {parked:?}, {done:?}; {}",
            kills.workers,
            log()
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fs::write(folder.join("stop"), "").expect("a file");
    for process in &mut workers.processes {
        assert!(process.wait().expect("it ends").success(), "a worker that is asked to stop has no error: {}", log());
    }
    assert_right(&plan, &dead, folder);
    parked.retain(|order| order != BREAKS);
    print_row::<B>(&plan, &kills, parked.len(), folder);
}

fn order(at: usize) -> String {
    format!("A-{at}")
}

fn assert_right(plan: &Plan, dead: &[String], folder: &Path) {
    let done = counted(folder, "effects");
    let once: BTreeMap<String, usize> = (0..plan.orders).map(|at| (order(at), 1)).collect();
    assert!(done.keys().eq(once.keys()), "none is lost, and none is another");
    if plan.mode == "unknown" {
        assert_eq!(done, once);
    }
    if plan.has_gateway() {
        // A broker that is killed after it has stored a copy, and before it has confirmed that, stores another.
        assert!(!dead.is_empty() && dead.iter().all(|order| order == FAILS), "{dead:?}");
    }
}

fn print_row<B: Broker>(plan: &Plan, kills: &Kills, parked: usize, folder: &Path) {
    let (sent, done) = (plan.orders * 2, counted(folder, "effects"));
    let delivered: usize = counted(folder, "deliveries").values().sum();
    let doubled = done.values().filter(|count| **count > 1).count();
    println!(
        "| {} | {} | {sent} | {} | {} | {} | {delivered} | {} | {} | {doubled} | {} | 0 |",
        B::NAME,
        plan.mode,
        kills.workers,
        kills.gateways,
        kills.brokers,
        delivered.saturating_sub(sent),
        done.values().sum::<usize>(),
        parked
    );
}

/// Handles a parked message: looks up the effect, takes the claim over, settles it.
async fn look_up(client: &Client, order: &str, folder: &Path) {
    let terms = Terms::new().take_over().lease(Duration::from_secs(10)).wait(Duration::from_secs(10));
    let work = async |_: Grant| {
        if !counted(folder, "effects").contains_key(order) {
            write_line(folder, "effects", order);
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
