//! Sessions: their start, their cookie, and their end.

use std::sync::Arc;
use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::wait::until;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::browser::{Browser, OWN, location};
use super::{operated, operators, token};
use crate::support::exposition::Page;
use crate::support::gateway;

const FAILURES: &str = "oncegate_authentication_failures_total";

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn nothing_is_shown_before_the_sign_in() {
    let gateway = operated().start().await;
    let stranger = Browser::at(&gateway);
    for path in ["/console/", "/console/attention?kind=double", "/console/nothing"] {
        let answer = stranger.get(path).await;
        assert_eq!(answer.status, 303, "{path}");
        assert!(location(&answer).starts_with("/console/sign-in?to="), "{}", location(&answer));
    }
    let form = stranger.get("/console/sign-in?to=%2Fconsole%2Fattention").await.expect(200);
    for shown in [env!("CARGO_PKG_VERSION"), "memory", "default"] {
        assert!(!form.text.contains(shown), "{shown} in {}", form.text);
    }
    for (asked, led) in [
        ("/console/attention", "/console/attention"),
        ("https://evil.example/", "/console/"),
        ("//evil.example/", "/console/"),
        ("/console//evil.example", "/console/"),
        ("/console/%5C", "/console/"),
    ] {
        let answer = Browser::at(&gateway).sign_in(&token("view"), asked).await;
        assert_eq!(location(&answer), led, "{asked}");
    }
    let root = stranger.send("GET", "/", &[("accept", "text/html,*/*")], "").await;
    assert_eq!((root.status, location(&root)), (303, "/console/"));
    assert_eq!(stranger.get("/").await.status, 404, "for scripts");
}

#[tokio::test]
async fn a_link_on_another_site_loads_itself_once_so_that_the_cookie_comes() {
    let gateway = operated().start().await;
    let stranger = Browser::at(&gateway);
    let linked = [("sec-fetch-site", "cross-site")];
    let first = stranger.send("GET", "/console/attention?kind=double", &linked, "").await.expect(200);
    let to = "/console/attention?kind=double&amp;reloaded=1";
    assert!(first.text.contains(&format!("content=\"0; url={to}\"")), "{}", first.text);
    let second = stranger.send("GET", &to.replace("&amp;", "&"), &linked, "").await;
    assert_eq!((second.status, location(&second)), (303, "/console/sign-in?to=/console/attention%3Fkind%3Ddouble"));
}

#[tokio::test]
async fn a_session_has_a_strict_cookie_and_ends_at_the_sign_out() {
    let gateway = operated().start().await;
    let mut browser = Browser::at(&gateway);
    let fixed = format!("{}={}", "oncegate-00000000", "0".repeat(64));
    browser.cookie.clone_from(&fixed);
    let answer = browser.sign_in(&token("act"), "/console/").await.expect(303);
    let field = answer.headers["set-cookie"].to_str().unwrap();
    let (pair, attributes) = field.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict", "plain loopback");
    let (name, id) = pair.split_once('=').unwrap();
    assert!(name.starts_with("oncegate-") && name.len() == "oncegate-01234567".len(), "{name}");
    assert!(id.len() == 64 && !fixed.contains(id), "a new ID");
    let page = browser.get("/console/").await.expect(200);
    assert!(page.text.contains("Nothing needs you"), "{}", page.text);
    for (field, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(page.headers[field], value);
    }
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    for part in ["default-src 'none'", "frame-ancestors 'none'", "form-action 'self'", "trusted-types 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    // Another sign-in ends the session that was there.
    let (first, second) = (browser.cookie.clone(), browser.sign_in(&token("act"), "/console/").await.expect(303));
    assert!(second.headers.contains_key("set-cookie") && browser.cookie != first);
    let mut earlier = Browser::at(&gateway);
    earlier.cookie = first;
    let ended = earlier.get("/console/").await;
    assert_eq!((ended.status, location(&ended)), (303, "/console/sign-in?to=/console/&ended=1"));
    let form_token = browser.form_token().await;
    let out = browser.post("/console/sign-out", &[OWN], &format!("form_token={form_token}")).await.expect(303);
    assert!(out.headers["set-cookie"].to_str().unwrap().ends_with("; Max-Age=0"));
    assert_eq!(browser.get("/console/").await.status, 303, "the ID is of no use any more");
    let operator = gateway.admin_client().with_credential(&token("view"));
    let is_noted = async || {
        let trail = operator.get("/admin/v1/audit").await.expect(200);
        let entries = trail.body["entries"].as_array().unwrap().clone();
        assert!(entries.iter().all(|entry| entry["via"] == "console" && entry["who"] == "act"), "{entries:?}");
        let actions: Vec<_> = entries.iter().map(|entry| entry["action"].as_str().unwrap().to_owned()).collect();
        actions == ["session.end", "session.begin", "session.begin"]
    };
    until("the sign-ins are in the audit trail", SOON, is_noted).await;
}

#[tokio::test]
async fn a_session_ends_when_its_token_is_removed_or_changed() {
    let gateway = operated().start().await;
    let (viewer, actor) = (Browser::signed_in(&gateway, "view").await, Browser::signed_in(&gateway, "act").await);
    gateway.configure(&operators(&["act"]));
    gateway.signal("HUP");
    until("the session of the removed token has ended", SOON, async || viewer.get("/console/").await.status == 303)
        .await;
    assert_eq!(actor.get("/console/").await.status, 200, "its token stays");
    gateway.configure(&operators(&["act"]).replace("role = \"act\"", "role = \"view\""));
    gateway.signal("HUP");
    until("the session of another role has ended", SOON, async || actor.get("/console/").await.status == 303).await;
}

#[tokio::test]
async fn the_65th_session_ends_the_one_that_was_idle_for_the_longest_time() {
    let names: Vec<String> = (0..9).map(|number| format!("operator-{number}")).collect();
    let everyone: Vec<&str> = names.iter().map(String::as_str).collect();
    let tokens = everyone
        .iter()
        .fold(operators(&everyone), |lines, name| lines.replace(&format!("role = \"{name}\""), "role = \"view\""));
    let gateway = gateway::on_memory().config(&tokens).start().await;
    let mut browsers = Vec::new();
    for name in &names[..8] {
        for _ in 0..8 {
            browsers.push(Browser::signed_in(&gateway, name).await);
        }
    }
    let newest = Browser::signed_in(&gateway, &names[8]).await;
    assert_eq!(browsers[0].get("/console/").await.status, 303);
    for browser in browsers.iter().skip(1).chain([&newest]) {
        assert_eq!(browser.get("/console/").await.status, 200);
    }
    let _ninth = Browser::signed_in(&gateway, &names[7]).await;
    assert_eq!(browsers[56].get("/console/").await.status, 303, "8 of one token");
    assert_eq!(browsers[57].get("/console/").await.status, 200);
}

#[tokio::test]
async fn without_tokens_there_is_a_page_that_says_how_to_make_one() {
    let gateway = gateway::on_memory().start().await;
    for path in ["/console/", "/console/sign-in", "/console/attention"] {
        let page = Browser::at(&gateway).get(path).await.expect(403);
        assert!(
            page.text.contains("oncegate admin-token new alice\noncegate admin-token new bob --role view"),
            "{}",
            page.text
        );
        assert!(!page.text.contains(env!("CARGO_PKG_VERSION")));
    }
    let disabled = operated().config("[console]\nenabled = false\n").start().await;
    for path in ["/console/", "/console/sign-in"] {
        assert_eq!(disabled.admin_client().page("GET", path, &[], "").await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn wrong_tokens_are_throttled_and_sessions_are_not() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    for _ in 0..20 {
        let answer = Browser::at(&gateway).sign_in("wrong_token_0123456789abcdef", "/console/").await.expect(401);
        assert!(!answer.headers.contains_key("set-cookie") && answer.text.contains("does not know this token"));
        assert_eq!(browser.get("/console/").await.status, 200);
    }
    // Above its rate, the throttle of the admin API delays everything that it counts.
    let counted = Page::get(&gateway.admin_client()).await.sum(FAILURES, &[]);
    assert_eq!(counted, 20);
}

/// Sends wrong tokens, each on its own connection. A delayed answer closes the connection.
fn guesses(gateway: &Arc<Gateway>, count: usize) -> JoinSet<bool> {
    let guess = |_| {
        let gateway = gateway.clone();
        async move {
            let answer = Browser::at(&gateway).sign_in("wrong_token_0123456789abcdef", "/console/").await.expect(401);
            answer.headers.get("connection").is_some_and(|field| field == "close")
        }
    };
    (0..count).map(guess).collect()
}

#[tokio::test]
async fn sign_ins_above_the_rate_are_delayed_and_pages_are_not() {
    let gateway = Arc::new(operated().start().await);
    let browser = Browser::signed_in(&gateway, "view").await;
    let is_delayed = async || guesses(&gateway, 100).join_all().await.contains(&true);
    until("answers to wrong tokens are delayed", Duration::from_mins(2), is_delayed).await;
    // Those that are delayed take a second, and a page does not.
    let is_page_faster = async || {
        let mut guesses = guesses(&gateway, 20);
        assert_eq!(browser.get("/console/").await.status, 200);
        while guesses.try_join_next().is_some() {}
        let left = guesses.join_all().await;
        !left.is_empty() && !left.contains(&false)
    };
    until("a page comes before the delayed answers", Duration::from_mins(2), is_page_faster).await;
}

#[tokio::test]
async fn forms_of_strangers_that_do_not_end_take_no_place_of_an_operator() {
    let gateway = operated().start().await;
    let (browser, stranger) = (Browser::signed_in(&gateway, "view").await, Browser::at(&gateway));
    let head = format!(
        "POST /console/sign-in HTTP/1.1\r\nhost: {}\r\nsec-fetch-site: same-origin\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: 100\r\n\r\ntoken=",
        gateway.admin()
    );
    let mut open = Vec::new();
    until("strangers have all their places", SOON, async || {
        let mut socket = TcpStream::connect(gateway.admin()).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        open.push(socket);
        stranger.get("/console/sign-in").await.status == 503
    })
    .await;
    assert_eq!(browser.get("/console/").await.status, 200);
}

#[tokio::test]
async fn no_token_session_or_contents_is_in_log_trail_or_history() {
    let gateway = operated().env("ONCEGATE_LOG__LEVEL", "trace").start().await;
    let browser = Browser::signed_in(&gateway, "act").await;
    gateway.client().claim(serde_json::json!({ "order_id": "secret-order" })).await.expect(201);
    browser.get("/console/").await.expect(200);
    browser.get("/console/attention").await.expect(200);
    Browser::at(&gateway).sign_in("wrong_token_0123456789abcdef", "/console/").await.expect(401);
    gateway.logged("session.begin", 1).await;
    let (log, trail) =
        (gateway.log(), std::fs::read_to_string(gateway.data_dir().join("audit.jsonl")).unwrap_or_default());
    let id = browser.cookie.split_once('=').unwrap().1;
    let form_token = browser.form_token().await;
    gateway.signal("TERM");
    let file = gateway.data_dir().join("history");
    until("the history is written at the end", Duration::from_mins(1), async || file.exists()).await;
    let history = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
    for secret in [&token("act"), id, &form_token, "secret-order", "wrong_token"] {
        assert!(!log.contains(secret) && !trail.contains(secret) && !history.contains(secret), "{secret}");
    }
}
