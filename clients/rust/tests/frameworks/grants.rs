//! Grants that are not as a handler expects: of an outage policy, and of another identity.

use oncegate_client::Options;
use serde_json::json;

use crate::gateway::Gateway;
use crate::services::{ALL, Shop, post};

#[tokio::test]
async fn an_answer_of_an_outage_policy_is_named() {
    for framework in ALL {
        for policy in ["local", "fail_open"] {
            let gateway = Gateway::start(201, json!({ "degraded": policy })).await;
            let shop = Shop::default();
            let address = framework.serve(&shop, gateway.client(Options::default()), None).await;
            for (number, path) in ["/whole", "/declared", "/streamed"].into_iter().enumerate() {
                let answer = post(address, path, "k").await;
                let got = (answer.status, answer.field("oncegate-degraded"), answer.is_replay(), shop.runs());
                assert_eq!(got, (Some(200), Some(policy), false, number + 1), "{framework:?} {path}");
            }
            let repeated = json!({ "code": "duplicate", "state": "in_progress", "degraded": policy });
            let gateway = Gateway::start(409, repeated).await;
            let address = framework.serve(&shop, gateway.client(Options::default()), None).await;
            let answer = post(address, "/whole", "k").await;
            let got = (answer.status, answer.field("oncegate-degraded"), shop.runs());
            assert_eq!(got, (Some(409), Some(policy), 3), "{framework:?}");
        }
        let gateway = Gateway::start(201, json!({})).await;
        let address = framework.serve(&Shop::default(), gateway.client(Options::default()), None).await;
        assert_eq!(post(address, "/whole", "k").await.field("oncegate-degraded"), None, "{framework:?}");
    }
}

#[tokio::test]
async fn a_grant_of_another_identity_is_released_and_nothing_runs() {
    let other = "0123456789abcdef0123456789abcdef";
    for framework in ALL {
        let gateway = Gateway::start(201, json!({ "global_id": other })).await;
        let shop = Shop::default();
        let address = framework.serve(&shop, gateway.client(Options::default()), None).await;
        let answer = post(address, "/whole", "k").await;
        assert_eq!((answer.status, &*answer.code()), (Some(500), "identity_differs"), "{framework:?} {}", answer.text);
        assert_eq!(answer.field("content-type"), Some("application/problem+json"), "{framework:?}");
        assert_eq!(shop.runs(), 0, "{framework:?}");
        let outcomes = gateway.outcomes();
        let [(id, outcome)] = &outcomes[..] else { panic!("{framework:?}: {outcomes:?}") };
        assert_eq!((&**id, &outcome["outcome"], &outcome["attempt"]), (other, &json!("failure"), &json!("1-a")));
    }
}
