//! The exchanges of a connection that are under way.

use std::future::poll_fn;
use std::task::Poll;

use super::{Exchange, Lost};

/// Exchanges, oldest first. They are few, so one task polls them all. Separate wakers would cost more.
pub(super) struct Exchanges<Done>(Vec<Exchange<Done>>);

impl<Done> Exchanges<Done> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn push(&mut self, exchange: Exchange<Done>) {
        self.0.push(exchange);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until one of them has finished; `None` if there is none.
    pub(super) async fn next(&mut self) -> Option<Result<Done, Lost>> {
        poll_fn(|cx| {
            for place in 0..self.0.len() {
                if let Poll::Ready(finished) = self.0[place].as_mut().poll(cx) {
                    drop(self.0.remove(place));
                    return Poll::Ready(Some(finished));
                }
            }
            if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::{Arc, Mutex};

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn exchanges_are_polled_in_order_and_each_is_returned_once() {
        let mut exchanges = Exchanges::new();
        assert!(exchanges.next().await.is_none() && exchanges.is_empty());
        let polled = Arc::new(Mutex::new(Vec::new()));
        let ends: Vec<_> = (0..3)
            .map(|number| {
                let (end, ended) = oneshot::channel::<()>();
                let polled = polled.clone();
                exchanges.push(Box::pin(async move {
                    polled.lock().unwrap().push(number);
                    let _ = ended.await;
                    Ok(number)
                }));
                RefCell::new(Some(end))
            })
            .collect();
        assert!(exchanges.next().now_or_never().is_none());
        assert_eq!(*polled.lock().unwrap(), [0, 1, 2]);
        for number in [1, 0, 2] {
            drop(ends[number].take());
            assert_eq!(exchanges.next().await.and_then(Result::ok), Some(number));
        }
        assert!(exchanges.is_empty());
    }
}
