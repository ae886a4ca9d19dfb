//! Ends of real TCP connections: a client that still sends must get the last response.

use tokio::net::TcpListener;

use super::*;

/// More than the system keeps for a connection that is not read.
const STILL_SENT: usize = 8 << 20;

/// Connects over TCP. The second value is the server's end.
async fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(client, listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

/// Sends `first` and a long rest, and only then reads.
async fn answer_to_a_client_that_sends_on(mut client: TcpStream, first: &[u8]) -> io::Result<String> {
    client.write_all(first).await?;
    // The server may close while this is in flight; a reset shows when the response is read.
    let _ = client.write_all(&vec![b'z'; STILL_SENT]).await;
    client.shutdown().await?;
    let mut text = String::new();
    client.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test]
async fn a_rejected_client_reads_why_although_it_sends_on() {
    let (client, stream) = tcp().await;
    let server = server(CancellationToken::new());
    let ended = tokio::spawn(async move { server.reject(stream, Rejection::TooManyConnections).await });
    let answer = answer_to_a_client_that_sends_on(client, CLAIM.as_bytes()).await.expect("no reset");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("too many connections"), "{answer}");
    timeout(LINGER / 2, ended).await.expect("the client has closed, and nothing is waited for").unwrap();
}

#[tokio::test]
async fn the_last_response_is_read_although_the_client_sends_on() {
    let fast = "GET /close HTTP/1.1\r\nhost: x\r\n\r\n";
    let by_library = "POST /close HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    for request in [fast, by_library] {
        let (client, stream) = tcp().await;
        let server = server(CancellationToken::new());
        let ended = tokio::spawn(async move { server.serve(stream).await });
        let answer = answer_to_a_client_that_sends_on(client, request.as_bytes()).await.expect("no reset");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("connection: close"), "{answer}");
        ended.await.unwrap();
    }
}

/// A stop closes connections without a delay, except if their clients have sent more.
#[tokio::test]
async fn a_stop_waits_only_for_clients_that_send_on() {
    for (further, lingers) in [("", false), (CLAIM, true)] {
        let (mut client, stream) = tcp().await;
        let stop = CancellationToken::new();
        let server = Arc::new(server(stop.clone()));
        let calls = server.service.calls.clone();
        let ended = tokio::spawn(async move { server.serve(stream).await });
        client.write_all(format!("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n{further}").as_bytes()).await.unwrap();
        while calls.load(Ordering::Relaxed) == 0 {
            yield_now().await;
        }
        stop.cancel();
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("no reset");
        assert!(text.contains("connection: close\r\n"), "{text}");
        // The client keeps its own side open.
        assert_eq!(timeout(LINGER / 2, ended).await.is_err(), lingers, "{further}");
    }
}
