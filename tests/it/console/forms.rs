//! Requests that the console accepts: its own forms, at its own names.

use oncegate_testkit::gateway::Gateway;

use super::browser::{Browser, OWN, location};
use super::{ROLES, operated, token};

const ORIGIN: &str = "https://og-a.ops.example";

/// Signs out with these header fields and this form token, and returns the status and whether the session has ended.
async fn sign_out(gateway: &Gateway, fields: &[(&str, &str)], form_token: Option<&str>) -> (u16, bool) {
    let browser = Browser::signed_in(gateway, "act").await;
    let own = browser.form_token().await;
    let form = format!("form_token={}", form_token.unwrap_or(&own));
    let answer = browser.post("/console/sign-out", fields, &form).await;
    (answer.status, browser.get("/console/").await.status == 303)
}

#[tokio::test]
async fn forms_of_other_pages_are_refused() {
    let gateway = operated().start().await;
    let (own, beside) = (format!("http://{}", gateway.admin()), "http://127.0.0.1:1");
    assert_eq!(sign_out(&gateway, &[OWN], None).await, (303, true));
    assert_eq!(sign_out(&gateway, &[OWN, ("origin", "null")], None).await, (303, true), "as browsers send it");
    assert_eq!(sign_out(&gateway, &[("origin", &own)], None).await, (303, true), "an older browser");
    let earlier = Browser::signed_in(&gateway, "act").await.form_token().await;
    assert_eq!(sign_out(&gateway, &[OWN], Some(&earlier)).await, (303, false), "the form of another session");
    for fields in [
        &[][..],
        &[("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")],
        &[("sec-fetch-site", "same-site"), ("origin", beside)],
        &[("sec-fetch-site", "same-site"), ("origin", &own)],
        &[("sec-fetch-site", "none")],
        &[("origin", "null")],
        &[("origin", beside)],
        &[("origin", "https://evil.example")],
    ] {
        assert_eq!(sign_out(&gateway, fields, None).await, (403, false), "{fields:?}");
        let sign_in = Browser::at(&gateway).post("/console/sign-in", fields, &format!("token={}", token("act"))).await;
        assert!(sign_in.status == 403 && !sign_in.headers.contains_key("set-cookie"), "{fields:?}");
    }
    let browser = Browser::signed_in(&gateway, "act").await;
    let form = format!("form_token={}", browser.form_token().await);
    for (method, path) in [("GET", "/console/sign-out"), ("PUT", "/console/sign-out"), ("POST", "/console/")] {
        let answer = browser.send(method, path, &[OWN], &form).await;
        assert!([404, 405].contains(&answer.status), "{method} {path}: {}", answer.status);
    }
    let json = [OWN, ("content-type", "application/json")];
    assert_eq!(browser.send("POST", "/console/sign-out", &json, &form).await.status, 415);
    let long = format!("{form}&x={}", "x".repeat(129 << 10));
    assert_eq!(browser.post("/console/sign-out", &[OWN], &long).await.status, 413);
    assert_eq!(browser.get("/console/").await.status, 200, "nothing has ended it");
}

#[tokio::test]
async fn it_answers_to_loopback_and_to_its_own_name_only() {
    let gateway = operated().config(&format!("[console]\norigin = \"{ORIGIN}\"\n")).start().await;
    let at =
        async |host: &str| Browser::at(&gateway).send("GET", "/console/sign-in", &[("host", host)], "").await.status;
    for host in ["og-a.ops.example", "og-a.ops.example:443", "localhost:1", "[::1]"] {
        assert_eq!(at(host).await, 200, "{host}");
    }
    for host in ["evil.example", "og-a.ops.example:8443", "og-b.ops.example", "127.0.0.1.example"] {
        assert_eq!(at(host).await, 400, "{host}");
    }
    let named = [OWN, ("host", "og-a.ops.example")];
    let answer = Browser::at(&gateway).post("/console/sign-in", &named, &format!("token={}", token("act"))).await;
    let field = answer.headers["set-cookie"].to_str().unwrap();
    assert!(
        field.starts_with("__Host-oncegate-") && field.ends_with("; Path=/; Secure; HttpOnly; SameSite=Strict"),
        "{field}"
    );
    let from = |origin| [("host", "og-a.ops.example"), ("origin", origin)];
    for (origin, status) in [(ORIGIN, 303), ("http://og-a.ops.example", 403), ("https://og-a.ops.example:8443", 403)] {
        let form = format!("token={}", token("act"));
        assert_eq!(
            Browser::at(&gateway).post("/console/sign-in", &from(origin), &form).await.status,
            status,
            "{origin}"
        );
    }
    let metrics = Browser::at(&gateway).send("GET", "/metrics", &[("host", "og-a.ops.example")], "").await;
    assert_eq!(metrics.status, 400, "the rest of the listener stays on loopback");
}

#[tokio::test]
async fn neither_interface_takes_the_credential_of_the_other() {
    let gateway = operated().start().await;
    for role in ROLES {
        let browser = Browser::signed_in(&gateway, role).await;
        assert_eq!(browser.get("/admin/v1/chains").await.status, 401, "the cookie is none of the admin API");
        let bearer = format!("Bearer {}", token(role));
        let answer = Browser::at(&gateway).send("GET", "/console/", &[("authorization", &bearer)], "").await;
        assert_eq!((answer.status, location(&answer)), (303, "/console/sign-in?to=/console/"));
    }
}
