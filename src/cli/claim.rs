//! `oncegate claim`: looking at claims, and changing them by hand, through a gateway's admin API. Claims are named as people
//! know them, by app, operation and contents.

use std::io::{Read, Write};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value};

use super::admin_client::{AdminArgs, AdminClient};
use super::id::{CONTENTS_HELP, read_contents};
use super::shown::{plain, text};
use crate::domain::global_id::GlobalId;
use crate::domain::tenant::{AppKey, Operation};
use crate::domain::terms::Retention;

/// What to do with claims.
#[derive(Args, Debug)]
pub(super) struct ClaimArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show a claim: its state, since when and until when, what it is of
    Show {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        common: Common,
    },
    /// End a claim, so that its operation can be run again
    Release {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        change: Change,
        /// Release it even if it succeeded: the operation will be run a second time
        #[arg(long)]
        even_succeeded: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Report in the holder's place what became of the operation, once its effect was looked up
    Settle {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        change: Change,
        /// What became of it: success, it was done and must not run again; failure, it certainly was not; unknown
        #[arg(long, value_name = "OUTCOME")]
        outcome: Outcome,
        /// JSON to replay to duplicates, with success only
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
        /// How long a success blocks repeats, such as 24h or forever [default: as the claim was made]
        #[arg(long)]
        retention: Option<Retention>,
        #[command(flatten)]
        common: Common,
    },
    /// List claims of an app, by global ID
    List {
        /// The app's key, such as shop
        #[arg(long)]
        app: AppKey,
        /// Only those in this state
        #[arg(long)]
        state: Option<State>,
        /// Only those after this global ID
        #[arg(long, value_name = "ID")]
        after: Option<GlobalId>,
        /// At most so many, from 1 to 100
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        common: Common,
    },
}

/// Which claim.
#[derive(Args, Debug)]
struct Named {
    /// The app's key, such as shop
    #[arg(long)]
    app: AppKey,
    /// What is done, such as order.submit [default: default]
    #[arg(long, conflicts_with = "global_id")]
    operation: Option<Operation>,
    /// The claim's global ID, instead of operation and contents
    #[arg(long, value_name = "ID", conflicts_with = "contents")]
    global_id: Option<GlobalId>,
    #[arg(allow_hyphen_values = true, required_unless_present = "global_id", help = CONTENTS_HELP)]
    contents: Option<String>,
}

/// Why, and of what.
#[derive(Args, Debug)]
struct Change {
    /// Why, for the audit trail: one line, such as "INC-42: paid by hand"
    #[arg(long)]
    reason: String,
    /// Only if this attempt holds the claim, as `claim show` told it
    #[arg(long, value_name = "HASH")]
    attempt_hash: Option<String>,
}

#[derive(Args, Debug)]
struct Common {
    #[command(flatten)]
    admin: AdminArgs,
    /// Print the gateway's answer as it is, in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Outcome {
    Success,
    Failure,
    Unknown,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
#[value(rename_all = "snake_case")]
enum State {
    InProgress,
    Succeeded,
    Unknown,
}

pub(super) fn run(args: ClaimArgs, input: &mut impl Read, out: &mut impl Write) -> anyhow::Result<()> {
    match args.action {
        Action::Show { named, common } => {
            let body = named.body(input)?;
            common.answer("show", body, out, show)
        }
        Action::Release { named, change, even_succeeded, common } => {
            let mut body = named.body(input)?;
            change.fill(&mut body);
            body.insert("even_succeeded".into(), even_succeeded.into());
            common.answer("release", body, out, changed)
        }
        Action::Settle { named, change, outcome, result, retention, common } => {
            let mut body = named.body(input)?;
            change.fill(&mut body);
            body.insert("outcome".into(), word(&outcome).into());
            if let Some(result) = result {
                let not_json =
                    |error| anyhow::anyhow!("--result is not JSON: {error}; a text needs its own quotes: '\"done\"'");
                body.insert("result".into(), serde_json::from_str(&result).map_err(not_json)?);
            }
            if let Some(retention) = retention {
                body.insert("retention".into(), retention.to_string().into());
            }
            common.answer("settle", body, out, changed)
        }
        Action::List { app, state, after, limit, common } => {
            let state = state.map(|state| format!("&state={}", word(&state))).unwrap_or_default();
            let after = after.map(|after| format!("&after={after}")).unwrap_or_default();
            let path = format!("/admin/v1/claims?app={app}&limit={limit}{state}{after}");
            let answer = AdminClient::new(common.admin)?.get(&path)?;
            print(common.json, &answer, out, list)
        }
    }
}

/// The word of a choice, as the gateway writes it too.
fn word(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

impl Named {
    fn body(&self, input: &mut impl Read) -> anyhow::Result<Map<String, Value>> {
        let mut body = Map::from_iter([("app".to_owned(), Value::from(self.app.as_ref()))]);
        if let Some(global_id) = &self.global_id {
            body.insert("global_id".into(), global_id.to_string().into());
        }
        if let Some(contents) = &self.contents {
            let contents = read_contents(contents, input)?;
            body.insert("contents".into(), serde_json::from_str(contents.as_str())?);
        }
        if let Some(operation) = &self.operation {
            body.insert("operation".into(), operation.as_ref().into());
        }
        Ok(body)
    }
}

impl Change {
    fn fill(&self, body: &mut Map<String, Value>) {
        body.insert("reason".into(), self.reason.as_str().into());
        if let Some(hash) = &self.attempt_hash {
            body.insert("attempt_hash".into(), hash.as_str().into());
        }
    }
}

impl Common {
    fn answer<Out: Write>(
        self,
        what: &str,
        body: Map<String, Value>,
        out: &mut Out,
        readable: fn(&Value, &mut Out) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let answer = AdminClient::new(self.admin)?.post(&format!("/admin/v1/claims/{what}"), &body.into())?;
        print(self.json, &answer, out, readable)
    }
}

/// Prints an answer as it is, or for people.
fn print<Out: Write>(
    json: bool,
    answer: &Value,
    out: &mut Out,
    readable: impl Fn(&Value, &mut Out) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if json {
        writeln!(out, "{answer}")?;
        return Ok(());
    }
    readable(answer, out)
}

fn show(claim: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let state = text(&claim["state"]);
    let meaning = match &*state {
        "in_progress" => "somebody is doing it",
        "succeeded" => "it was done",
        "unknown" => "it may have been done; look up its effect, then settle it",
        _ => "",
    };
    let mut line = |name: &str, value: String| writeln!(out, "{name:<12}{value}");
    line("app", text(&claim["app"]))?;
    line("operation", text(&claim["operation"]))?;
    line("global ID", text(&claim["global_id"]))?;
    line("state", format!("{state}: {meaning}"))?;
    line("claimed", text(&claim["claimed_at"]))?;
    line(
        "until",
        if claim["expires_at"].is_null() {
            "somebody settles or releases it".into()
        } else {
            text(&claim["expires_at"])
        },
    )?;
    line("attempt", format!("hash {}, timestamp {}", text(&claim["attempt_hash"]), text(&claim["timestamp"])))?;
    line("fence", text(&claim["fence"]))?;
    for (member, name) in [("contents", "contents"), ("contents_sha256", "SHA-256"), ("result", "result")] {
        if let Some(value) = claim.get(member) {
            line(name, plain(&value.to_string()))?;
        }
    }
    if claim["late"] == true {
        line("late", "recorded from an outcome that found no claim".into())?;
    }
    let terms = format!(
        "lease {}, then {}; retention {}, of unknowns {}",
        text(&claim["lease"]),
        text(&claim["on_lease_end"]),
        text(&claim["retention"]),
        text(&claim["unknown_retention"])
    );
    line("terms", terms)?;
    line("kept in", format!("engine {}, chain {}", text(&claim["engine"]), text(&claim["chain"])))?;
    Ok(())
}

fn changed(answer: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    let (state, expires_at) = (text(&answer["state"]), &answer["expires_at"]);
    let until = match &*state {
        "released" => "it can be claimed again".to_owned(),
        _ if expires_at.is_null() => "until somebody settles or releases it".to_owned(),
        _ => format!("until {}", text(expires_at)),
    };
    writeln!(out, "{} {}: {state}, {until}", text(&answer["app"]), text(&answer["global_id"]))?;
    Ok(())
}

fn list(page: &Value, out: &mut impl Write) -> anyhow::Result<()> {
    for claim in page["claims"].as_array().into_iter().flatten() {
        let until = if claim["expires_at"].is_null() { "-".to_owned() } else { text(&claim["expires_at"]) };
        let of = claim.get("contents").or(claim.get("contents_sha256")).map(ToString::to_string).unwrap_or_default();
        let [id, state, claimed, operation] =
            ["global_id", "state", "claimed_at", "operation"].map(|name| text(&claim[name]));
        writeln!(out, "{id}  {state:<11}  {claimed}  {until}  {operation}  {}", plain(&of))?;
    }
    if let Some(next) = page["next"].as_str() {
        writeln!(out, "there are more: --after {}", plain(next))?;
    }
    Ok(())
}
