//! A Prometheus of a test's own: it scrapes the gateways it is given, several times a second, and answers queries.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oncegate_testkit::wait::until;
use oncegate_testkit::{fresh, missing};
use serde_json::Value;
use tempfile::TempDir;

/// A running server; killed on drop.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes these addresses four times a second. `None`, loudly, where none is installed.
    pub(crate) async fn start(targets: &[SocketAddr]) -> Option<Self> {
        Self::start_configured(targets, None).await
    }

    /// Starts a server that evaluates these rules four times a second, too, and sends alerts to an Alertmanager, if there is one.
    pub(crate) async fn start_with_rules(
        targets: &[SocketAddr],
        rules: &str,
        alertmanager: Option<SocketAddr>,
    ) -> Option<Self> {
        Self::start_configured(targets, Some((rules, alertmanager))).await
    }

    async fn start_configured(targets: &[SocketAddr], rules: Option<(&str, Option<SocketAddr>)>) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder for the server");
        let targets: Vec<String> = targets.iter().map(|target| format!("\"{target}\"")).collect();
        let mut config = format!(
            "global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}}\nscrape_configs:\n  - job_name: oncegate\n    \
             static_configs: [{{targets: [{}]}}]\n",
            targets.join(", ")
        );
        if let Some((rules, alertmanager)) = rules {
            std::fs::write(folder.path().join("rules.yml"), rules).expect("the rules are written");
            config.push_str("rule_files: [rules.yml]\n");
            if let Some(alertmanager) = alertmanager {
                let targets = format!("[{{static_configs: [{{targets: [\"{alertmanager}\"]}}]}}]");
                let _ = writeln!(config, "alerting: {{alertmanagers: {targets}}}");
            }
        }
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config).expect("the configuration is written");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, fresh::port()));
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}")).args(["--log.level=error"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            missing::skip("prometheus");
            return None;
        };
        let server = Self { child, address, _folder: folder };
        until("Prometheus is ready", Duration::from_secs(20), async || {
            server.get("/-/ready").is_some_and(|answer| answer.contains("is Ready"))
        })
        .await;
        Some(server)
    }

    /// The result of an instant query: a list of series, each with a value.
    pub(crate) fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        self.result(&format!("/api/v1/query?query={}", escaped(expression)))
    }

    /// The result of a query over the last seconds, two values a second.
    pub(crate) fn query_range(&self, expression: &str, end: f64, seconds: f64) -> Result<Vec<Value>, String> {
        let (query, start) = (escaped(expression), end - seconds);
        self.result(&format!("/api/v1/query_range?query={query}&start={start:.3}&end={end:.3}&step=0.5"))
    }

    fn result(&self, path: &str) -> Result<Vec<Value>, String> {
        let answer = self.get(path).ok_or("no answer")?;
        let answer: Value = serde_json::from_str(&answer).map_err(|why| format!("{why}: {answer}"))?;
        let result = answer["data"]["result"].as_array();
        result.cloned().ok_or_else(|| answer["error"].as_str().unwrap_or("no result").to_owned())
    }

    /// The body of an answer. Requested with HTTP/1.0, so that the response ends with the connection.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a text as a part of an address.
pub(crate) fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}
