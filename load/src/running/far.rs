//! The ways to a gateway and from it to its store: TLS, and a network that takes time.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use oncegate_testkit::certificates::Authority;
use tokio::{net::TcpStream, process::Command};

use super::{Running, free_address};
use crate::{
    client::Target,
    network,
    way::{Surroundings, Way},
};

impl Running {
    /// Issues a certificate for this machine, if the way needs one.
    pub(super) fn prepare_tls(&mut self, way: Way) -> anyhow::Result<()> {
        if way.secures_callers() {
            self.url = self.url.replacen("http:", "https:", 1);
        }
        if way.secures_callers() || way.secures_store() {
            let authority = Authority::generate();
            let pair = authority.issue();
            let [of_authority, certificate, key] = self.tls_files();
            fs::write(of_authority, authority.pem())?;
            fs::write(certificate, pair.certificate)?;
            fs::write(key, pair.key)?;
        }
        Ok(())
    }

    /// Returns the files of the authority, the certificate and its key.
    fn tls_files(&self) -> [PathBuf; 3] {
        ["authority.pem", "certificate.pem", "key.pem"].map(|name| self.dir().join(name))
    }

    /// Returns the settings of a gateway's listener.
    pub(super) fn listener_tls(&self) -> String {
        if !self.surroundings.way.secures_callers() {
            return String::new();
        }
        let [_, certificate, key] = self.tls_files();
        // A literal string of TOML has no escapes.
        format!("[server.tls]\ncertificate = '{}'\nkey = '{}'\n", certificate.display(), key.display())
    }

    /// Returns a server of this contender, with the credential.
    pub(super) fn secured_target(&self, url: &str) -> anyhow::Result<Target> {
        let [authority, ..] = self.tls_files();
        if url.starts_with("https:") {
            Target::secured(url, Some(&self.credential), false, &authority)
        } else {
            Target::parse(url, Some(&self.credential), false)
        }
    }

    /// Lets Redis listen on a port.
    pub(super) fn listen_redis(&self, command: &mut Command, port: u16) {
        let port = port.to_string();
        if !self.surroundings.way.secures_store() {
            command.args(["--port", &port]);
            return;
        }
        let [authority, certificate, key] = self.tls_files();
        command.args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "no"]);
        command.arg("--tls-ca-cert-file").arg(authority);
        command.arg("--tls-cert-file").arg(certificate).arg("--tls-key-file").arg(key);
    }

    /// Returns the URL of the engine for this server.
    pub(super) fn redis_url(&self, address: SocketAddr) -> String {
        let [authority, ..] = self.tls_files();
        if self.surroundings.way.secures_store() {
            format!("rediss://{address}?ca={}", authority.display())
        } else {
            format!("redis://{address}")
        }
    }

    /// Starts a store by a program of ours that serves it on a port.
    pub(crate) async fn start_stand_in(
        program: &Path,
        surroundings: Surroundings,
        parent: &Path,
    ) -> anyhow::Result<Self> {
        let (mut running, listen) = Self::empty(parent)?;
        running.surroundings = surroundings;
        let mut command = Command::new(program.canonicalize()?);
        command.arg(listen.port().to_string());
        running.spawn("store", command)?;
        running.wait_until("store", async || TcpStream::connect(listen).await.is_ok()).await?;
        Ok(running)
    }

    /// Returns the address at which a gateway reaches a store: its own, or that of a network in front of it.
    pub(super) async fn reach(&mut self, store: SocketAddr) -> anyhow::Result<SocketAddr> {
        let Surroundings { way, round_trip, .. } = self.surroundings;
        if way != Way::Far {
            return Ok(store);
        }
        let listen = free_address();
        if cfg!(test) {
            // The program of the tests has no such command.
            network::serve(listen, store, round_trip)?;
            return Ok(listen);
        }
        let mut command = Command::new(env::current_exe().context("this program has no path")?);
        command.args(["network", "--listen", &listen.to_string(), "--to", &store.to_string()]);
        command.args(["--round-trip", &format!("{}us", round_trip.as_micros())]);
        self.spawn("network", command)?;
        self.wait_until("network", async || TcpStream::connect(listen).await.is_ok()).await?;
        Ok(listen)
    }
}
