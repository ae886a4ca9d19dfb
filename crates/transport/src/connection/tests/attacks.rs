//! Hostile clients.

use tokio::io::ReadHalf;

use super::*;

/// A stored result may contain the text of a refusal. It is passed on unchanged, wherever the writes are split.
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

/// A response before a refusal is written to its end, however slowly the client reads.
#[tokio::test(start_paused = true)]
async fn a_refusal_waits_for_the_responses_before_it() {
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

/// Readers that take a line feed alone, or sizes of any length, find another end of such a body, and other requests after it.
#[tokio::test(start_paused = true)]
async fn nothing_is_answered_after_a_body_that_is_not_chunked_correctly() {
    let two_framings =
        "POST /b HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    let length = two_framings.len();
    let hidden = format!("POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{two_framings}");
    let head = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";
    for end in ["0\r\n\n", "0\r\nx: a\n\r\n", "00000000000000000\r\n\r\n"] {
        for after in [SHORT, two_framings, &hidden] {
            let sent = [head, end, after, SHORT].concat();
            for by_library_alone in [false, true] {
                for pieces in [&[sent.as_bytes()][..], &sent.as_bytes().chunks(7).collect::<Vec<_>>()] {
                    let (answers, is_closed) = answers(pieces, by_library_alone).await;
                    let is_only = answers.len() == 1 && answers[0].ends_with("broken off");
                    assert!(is_only && is_closed, "{end:?} {after:?}: {answers:?}");
                }
            }
        }
    }
}

/// A client that sends many requests and reads nothing, the end of its connection, and the timeout of a response.
struct Unread {
    client: ReadHalf<DuplexStream>,
    ended: JoinHandle<()>,
    calls: Arc<AtomicU32>,
    time: Duration,
}

async fn unread(request: &str, by_library_alone: bool) -> Unread {
    let server = Arc::new(server(CancellationToken::new()));
    let (client, ended) = connect_to(&server, by_library_alone, 64);
    let (client, mut outgoing) = tokio::io::split(client);
    let requests = request.repeat(100);
    let mut sends = tokio::spawn(async move { drop(outgoing.write_all(requests.as_bytes()).await) });
    // By then nothing moves any more.
    let _ = timeout(Duration::from_secs(1), &mut sends).await;
    Unread { client, ended, calls: server.service.calls.clone(), time: server.limits.write_timeout }
}

const SHORT: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_disconnected() {
    for (request, by_library_alone) in [(SHORT, false), (SHORT, true), ("no HTTP\r\n\r\n", false)] {
        let Unread { client: _client, ended, time, .. } = unread(request, by_library_alone).await;
        timeout(time, ended).await.expect("it is disconnected").unwrap();
    }
}

/// A byte now and then is no progress: the timeout is for the whole response.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_byte_by_byte_is_disconnected() {
    for by_library_alone in [false, true] {
        let Unread { mut client, ended, time, .. } = unread(SHORT, by_library_alone).await;
        let dribble = async {
            loop {
                let _ = client.read_u8().await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            ended = timeout(time, ended) => ended.expect("it is disconnected").unwrap(),
            () = dribble => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_within_the_timeout_is_answered() {
    for by_library_alone in [false, true] {
        let Unread { mut client, time, .. } = unread(SHORT, by_library_alone).await;
        for _ in 0..3 {
            tokio::time::sleep(time * 4 / 5).await;
            client.read_exact(&mut [0; 200]).await.unwrap();
        }
    }
}

/// Of several unread responses only the first one takes memory, also if they have no body.
#[tokio::test(start_paused = true)]
async fn no_response_is_created_before_the_previous_one_is_read() {
    for request in [SHORT, "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", "GET /empty HTTP/1.1\r\nhost: x\r\n\r\n"] {
        for by_library_alone in [false, true] {
            let unread = unread(request, by_library_alone).await;
            let calls = unread.calls.load(Ordering::Relaxed);
            assert!(calls <= 2, "{calls} answers to {request}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_unread_responses_cost_the_oldest_connection() {
    let limits = Limits { unread_bytes: 1000, ..limits() };
    let server = Arc::new(ConnectionServer::new(None, Echo::default(), limits, CancellationToken::new()));
    let request = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{}", "z".repeat(500));
    for by_library_alone in [false, true] {
        let mut kept = Vec::new();
        for _ in 0..3 {
            let (mut client, ended) = connect_to(&server, by_library_alone, 64);
            client.write_all(request.as_bytes()).await.unwrap();
            kept.push((client, ended));
        }
        let (_client, newest) = kept.pop().unwrap();
        for (_, ended) in &mut kept {
            timeout(Duration::from_secs(1), ended).await.expect("it is disconnected at once").unwrap();
        }
        assert!(!newest.is_finished());
        newest.abort();
    }
}
