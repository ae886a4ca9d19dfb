//! A network that takes time, between a gateway and its store: a TCP proxy that delays each direction, in order.
//!
//! A thread for each direction of each connection, since the timer of the asynchronous runtime has a resolution of a
//! millisecond. What has arrived waits in a queue until its time has come; a full queue stops the sender.

use std::{
    collections::VecDeque,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::report;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// Bytes on the way in one direction, as in a large TCP window.
const WINDOW: usize = 8 << 20;

/// Latest wake-up after the time asked for, in nanoseconds. The system's default is 50 µs.
const SLACK: Option<NonZeroU64> = NonZeroU64::new(1);

/// Forwards connections in threads until the process ends.
pub(crate) fn serve(listen: SocketAddr, to: SocketAddr, round_trip: Duration) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    thread::spawn(move || forward_all(&listener, to, round_trip / 2));
    Ok(())
}

fn forward_all(listener: &TcpListener, to: SocketAddr, delay: Duration) {
    for near in listener.incoming().map_while(Result::ok) {
        thread::spawn(move || {
            if let Err(error) = forward(near, to, delay) {
                report::say(&format!("network: {error:#}"));
            }
        });
    }
}

/// Forwards a connection, one direction in this thread.
fn forward(near: TcpStream, to: SocketAddr, delay: Duration) -> anyhow::Result<()> {
    let far = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, far_read) = (near.try_clone()?, far.try_clone()?);
    thread::spawn(move || carry(far_read, near, delay));
    carry(near_read, far, delay);
    Ok(())
}

/// Bytes on their way, each with the time of its arrival; nothing stands for the end.
struct Line {
    pieces: VecDeque<(Instant, Option<Vec<u8>>)>,
    bytes: usize,
    /// True if the sender has closed its side.
    ended: bool,
}

/// Carries bytes in one direction, until one side has closed it and all has arrived.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    // Without it, a piece arrives some microseconds later.
    let _ = rustix::thread::set_current_timer_slack(SLACK);
    let mut line = Line { pieces: VecDeque::new(), bytes: 0, ended: false };
    let mut buffer = vec![0; PIECE];
    loop {
        while line.pieces.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let Some((_, Some(piece))) = line.pieces.pop_front() else {
                // Fails only if the other side has closed both directions.
                let _ = to.shutdown(Shutdown::Write);
                return;
            };
            line.bytes -= piece.len();
            if to.write_all(&piece).is_err() {
                // The sender must see that there is no receiver.
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
        }
        if !is_readable(&from, &line) {
            continue;
        }
        let read = from.read(&mut buffer).unwrap_or(0);
        line.ended = read == 0;
        line.bytes += read;
        line.pieces.push_back((Instant::now() + delay, (read > 0).then(|| buffer[..read].to_vec())));
    }
}

/// Waits until there is something to read and room for it, or until the first piece on the way is due.
fn is_readable(from: &TcpStream, line: &Line) -> bool {
    let wait = line.pieces.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
    if line.ended || line.bytes >= WINDOW {
        // Neither can be without a piece on the way.
        thread::sleep(wait.unwrap_or_default());
        return false;
    }
    let wait = wait.and_then(|wait| Timespec::try_from(wait).ok());
    let mut polled = [PollFd::new(from, PollFlags::IN)];
    // An interrupted call is repeated by the loop.
    poll(&mut polled, wait.as_ref()).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(20);

    /// Starts a network to this address.
    fn network_to(to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("no listener");
        let address = listener.local_addr().expect("no address");
        thread::spawn(move || forward_all(&listener, to, ROUND_TRIP / 2));
        address
    }

    /// Starts a server that returns what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("no listener");
        let address = listener.local_addr().expect("no address");
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut from = stream.try_clone().expect("no second handle");
                    let _ = std::io::copy(&mut from, &mut &stream);
                    let _ = stream.shutdown(Shutdown::Write);
                });
            }
        });
        address
    }

    #[test]
    fn an_answer_takes_a_round_trip() {
        let mut stream = TcpStream::connect(network_to(echo())).expect("no connection");
        for _ in 0..5 {
            let sent = Instant::now();
            stream.write_all(b"ping").expect("not sent");
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).expect("no answer");
            let took = sent.elapsed();
            assert!(took >= ROUND_TRIP, "an answer took {took:?}");
            assert_eq!(&answer, b"ping");
        }
    }

    #[test]
    fn all_bytes_arrive_in_order_and_then_the_end() {
        let stream = TcpStream::connect(network_to(echo())).expect("no connection");
        let bytes: Vec<u8> = (0..4 * WINDOW).map(|at| u8::try_from(at % 251).unwrap_or(0)).collect();
        let (mut sender, sent) = (stream.try_clone().expect("no second handle"), bytes.clone());
        thread::spawn(move || {
            sender.write_all(&sent).expect("not sent");
            sender.shutdown(Shutdown::Write).expect("not closed");
        });
        let mut received = Vec::new();
        (&stream).read_to_end(&mut received).expect("not received");
        assert!(received == bytes, "{} of {} bytes arrived, or in another order", received.len(), bytes.len());
    }

    #[test]
    fn requests_that_follow_each_other_wait_once() {
        let stream = TcpStream::connect(network_to(echo())).expect("no connection");
        let started = Instant::now();
        let mut sender = stream.try_clone().expect("no second handle");
        let count = 1000;
        thread::spawn(move || {
            for _ in 0..count {
                sender.write_all(&[7]).expect("not sent");
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut received = vec![0; count];
        (&stream).read_exact(&mut received).expect("not received");
        let took = started.elapsed();
        // One after the other they would take 20 s.
        assert!(took < Duration::from_secs(15), "{count} bytes took {took:?}: they waited for each other");
    }
}
