//! Contenders of the proxied scenario: a service without and behind a proxy.

use std::{env, net::SocketAddr};

use anyhow::Context as _;
use tokio::{net::TcpStream, process::Command};

use super::{APP, Running, free_address};
use crate::{
    contender::{Contender, Installed},
    peers,
};

impl Running {
    pub(super) async fn start_proxied(
        &mut self,
        contender: Contender,
        listen: SocketAddr,
        installed: &Installed,
    ) -> anyhow::Result<()> {
        if contender == Contender::Upstream {
            return self.start_upstream("gateway", listen).await;
        }
        let upstream = free_address();
        self.start_upstream("upstream", upstream).await?;
        if contender == Contender::ProxyNginx {
            let program = installed.nginx.as_ref().context("nginx is not installed")?;
            return self
                .start_nginx(program, |dir, name| {
                    peers::configure_nginx_proxy(dir, name, listen.port(), upstream.port())
                })
                .await;
        }
        let engine = match contender {
            Contender::ProxyRedis => format!("redis://{}", self.start_redis(installed).await?),
            _ => "memory:".to_owned(),
        };
        let key = if contender == Contender::ProxyUnprotected { "off" } else { "required" };
        let proxy = PROXY
            .replace("@LISTEN@", &listen.to_string())
            .replace("@UPSTREAM@", &upstream.to_string())
            .replace("@APP@", APP)
            .replace("@KEY@", key);
        self.start_gateway(installed, free_address(), &engine, &proxy).await
    }

    async fn start_upstream(&mut self, name: &str, listen: SocketAddr) -> anyhow::Result<()> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["upstream", "--listen", &listen.to_string()]);
        self.spawn(name, command)?;
        self.upstream = Some(format!("http://{listen}"));
        self.wait_until(name, async || TcpStream::connect(listen).await.is_ok()).await
    }
}

/// Everything else has its default. Responses are kept for the run, and uploads are not protected.
const PROXY: &str = r#"
[proxy]
listen = "@LISTEN@"
unmatched = "service"

[proxy.upstreams.service]
urls = ["http://@UPSTREAM@"]

[[proxy.routes]]
name = "orders"
app = "@APP@"
path = "/v1/{*rest}"
methods = ["POST"]
upstream = "service"
principal = ["authorization"]
key = "@KEY@"
"#;
