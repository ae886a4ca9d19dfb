//! Client of a gateway's API, with the credential of an app: for commands that claim and lock as a caller does.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use hyper::Method;
use serde_json::Value;

use super::failure::{Cause, because};
use super::http_client::{HttpClient, read_token};
use super::listener::Listener;
use super::output::escaped;
use super::tls::TlsArgs;
use super::{ConfigFile, variable};
use crate::config::CREDENTIAL_VARIABLE;

/// Arguments that name the gateway and the app's credential.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Gateway")]
pub(super) struct GatewayArgs {
    /// URL of the API [default: the value of `ONCEGATE_URL`, or `server.listen` of the configuration]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// File that holds the app's credential, such as shop.SECRET [default: the value of `ONCEGATE_CREDENTIAL`, or none]
    #[arg(long, value_name = "FILE")]
    credential_file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    tls: TlsArgs,
}

/// Client of a gateway's API.
pub(super) struct GatewayClient {
    http: HttpClient,
    config: ConfigFile,
}

/// Response of a gateway that a repeat of the request would not change.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// Error: no answer, or an answer that a repeat of the same request may replace.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(super) struct NoAnswer {
    why: String,
    /// The request may have taken effect.
    pub(super) is_uncertain: bool,
}

impl GatewayClient {
    /// Returns the client that these arguments and the environment ask for. Opens no connection.
    pub(super) fn new(args: GatewayArgs) -> anyhow::Result<Self> {
        let credential = match &args.credential_file {
            Some(path) => Some(read_token(path)?),
            None => variable(CREDENTIAL_VARIABLE).filter(|credential| !credential.is_empty()),
        };
        if credential.as_ref().is_some_and(|credential| !credential.bytes().all(|byte| byte.is_ascii_graphic())) {
            bail!("the credential cannot be used: it is one line of visible ASCII characters, without spaces");
        }
        let url = Listener::Api.url(args.url.as_ref(), &args.config)?;
        let http = HttpClient { listener: Listener::Api, url, tls: args.tls, token: credential };
        Ok(Self { http, config: args.config })
    }

    /// Sends a POST request once.
    ///
    /// # Errors
    /// [`NoAnswer`], or an error that remains.
    pub(super) async fn post(&self, path: &str, body: &Value, timeout: Duration) -> anyhow::Result<Response> {
        let url = escaped(&self.http.url);
        let response = match self.http.send(Method::POST, path, Some(body), timeout).await {
            Ok(response) => response,
            Err(error) if super::failure::cause(&error).is_some() => return Err(error),
            Err(error) => {
                let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                let is_uncertain = !error.downcast_ref::<io::Error>().is_some_and(is_refused);
                return Err(
                    NoAnswer { why: format!("no answer from a gateway at {url}: {error:#}"), is_uncertain }.into()
                );
            }
        };
        let status = response.status().as_u16();
        let body: Option<Value> = serde_json::from_slice(response.body()).ok().filter(Value::is_object);
        let response = Response { status, body: body.unwrap_or_default() };
        // The gateway, or a load balancer before it, has a problem that may pass.
        if [408, 429, 500, 502, 503, 504].contains(&status) {
            // A load balancer names no code.
            let is_uncertain = ["", "outcome_unknown", "internal"].contains(&response.code());
            return Err(NoAnswer { why: response.problem(), is_uncertain }.into());
        }
        let is_known = response.is_success() || response.body["code"].is_string();
        if response.body.is_null() || !is_known {
            return Err(Listener::Api.is_not_at(&url, false, &self.config));
        }
        // The API has every path that is called here.
        if response.code() == "not_found" {
            let live = self.http.send(Method::GET, "/livez", None, timeout).await;
            let is_admin = live.is_ok_and(|live| live.status().is_success());
            return Err(Listener::Api.is_not_at(&url, is_admin, &self.config));
        }
        Ok(response)
    }
}

impl Response {
    /// Reports whether the request is granted.
    pub(super) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the code of a problem; empty if there is none.
    pub(super) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    /// Returns a field of text.
    ///
    /// # Errors
    /// It is missing: the gateway is of another release.
    pub(super) fn text(&self, field: &str) -> anyhow::Result<&str> {
        self.body[field]
            .as_str()
            .with_context(|| format!("the gateway answered without `{field}`; is it of another release?"))
    }

    /// Returns a field of milliseconds; zero if it is missing.
    pub(super) fn millis(&self, field: &str) -> Duration {
        Duration::from_millis(self.body[field].as_u64().unwrap_or_default())
    }

    /// Returns the reason that the gateway gives.
    pub(super) fn problem(&self) -> String {
        match self.body["detail"].as_str() {
            Some(detail) => format!("{} ({})", escaped(detail), escaped(self.code())),
            None => format!("the answer has status {}", self.status),
        }
    }

    /// Returns the error of a request that is refused.
    pub(super) fn refusal(&self) -> anyhow::Error {
        let cause = if [400, 413, 422].contains(&self.status) { Cause::Usage } else { Cause::Gateway };
        because(cause, self.problem())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::failure::exit_code;

    #[test]
    fn a_refused_request_is_the_command_line_or_the_gateway() {
        for (status, code) in [(400, 2), (422, 2), (401, 125), (404, 125)] {
            let response = Response { status, body: json!({ "detail": "No.", "code": "x" }) };
            assert_eq!(exit_code(&response.refusal()), code, "{status}");
            assert_eq!(response.refusal().to_string(), "No. (x)");
        }
    }
}
