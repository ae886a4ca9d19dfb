//! Client of a gateway's admin API: URL and token, requests, and problem documents as errors.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Args, Command, CommandFactory as _};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::{Method, Response};
use oncegate_core::engine::{Backup, EngineError};
use oncegate_core::tenant::AppKey;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::arguments::number;
use super::failure::Cause;
use super::http_client::{HttpClient, collected, read_secret};
use super::listener::{AdminListener, Listener};
use super::output::{Out, OutputArgs, escaped};
use super::{Cli, ConfigFile, variable};
use crate::config::TOKEN_VARIABLE;

/// Longer than a gateway waits for its store and its disk.
const TIMEOUT: Duration = Duration::from_secs(30);

/// API terms in the details of problems that are no fields, and their names on the command line.
const TERMS: [(&str, &str); 6] = [
    ("Send `Authorization: Bearer <token>` with a token of [admin.tokens].", NOT_A_TOKEN),
    ("send \"accept_loss\": true (on the command line: --accept-loss)", "add --accept-loss"),
    ("\"even_succeeded\": true", "--even-succeeded"),
    ("GET /admin/v1/apps lists them", "`oncegate app list` lists them"),
    ("GET /admin/v1/proxy/routes lists them", "`oncegate proxy routes` lists them"),
    ("GET /admin/v1/suspects lists those", "`oncegate suspects list --all` lists those"),
];

const NOT_A_TOKEN: &str = "The gateway does not know this token. Use one of [admin.tokens] of its configuration, in \
                           ONCEGATE_ADMIN_TOKEN or in the file of --token-file.";

/// Arguments that name the gateway and the operator's token.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Gateway")]
pub(super) struct AdminArgs {
    #[command(flatten)]
    pub(super) listener: AdminListener,
    /// File that holds the token [default: the value of `ONCEGATE_ADMIN_TOKEN`]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Arguments of a command that prints an answer of the admin API.
#[derive(Args, Clone, Debug)]
pub(super) struct QueryArgs {
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
}

/// Arguments of a command that lists what an answer of the admin API has of all apps, or of one.
#[derive(Args, Clone, Debug)]
pub(super) struct AppListArgs {
    /// List only those of this app
    #[arg(long)]
    app: Option<AppKey>,
    /// List at most this many, from 1 to 1000
    #[arg(long, default_value_t = 50, value_parser = number::<u32>(1..=1000))]
    limit: u32,
    #[command(flatten)]
    query: QueryArgs,
}

/// Client of a gateway's admin API, with one operator's token.
pub(super) struct AdminClient {
    http: HttpClient,
    config: ConfigFile,
}

/// Problem document of a gateway.
#[derive(Debug, Deserialize, thiserror::Error)]
#[error("{detail} ({}, request {})", escaped(code), escaped(request_id))]
pub(super) struct Refusal {
    status: u16,
    code: String,
    /// In the terms of the command line.
    #[serde(deserialize_with = "in_terms_of_command")]
    detail: String,
    request_id: String,
}

impl QueryArgs {
    /// Sends a GET request and prints the answer: as JSON, or with `human` as text.
    pub(super) fn show<O: Out>(
        self,
        path: &str,
        out: &mut O,
        human: impl FnOnce(&Value, &mut O) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.output.print(&AdminClient::new(self.admin)?.get(path)?, out, human)
    }

    /// Sends a POST request and prints the answer: as JSON, or with `human` as text.
    pub(super) fn post<O: Out>(
        self,
        path: &str,
        body: &impl Serialize,
        out: &mut O,
        human: impl FnOnce(&Value, &mut O) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.output.print(&AdminClient::new(self.admin)?.post(path, body)?, out, human)
    }
}

impl AppListArgs {
    /// Sends a GET request for a list of this name, with more filters, and prints the answer: as JSON, or with `human` as text.
    pub(super) fn show<O: Out>(
        self,
        name: &str,
        more: &str,
        out: &mut O,
        human: impl FnOnce(&Value, &mut O) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let app = filters([("app", self.app.map(|app| app.to_string()))]);
        self.query.show(&format!("/admin/v1/{name}?limit={}{app}{more}", self.limit), out, human)
    }
}

/// Returns the parameters of a query that have a value, each after a `&`.
pub(super) fn filters<const N: usize>(parameters: [(&str, Option<String>); N]) -> String {
    let parameter = |(name, value): (&str, Option<String>)| {
        Some(format!("&{name}={}", utf8_percent_encode(&value?, NON_ALPHANUMERIC)))
    };
    parameters.into_iter().filter_map(parameter).collect()
}

impl Refusal {
    /// Returns the cause that decides the exit code, if it is one of those.
    pub(super) fn cause(&self) -> Option<Cause> {
        match (self.status, &*self.code) {
            (404 | 409, _) | (_, "contents_mismatch") => Some(Cause::State),
            (400 | 413 | 422, _) => Some(Cause::Usage),
            _ => None,
        }
    }
}

impl AdminClient {
    /// Returns the client that these arguments and the environment ask for. Opens no connection.
    pub(super) fn new(args: AdminArgs) -> anyhow::Result<Self> {
        let token = match &args.token_file {
            Some(path) => read_secret("token", "--token-file", path)?,
            None => token_variable()?,
        };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("the token cannot be used: a token is one line of visible ASCII characters, without spaces");
        }
        let url = args.listener.url()?;
        let AdminListener { config, tls, .. } = args.listener;
        Ok(Self { http: HttpClient { listener: Listener::Admin, url, tls, token: Some(token) }, config })
    }

    /// Sends a GET request.
    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, None)
    }

    /// Sends a POST request.
    pub(super) fn post(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Value> {
        self.call(Method::POST, path, Some(serde_json::to_string(body)?))
    }

    /// Sends a POST request, and returns the body of its response as it comes.
    pub(super) async fn download(&self, path: &str, body: &impl Serialize) -> anyhow::Result<Backup> {
        let body = serde_json::to_string(body)?;
        let response = self.http.post_streaming(path, body, TIMEOUT).await.with_context(|| self.unreachable())?;
        let (status, body) = (response.status(), response.into_body());
        if status.is_success() {
            let piece = |piece: hyper::Result<Bytes>| {
                piece.map(Vec::from).map_err(|why| EngineError::unavailable(why.to_string()))
            };
            return Ok(body.into_data_stream().map(piece).boxed());
        }
        let refusal = serde_json::from_slice::<Refusal>(&collected(body).await?);
        Err(refusal.map_or_else(|_| self.is_elsewhere(false), Into::into))
    }

    fn call(&self, method: Method, path: &str, body: Option<String>) -> anyhow::Result<Value> {
        let response = self.send(method, path, body)?;
        if response.status().is_success() {
            return serde_json::from_slice(response.body()).map_err(|_| self.is_elsewhere(false));
        }
        let Ok(refusal) = serde_json::from_slice::<Refusal>(response.body()) else {
            return Err(self.is_elsewhere(false));
        };
        // Any listener answers 404 to an unknown path. Only from an admin listener does it mean that the record does
        // not exist.
        if refusal.status == 404 && !self.send(Method::GET, "/livez", None)?.status().is_success() {
            return Err(self.is_elsewhere(true));
        }
        Err(refusal.into())
    }

    fn send(&self, method: Method, path: &str, body: Option<String>) -> anyhow::Result<Response<Bytes>> {
        self.http.send_alone(method, path, body, TIMEOUT).with_context(|| self.unreachable())
    }

    fn unreachable(&self) -> String {
        let (url, setting) = (&self.http.url, Listener::Admin.setting());
        format!("cannot reach a gateway at {url} (does it run, and is this its `{setting}`?)")
    }

    /// Returns the error for an answer that is of no admin listener; `is_gateway` if a gateway gave it.
    fn is_elsewhere(&self, is_gateway: bool) -> anyhow::Error {
        Listener::Admin.is_not_at(&self.http.url, is_gateway, &self.config)
    }
}

/// Reads the detail of a problem in the terms of the command that runs.
fn in_terms_of_command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let detail = String::deserialize(deserializer)?;
    Ok(in_terms_of(&command(std::env::args().skip(1)), &detail))
}

/// Returns the command that these words name.
fn command(words: impl IntoIterator<Item = String>) -> Command {
    let deeper = |command: Command, word: String| command.find_subcommand(word).cloned().unwrap_or(command);
    words.into_iter().fold(Cli::command(), deeper)
}

/// Returns the detail of a problem in the terms of a command: a field is its argument of that name.
fn in_terms_of(command: &Command, detail: &str) -> String {
    let detail = TERMS.iter().fold(escaped(detail), |detail, (api, cli)| detail.replace(api, cli));
    command.get_arguments().fold(detail, |detail, argument| {
        let name = match (argument.get_long(), argument.get_value_names()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some([name, ..])) => name.to_string(),
            (None, _) => return detail,
        };
        detail.replace(&format!("`{}`", argument.get_id()), &name)
    })
}

fn token_variable() -> anyhow::Result<String> {
    let missing = || {
        format!(
            "no token: the admin API needs one. Set {TOKEN_VARIABLE}, or name a file that holds the token with --token-file"
        )
    };
    variable(TOKEN_VARIABLE).filter(|token| !token.is_empty()).with_context(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(status: u16, code: &str, detail: &str) -> Refusal {
        let words = ["claim", "release"].map(str::to_owned);
        let detail = in_terms_of(&command(words), detail);
        Refusal { status, code: code.to_owned(), detail, request_id: "r-1".to_owned() }
    }

    #[test]
    fn problems_use_the_terms_of_the_command_line() {
        let succeeded = refusal(409, "already_succeeded", "Only a release with \"even_succeeded\": true ends it.");
        let expected = "Only a release with --even-succeeded ends it. (already_succeeded, request r-1)";
        assert_eq!(succeeded.to_string(), expected);
        let reason = refusal(400, "invalid_request", "`reason`: a reason is one line\u{1b}[31m.");
        assert!(reason.to_string().starts_with("--reason: a reason is one line\\u{1b}[31m."), "{reason}");
        let suspect = refusal(404, "not_found", "No suspect; GET /admin/v1/suspects lists those that it has.");
        assert!(suspect.to_string().contains("`oncegate suspects list --all` lists those"), "{suspect}");
        let other = refusal(400, "invalid_request", "`contents` and `global_id`, not `lease`.").to_string();
        assert!(other.starts_with("CONTENTS and --global-id, not `lease`."), "{other}");
    }

    #[test]
    fn the_exit_code_distinguishes_a_wrong_request_from_a_state_that_forbids_it() {
        for (status, code, cause) in [
            (400, "invalid_request", Some(Cause::Usage)),
            (422, "contents_not_canonical", Some(Cause::Usage)),
            (422, "contents_mismatch", Some(Cause::State)),
            (404, "not_found", Some(Cause::State)),
            (409, "superseded", Some(Cause::State)),
            (401, "unauthenticated", None),
            (503, "store_unavailable", None),
        ] {
            assert_eq!(refusal(status, code, "").cause(), cause, "{code}");
        }
    }
}
