//! `oncegate health`: checks whether the gateway on this machine is ready, for containers without an HTTP client.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use hyper::Method;

use super::ConfigFile;
use super::admin_client::url_of;
use super::http_client::HttpClient;
use super::tls::TlsArgs;

/// Longer than a working gateway takes, and shorter than the three seconds that the image gives its health check.
const TIMEOUT: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  oncegate health
  oncegate health --url http://127.0.0.1:9464

The exit code is 0 if the gateway is ready, else 1.";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct HealthArgs {
    /// URL of the admin listener [default: `server.admin_listen` of the configuration]
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    url: Option<String>,
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    tls: TlsArgs,
}

pub(super) fn run(args: HealthArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let (url, tls) = if let Some(url) = args.url {
        (url, args.tls)
    } else {
        // Nothing secret is sent to the machine's own listener, and only readiness is read: its certificate need not be
        // checked.
        (url_of(&args.config)?, args.tls.unverified())
    };
    let not_ready = format!("the gateway at {url} is not ready");
    let response = HttpClient { url, tls, token: None }.send_alone(Method::GET, "/readyz", None, TIMEOUT);
    let response = response.with_context(|| not_ready.clone())?;
    if !response.status().is_success() {
        bail!("{not_ready}: it answered {}", response.status());
    }
    writeln!(out, "ready")?;
    Ok(())
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
        run(
            HealthArgs { url: Some(url.to_owned()), config: ConfigFile::default(), tls: TlsArgs::default() },
            &mut out,
        )?;
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
        let error = format!("{:#}", health(&url).unwrap_err());
        assert!(error.contains("is not ready: Connection refused"), "{error}");
    }

    #[test]
    fn an_invalid_url_is_reported_with_an_example() {
        for url in ["127.0.0.1:9464", "ftp://127.0.0.1:9464", "nowhere", "http://"] {
            let error = format!("{:#}", health(url).unwrap_err());
            assert!(error.contains("a URL is written as http://127.0.0.1:9464"), "{url}: {error}");
        }
    }
}
