//! Services that stream their responses, and may leave a body unread.

use super::*;

/// Reads the bodies of requests to `/read` only.
#[derive(Clone)]
struct Streaming;

impl HttpService for Streaming {
    const STREAMS: bool = true;

    type Connection = ();

    async fn call(&self, request: Request<Incoming>, _connection: &Arc<()>) -> Response {
        if request.uri().path() == "/read" {
            axum::body::to_bytes(Body::new(request.into_body()), usize::MAX).await.unwrap();
        }
        Response::new(Body::from("answered"))
    }

    fn reject(&self, _: Rejection) -> Response {
        refusal(StatusCode::BAD_REQUEST, "rejected")
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_announces_the_end_of_the_connection_if_its_request_is_left_unread() {
    for (path, closes) in [("/read", false), ("/", true)] {
        let (mut client, stream) = duplex(1 << 16);
        let server = ConnectionServer::new(None, Streaming, limits(), CancellationToken::new());
        tokio::spawn(async move {
            server.serve_http(stream, Peer { address: ([127, 0, 0, 1], 1).into(), certificate: None }).await;
        });
        let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n12345");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"answered") {
            assert!(client.read_buf(&mut read).await.unwrap() > 0, "{}", read.escape_ascii());
        }
        let text = String::from_utf8(read).unwrap();
        assert_eq!(text.contains("connection: close\r\n"), closes, "{text}");
    }
}
