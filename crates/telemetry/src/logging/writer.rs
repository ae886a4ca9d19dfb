//! Writer that never blocks its callers: lines go into a bounded buffer, and a thread writes them. Lines that do not
//! fit are dropped and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Pause before a retry on a non-blocking descriptor that is full.
const WOULD_BLOCK_PAUSE: Duration = Duration::from_millis(10);

/// Capacity that the writer thread keeps between two batches of lines.
const KEPT_BYTES: usize = 16 << 10;

/// Sending side of the buffer; cheap to clone.
#[derive(Clone)]
pub(super) struct LineWriter(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Notified when there are lines to write.
    filled: Condvar,
    /// Notified when all lines have been written.
    emptied: Condvar,
    capacity: usize,
    dropped: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Lines that wait for the writer thread.
    lines: Vec<u8>,
    count: u64,
    /// True if the thread is writing lines that are no longer in `lines`.
    is_writing: bool,
}

impl LineWriter {
    /// Starts the thread that writes to `out`. Up to `capacity` bytes of lines wait, and as many are being written.
    pub(super) fn start(out: impl Write + Send + 'static, capacity: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            capacity,
            dropped: AtomicU64::new(0),
        });
        let writer = Self(shared.clone());
        thread::Builder::new().name("log".into()).spawn(move || shared.write_to(out))?;
        Ok(writer)
    }

    /// Adds a line if it fits into this percentage of the capacity; otherwise drops and counts it.
    pub(super) fn push(&self, line: &[u8], percent: usize) {
        let mut state = self.0.state();
        if state.lines.len() + line.len() > self.0.capacity / 100 * percent {
            drop(state);
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.lines.extend_from_slice(line);
        state.count += 1;
        let is_idle = !state.is_writing;
        drop(state);
        if is_idle {
            self.0.filled.notify_one();
        }
    }

    /// Returns the number of lines dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Reports whether at least half of the buffer is free.
    pub(super) fn has_space(&self) -> bool {
        self.0.state().lines.len() <= self.0.capacity / 2
    }

    /// Waits until all lines are written, up to a timeout. Returns whether they are.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let is_busy = |state: &mut State| state.is_writing || !state.lines.is_empty();
        let waited = self.0.emptied.wait_timeout_while(self.0.state(), timeout, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut out: impl Write) {
        let mut lines = Vec::new();
        loop {
            let mut state = self.state();
            state.is_writing = false;
            if state.lines.is_empty() {
                self.emptied.notify_all();
                let waited = self.filled.wait_while(state, |state| state.lines.is_empty());
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::swap(&mut lines, &mut state.lines);
            let count = std::mem::take(&mut state.count);
            state.is_writing = true;
            drop(state);
            if write_all(&mut out, &lines).is_err() {
                // The other end is closed. Some of the lines may have been written.
                self.dropped.fetch_add(count, Ordering::Relaxed);
            }
            lines.clear();
            lines.shrink_to(KEPT_BYTES);
        }
    }
}

/// Like [`Write::write_all`], but waits if the descriptor is in non-blocking mode.
fn write_all(out: &mut impl Write, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match out.write(text) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => text = text.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(WOULD_BLOCK_PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    /// Pipe whose reader reads one write for each message that it receives, and returns all that was written.
    struct Pipe {
        permits: mpsc::Receiver<()>,
        written: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Pipe {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.permits.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            let _ = self.written.send(text.to_vec());
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (Pipe, mpsc::Sender<()>, mpsc::Receiver<Vec<u8>>) {
        let (permit, permits) = mpsc::channel();
        let (written, seen) = mpsc::channel();
        (Pipe { permits, written }, permit, seen)
    }

    /// Waits until the thread has taken all lines out of the buffer.
    fn until_taken(writer: &LineWriter) {
        while !writer.0.state().lines.is_empty() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_blocked_writer_keeps_the_first_lines_and_counts_the_others() {
        let (out, permit, seen) = pipe();
        let writer = LineWriter::start(out, 400).unwrap();
        writer.push(b"first\n", 100);
        until_taken(&writer);
        for _ in 0..1000 {
            writer.push(b"12345678\n", 100);
        }
        assert_eq!(writer.dropped(), 1000 - 400 / 9);
        assert!(!writer.has_space());
        assert!(!writer.flush(SHORT), "the timeout ends the flush");

        permit.send(()).unwrap();
        permit.send(()).unwrap();
        assert!(writer.flush(LONG));
        assert!(writer.has_space());
        let text: Vec<u8> = seen.try_iter().flatten().collect();
        assert_eq!(text, [b"first\n".as_slice(), &b"12345678\n".repeat(44)].concat(), "whole lines, in order");
    }

    #[test]
    fn less_important_lines_leave_space_for_others() {
        let (out, _permit, _seen) = pipe();
        let writer = LineWriter::start(out, 100).unwrap();
        writer.push(b"x", 100);
        until_taken(&writer);
        for _ in 0..100 {
            writer.push(b"less important", 50);
        }
        assert_eq!(writer.dropped(), 100 - 3);
        writer.push(b"important", 100);
        assert_eq!(writer.dropped(), 100 - 3);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (out, permit, _seen) = pipe();
        let writer = LineWriter::start(out, 100).unwrap();
        drop(permit);
        writer.push(b"lost\n", 100);
        assert!(writer.flush(LONG));
        assert_eq!(writer.dropped(), 1);
    }
}
