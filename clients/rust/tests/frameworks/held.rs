//! A response passes as the handler sends it; what makes it complete waits for the answer to its outcome.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_client::{FOREVER, Options};

use crate::gateway::Gateway;
use crate::services::{ALL, Caller, Shop, WHOLE};

/// What a caller has of a path before the outcome is recorded, if it has the head.
const BEFORE: [(&str, Option<&str>); 3] =
    [("/whole", None), ("/declared", Some("onetwo")), ("/streamed", Some("onetwothree"))];

#[tokio::test]
async fn what_completes_a_response_waits_for_the_answer_to_its_outcome() {
    for framework in ALL {
        for (path, before) in BEFORE {
            let gateway = Gateway::holding().await;
            let address = framework.serve(&Shop::default(), gateway.client(Options::default()), None).await;
            let mut caller = Caller::begin(address, path, "k", None, b"");
            gateway.until_reported().await;
            if let Some(before) = before {
                caller.until("the earlier pieces", |received| received.text.starts_with(before)).await;
            }
            // That nothing follows is no condition that can be awaited.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let received = caller.received();
            let got = received.status.map(|_| &*received.text);
            assert_eq!((got, received.is_complete), (before, false), "{framework:?} {path}");
            gateway.answer();
            assert_eq!(caller.complete().await.text, WHOLE, "{framework:?} {path}");
            assert_eq!(gateway.outcomes().len(), 1, "{framework:?} {path}");
        }
    }
}

#[tokio::test]
async fn a_response_waits_no_longer_than_settle_within() {
    for framework in ALL {
        for (path, _) in BEFORE {
            let names = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&names);
            let options = Options::default().timeout(Duration::from_millis(200)).settle_within(FOREVER);
            let options = options.on_event(move |event| seen.lock().expect("a test").push(event.name));
            let gateway = Gateway::holding().await;
            let within = Some(Duration::from_millis(300));
            let address = framework.serve(&Shop::default(), gateway.client(options), within).await;
            let answer = Caller::begin(address, path, "k", None, b"").complete().await;
            assert_eq!((answer.status, &*answer.text), (Some(200), WHOLE), "{framework:?} {path}");
            let names = names.lock().expect("a test");
            assert!(names.contains(&"not_settled"), "{framework:?} {path}: {names:?}");
            assert!(!gateway.outcomes().is_empty(), "{framework:?} {path}");
        }
    }
}
