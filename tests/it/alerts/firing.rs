//! Alerts that a real Prometheus fires on real gateways, and the notifications of an Alertmanager with the shipped
//! configuration.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use oncegate_testkit::redis_server::RedisServer;
use oncegate_testkit::tcp_proxy::TcpProxy;
use oncegate_testkit::wait::until;
use oncegate_testkit::{fresh, missing};
use serde_json::Value;
use tempfile::TempDir;

use super::{SOON, fast_rules, is_firing};
use crate::support::caller::{self, caller};
use crate::support::gateway;
use crate::support::prometheus::Prometheus;

const ALERTMANAGER: &str = include_str!("../../../deploy/prometheus/alertmanager.yml");

/// Alerts on a store that has stopped. Only the first one pages: it inhibits the others.
const OF_A_STORE: [&str; 4] =
    ["OncegateEngineDown", "OncegateBreakerOpen", "OncegateClaimsUnanswered", "OncegateDegradedAnswers"];

/// A running Alertmanager; killed on drop.
struct Alertmanager {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Alertmanager {
    /// Starts one with the shipped configuration, whose receivers are here. `None`, loudly, where none is installed.
    fn start(receiver: SocketAddr) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder for the server");
        let config =
            ALERTMANAGER.replace("127.0.0.1:9099", &receiver.to_string()).replace("group_wait: 30s", "group_wait: 5s");
        let file = folder.path().join("alertmanager.yml");
        std::fs::write(&file, config).expect("the configuration is written");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fresh::port()));
        let start = |program: &str| {
            let mut command = Command::new(program);
            command.arg(format!("--config.file={}", file.display()));
            command.arg(format!("--storage.path={}", folder.path().join("data").display()));
            command.arg(format!("--web.listen-address={address}")).arg("--cluster.listen-address=");
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        let Ok(child) = start("alertmanager").or_else(|_| start("prometheus-alertmanager")) else {
            missing::skip("prometheus-alertmanager");
            return None;
        };
        Some(Self { child, address, _folder: folder })
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Notifications of firing alerts: path of the receiver, and names of the alerts.
type Notifications = Arc<Mutex<Vec<(String, Vec<String>)>>>;

/// Receives notifications on a thread that lives as long as the test's process.
fn receiver() -> (SocketAddr, Notifications) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let notifications = Notifications::default();
    let list = notifications.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().expect("a connection"));
            let (mut path, mut length) = (String::new(), 0);
            for line in reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
                if let Some(rest) = line.strip_prefix("POST ") {
                    rest.split(' ').next().unwrap_or_default().clone_into(&mut path);
                }
                let line = line.to_ascii_lowercase();
                if let Some(bytes) = line.strip_prefix("content-length:") {
                    length = bytes.trim().parse().expect("a length");
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let body: Value = serde_json::from_slice(&body).expect("JSON");
            if body["status"] == "firing" {
                let alerts = body["alerts"].as_array().expect("alerts");
                let name = |alert: &Value| alert["labels"]["alertname"].as_str().expect("a name").to_owned();
                list.lock().expect("no panic").push((path, alerts.iter().map(name).collect()));
            }
        }
    });
    (address, notifications)
}

#[tokio::test]
async fn one_stopped_store_pages_once_and_other_alerts_fire_on_their_causes() {
    let Some(server) = RedisServer::start().await else { return };
    let (address, notifications) = receiver();
    let Some(alertmanager) = Alertmanager::start(address) else { return };
    let mut proxy = TcpProxy::start(server.address()).await;
    let config = [
        &format!("[engines]\nprimary = \"redis://{}\"\n", proxy.address()),
        &caller::app("shop"),
        &caller::app("mails"),
        "[apps.mails.on_outage]\nclaim = \"fail_open\"\n",
        &caller::app("nightly"),
        "[apps.nightly.quota]\nrequests_per_second = 1\n",
    ]
    .concat();
    let one = gateway::on_configured().config(&config).start().await;
    let other = gateway::on_configured().config(&config).start().await;
    let targets = [one.admin(), other.admin()];
    let Some(prometheus) = Prometheus::start_with_rules(&targets, &fast_rules(), Some(alertmanager.address)).await
    else {
        return;
    };
    let shops = [caller(&one, "shop"), caller(&other, "shop")];
    let mails = caller(&one, "mails");

    // What callers do.
    until("claims are granted", SOON, async || shops[1].claim(fresh::contents()).await.status == 201).await;
    let contents = fresh::contents();
    let granted = shops[0].claim(contents.clone()).await.expect(201);
    shops[0].settle(&granted, "unknown").await.expect(200);
    shops[0].claim(contents).await.expect(409);
    let nightly = caller(&one, "nightly");
    for alert in ["OncegateUnknownClaims", "OncegateQuotaExceeded"] {
        until(alert, SOON, async || {
            nightly.claim(fresh::contents()).await;
            nightly.claim(fresh::contents()).await;
            is_firing(&prometheus, alert)
        })
        .await;
    }
    for alert in OF_A_STORE {
        assert!(!is_firing(&prometheus, alert), "{alert} fires at healthy gateways");
    }

    // The store stops for both gateways.
    proxy.refuse().await;
    proxy.drop_connections();
    for alert in OF_A_STORE {
        until(alert, SOON, async || {
            for shop in &shops {
                shop.claim(fresh::contents()).await;
            }
            mails.claim(fresh::contents()).await;
            is_firing(&prometheus, alert)
        })
        .await;
    }
    let pages = || {
        let notifications = notifications.lock().expect("no panic");
        let pages = notifications.iter().filter(|(path, _)| path == "/pager");
        pages.map(|(_, alerts)| alerts.clone()).collect::<Vec<_>>()
    };
    until("a page", SOON, async || !pages().is_empty()).await;

    // It comes back, and the state after the outage does not page either.
    proxy.heal().await;
    until("all is well", SOON, async || !OF_A_STORE.iter().any(|alert| is_firing(&prometheus, alert))).await;
    let pages = pages();
    assert_eq!(pages.len(), 1, "{pages:?}");
    assert!(pages[0].iter().all(|alert| alert == "OncegateEngineDown"), "{pages:?}");

    // One gateway ends, then all.
    drop(other);
    until("OncegateInstanceGone", SOON, async || is_firing(&prometheus, "OncegateInstanceGone")).await;
    assert!(!is_firing(&prometheus, "OncegateGone"));
    drop(one);
    until("OncegateGone", SOON, async || is_firing(&prometheus, "OncegateGone")).await;
}
