//! `oncegate health`: asks the gateway on this machine whether it is ready, for checks of containers that hold no HTTP
//! client.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Settings;

/// Longer than a gateway that works ever takes, shorter than the checks of containers wait.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Whom to ask.
#[derive(Args, Debug)]
pub(super) struct HealthArgs {
    /// The admin listener [default: http:// and what the configuration has as `server.admin_listen`]
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    url: Option<String>,
    #[arg(long, value_name = "FILE", help = super::CONFIG_HELP)]
    config: Option<PathBuf>,
}

pub(super) fn run(args: HealthArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let url = if let Some(url) = args.url {
        url
    } else {
        let settings = Settings { config: args.config, ..Settings::default() };
        format!("http://{}", reachable(settings.load()?.server.admin_listen))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let asked = async { tokio::time::timeout(TIMEOUT, ask(&url)).await };
    match runtime.context("cannot start the runtime")?.block_on(asked) {
        Ok(answer) => answer.with_context(|| format!("the gateway at {url} is not ready"))?,
        Err(_) => bail!("the gateway at {url} is not ready: no answer in {} s", TIMEOUT.as_secs()),
    }
    writeln!(out, "ready")?;
    Ok(())
}

/// Where a listener that listens everywhere can be reached from here.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => listen.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    listen
}

/// Asks for `/readyz`; anything but success is an error.
async fn ask(url: &str) -> anyhow::Result<()> {
    const WRITTEN: &str = "a URL is written as http://127.0.0.1:9464";
    let url: Uri = url.parse().context(WRITTEN)?;
    let authority = url.authority().filter(|_| url.scheme_str() == Some("http")).context(WRITTEN)?;
    // The brackets of an IPv6 address belong to the URL, not to the address.
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection only moves while it is polled; it ends with the runtime.
    drop(tokio::spawn(connection));
    let request = Request::get("/readyz").header(HOST, authority.as_str()).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        bail!("it answered {}", response.status());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one request with these bytes, and tells what it was asked.
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
        run(HealthArgs { url: Some(url.to_owned()), config: None }, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn a_ready_gateway_is_told() {
        let (url, asked) = gateway("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(health(&url).unwrap(), "ready\n");
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("GET /readyz HTTP/1.1\r\nhost: 127.0.0.1:"), "{asked}");
    }

    #[test]
    fn a_gateway_that_is_not_ready_is_an_error_of_one_line() {
        let (url, asked) = gateway("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
        let error = format!("{:#}", health(&url).unwrap_err());
        assert_eq!(error, format!("the gateway at {url} is not ready: it answered 503 Service Unavailable"));
        drop(asked.join());
        let error = format!("{:#}", health(&url).unwrap_err());
        assert!(error.contains("is not ready: Connection refused"), "{error}");
    }

    #[test]
    fn what_is_no_url_is_said_to_be_none() {
        for url in ["127.0.0.1:9464", "https://127.0.0.1:9464", "nowhere", "http://"] {
            let error = format!("{:#}", health(url).unwrap_err());
            assert!(error.contains("a URL is written as http://127.0.0.1:9464"), "{url}: {error}");
        }
    }

    #[test]
    fn a_listener_everywhere_is_asked_on_loopback() {
        for (listen, asked) in
            [("0.0.0.0:9464", "127.0.0.1:9464"), ("[::]:9464", "[::1]:9464"), ("10.0.0.1:9464", "10.0.0.1:9464")]
        {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }
}
