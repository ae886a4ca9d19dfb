//! The calls of one worker that have not been sent.

use std::collections::VecDeque;

use oncegate_core::engine::Determinate;
use tokio::sync::mpsc;

use super::Call;

/// Calls that may wait; further callers wait for room.
pub(super) const CALLS_MAX: usize = 1024;

/// Calls that have not been sent, oldest first. They stay when a connection is lost, for the next one.
pub struct Queue<C> {
    /// Taken out of the channel, and older than all that is in it.
    waiting: VecDeque<C>,
    incoming: mpsc::Receiver<C>,
}

impl<C: Call> Queue<C> {
    pub(super) fn new(incoming: mpsc::Receiver<C>) -> Self {
        Self { waiting: VecDeque::new(), incoming }
    }

    /// Takes the oldest call.
    pub fn pop(&mut self) -> Option<C> {
        self.waiting.pop_front().or_else(|| self.incoming.try_recv().ok())
    }

    /// Returns how many calls wait.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.incoming.len()
    }

    /// Returns whether no call waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the calls that have come up to now, to choose from.
    pub fn arrived(&mut self) -> &mut VecDeque<C> {
        while self.waiting.len() < CALLS_MAX {
            let Ok(call) = self.incoming.try_recv() else { break };
            self.waiting.push_back(call);
        }
        &mut self.waiting
    }

    /// Returns the calls that had come when [`Queue::arrived`] was last called, and were not taken.
    pub fn left(&mut self) -> &mut VecDeque<C> {
        &mut self.waiting
    }

    /// Waits for a call; false if no caller is left.
    pub(super) async fn has_call(&mut self) -> bool {
        if self.waiting.is_empty() {
            let Some(call) = self.incoming.recv().await else { return false };
            self.waiting.push_back(call);
        }
        true
    }

    /// Waits for calls and refuses them, for as long as there are callers.
    pub(super) async fn refuse_all(&mut self, why: &Determinate) {
        self.refuse_waiting(why);
        while let Some(call) = self.incoming.recv().await {
            call.refuse(why);
        }
    }

    pub(super) fn refuse_waiting(&mut self, why: &Determinate) {
        self.waiting.drain(..).for_each(|call| call.refuse(why));
    }

    /// Takes no more calls.
    pub(super) fn close(&mut self) {
        self.incoming.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbered(usize, mpsc::UnboundedSender<usize>);

    impl Call for Numbered {
        fn refuse(self, _: &Determinate) {
            self.1.send(self.0).unwrap();
        }
    }

    #[tokio::test]
    async fn calls_are_taken_in_order_whether_they_were_looked_at_or_not() {
        let (caller, incoming) = mpsc::channel(CALLS_MAX + 10);
        let (refuser, mut answered) = mpsc::unbounded_channel();
        let mut queue = Queue::new(incoming);
        assert!(queue.is_empty() && queue.pop().is_none());
        for number in 0..CALLS_MAX + 2 {
            caller.try_send(Numbered(number, refuser.clone())).unwrap();
        }
        assert!(queue.has_call().await && !queue.is_empty());
        assert_eq!((queue.left().len(), queue.len()), (1, CALLS_MAX + 2));
        assert_eq!(queue.arrived().len(), CALLS_MAX, "no more are chosen from");
        assert_eq!(queue.pop().unwrap().0, 0);
        queue.refuse_waiting(&Determinate::Unavailable("down".into()));
        assert_eq!((1..CALLS_MAX).find(|number| answered.try_recv() != Ok(*number)), None);
        assert_eq!((queue.left().len(), queue.len()), (0, 2));
        assert_eq!((queue.pop().unwrap().0, queue.pop().unwrap().0), (CALLS_MAX, CALLS_MAX + 1));
        assert!(queue.is_empty());
        queue.close();
        assert!(!queue.has_call().await);
    }
}
