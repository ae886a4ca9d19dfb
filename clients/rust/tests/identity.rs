//! A gateway that grants another identity than the client computes: nothing runs, and the claim is released.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_client::{ClaimItem, Claimed, Client, Error, Once, OnceError, Options, WorkError, contents};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Global ID that the gateway computes. The client's ID has the app of its credential.
const THEIRS: &str = "00000000000000000000000000000bad";

type Seen = Arc<Mutex<Vec<String>>>;

async fn serve(connection: TcpStream, seen: Seen) -> std::io::Result<()> {
    let mut stream = BufReader::new(connection);
    loop {
        let (mut request, mut length) = (String::new(), 0);
        if stream.read_line(&mut request).await? == 0 {
            return Ok(());
        }
        loop {
            let mut field = String::new();
            stream.read_line(&mut field).await?;
            match field.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().expect("a length"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let grant = format!(r#"{{"status":201,"global_id":"{THEIRS}","attempt":"1-a","lease_ms":30000}}"#);
        let (status, answer) = if request.contains("/outcome") {
            let body = String::from_utf8(body).expect("text");
            let outcome = if body.contains(r#""outcome":"failure""#) { "failure" } else { "another outcome" };
            let path = request.split(' ').nth(1).expect("a path");
            seen.lock().expect("no panic").push(format!("{outcome} {path}"));
            (200, format!(r#"{{"global_id":"{THEIRS}","state":"released"}}"#))
        } else if request.contains("/batch") {
            (200, format!(r#"{{"items":[{grant}]}}"#))
        } else {
            (201, grant)
        };
        let head = format!("HTTP/1.1 {status} Scripted\r\ncontent-type: application/json\r\ncontent-length: ");
        stream.write_all(format!("{head}{}\r\n\r\n{answer}", answer.len()).as_bytes()).await?;
    }
}

async fn gateway() -> (Client, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let seen = Seen::default();
    let answers = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(serve(connection, Arc::clone(&answers)));
        }
    });
    let options = Options::default().credential("shop.c2VjcmV0X29mX3RoZV92ZWN0b3Jz");
    (Client::new([url], options).expect("a client"), seen)
}

fn is_differing(error: &Error) -> bool {
    matches!(error, Error::Rejected(rejected) if rejected.code == "identity_differs" && rejected.detail.contains(THEIRS))
}

async fn released(seen: &Seen) {
    let expected = format!("failure /v1/claims/{THEIRS}/outcome");
    let reported = async {
        while seen.lock().expect("no panic").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reported).await.expect("it is released");
    assert_eq!(*seen.lock().expect("no panic"), [expected]);
}

#[tokio::test]
async fn work_does_not_run_under_another_identity() {
    let (client, seen) = gateway().await;
    let ran =
        client.once("order.submit", contents! {"id" => "A-1"}, async |_| Ok::<_, WorkError>("ran".to_owned())).await;
    match ran {
        Err(OnceError::Call { error, result: None }) => assert!(is_differing(&error), "{error}"),
        Ok(Once::Done(_)) => panic!("the work ran"),
        other => panic!("{other:?}"),
    }
    released(&seen).await;
}

#[tokio::test]
async fn no_call_hands_out_a_grant_of_another_identity() {
    let (client, seen) = gateway().await;
    let claimed: Result<Claimed, Error> = client.claim("order.submit", "A-1").await;
    assert!(is_differing(&claimed.expect_err("no grant")));
    released(&seen).await;
    seen.lock().expect("no panic").clear();
    let items = client.claim_batch(vec![ClaimItem::new("order.submit", "A-1")]).await.expect("an answer");
    assert!(items.iter().all(|item| item.as_ref().is_err_and(is_differing)), "{items:?}");
    released(&seen).await;
}
