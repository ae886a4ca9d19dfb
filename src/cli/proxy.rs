//! `oncegate proxy`: explains the way of a request through the proxy, without a gateway; lists and finds requests and erases stored
//! responses through the admin API.

use std::io::{Read, Write};
use std::sync::Arc;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use oncegate_admin::bodies::{FindKey, ForgetResponse};
use oncegate_core::clock::{Clock, SystemClock};
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::AppKey;
use oncegate_proxy::explain::{Explanation, Sample, explain};
use oncegate_web::recent::keys::ANSWERS;
use serde_json::Value;

use super::admin_client::{QueryArgs, filters};
use super::arguments::Page;
use super::claim::{Change, ClaimName};
use super::failure::usage;
use super::load;
use super::output::{Column, Out, cell, escaped, rows, table};
use crate::config::Flags;

const EXAMPLES: &str = "\
Examples:
  oncegate proxy routes
  oncegate proxy recent --route orders.create --answer unknown
  oncegate proxy find --route orders.create - < key.txt
  oncegate proxy check --config oncegate.toml http://api.shop.example/v1/orders \\
    --header 'Idempotency-Key: 8e03978e' --header 'Authorization: Bearer alice' --data '{\"item\": 7}'
  oncegate proxy forget --app shop --operation proxy:orders.create '{\"key\": \"8e03978e\", \"principal\": \"…\"}' \\
    --reason 'PRIV-7: erasure was asked for'";

/// Bytes that are read for a key: more than the longest one.
const KEY_BYTES_MAX: u64 = 1024;

#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Explain which route a request takes, and which identity and fingerprint it gets
    Check(CheckArgs),
    /// List the routes of a gateway's proxy, and how they were answered
    Routes {
        #[command(flatten)]
        query: QueryArgs,
    },
    /// List recent requests with a key at a gateway, and their answers
    ///
    /// Each gateway lists what it has answered itself, in memory: the newest 20000 requests. Of a key the first 8 characters are shown, and no
    /// more than half of it.
    Recent(RecentArgs),
    /// Find the recent requests with a key, and its claim
    ///
    /// The key is sent in a body, and not logged. Other users of this host may see the arguments of a command: use - to pass the key on standard
    /// input.
    Find(FindArgs),
    /// Erase the stored response of a request; its key stays blocked
    ///
    /// A repeat then gets 409 `response_not_stored`, and does not run again. `oncegate proxy check` prints the contents of the claim.
    Forget(ForgetArgs),
}

#[derive(Args)]
pub(super) struct RecentArgs {
    /// List only those of this route
    #[arg(long)]
    route: Option<String>,
    /// List only those of this app
    #[arg(long)]
    app: Option<AppKey>,
    /// List only those with this answer
    #[arg(long, value_parser = ANSWERS)]
    answer: Option<String>,
    /// List only those of this claim
    #[arg(long)]
    global_id: Option<GlobalId>,
    #[command(flatten)]
    page: Page,
    #[command(flatten)]
    query: QueryArgs,
}

#[derive(Args)]
pub(super) struct FindArgs {
    /// Name of the route
    #[arg(long)]
    route: String,
    /// Digest of the caller, as `oncegate proxy check` prints it: also shows the claim in the store
    #[arg(long, value_name = "DIGEST")]
    principal: Option<String>,
    /// Key of the request as its caller sends it, or - for standard input
    key: String,
    #[command(flatten)]
    query: QueryArgs,
}

#[derive(Args)]
pub(super) struct ForgetArgs {
    #[command(flatten)]
    claim: ClaimName,
    #[command(flatten)]
    change: Change,
    #[command(flatten)]
    query: QueryArgs,
}

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    flags: Flags,
    /// Method of the request
    #[arg(long, default_value = "POST")]
    method: String,
    /// URL of the request, with the host that clients use
    url: String,
    /// Field of the request, as 'Name: value'; may be repeated
    #[arg(long = "header", value_name = "FIELD")]
    headers: Vec<String>,
    /// Body of the request
    #[arg(long, default_value = "")]
    data: String,
    /// The request comes from one of `proxy.trusted_peers`
    #[arg(long)]
    trusted: bool,
}

const ROUTES: &[Column] = &[
    ("ROUTE", |route| cell(&route["name"])),
    ("APP", |route| cell(&route["app"])),
    ("PATH", |route| cell(&route["path"])),
    ("UPSTREAM", |route| cell(&route["upstream"])),
    ("ANSWERS", answers),
    ("STORED BYTES", |route| cell(&route["stored_bytes"])),
    ("NOT STORED", |route| cell(&route["tombstones"])),
    ("UPSTREAM P99", |route| {
        route["upstream_p99_seconds"].as_f64().map_or_else(|| "-".to_owned(), |p99| format!("{p99}s"))
    }),
];

const REQUESTS: &[Column] = &[
    ("ID", |request| cell(&request["id"])),
    ("AT", |request| cell(&request["at"])),
    ("ROUTE", |request| cell(&request["route"])),
    ("APP", |request| cell(&request["app"])),
    ("KEY", |request| format!("{}…", cell(&request["key_start"]))),
    ("ANSWER", |request| cell(&request["answer"])),
    ("STATUS", |request| cell(&request["status"])),
    ("GLOBAL ID", |request| cell(&request["global_id"])),
    ("REQUEST", |request| cell(&request["request_id"])),
];

/// Returns the number of requests by their answer.
fn answers(route: &Value) -> String {
    let counts: Vec<_> = route["answers"].as_object().into_iter().flatten().collect();
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {}", cell(count))).collect();
    if counts.is_empty() { "-".to_owned() } else { counts.join(", ") }
}

pub(super) fn run(action: Action, input: &mut impl Read, out: &mut impl Out) -> anyhow::Result<()> {
    match action {
        Action::Check(arguments) => check(arguments, out),
        Action::Routes { query } => query.show("/admin/v1/proxy/routes", out, |answer, out| {
            let routes = rows(answer, "routes");
            if routes.is_empty() {
                return Ok(writeln!(out, "The gateway has no proxy.")?);
            }
            table(routes, ROUTES, out)?;
            Ok(writeln!(out, "\nSince {}.", cell(&answer["since"]))?)
        }),
        Action::Recent(RecentArgs { route, app, answer, global_id, page: Page { after, limit }, query }) => {
            let filters = filters([
                ("route", route),
                ("app", app.map(|app| app.to_string())),
                ("answer", answer),
                ("global_id", global_id.map(|id| id.to_string())),
                ("after", after.map(|after| after.to_string())),
            ]);
            query.show(&format!("/admin/v1/proxy/recent?limit={limit}{filters}"), out, recent)
        }
        Action::Find(FindArgs { route, principal, key, query }) => {
            let (key, is_named) = (read_key(key, input)?, principal.is_some());
            let body = FindKey { route, key, principal };
            query.post("/admin/v1/proxy/find", &body, out, |answer, out| {
                recent(answer, out)?;
                match answer["claim"]["state"].as_str() {
                    Some(state) => {
                        let global_id = cell(&answer["claim"]["global_id"]);
                        let app = cell(&answer["app"]);
                        let command = format!("oncegate claim show --app {app} --global-id {global_id} --realm proxy");
                        Ok(writeln!(out, "The claim of this key and caller is {}: {command}", escaped(state))?)
                    }
                    None if is_named => Ok(writeln!(out, "The store has no claim of this key and caller.")?),
                    None => Ok(()),
                }
            })
        }
        Action::Forget(ForgetArgs { claim, change, query }) => {
            let (contents, global_id) = (claim.contents(input)?, claim.global_id());
            let (ClaimName { app, operation, .. }, Change { reason, attempt_hash }) = (claim, change);
            let contents = contents.as_deref();
            let body = ForgetResponse { app, operation, contents, global_id, attempt_hash, reason };
            query.post("/admin/v1/proxy/forget", &body, out, |answer: &Value, out| {
                let [app, global_id] = ["app", "global_id"].map(|name| answer[name].as_str().unwrap_or_default());
                let effect = "is erased. Its key stays blocked: repeats get 409 response_not_stored";
                Ok(writeln!(out, "The response of claim {global_id} of app `{app}` {effect}.")?)
            })
        }
    }
}

/// Returns a key from the command line, or from standard input if the argument is a dash.
fn read_key(argument: String, input: &mut impl Read) -> anyhow::Result<String> {
    if argument != "-" {
        return Ok(argument);
    }
    let mut key = String::new();
    input.take(KEY_BYTES_MAX).read_to_string(&mut key).context("cannot read the key from standard input")?;
    Ok(key.trim().to_owned())
}

fn recent(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let requests = rows(answer, "requests");
    if requests.is_empty() {
        writeln!(out, "This gateway has answered no such request lately.")?;
    } else {
        table(requests, REQUESTS, out)?;
    }
    if let Some(next) = answer["next"].as_u64() {
        writeln!(out, "There are older ones: --after {next}.")?;
    }
    if answer["lost"].as_u64().is_some_and(|lost| lost > 0) {
        writeln!(out, "Since the start {} requests were lost: too many came at once.", cell(&answer["lost"]))?;
    }
    Ok(())
}

fn check(arguments: CheckArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let CheckArgs { flags, method, url, headers, data, trusted } = arguments;
    let config = load(&flags)?;
    if config.proxy.routes.is_empty() {
        return Err(usage("the configuration has no [[proxy.routes]]; name the file that has them with --config FILE"));
    }
    let field = |field: &String| {
        let (name, value) =
            field.split_once(':').ok_or_else(|| usage(format!("{field:?} is no field; write 'Name: value'")))?;
        anyhow::Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    let headers = headers.iter().map(field).collect::<anyhow::Result<_>>()?;
    let body_bytes_max = config.limits.body_bytes;
    let sample = Sample { method, url, headers, body: data.into_bytes(), body_bytes_max, is_trusted: trusted };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    match explain(&config.proxy, &sample, &clock).map_err(usage)? {
        Explanation::Refused(why) => writeln!(out, "Refused: {why}.")?,
        Explanation::Unprotected(why) => writeln!(out, "Forwarded without protection: {why}.")?,
        Explanation::Claimed { operation, app, key, contents, global_id, fingerprint } => {
            writeln!(out, "Claimed, then forwarded or replayed.")?;
            writeln!(out, "App:         {app}")?;
            writeln!(out, "Operation:   {operation}")?;
            writeln!(out, "Key:         {key}")?;
            writeln!(out, "Contents:    {contents}")?;
            writeln!(out, "Global ID:   {global_id}")?;
            writeln!(out, "Fingerprint: {fingerprint}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:9000\"]\n[[proxy.routes]]\nname = \"orders.create\"\n\
                          app = \"default\"\npath = \"/orders/{id}\"\nmethods = [\"POST\"]\nupstream = \"orders\"\n\
                          principal = [\"authorization\"]\n";

    fn explained(method: &str, url: &str, headers: &[&str]) -> anyhow::Result<String> {
        explained_with(CONFIG, method, url, headers, false)
    }

    fn explained_with(
        config: &str,
        method: &str,
        url: &str,
        headers: &[&str],
        trusted: bool,
    ) -> anyhow::Result<String> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("oncegate.toml");
        std::fs::write(&file, config)?;
        let flags = Flags { config: Some(file), ..Flags::default() };
        let headers = headers.iter().map(ToString::to_string).collect();
        let (method, url, data) = (method.to_owned(), url.to_owned(), "one".to_owned());
        let mut out = Vec::new();
        check(CheckArgs { flags, method, url, headers, data, trusted }, &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn a_request_on_a_route_has_an_identity() {
        let fields = ["Idempotency-Key: \"k-1\"", "Authorization: alice"];
        let said = explained("POST", "http://shop/orders/1", &fields).unwrap();
        for part in ["proxy:orders.create", "Key:         k-1", "\"principal\":\"", "\"path\":\"/orders/1\""] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let bare = ["Idempotency-Key: k-1", "Authorization: alice"];
        assert_eq!(explained("POST", "http://shop/orders/1", &bare).unwrap(), said, "the same key");
        let bob = ["Idempotency-Key: k-1", "Authorization: bob"];
        assert_ne!(explained("POST", "http://shop/orders/1", &bob).unwrap(), said, "another caller");
    }

    #[test]
    fn the_reason_is_given_where_nothing_is_claimed() {
        for (method, url, fields, said) in [
            ("POST", "http://shop/orders/1", &["Authorization: alice"][..], "Refused: it has no key"),
            ("POST", "http://shop/orders/1", &["Idempotency-Key: k"], "Refused: the field `authorization` is missing"),
            ("POST", "http://shop/orders//1", &[], "Refused: The path has an empty segment"),
            ("POST", "http://shop/others", &[], "Refused: no route"),
            ("GET", "http://shop/orders/1", &[], "Forwarded without protection: no route protects"),
        ] {
            let explained = explained(method, url, fields).unwrap();
            assert!(explained.starts_with(said), "{explained}");
        }
        for (url, fields) in [("/orders/1", &[][..]), ("http://shop/", &["no colon"]), ("http://shop/", &["a b: c"])] {
            assert!(explained("POST", url, fields).is_err(), "{url}");
        }
    }

    #[test]
    fn fields_of_trusted_peers_are_believed_only_where_the_request_comes_from_one() {
        let config = CONFIG.replace("\"authorization\"", "\"trusted:x-user\"");
        let config = format!("{config}[proxy]\ntrusted_peers = [\"192.0.2.1\"]\n");
        let fields = ["Idempotency-Key: k", "X-User: alice"];
        for (trusted, said) in [(true, "Claimed"), (false, "Refused: the field `x-user` is believed only from")] {
            let explained = explained_with(&config, "POST", "http://shop/orders/1", &fields, trusted).unwrap();
            assert!(explained.starts_with(said), "trusted: {trusted}: {explained}");
        }
        // A field that the gateway removes from the requests of others is in no fingerprint.
        let config = format!("{CONFIG}[proxy]\ntrusted_peers = [\"192.0.2.1\"]\nstrip_fields = [\"if-match\"]\n");
        let explained = |more: &[&str], trusted| {
            let fields = [&["Idempotency-Key: k", "Authorization: alice"], more].concat();
            explained_with(&config, "POST", "http://shop/orders/1", &fields, trusted).unwrap()
        };
        let condition = ["If-Match: \"7\""];
        assert_eq!(explained(&condition, false), explained(&[], false));
        assert_ne!(explained(&condition, true), explained(&[], true));
    }

    #[test]
    fn the_date_of_a_dialect_is_checked() {
        let config = format!("{CONFIG}dialect = \"oasis\"\n");
        let old = "Repeatability-First-Sent: Tue, 15 Nov 1994 08:12:31 GMT";
        let fields = ["Repeatability-Request-ID: 5942d803", "Authorization: alice", old];
        for (fields, said) in
            [(&fields[..], "before the time for which keys are kept"), (&fields[..2], "Repeatability-First-Sent")]
        {
            let explained = explained_with(&config, "POST", "http://shop/orders/1", fields, false).unwrap();
            assert!(explained.starts_with("Refused: ") && explained.contains(said), "{explained}");
        }
    }
}
