//! `WebSockets` through the proxy, byte for byte: the handshake as a request, then all bytes of both sides.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{SOON, address, framing, start};

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                      sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// A server that answers a handshake with this, and then returns all received bytes. Its first request is returned,
/// too.
async fn echo(answer: &'static str) -> (u16, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (seen, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let head = read_head(&mut stream).await;
            let _ = seen.send(head.to_lowercase());
            stream.write_all(answer.as_bytes()).await.unwrap();
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    (port, requests)
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

fn handshake(method: &str, protocol: &str) -> String {
    format!(
        "{method} /orders/a HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: {protocol}\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
}

async fn open(gateway: &Gateway) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(address(gateway)).await.unwrap();
    socket.write_all(handshake("GET", "WebSocket").as_bytes()).await.unwrap();
    let head = tokio::time::timeout(SOON, read_head(&mut socket)).await.unwrap().to_lowercase();
    (socket, head)
}

async fn in_front_of(port: u16, of_upstream: &str, more: &str) -> Gateway {
    start("", &format!("urls = [\"http://127.0.0.1:{port}\"]\n{of_upstream}"), more).await.0
}

async fn is_closed(socket: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(SOON, socket.read(&mut [0; 16])).await.expect("the proxy closes");
    read.is_err() || read.is_ok_and(|count| count == 0)
}

#[tokio::test]
async fn a_websocket_passes_in_both_directions_until_one_side_closes() {
    let (port, mut requests) = echo(SWITCH).await;
    // A request waits for less than the socket is open.
    let limits = "[limits]\nidle_timeout = \"2s\"\nheader_read_timeout = \"2s\"\n";
    let gateway = in_front_of(port, "timeout = \"2s\"\n", limits).await;
    let (mut socket, head) = open(&gateway).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for field in ["connection: upgrade", "upgrade: websocket", "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="] {
        assert!(head.contains(field), "{field}: {head}");
    }
    let request = requests.recv().await.unwrap();
    for field in ["connection: upgrade", "upgrade: websocket", "sec-websocket-key: ", "via: 1.1 oncegate-"] {
        assert!(request.contains(field), "{field}: {request}");
    }
    for message in ["first", "second"] {
        socket.write_all(message.as_bytes()).await.unwrap();
        let mut answer = vec![0; message.len()];
        tokio::time::timeout(SOON, socket.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, message.as_bytes());
        tokio::time::sleep(Duration::from_millis(2500)).await;
    }
    socket.shutdown().await.unwrap();
    assert!(is_closed(&mut socket).await);
}

#[tokio::test]
async fn a_silent_websocket_and_those_of_a_gateway_that_stops_are_closed() {
    let (port, _requests) = echo(SWITCH).await;
    let gateway = in_front_of(port, "websocket_idle = \"1s\"\n", "").await;
    let (mut silent, _) = open(&gateway).await;
    assert!(is_closed(&mut silent).await);
    let mut gateway = in_front_of(port, "", "").await;
    let (mut socket, _) = open(&gateway).await;
    gateway.signal("TERM");
    assert!(is_closed(&mut socket).await);
    assert!(gateway.ended().await.success());
}

/// An open WebSocket takes two file descriptors. Callers without a credential could take all of them.
#[tokio::test]
async fn open_websockets_are_bounded() {
    let (port, _requests) = echo(SWITCH).await;
    let gateway = in_front_of(port, "websockets = 2\n", "").await;
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let (socket, head) = open(&gateway).await;
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        sockets.push(socket);
    }
    let (_refused, head) = open(&gateway).await;
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    sockets.pop().unwrap().shutdown().await.unwrap();
    until("one that has closed leaves room", SOON, async || open(&gateway).await.1.starts_with("http/1.1 101 ")).await;
}

#[tokio::test]
async fn other_protocols_are_not_switched_to() {
    let (port, mut requests) =
        echo("HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let gateway = in_front_of(port, "", "").await;
    for (method, protocol) in [("GET", "h2c"), ("GET", "websocket, h2c"), ("PUT", "websocket")] {
        let answer = framing::exchange(&address(&gateway), &handshake(method, protocol)).await;
        assert!(answer.starts_with("HTTP/1.1 426"), "{method} {protocol}: {answer}");
        let request = requests.recv().await.unwrap();
        assert!(!request.contains("upgrade"), "{method} {protocol}: {request}");
    }
    // An offer in HTTP/1.0, and one that `Connection` does not name, are none.
    let whole = handshake("GET", "websocket");
    for (from, to) in [("HTTP/1.1", "HTTP/1.0"), ("connection: keep-alive, Upgrade", "connection: keep-alive")] {
        let answer = framing::exchange(&address(&gateway), &whole.replace(from, to)).await;
        assert!(answer.contains(" 426"), "{to}: {answer}");
        assert!(!requests.recv().await.unwrap().contains("upgrade"), "{to}");
    }
    // On a protected route.
    let answer = framing::exchange(&address(&gateway), &handshake("POST", "websocket")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(requests.try_recv().is_err());
    // An upstream that switches without being asked, or to something else.
    for (protocol, asked) in [("websocket", "h2c"), ("h2c", "websocket")] {
        let switch =
            if protocol == "h2c" { "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" } else { SWITCH };
        let (port, _requests) = echo(switch).await;
        let gateway = in_front_of(port, "", "").await;
        let answer = framing::exchange(&address(&gateway), &handshake("GET", asked)).await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{protocol}: {answer}");
    }
}

#[tokio::test]
async fn what_cannot_be_replayed_is_refused_with_a_key() {
    let (port, mut requests) = echo(SWITCH).await;
    let gateway = in_front_of(port, "", "").await;
    let keyed = "authorization: alice\r\nidempotency-key: k-1\r\n";
    let switch = handshake("POST", "websocket").replace("host: a\r\n", &format!("host: a\r\n{keyed}"));
    let call = |media: &str| {
        format!("POST /orders/a HTTP/1.1\r\nhost: a\r\n{keyed}content-type: {media}\r\ncontent-length: 3\r\n\r\none")
    };
    for request in [switch, call("application/grpc"), call("Application/gRPC+proto")] {
        let answer = framing::exchange(&address(&gateway), &request).await;
        assert!(answer.starts_with("HTTP/1.1 501") && answer.contains("not_supported"), "{request}: {answer}");
    }
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn a_handshake_that_is_not_whole_or_not_answered_opens_no_tunnel() {
    let (port, mut requests) = echo(SWITCH).await;
    let gateway = in_front_of(port, "", "").await;
    let whole = handshake("GET", "websocket");
    for (from, to) in [
        ("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
        ("dGhlIHNhbXBsZSBub25jZQ==", "short"),
        ("sec-websocket-version: 13\r\n", ""),
        ("version: 13", "version: 8"),
    ] {
        let answer = framing::exchange(&address(&gateway), &whole.replace(from, to)).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{from}: {answer}");
    }
    assert!(requests.try_recv().is_err());
    for accept in ["sec-websocket-accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n", ""] {
        let switch = SWITCH.replace("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n", accept);
        let (port, _requests) = echo(switch.leak()).await;
        let gateway = in_front_of(port, "", "").await;
        let answer = framing::exchange(&address(&gateway), &whole).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("connection: close"), "{accept}: {answer}");
    }
}
