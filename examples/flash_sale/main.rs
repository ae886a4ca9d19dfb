//! A flash sale: 500 items, 800 customers who double-click, give up and try again, and shop workers that crash. It runs
//! four times: with a shop that checks before it acts; with the same shop and two calls to the gateway around each step
//! that must happen once; with calls that also wait for each other; and with locks. Start reading in `shop.rs`; the
//! client is `clients/rust`.

#![expect(clippy::print_stdout, reason = "a demo prints to standard output")]
#![expect(clippy::disallowed_methods, reason = "a caller of the gateway has its own clock and randomness")]

mod crowd;
mod http;
mod locks;
mod processes;
mod records;
mod shop;

use std::{
    pin::pin,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use oncegate_client::{Client, Options};
use tokio::{net::TcpListener, time::sleep};

use crate::{
    crowd::CustomerReply,
    locks::Locks,
    processes::{GatewayServer, Programs, RedisServer},
    records::Records,
    shop::{Guard, Shop},
};

/// Items in stock.
pub(crate) const STOCK: u32 = 500;
/// Customers who want one.
pub(crate) const CUSTOMERS: u32 = 800;
/// Orders after which one of the two gateways is killed.
const ORDERS_BEFORE_THE_KILL: usize = 150;
/// Time until it is started again.
const OUTAGE: Duration = Duration::from_millis(700);
/// Timeout of a gateway, after which the call is repeated or sent to the other one.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that a request waits for the same order of another one.
const WAIT: Duration = Duration::from_millis(300);

#[tokio::main]
async fn main() -> ExitCode {
    let replies = tokio::select! {
        replies = demo() => replies,
        // The servers are killed when they are dropped, also when the demo is interrupted.
        () = interrupted() => Err(anyhow::anyhow!("interrupted")),
    };
    match replies {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("\n{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo() -> anyhow::Result<()> {
    let programs = Programs::find()?;
    println!("{STOCK} items, {CUSTOMERS} customers, two shops, four ways.\n");

    println!("Without the gateway");
    let unprotected = sell_unprotected().await?;
    unprotected.print();

    println!("\nWith the gateway: two of them in front of one Redis");
    let protected = sell_protected(&programs, |urls| Guard::Claims { gateway: client(urls), wait: None }).await?;
    protected.print();

    println!("\nWith waiting: a repeated order is answered when the first one is placed");
    let waiting = sell_protected(&programs, |urls| Guard::Claims { gateway: client(urls), wait: Some(WAIT) }).await?;
    waiting.print();

    println!(
        "\nWith locks: a repeated order waits for the lock of its customer, then finds the first one in the records"
    );
    let locks = |urls| Guard::Locks { locks: Locks::new(urls, CALL_TIMEOUT), wait: WAIT };
    let locking = sell_protected(&programs, locks).await?;
    locking.print();

    println!("\n  {:<22} {:>6} {:>9} {:>9} {:>19}", "", "sold", "oversold", "time", "calls per customer");
    unprotected.print_row("without the gateway");
    protected.print_row("with the gateway");
    waiting.print_row("with waiting");
    locking.print_row("with locks");

    protected.insist_on_exactly_once()?;
    waiting.insist_on_exactly_once()?;
    locking.insist_on_exactly_once()?;
    println!("\nEvery item was sold once, and nobody bought twice.");
    if unprotected.insist_on_exactly_once().is_ok() {
        println!("(This time it also went well without the gateway. That was luck: run it again.)");
    }
    Ok(())
}

async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

async fn sell_unprotected() -> anyhow::Result<Sale> {
    let records = Arc::new(Records::new(STOCK));
    let shops = [Guard::None, Guard::None].map(|guard| Shop::new(Arc::clone(&records), guard));
    let began = Instant::now();
    let replies = crowd::storm(&open(&shops).await?).await;
    Ok(Sale::of(&records, &shops, &replies, began.elapsed()))
}

/// Returns a client of the gateways with these URLs.
fn client(urls: Vec<String>) -> Client {
    Client::new(urls, Options::default().timeout(CALL_TIMEOUT)).expect("URLs of gateways that run here")
}

async fn sell_protected(programs: &Programs, guard: impl Fn(Vec<String>) -> Guard) -> anyhow::Result<Sale> {
    let redis = RedisServer::start(programs).await?;
    let first = GatewayServer::start(programs, &redis).await?;
    let mut second = GatewayServer::start(programs, &redis).await?;

    // Each shop calls the gateway next to it, and the other one if that does not answer.
    let near_first = vec![first.url.clone(), second.url.clone()];
    let near_second = vec![second.url.clone(), first.url.clone()];
    let records = Arc::new(Records::new(STOCK));
    let shops = [near_first, near_second].map(|urls| Shop::new(Arc::clone(&records), guard(urls)));
    let urls = open(&shops).await?;

    let began = Instant::now();
    let mut storm = pin!(crowd::storm(&urls));
    let replies = tokio::select! {
        // Too few were sold for the second gateway to be killed.
        replies = &mut storm => replies,
        () = until_sold(&records, ORDERS_BEFORE_THE_KILL) => {
            second.kill();
            let (replies, restarted) = tokio::join!(storm, async {
                sleep(OUTAGE).await;
                second.start_again(programs, &redis).await
            });
            restarted.context("the killed gateway did not come back")?;
            println!("  one gateway was killed after {ORDERS_BEFORE_THE_KILL} orders and started again");
            replies
        }
    };
    Ok(Sale::of(&records, &shops, &replies, began.elapsed()))
}

async fn until_sold(records: &Records, orders: usize) {
    while records.orders().len() < orders {
        sleep(Duration::from_millis(5)).await;
    }
}

/// Opens both shops on free ports of this machine.
async fn open(shops: &[Arc<Shop>; 2]) -> anyhow::Result<[String; 2]> {
    let mut urls = [String::new(), String::new()];
    for (shop, url) in shops.iter().zip(&mut urls) {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no free port for a shop")?;
        *url = format!("http://{}/orders", listener.local_addr()?);
        tokio::spawn(axum::serve(listener, shop::router(Arc::clone(shop))).into_future());
    }
    Ok(urls)
}

/// Figures of a finished sale.
struct Sale {
    orders: usize,
    customers_with_several_orders: usize,
    units_sold_several_times: usize,
    /// Customers who never got an answer, or got one that contradicts the records.
    misled: usize,
    /// Requests that the shops got.
    requests: u64,
    notes: Vec<String>,
    took: Duration,
}

impl Sale {
    fn of(records: &Records, shops: &[Arc<Shop>; 2], replies: &[CustomerReply], took: Duration) -> Self {
        let orders = records.orders();
        let repeated = |of: fn(&records::Order) -> u32| {
            let mut all: Vec<u32> = orders.iter().map(of).collect();
            all.sort_unstable();
            all.chunk_by(|a, b| a == b).filter(|same| same.len() > 1).count()
        };
        let is_true = |it: &CustomerReply| match it.unit {
            Some(unit) => orders.iter().any(|order| order.customer == it.customer && order.unit == unit),
            None => it.answered && !orders.iter().any(|order| order.customer == it.customer),
        };
        let count = |of: fn(&shop::Counters) -> &std::sync::atomic::AtomicU64| -> u64 {
            shops.iter().map(|shop| of(&shop.counters).load(Ordering::Relaxed)).sum()
        };
        let notes = [
            (count(|it| &it.crashes), "workers crashed"),
            (count(|it| &it.asked_to_wait), "requests came while the same order was being placed"),
            (count(|it| &it.replayed), "repeats were answered with the first result"),
            (count(|it| &it.units_held), "times an item was held by another order"),
            (
                count(|it| &it.found_done),
                "times a crashed worker's order was found in the records, and not placed again",
            ),
        ];
        Self {
            orders: orders.len(),
            customers_with_several_orders: repeated(|order| order.customer),
            units_sold_several_times: repeated(|order| order.unit),
            misled: replies.iter().filter(|it| !is_true(it)).count(),
            requests: count(|it| &it.requests),
            notes: notes.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n:>5}  {what}")).collect(),
            took,
        }
    }

    fn print(&self) {
        let stock = STOCK as usize;
        println!("  {:>5}  orders for {STOCK} items: {} too many", self.orders, self.orders.saturating_sub(stock));
        println!("  {:>5}  customers have more than one order", self.customers_with_several_orders);
        println!("  {:>5}  items were sold more than once", self.units_sold_several_times);
        println!("  {:>5}  customers got a wrong answer, or none", self.misled);
        self.notes.iter().for_each(|note| println!("    ({note})"));
        println!("         in {:.1} s", self.took.as_secs_f64());
    }

    fn print_row(&self, way: &str) {
        let oversold = self.orders.saturating_sub(STOCK as usize);
        let calls = f64::from(u32::try_from(self.requests).unwrap_or(u32::MAX)) / f64::from(CUSTOMERS);
        println!("  {way:<22} {:>6} {oversold:>9} {:>7.1} s {calls:>19.1}", self.orders, self.took.as_secs_f64());
    }

    fn insist_on_exactly_once(&self) -> anyhow::Result<()> {
        let wrong = self.customers_with_several_orders + self.units_sold_several_times + self.misled;
        if self.orders != STOCK as usize || wrong > 0 {
            bail!("NOT EXACTLY ONCE: see the figures above");
        }
        Ok(())
    }
}
