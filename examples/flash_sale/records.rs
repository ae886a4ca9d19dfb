//! Records shared by both shops. They are deliberately naive: another request can come between a read and a write.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

/// Duration of a query.
const QUERY: Duration = Duration::from_millis(2);

/// Item that was sold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) customer: u32,
    pub(crate) unit: u32,
}

pub(crate) struct Records {
    stock: u32,
    next_unit: Mutex<u32>,
    orders: Mutex<Vec<Order>>,
}

impl Records {
    pub(crate) fn new(stock: u32) -> Self {
        Self { stock, next_unit: Mutex::new(1), orders: Mutex::default() }
    }

    /// Returns the number of the next item in stock, until there are no more. Reads, then writes: two concurrent
    /// callers get the same number.
    pub(crate) async fn next_unit(&self) -> Option<u32> {
        let unit = *lock(&self.next_unit);
        sleep(QUERY).await;
        if unit > self.stock {
            return None;
        }
        *lock(&self.next_unit) = unit + 1;
        Some(unit)
    }

    pub(crate) async fn order_of(&self, customer: u32) -> Option<Order> {
        sleep(QUERY).await;
        self.orders().into_iter().find(|order| order.customer == customer)
    }

    pub(crate) async fn is_sold(&self, unit: u32) -> bool {
        sleep(QUERY).await;
        self.orders().iter().any(|order| order.unit == unit)
    }

    pub(crate) async fn unsold(&self) -> Vec<u32> {
        sleep(QUERY).await;
        let orders = self.orders();
        (1..=self.stock).filter(|unit| orders.iter().all(|order| order.unit != *unit)).collect()
    }

    /// Accepts any order, without unique keys. If your database has them and the whole effect is one row, a unique key
    /// is the better guard.
    pub(crate) async fn append(&self, order: Order) {
        sleep(QUERY).await;
        lock(&self.orders).push(order);
    }

    pub(crate) fn orders(&self) -> Vec<Order> {
        lock(&self.orders).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
