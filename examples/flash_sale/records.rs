//! The shop's books, shared by both shops. They are as naive as they look: between reading and writing there is time for
//! somebody else.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

/// What a query takes.
const QUERY: Duration = Duration::from_millis(2);

/// One item, sold.
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

    /// The number of the next item in stock, until there are no more. Read, then write: two who ask at the same time are
    /// given the same number.
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

    /// Takes any order: these books know no unique keys. Where yours do, and the whole effect is one row, that key is the
    /// better guard.
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
