//! Client of a gateway's API, with the credential of an app: for commands that claim and lock as a caller does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use oncegate_client::{Client, Error, Kind, Options};

use super::failure::{Cause, because, usage};
use super::http_client::{HttpClient, read_secret};
use super::listener::Listener;
use super::output::escaped;
use super::tls::TlsArgs;
use super::{ConfigFile, variable};
use crate::config::CREDENTIAL_VARIABLE;

/// Longest time to look for what answers instead of the API.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Gateway that a command calls.
pub(super) struct Gateway {
    pub(super) client: Client,
    http: HttpClient,
    config: ConfigFile,
    has_credential: bool,
}

impl Gateway {
    /// Returns the gateway that these arguments and the environment name. Opens no connection.
    pub(super) fn new(args: GatewayArgs, options: Options) -> anyhow::Result<Self> {
        let credential = match &args.credential_file {
            Some(path) => Some(read_secret("credential", "--credential-file", path)?),
            None => variable(CREDENTIAL_VARIABLE),
        };
        let url = Listener::Api.url(args.url.as_ref(), &args.config)?;
        let credential = credential.unwrap_or_default();
        let has_credential = !credential.is_empty();
        let options = options.credential(credential);
        let is_https = url.starts_with("https:");
        let options = if is_https { options.tls(Arc::new(args.tls.config()?)) } else { options };
        let client = Client::new([&url], options).map_err(|error| usage(escaped(&error.to_string())))?;
        let http = HttpClient { listener: Listener::Api, url, tls: args.tls, token: None };
        Ok(Self { client, http, config: args.config, has_credential })
    }

    /// Returns the error of a call that was not granted, with its exit code.
    pub(super) async fn refusal(&self, error: Error) -> anyhow::Error {
        match error {
            Error::Unavailable { causes, .. } if causes.iter().any(|cause| cause.kind == Kind::NotAGateway) => {
                Listener::Api.is_not_at(&self.http.url, false, &self.config)
            }
            // The API has every path that is called here.
            Error::Rejected(rejected) if rejected.code == "not_found" => {
                let live = self.http.send(Method::GET, "/livez", None, LOOK_TIMEOUT).await;
                let is_admin = live.is_ok_and(|live| live.status().is_success());
                Listener::Api.is_not_at(&self.http.url, is_admin, &self.config)
            }
            Error::Rejected(rejected) if rejected.code == "unauthenticated" => {
                because(Cause::Gateway, format!("{} (unauthenticated)", credential_advice(self.has_credential)))
            }
            error => refusal(&self.http.url, &error),
        }
    }
}

/// Returns what to do about a credential that the gateway does not accept.
fn credential_advice(has_credential: bool) -> &'static str {
    if has_credential {
        "the gateway does not know this credential: it is <app>.<secret>, in ONCEGATE_CREDENTIAL or in the file of \
         --credential-file. `oncegate app rotate` makes a new one"
    } else {
        "the gateway needs the credential of an app: set ONCEGATE_CREDENTIAL, or name a file that holds it with \
         --credential-file"
    }
}

fn refusal(url: &str, error: &Error) -> anyhow::Error {
    match error {
        Error::Unavailable { causes, may_have_acted } => {
            let why: Vec<_> = causes.iter().map(|cause| cause.detail.as_str()).collect();
            let advice = ". An earlier request may have been granted; then it blocks others until its lease has ended";
            let advice = if *may_have_acted { advice } else { "" };
            let why = escaped(&why.join("; "));
            because(Cause::Gateway, format!("no answer from a gateway at {}: {why}{advice}", escaped(url)))
        }
        Error::Rejected(rejected) => {
            let cause = if [400, 413, 422].contains(&rejected.status) { Cause::Usage } else { Cause::Gateway };
            because(cause, format!("{} ({})", escaped(&rejected.detail), escaped(&rejected.code)))
        }
        Error::NotCanonical(_) | Error::Argument(_) => usage(escaped(&error.to_string())),
        error => because(Cause::Gateway, escaped(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use oncegate_client::Rejected;

    use super::*;
    use crate::cli::exit_code::exit_code;

    #[test]
    fn a_refused_request_is_the_command_line_or_the_gateway() {
        for (status, expected) in [(400, 2), (422, 2), (401, 125), (404, 125)] {
            let (code, detail) = ("x".to_owned(), "No.".to_owned());
            let rejected = Rejected { status, code, detail, request_id: None, retry_after: None };
            let refused = refusal("http://h:1", &Error::Rejected(rejected));
            assert_eq!(exit_code(&refused), expected, "{status}");
            assert_eq!(refused.to_string(), "No. (x)");
        }
    }

    #[test]
    fn a_refused_credential_is_explained_in_terms_of_the_command_line() {
        for (has_credential, part) in [(false, "set ONCEGATE_CREDENTIAL"), (true, "does not know this credential")] {
            let advice = credential_advice(has_credential);
            assert!(advice.contains(part) && advice.contains("--credential-file"), "{advice}");
        }
    }

    #[test]
    fn a_lost_answer_is_distinguished_from_a_request_that_nobody_got() {
        let refused = |may_have_acted| {
            let error = refusal("http://h:1", &Error::Unavailable { causes: Vec::new(), may_have_acted });
            assert_eq!(exit_code(&error), 125);
            error.to_string().contains("may have been granted")
        };
        assert!(refused(true) && !refused(false));
    }
}
