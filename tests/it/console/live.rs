//! Streams of changes: only for a live session, and only a limited number.

use std::time::Duration;

use oncegate_testkit::gateway::Gateway;
use oncegate_testkit::missing::faketime;
use oncegate_testkit::wait::until;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::actions::unknown;
use super::browser::{Browser, OWN, location};
use super::{operated, operators};

/// The last event of a stream whose session has ended.
const ENDED: &str = "data: ended\n\n";

pub(super) const SOON: Duration = Duration::from_mins(1);

/// An open stream, and what came so far.
pub(super) struct Stream {
    socket: TcpStream,
    pub(super) text: String,
}

impl Stream {
    /// Opens a stream with this cookie, and reads the head of the answer.
    pub(super) async fn open(gateway: &Gateway, cookie: &str) -> Self {
        let mut socket = TcpStream::connect(gateway.admin()).await.unwrap();
        let head = format!("GET /console/live HTTP/1.1\r\nhost: {}\r\ncookie: {cookie}\r\n\r\n", gateway.admin());
        socket.write_all(head.as_bytes()).await.unwrap();
        let mut stream = Self { socket, text: String::new() };
        stream.read_until("\r\n\r\n").await;
        stream
    }

    /// Reads until this text has come. Returns false if the stream ends before.
    async fn read_until(&mut self, text: &str) -> bool {
        self.read_while(|come| !come.contains(text)).await
    }

    /// Reads two more events or comments. The gateway has looked at the session between this call and the second one. Returns false if
    /// the stream ends before.
    async fn goes_on(&mut self) -> bool {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = self.socket.try_read(&mut bytes) {
            self.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        let count = |come: &str| come.matches("\n\n").count();
        let come = count(&self.text);
        self.read_while(|text| count(text) < come + 2).await
    }

    /// Reads while this is true of what has come. Returns false if the stream ends before.
    async fn read_while(&mut self, is_missing: impl Fn(&str) -> bool) -> bool {
        let read = async {
            while is_missing(&self.text) {
                let mut bytes = [0; 4096];
                match self.socket.read(&mut bytes).await {
                    Ok(count) if count > 0 => self.text.push_str(&String::from_utf8_lossy(&bytes[..count])),
                    _ => return false,
                }
            }
            true
        };
        tokio::time::timeout(SOON, read).await.unwrap_or_else(|_| panic!("something is missing in {:?}", self.text))
    }

    /// Reads to the end of the stream. Returns whether the last event reports that the session of the page is over.
    async fn ends_with_its_session(&mut self) -> bool {
        self.read_until("\r\n0\r\n\r\n").await && self.text.ends_with(&format!("{ENDED}\r\n0\r\n\r\n"))
    }

    pub(super) fn status(&self) -> &str {
        self.text.split(' ').nth(1).unwrap()
    }
}

#[tokio::test]
async fn a_stream_names_what_has_changed_and_ends_with_its_session() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let mut stranger = Stream::open(&gateway, "").await;
    assert!(stranger.read_until(ENDED).await, "a page without a session asks for a sign-in: {}", stranger.text);
    let (_, events) = stranger.text.split_once("\r\n\r\n").unwrap();
    assert_eq!(events, ENDED, "no other event");
    let mut stream = Stream::open(&gateway, &browser.cookie).await;
    assert!(stream.status() == "200" && stream.text.contains("text/event-stream"), "{}", stream.text);
    assert!(stream.read_until(": open").await);
    unknown(&gateway, &json!({ "order_id": "secret-order" })).await;
    assert!(stream.read_until("data: summary").await);
    let (_, events) = stream.text.split_once(": open").unwrap();
    assert!(!events.contains("secret-order") && !events.contains("default"), "names of regions only: {events}");
    gateway.configure(&operators(&["act"]));
    gateway.signal("HUP");
    assert!(stream.ends_with_its_session().await, "it ends with the token of its session: {}", stream.text);
}

#[tokio::test]
async fn the_streams_of_a_session_end_at_its_sign_out() {
    let gateway = operated().start().await;
    let (browser, other) = (Browser::signed_in(&gateway, "act").await, Browser::signed_in(&gateway, "act").await);
    let mut streams = [Stream::open(&gateway, &browser.cookie).await, Stream::open(&gateway, &browser.cookie).await];
    let mut of_other = Stream::open(&gateway, &other.cookie).await;
    let form_token = browser.form_token().await;
    browser.post("/console/sign-out", &[OWN], &format!("form_token={form_token}")).await.expect(303);
    for stream in &mut streams {
        assert!(stream.ends_with_its_session().await, "{}", stream.text);
    }
    unknown(&gateway, &json!(1)).await;
    assert!(of_other.read_until("data: summary").await && !of_other.text.contains(ENDED), "{}", of_other.text);
}

/// A gateway whose clocks a test sets, and their setting.
async fn with_clock() -> Option<(Gateway, tempfile::TempDir)> {
    let library = faketime()?;
    let folder = tempfile::tempdir().unwrap();
    forward(&folder, Duration::ZERO);
    let setup = operated().env("LD_PRELOAD", library.display()).env("FAKETIME_NO_CACHE", 1);
    let setup = setup.env("FAKETIME_TIMESTAMP_FILE", folder.path().join("clock").display());
    Some((setup.start().await, folder))
}

/// Sets the clocks to this time after the real one. The file is replaced, since the gateway reads it at any time.
fn forward(folder: &tempfile::TempDir, by: Duration) {
    let (next, clock) = (folder.path().join("next"), folder.path().join("clock"));
    std::fs::write(&next, format!("+{}", by.as_secs())).unwrap();
    std::fs::rename(next, clock).unwrap();
}

/// Returns the browser of a session with connections of its own. The gateway closes those that were idle when its clock is set.
fn anew(gateway: &Gateway, browser: &Browser) -> Browser {
    let mut anew = Browser::at(gateway);
    anew.cookie.clone_from(&browser.cookie);
    anew
}

#[tokio::test]
async fn a_stream_ends_half_an_hour_after_the_last_click() {
    let Some((gateway, clock)) = with_clock().await else { return };
    let browser = Browser::signed_in(&gateway, "view").await;
    let mut stream = Stream::open(&gateway, &browser.cookie).await;
    assert!(stream.read_until(": open").await);
    forward(&clock, Duration::from_mins(20));
    // The script of an open page is no click.
    anew(&gateway, &browser).send("GET", "/console/", &[("oncegate-live", "1")], "").await.expect(200);
    assert!(stream.goes_on().await && !stream.text.contains(ENDED), "{}", stream.text);
    forward(&clock, Duration::from_mins(31));
    assert!(stream.ends_with_its_session().await, "{}", stream.text);
    let page = anew(&gateway, &browser).get("/console/").await;
    assert_eq!((page.status, location(&page)), (303, "/console/sign-in?to=/console/&ended=1"));
}

#[tokio::test]
async fn a_stream_ends_twelve_hours_after_the_sign_in() {
    let Some((gateway, clock)) = with_clock().await else { return };
    let browser = Browser::signed_in(&gateway, "view").await;
    let mut stream = Stream::open(&gateway, &browser.cookie).await;
    for quarters in 1..48 {
        forward(&clock, Duration::from_mins(15) * quarters);
        anew(&gateway, &browser).get("/console/").await.expect(200);
    }
    assert!(stream.read_until(": open").await && !stream.text.contains(ENDED), "{}", stream.text);
    forward(&clock, Duration::from_hours(12));
    assert!(stream.ends_with_its_session().await, "{}", stream.text);
    assert_eq!(anew(&gateway, &browser).get("/console/").await.status, 303);
}

#[tokio::test]
async fn a_stream_ends_once_its_gateway_drains() {
    let gateway = operated().env("ONCEGATE_SERVER__DRAIN_DELAY", "1h").start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let mut stream = Stream::open(&gateway, &browser.cookie).await;
    assert!(stream.read_until(": open").await);
    gateway.signal("TERM");
    assert!(stream.read_until("\r\n0\r\n\r\n").await, "{}", stream.text);
}

#[tokio::test]
async fn a_fifth_stream_of_a_session_is_refused_until_another_one_ends() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(Stream::open(&gateway, &browser.cookie).await);
    }
    assert!(streams.iter().all(|stream| stream.status() == "200"));
    assert_eq!(Stream::open(&gateway, &browser.cookie).await.status(), "204");
    let other = Browser::signed_in(&gateway, "view").await;
    assert_eq!(Stream::open(&gateway, &other.cookie).await.status(), "200", "another session");
    streams.pop();
    let has_room = async || Stream::open(&gateway, &browser.cookie).await.status() == "200";
    until("a place is free", SOON, has_room).await;
}

#[tokio::test]
async fn a_page_that_its_script_loads_is_no_click() {
    let gateway = operated().start().await;
    let browser = Browser::signed_in(&gateway, "view").await;
    let live = browser.send("GET", "/console/", &[("oncegate-live", "1")], "").await.expect(200);
    assert!(
        live.text.contains("data-live=\"summary\"") && live.text.contains("data-live=\"waiting\""),
        "{}",
        live.text
    );
    let (_, rest) = live.text.split_once("<script src=\"").expect("a script");
    let script = Browser::at(&gateway).get(rest.split('"').next().unwrap()).await.expect(200);
    assert!(script.text.len() <= 4 << 10, "{}", script.text.len());
    assert_eq!(script.headers["content-type"], "text/javascript; charset=utf-8");
    for banned in ["innerHTML = ", "eval(", "http://", "https://", "document.write"] {
        assert!(!script.text.contains(banned), "{banned}");
    }
}
