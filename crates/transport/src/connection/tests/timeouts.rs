//! Timeouts over the life of a connection: its first request, those after it, and the time between them.

use super::*;

/// Time that a request may take beyond its timeout: the fast path waits for the rest of it before the library does.
const MARGIN: Duration = Duration::from_millis(200);

/// A connection to a server whose timeouts are 10 s for a head and a minute between requests.
fn connection(by_library_alone: bool) -> DuplexStream {
    connect(by_library_alone, &CancellationToken::new())
}

/// Sends the rest of a request and reads its answer.
async fn finish(client: &mut DuplexStream, rest: &[u8]) {
    client.write_all(rest).await.unwrap();
    let mut read = Vec::new();
    while !read.ends_with(b"{\"contents\":1}") {
        assert!(client.read_buf(&mut read).await.unwrap() > 0, "closed: {}", read.escape_ascii());
    }
}

/// Panics unless the connection is closed after this time, counted from now.
async fn assert_closed_after(client: &mut DuplexStream, expected: Duration) {
    let closed = async { while client.read_buf(&mut Vec::new()).await.is_ok_and(|read| read > 0) {} };
    let mut closed = std::pin::pin!(closed);
    assert!(timeout(expected * 49 / 50, &mut closed).await.is_err(), "closed too early");
    timeout(2 * MARGIN, closed).await.expect("closed in time");
}

const HEAD: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn a_later_head_that_does_not_end_is_closed_after_the_head_timeout() {
    for by_library_alone in [false, true] {
        for requests_before in [0, 1, 3] {
            let mut client = connection(by_library_alone);
            for _ in 0..requests_before {
                finish(&mut client, CLAIM.as_bytes()).await;
                tokio::time::sleep(HEAD * 3).await;
            }
            client.write_all(&CLAIM.as_bytes()[..20]).await.unwrap();
            assert_closed_after(&mut client, HEAD).await;
        }
    }
}

/// The timeout is for the head as a whole.
#[tokio::test(start_paused = true)]
async fn a_later_head_that_dribbles_is_closed_after_the_head_timeout() {
    for by_library_alone in [false, true] {
        let (mut client, mut dribble) = tokio::io::split(connection(by_library_alone));
        dribble.write_all(CLAIM.as_bytes()).await.unwrap();
        assert!(client.read(&mut [0; 1024]).await.unwrap() > 0);
        tokio::time::sleep(HEAD * 2).await;
        let dribbling = async {
            for byte in CLAIM.as_bytes() {
                let _ = dribble.write_all(&[*byte]).await;
                tokio::time::sleep(HEAD / 8).await;
            }
        };
        let closed = async { while client.read_buf(&mut Vec::new()).await.is_ok_and(|read| read > 0) {} };
        tokio::select! {
            closed = timeout(HEAD + MARGIN, closed) => closed.expect("closed in time"),
            () = dribbling => panic!("all of it was taken"),
        }
    }
}

/// Each head has all of its time, however much of it the heads before have taken.
#[tokio::test(start_paused = true)]
async fn every_head_that_comes_in_pieces_within_the_head_timeout_is_answered() {
    for by_library_alone in [false, true] {
        let mut client = connection(by_library_alone);
        for pause in [HEAD * 9 / 10, HEAD / 2, HEAD * 9 / 10] {
            for _ in 0..3 {
                let (first, second) = CLAIM.as_bytes().split_at(20);
                client.write_all(first).await.unwrap();
                tokio::time::sleep(pause).await;
                finish(&mut client, second).await;
            }
            tokio::time::sleep(HEAD * 2).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_idle_from_its_last_request_on() {
    for by_library_alone in [false, true] {
        let mut client = connection(by_library_alone);
        for pause in [9, 5, 9, 1, 9, 9].map(|tenths| IDLE * tenths / 10) {
            finish(&mut client, CLAIM.as_bytes()).await;
            tokio::time::sleep(pause).await;
        }
        finish(&mut client, CLAIM.as_bytes()).await;
        let closed = async { while client.read_buf(&mut Vec::new()).await.is_ok_and(|read| read > 0) {} };
        let mut closed = std::pin::pin!(closed);
        assert!(timeout(IDLE * 49 / 50, &mut closed).await.is_err(), "closed too early");
        timeout(IDLE / 4 + IDLE / 40, closed).await.expect("closed in time");
    }
}

/// A connection with a request in service counts as in use for any time.
#[tokio::test(start_paused = true)]
async fn a_request_in_service_for_longer_than_the_idle_timeout_is_answered() {
    let idle = Duration::from_millis(300);
    let limits = Limits { idle_timeout: idle, ..limits() };
    let server = Arc::new(ConnectionServer::new(None, Echo::default(), limits, CancellationToken::new()));
    for by_library_alone in [false, true] {
        let (mut client, _served) = connect_to(&server, by_library_alone, 1 << 20);
        for _ in 0..2 {
            client.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            let mut answer = [0; 1024];
            let read = client.read(&mut answer).await.unwrap();
            assert!(answer[..read].starts_with(b"HTTP/1.1 200 OK\r\n"));
            tokio::time::sleep(idle * 9 / 10).await;
        }
    }
}
