//! The two listeners of a gateway that commands call: the sources of their URLs, and the errors that name them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::anyhow;
use clap::Args;

use super::output::escaped;
use super::tls::TlsArgs;
use super::{ConfigFile, variable};
use crate::config::{ADMIN_URL_VARIABLE, URL_VARIABLE};

/// Listener of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listener {
    Api,
    Admin,
}

/// Arguments that name the admin listener.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct AdminListener {
    /// URL of the admin listener [default: the value of `ONCEGATE_ADMIN_URL`, or `server.admin_listen` of the configuration]
    #[arg(long = "admin", value_name = "URL")]
    pub(super) url: Option<String>,
    #[command(flatten)]
    pub(super) config: ConfigFile,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
}

impl AdminListener {
    /// Returns the URL that the command line or the environment names.
    pub(super) fn named(&self) -> Option<String> {
        Listener::Admin.named(self.url.as_ref())
    }

    /// Returns the URL to call.
    pub(super) fn url(&self) -> anyhow::Result<String> {
        Listener::Admin.url(self.url.as_ref(), &self.config)
    }
}

impl Listener {
    fn flag(self) -> &'static str {
        match self {
            Self::Api => "--url",
            Self::Admin => "--admin",
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Api => URL_VARIABLE,
            Self::Admin => ADMIN_URL_VARIABLE,
        }
    }

    /// Returns the setting that has its address.
    pub(super) fn setting(self) -> &'static str {
        match self {
            Self::Api => "server.listen",
            Self::Admin => "server.admin_listen",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Api => "API",
            Self::Admin => "admin listener",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Api => Self::Admin,
            Self::Admin => Self::Api,
        }
    }

    /// Returns an example of its URL.
    pub(super) fn example(self) -> &'static str {
        match self {
            Self::Api => "http://127.0.0.1:8080 or https://gateway.example:8080",
            Self::Admin => "http://127.0.0.1:9464 or https://gateway.example:9464",
        }
    }

    /// Returns the URL that a flag or the environment names.
    pub(super) fn named(self, flag: Option<&String>) -> Option<String> {
        flag.cloned().or_else(|| variable(self.variable()).filter(|url| !url.is_empty()))
    }

    /// Returns the URL to call: that of the flag, of the variable, or of the configuration.
    pub(super) fn url(self, flag: Option<&String>, config: &ConfigFile) -> anyhow::Result<String> {
        self.named(flag).map_or_else(|| self.configured(config), Ok)
    }

    /// Returns the URL that a configuration gives it.
    fn configured(self, config: &ConfigFile) -> anyhow::Result<String> {
        let server = config.load()?.server;
        Ok(match self {
            Self::Api => url_to(server.listen, server.tls.is_on()),
            Self::Admin => url_to(server.admin_listen, server.admin_tls.is_on()),
        })
    }

    /// Returns the error for a URL at which something else answers: the other listener of a gateway, or no gateway at all.
    pub(super) fn is_not_at(self, url: &str, is_gateway: bool, config: &ConfigFile) -> anyhow::Error {
        let (url, name) = (escaped(url), self.name());
        let what = if is_gateway {
            format!("{url} is the {} of a gateway; this command needs its {name}", self.other().name())
        } else {
            format!("what answers at {url} is not the {name} of a gateway")
        };
        let of_configuration =
            self.configured(config).map(|url| format!(", which is {url} in this configuration")).unwrap_or_default();
        anyhow!(
            "{what}. Give the URL of its {}{of_configuration}, with {} or in {}",
            self.setting(),
            self.flag(),
            self.variable()
        )
    }
}

/// Returns the URL that reaches a listener from this machine.
fn url_to(listen: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{}", reachable(listen))
}

/// Returns an address that reaches a listener from this machine, also if it listens on all addresses.
fn reachable(mut listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => listen.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    listen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_the_wrong_listener_names_the_right_one() {
        let config = ConfigFile::default();
        let error = |listener: Listener, is_gateway| listener.is_not_at("http://h:1", is_gateway, &config).to_string();
        assert_eq!(
            error(Listener::Admin, true),
            "http://h:1 is the API of a gateway; this command needs its admin listener. Give the URL of its server.admin_listen, \
             which is http://127.0.0.1:9464 in this configuration, with --admin or in ONCEGATE_ADMIN_URL"
        );
        assert_eq!(
            error(Listener::Api, false),
            "what answers at http://h:1 is not the API of a gateway. Give the URL of its server.listen, which is \
             http://127.0.0.1:8080 in this configuration, with --url or in ONCEGATE_URL"
        );
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_loopback() {
        for (listen, asked) in
            [("0.0.0.0:9464", "127.0.0.1:9464"), ("[::]:9464", "[::1]:9464"), ("10.0.0.1:9464", "10.0.0.1:9464")]
        {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), asked);
        }
    }
}
