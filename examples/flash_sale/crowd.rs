//! Eight hundred people and their habits. None of them is malicious; they only have bad connections and little patience.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use crate::{CUSTOMERS, gateway::Http};

/// All arrive within this time.
const RUSH: Duration = Duration::from_secs(5);
/// How long people wait for the page: some hardly at all.
const PATIENCE: Duration = Duration::from_millis(800);
const IMPATIENCE: Duration = Duration::from_millis(120);
/// Until they click again.
const PAUSE: Duration = Duration::from_millis(150);
/// Nobody stays longer.
const BEDTIME: Duration = Duration::from_secs(20);

/// What one request of a customer ended in.
pub(crate) struct Told {
    pub(crate) customer: u32,
    /// Whether there was an answer at all.
    pub(crate) answered: bool,
    /// The item they were sold.
    pub(crate) unit: Option<u32>,
}

/// All customers at both shops. Returns what they were told when the last one has gone home.
pub(crate) async fn storm(shops: &[String; 2]) -> Vec<Told> {
    let http = Http::new();
    let mut crowd = JoinSet::new();
    for customer in 1..=CUSTOMERS {
        // Shop by shop in turn, so that both are busy.
        let mut shops = shops.clone();
        if customer.is_multiple_of(2) {
            shops.reverse();
        }
        let there = shops.clone().into_iter().rev().collect::<Vec<_>>();
        let http = http.clone();
        let patience = if customer.is_multiple_of(5) { IMPATIENCE } else { PATIENCE };
        crowd.spawn(async move {
            sleep(RUSH * customer / CUSTOMERS).await;
            if customer.is_multiple_of(3) {
                // A double-click, and the load balancer sends the second one to the other shop.
                let (first, second) =
                    tokio::join!(order(&http, &shops, customer, patience), order(&http, &there, customer, patience));
                vec![first, second]
            } else {
                vec![order(&http, &shops, customer, patience).await]
            }
        });
    }
    crowd.join_all().await.into_iter().flatten().collect()
}

/// Clicks until there is an answer, at one shop and then the other.
async fn order(http: &Http, shops: &[String], customer: u32, patience: Duration) -> Told {
    let began = Instant::now();
    for shop in shops.iter().cycle() {
        if began.elapsed() > BEDTIME {
            break;
        }
        if let Ok((200, answer)) = http.post(shop, &json!({ "customer": customer }), None, patience).await {
            let unit = answer["unit"].as_u64().and_then(|unit| u32::try_from(unit).ok());
            return Told { customer, answered: true, unit };
        }
        sleep(PAUSE).await;
    }
    Told { customer, answered: false, unit: None }
}
