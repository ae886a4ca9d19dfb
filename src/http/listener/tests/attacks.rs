//! What a hostile client does to a connection.

use tokio::io::ReadHalf;

use super::*;

/// A result that a caller stored may hold what looks like a refusal. Wherever the writes are cut, it passes as it is.
#[tokio::test(start_paused = true)]
async fn a_body_that_looks_like_a_refusal_is_passed_on() {
    let bytes = ECHO.len();
    let length = format!("content-length: {bytes}\r\n\r\n{ECHO}");
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{bytes:x}\r\n{ECHO}\r\n0\r\n\r\n");
    for framing in [length, chunked] {
        let sent = [format!("POST / HTTP/1.1\r\nhost: x\r\n{framing}").as_bytes(), CLAIM.as_bytes()].concat();
        for by_library_alone in [false, true] {
            let whole = through(&sent, by_library_alone, 1 << 20).await;
            assert!(whole.0.len() == 2 && whole.0[0].ends_with(ECHO), "{whole:?}");
            for room in 1..500 {
                assert_eq!(through(&sent, by_library_alone, room).await, whole, "{room} bytes at once");
            }
        }
    }
}

/// An answer before a refusal is written to its end, however slowly it is read.
#[tokio::test(start_paused = true)]
async fn a_refusal_waits_for_the_answers_before_it() {
    let expects = "POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc";
    let head = "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n";
    for before in [[CLAIM, CLAIM], [expects, CLAIM], [head, expects], [expects, head]] {
        let sent = [&before.concat(), "no HTTP\r\n\r\n"].concat();
        for by_library_alone in [false, true] {
            let whole = through(sent.as_bytes(), by_library_alone, 1 << 20).await;
            assert!(whole.1 && whole.0.concat().contains("could not be read as HTTP/1.1"), "{whole:?}");
            for room in [1, 2, 7, 60, 150, 200, 300] {
                assert_eq!(through(sent.as_bytes(), by_library_alone, room).await, whole, "{room} bytes at once");
            }
        }
    }
}

/// A client that sends many requests and has not read yet, its connection's end, and the time that an answer has.
struct Unread {
    client: ReadHalf<DuplexStream>,
    served: JoinHandle<()>,
    calls: Arc<AtomicU32>,
    time: Duration,
}

async fn unread(request: &str, by_library_alone: bool) -> Unread {
    let host = Arc::new(host(CancellationToken::new()));
    let (client, served) = connect_to(&host, by_library_alone, 64);
    let (client, mut outgoing) = tokio::io::split(client);
    let requests = request.repeat(100);
    let mut sends = tokio::spawn(async move { drop(outgoing.write_all(requests.as_bytes()).await) });
    // All comes to rest meanwhile.
    let _ = timeout(Duration::from_secs(1), &mut sends).await;
    Unread { client, served, calls: host.service.calls.clone(), time: host.timeouts.write }
}

const SHORT: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_let_go() {
    for (request, by_library_alone) in [(SHORT, false), (SHORT, true), ("no HTTP\r\n\r\n", false)] {
        let Unread { client: _client, served, time, .. } = unread(request, by_library_alone).await;
        timeout(time, served).await.expect("it is let go").unwrap();
    }
}

/// A byte now and then is no progress: an answer has its time as a whole.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_byte_by_byte_is_let_go() {
    for by_library_alone in [false, true] {
        let Unread { mut client, served, time, .. } = unread(SHORT, by_library_alone).await;
        let dribble = async {
            loop {
                let _ = client.read_u8().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            ended = timeout(time, served) => ended.expect("it is let go").unwrap(),
            () = dribble => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_its_time_is_answered() {
    for by_library_alone in [false, true] {
        let Unread { mut client, time, .. } = unread(SHORT, by_library_alone).await;
        for _ in 0..3 {
            tokio::time::sleep(time * 4 / 5).await;
            client.read_exact(&mut [0; 200]).await.unwrap();
        }
    }
}

/// Answers of which nothing is read take no memory but the first one's, also those without a body.
#[tokio::test(start_paused = true)]
async fn no_answer_is_made_before_the_one_before_is_read() {
    for request in [SHORT, "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", "GET /empty HTTP/1.1\r\nhost: x\r\n\r\n"] {
        for by_library_alone in [false, true] {
            let unread = unread(request, by_library_alone).await;
            let calls = unread.calls.load(Ordering::Relaxed);
            assert!(calls <= 2, "{calls} answers to {request}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_unread_answers_cost_the_oldest() {
    let limits = Limits { unread_answer_bytes: 1000, ..Limits::default() };
    let host = Arc::new(Host::new(None, Echo::default(), limits, CancellationToken::new()));
    let request = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{}", "z".repeat(500));
    for by_library_alone in [false, true] {
        let mut kept = Vec::new();
        for _ in 0..3 {
            let (mut client, served) = connect_to(&host, by_library_alone, 64);
            client.write_all(request.as_bytes()).await.unwrap();
            kept.push((client, served));
        }
        let (_client, newest) = kept.pop().unwrap();
        for (_, served) in &mut kept {
            timeout(Duration::from_secs(1), served).await.expect("it is let go at once").unwrap();
        }
        assert!(!newest.is_finished());
        newest.abort();
    }
}
