//! `oncegate health`: checks whether the gateway on this machine is ready, for containers without an HTTP client.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use hyper::{Method, Response};

use super::http_client::HttpClient;
use super::listener::{AdminListener, Listener};
use super::output::escaped;

/// Longer than a working gateway takes, and shorter than the three seconds that the image gives its health check.
const TIMEOUT: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  oncegate health
  oncegate health --admin http://127.0.0.1:9464

The exit code is 0 if the gateway is ready, else 1.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    listener: AdminListener,
}

pub(super) fn run(args: HealthArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let url = args.listener.url()?;
    let is_named = args.listener.named().is_some();
    let AdminListener { config, tls, .. } = args.listener;
    // Nothing secret is sent to the machine's own listener, and only readiness is read: its certificate need not be checked.
    let tls = if is_named { tls } else { tls.unverified() };
    let not_ready = format!("the gateway at {url} is not ready");
    let client = HttpClient { listener: Listener::Admin, url, tls, token: None };
    let response = client.send_alone(Method::GET, "/readyz", None, TIMEOUT).with_context(|| not_ready.clone())?;
    match response.status() {
        status if status.is_success() => {}
        status if status.as_u16() == 404 => {
            return Err(Listener::Admin.is_not_at(&client.url, is_problem(&response), &config));
        }
        status if status.is_client_error() => bail!("{not_ready}: it answered {status}{}", detail(&response)),
        status => bail!("{not_ready}: it answered {status}"),
    }
    writeln!(out, "ready")?;
    Ok(())
}

/// Returns a colon and the detail of a problem document. Empty for another answer.
fn detail(response: &Response<Bytes>) -> String {
    let problem: serde_json::Value = serde_json::from_slice(response.body()).unwrap_or_default();
    problem["detail"].as_str().map(|detail| format!(": {}", escaped(detail))).unwrap_or_default()
}

/// Reports whether the answer is a problem document, and so comes from a gateway.
fn is_problem(response: &Response<Bytes>) -> bool {
    serde_json::from_slice(response.body()).is_ok_and(|problem: serde_json::Value| problem["code"].is_string())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one request with these bytes, and returns the request.
    fn gateway(answer: &'static str) -> (String, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let asked = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut request = [0; 1024];
            let length = stream.read(&mut request).expect("a request");
            stream.write_all(answer.as_bytes()).expect("answers");
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (url, asked)
    }

    fn health(url: &str) -> anyhow::Result<String> {
        let mut out = Vec::new();
        let listener = AdminListener { url: Some(url.to_owned()), ..AdminListener::default() };
        run(HealthArgs { listener }, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn a_ready_gateway_is_reported() {
        let (url, asked) = gateway("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(health(&url).unwrap(), "ready\n");
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("GET /readyz HTTP/1.1\r\nhost: 127.0.0.1:"), "{asked}");
    }

    #[test]
    fn a_gateway_that_is_not_ready_is_a_one_line_error() {
        let (url, asked) = gateway("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
        let error = format!("{:#}", health(&url).unwrap_err());
        assert_eq!(error, format!("the gateway at {url} is not ready: it answered 503 Service Unavailable"));
        drop(asked.join());
        // Not the port from before: it is free now, and another test may have got it.
        let error = format!("{:#}", health("http://127.0.0.1:1").unwrap_err());
        assert!(error.contains("is not ready: Connection refused"), "{error}");
    }

    #[test]
    fn the_reason_of_a_refused_request_is_reported() {
        let (url, asked) =
            gateway("HTTP/1.1 400 Bad Request\r\ncontent-length: 35\r\n\r\n{\"detail\": \"Use https://, please.\"}");
        let error = format!("{:#}", health(&url).unwrap_err());
        assert!(error.ends_with("it answered 400 Bad Request: Use https://, please."), "{error}");
        drop(asked.join());
    }

    #[test]
    fn an_invalid_url_is_reported_with_an_example() {
        for url in ["127.0.0.1:9464", "ftp://127.0.0.1:9464", "nowhere", "http://", "http://127.0.0.1:9464/livez"] {
            let error = format!("{:#}", health(url).unwrap_err());
            assert!(error.contains("and a port, such as http://127.0.0.1:9464"), "{url}: {error}");
        }
    }
}
