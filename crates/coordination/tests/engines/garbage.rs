//! Servers that do not speak the protocol: silence, noise without end, huge messages, another protocol.

use std::time::Duration;

use oncegate_core::engine::conformance::{DEADLINE, fresh_claim};
use oncegate_core::engine::{Claims as _, Topology as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Cluster, engine, granted, serves_again};

/// What a server does with each connection.
#[derive(Clone, Copy, Debug)]
enum Garbage {
    /// Reads, and never answers.
    Silence,
    /// Closes at once.
    HangUp,
    /// Sends the same bytes without end.
    Noise(&'static [u8]),
    /// Answers this to each request.
    Answer(&'static [u8]),
}

const ALL: [Garbage; 8] = [
    Garbage::Silence,
    Garbage::HangUp,
    Garbage::Noise(b"\x00"),
    Garbage::Noise(b"\xff"),
    Garbage::Noise(b"noise"),
    Garbage::Answer(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"),
    // A message of two gigabytes, and a frame of HTTP/2 of the greatest length.
    Garbage::Answer(b"\x7f\xff\xff\xff"),
    Garbage::Answer(b"\xff\xff\xff\x00\x00\x00\x00\x00\x00"),
];

async fn serve(mut stream: TcpStream, garbage: Garbage) {
    let mut buffer = [0; 4096];
    match garbage {
        Garbage::Silence => while let Ok(1..) = stream.read(&mut buffer).await {},
        Garbage::HangUp => {}
        Garbage::Noise(bytes) => while stream.write_all(&bytes.repeat(4096)).await.is_ok() {},
        Garbage::Answer(bytes) => {
            while let Ok(1..) = stream.read(&mut buffer).await {
                if stream.write_all(bytes).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn start(garbage: Garbage) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, garbage));
        }
    });
    address.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sends_garbage_is_out_and_one_beside_it_serves() {
    let Some(cluster) = Cluster::start_one().await else { return };
    let url = cluster.url();
    let (scheme, good) = url.split_once("://").expect("a URL");
    for garbage in ALL {
        let bad = start(garbage).await;
        let alone = engine::open(&format!("{scheme}://{bad}"), engine::Options::default()).expect("a good URL");
        let answer = tokio::time::timeout(Duration::from_secs(30), alone.claim(&fresh_claim(), DEADLINE)).await;
        let refused = answer.expect("a call does not wait for it").expect_err("it grants nothing");
        assert!(refused.is_unavailable() && !refused.is_uncertain(), "{garbage:?}: {refused}");
        assert!(refused.reason().len() < 1000, "{garbage:?}: {refused}");
        assert!(alone.probe().await.is_err(), "{garbage:?}");
        let beside = format!("{scheme}://{bad},{good}?members=fixed");
        let beside = engine::open(&beside, engine::Options::default()).expect("a good URL");
        serves_again(&beside).await;
        granted(&beside, &fresh_claim()).await;
        tokio::join!(alone.close(), beside.close());
    }
}
