//! Eight hundred customers with bad connections and little timeout.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::{task::JoinSet, time::sleep};

use crate::{CUSTOMERS, http::Http};

/// Period in which all of them arrive.
const RUSH: Duration = Duration::from_secs(5);
/// Range of the time that a customer waits for the page.
const PATIENCE: Duration = Duration::from_millis(800);
const IMPATIENCE: Duration = Duration::from_millis(120);
/// Pause before the next click.
const PAUSE: Duration = Duration::from_millis(150);
/// Time after which a customer gives up.
const BEDTIME: Duration = Duration::from_secs(20);

/// Result of one request of a customer.
pub(crate) struct CustomerReply {
    pub(crate) customer: u32,
    /// True if there was any answer.
    pub(crate) answered: bool,
    /// The item they were sold.
    pub(crate) unit: Option<u32>,
}

/// Runs all customers at both shops. Returns their replies when the last one has left.
pub(crate) async fn storm(shops: &[String; 2]) -> Vec<CustomerReply> {
    let http = Http::new();
    let mut crowd = JoinSet::new();
    for customer in 1..=CUSTOMERS {
        // Alternately at both shops, so that both are busy.
        let mut shops = shops.clone();
        if customer.is_multiple_of(2) {
            shops.reverse();
        }
        let there = shops.clone().into_iter().rev().collect::<Vec<_>>();
        let http = http.clone();
        let timeout = if customer.is_multiple_of(5) { IMPATIENCE } else { PATIENCE };
        crowd.spawn(async move {
            sleep(RUSH * customer / CUSTOMERS).await;
            if customer.is_multiple_of(3) {
                // A double click, and the load balancer sends the second one to the other shop.
                let (first, second) =
                    tokio::join!(order(&http, &shops, customer, timeout), order(&http, &there, customer, timeout));
                vec![first, second]
            } else {
                vec![order(&http, &shops, customer, timeout).await]
            }
        });
    }
    crowd.join_all().await.into_iter().flatten().collect()
}

/// Clicks until there is an answer, alternating between the shops.
async fn order(http: &Http, shops: &[String], customer: u32, timeout: Duration) -> CustomerReply {
    let began = Instant::now();
    for shop in shops.iter().cycle() {
        if began.elapsed() > BEDTIME {
            break;
        }
        if let Ok((200, answer)) = http.post(shop, &json!({ "customer": customer }), timeout).await {
            let unit = answer["unit"].as_u64().and_then(|unit| u32::try_from(unit).ok());
            return CustomerReply { customer, answered: true, unit };
        }
        sleep(PAUSE).await;
    }
    CustomerReply { customer, answered: false, unit: None }
}
