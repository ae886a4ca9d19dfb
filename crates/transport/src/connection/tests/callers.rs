//! Services that want to know whether their caller is still there.

use std::sync::atomic::AtomicBool;

use tokio::sync::mpsc;

use super::*;
use crate::caller_watch::CallerWatch;
use crate::service::ConnectionState;

/// Answers once its caller has disconnected, or after a second, and reports which of the two happened.
#[derive(Clone)]
struct Waiting(mpsc::UnboundedSender<bool>);

#[derive(Default)]
struct Watched(CallerWatch);

impl ConnectionState for Watched {
    fn account(&self) -> Option<Arc<str>> {
        None
    }

    fn caller(&self) -> Option<&CallerWatch> {
        Some(&self.0)
    }
}

impl HttpService for Waiting {
    type Connection = Watched;

    async fn call(&self, request: Request<Incoming>, connection: &Arc<Watched>) -> Response {
        drop(request);
        let has_gone = timeout(Duration::from_secs(1), connection.0.gone()).await.is_ok();
        self.0.send(has_gone).unwrap();
        Response::new(Body::from("waited"))
    }

    fn reject(&self, _: Rejection) -> Response {
        refusal(StatusCode::BAD_REQUEST, "rejected")
    }
}

/// A request for the fast path, and one that only the library reads.
const REQUESTS: [&str; 2] = [
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
];

fn connect() -> (DuplexStream, mpsc::UnboundedReceiver<bool>) {
    let (client, stream) = duplex(1 << 16);
    let (report, reports) = mpsc::unbounded_channel();
    let server = ConnectionServer::new(None, Waiting(report), limits(), CancellationToken::new());
    tokio::spawn(async move {
        server.serve_http(stream, Peer { address: ([127, 0, 0, 1], 1).into(), certificate: None }).await;
    });
    (client, reports)
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_ends_its_side_is_noticed_while_it_is_waited_for() {
    for request in REQUESTS {
        let (mut client, mut reports) = connect();
        client.write_all(request.as_bytes()).await.unwrap();
        assert!(timeout(Duration::from_millis(500), reports.recv()).await.is_err(), "{request:?}: it is there");
        client.shutdown().await.unwrap();
        assert_eq!(timeout(Duration::from_millis(100), reports.recv()).await, Ok(Some(true)), "{request:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_stays_or_sends_its_next_request_is_there() {
    for request in REQUESTS {
        let (mut client, mut reports) = connect();
        client.write_all(request.repeat(2).as_bytes()).await.unwrap();
        assert_eq!((reports.recv().await, reports.recv().await), (Some(false), Some(false)), "{request:?}");
        let mut read = Vec::new();
        while !(read.ends_with(b"waited") && split(&read).len() == 2) {
            assert!(client.read_buf(&mut read).await.unwrap() > 0, "{}", read.escape_ascii());
        }
    }
}

/// Its next requests are read ahead, and answered one after another.
#[tokio::test(start_paused = true)]
async fn a_caller_that_sends_its_next_request_while_it_waits_is_there() {
    for request in REQUESTS {
        let (mut client, mut reports) = connect();
        client.write_all(request.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.write_all(request.as_bytes()).await.unwrap();
        assert_eq!((reports.recv().await, reports.recv().await), (Some(false), Some(false)), "{request:?}");
    }
}

/// Reading ahead has a price, so it ends with the wish to know.
#[tokio::test]
async fn the_watch_is_wanted_only_while_it_is_awaited() {
    let (watch, was_wanted) = (CallerWatch::default(), AtomicBool::new(false));
    assert!(!watch.is_wanted());
    tokio::select! {
        biased;
        () = watch.gone() => panic!("the caller is there"),
        () = async { was_wanted.store(watch.is_wanted(), Ordering::Relaxed) } => {}
    }
    assert!(was_wanted.into_inner() && !watch.is_wanted());
    watch.note_gone();
    watch.gone().await;
}
