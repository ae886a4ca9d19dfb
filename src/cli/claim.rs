//! `oncegate claim`: shows, lists and changes claims through the admin API. Claims are named by app, operation and
//! contents. Output for people is in `show`.

mod show;

use std::io::Read;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use oncegate_admin::bodies::{OutcomeName, Reason, ReleaseClaim, SettleClaim, ShowClaim};
use oncegate_core::global_id::GlobalId;
use oncegate_core::record;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::Retention;
use serde_json::Value;
use serde_json::value::RawValue;

use super::admin_client::{AdminClient, QueryArgs, filters};
use super::arguments::number;
use super::failure::usage;
use super::id::{CONTENTS_HELP, read_contents};
use super::output::Out;
use super::progress;

const EXAMPLES: &str = "\
Examples:
  oncegate claim show --app shop --operation order.submit '{\"order_id\": \"A-1001\"}'
  oncegate claim show --app shop --global-id 2ca8a31a53ad078ffd0c7c8c80158af7
  oncegate claim list --app shop --state unknown --limit 1000
  oncegate claim list --app shop --operation order.submit --claimed-after 2026-10-20T09:00:00Z
  oncegate claim settle --app shop --operation order.submit '{\"order_id\": \"A-1001\"}' \\
      --outcome success --result '{\"order_number\": 90017}' --reason \"INC-42: order found in the ledger\"
  oncegate claim release --app shop --operation order.submit '{\"order_id\": \"A-1001\"}' \\
      --reason \"INC-43: its host has failed\"";

/// Largest page of claims of the admin API.
const PAGE_MAX: usize = 100;

#[derive(Subcommand, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Show a claim: its state, when it was claimed and when it expires, and its terms
    Show {
        #[command(flatten)]
        claim: ClaimInRealm,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// End a claim, so that its operation can be run again
    ///
    /// It does not stop a holder that still runs: the next caller runs at the same time.
    Release {
        #[command(flatten)]
        claim: ClaimInRealm,
        #[command(flatten)]
        change: Change,
        /// Release the claim even if it succeeded: the operation can then be run a second time
        #[arg(long)]
        even_succeeded: bool,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// Report the outcome of an operation in place of its holder
    ///
    /// Look up the effect of the operation first, in the system that it would have changed.
    Settle {
        #[command(flatten)]
        claim: ClaimInRealm,
        #[command(flatten)]
        change: Change,
        /// Outcome of the operation
        #[arg(long, value_name = "OUTCOME")]
        outcome: Outcome,
        /// JSON to return to duplicates; only with --outcome success
        #[arg(long, value_name = "JSON")]
        result: Option<String>,
        /// Retention of the success, such as 24h or forever; only with --outcome success [default: that of the claim]
        #[arg(long, value_name = "DURATION")]
        retention: Option<Retention>,
        #[command(flatten)]
        query: QueryArgs,
    },
    /// List the claims of an app, in the order of their global IDs
    List {
        /// Key of the app, such as shop
        #[arg(long)]
        app: AppKey,
        /// List claims of the API, or records of the Idempotency-Key proxy
        #[arg(long, default_value = "api")]
        realm: Realm,
        #[command(flatten)]
        filter: FilterArgs,
        /// List only claims after this global ID
        #[arg(long, value_name = "ID")]
        after: Option<GlobalId>,
        /// List at most this many, from 1 to 100000
        #[arg(long, default_value_t = 50, value_parser = number::<u32>(1..=100_000))]
        limit: u32,
        #[command(flatten)]
        query: QueryArgs,
    },
}

/// The claim to show or change.
#[derive(Args, Debug)]
pub(super) struct ClaimName {
    /// Key of the app, such as shop
    #[arg(long)]
    pub(super) app: AppKey,
    /// Operation, such as order.submit [default: default]
    #[arg(long, conflicts_with = "global_id")]
    pub(super) operation: Option<Operation>,
    /// Global ID of the claim, in place of operation and contents
    #[arg(long, value_name = "ID", conflicts_with = "contents")]
    global_id: Option<GlobalId>,
    #[arg(allow_negative_numbers = true, required_unless_present = "global_id", help = CONTENTS_HELP)]
    contents: Option<String>,
}

/// The claim to show or change, in either realm.
#[derive(Args, Debug)]
pub(super) struct ClaimInRealm {
    #[command(flatten)]
    name: ClaimName,
    /// Realm of the global ID: `proxy` for a record of the Idempotency-Key proxy [default: api]
    #[arg(long, requires = "global_id")]
    realm: Option<Realm>,
}

/// Claims to list.
#[derive(Args, Debug)]
pub(super) struct FilterArgs {
    /// List only claims in this state
    #[arg(long)]
    state: Option<State>,
    /// List only claims of this operation, such as order.submit
    #[arg(long)]
    operation: Option<Operation>,
    /// List only claims that were claimed after this instant, such as 2026-10-20T09:00:00Z
    #[arg(long, value_name = "TIME")]
    claimed_after: Option<String>,
    /// List only claims that were claimed before this instant
    #[arg(long, value_name = "TIME")]
    claimed_before: Option<String>,
}

/// Arguments of every change.
#[derive(Args, Debug)]
pub(super) struct Change {
    /// Reason for the audit trail: one line, such as "INC-42: paid by hand"
    #[arg(long)]
    pub(super) reason: Reason,
    /// Change the claim only if the attempt with this hash holds it; `oncegate claim show` prints the hash
    #[arg(long, value_name = "HASH")]
    pub(super) attempt_hash: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(super) enum Outcome {
    /// The operation has completed, and must not run again
    Success,
    /// The operation certainly had no effect, and may run again
    Failure,
    /// Neither is known
    Unknown,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
pub(super) enum Realm {
    /// Claims of the API
    Api,
    /// Records of the Idempotency-Key proxy
    Proxy,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
#[value(rename_all = "snake_case")]
pub(super) enum State {
    InProgress,
    Succeeded,
    Unknown,
}

pub(super) fn run(action: Action, input: &mut impl Read, out: &mut impl Out) -> anyhow::Result<()> {
    match action {
        Action::Show { claim, query } => {
            let ClaimInRealm { name, realm } = claim;
            let contents = name.contents(input)?;
            let (realm, global_id) = (realm.map(Into::into), name.global_id());
            let ClaimName { app, operation, .. } = name;
            let body = ShowClaim { app, operation, contents: contents.as_deref(), realm, global_id };
            query.post("/admin/v1/claims/show", &body, out, show::record)
        }
        Action::Release { claim, change, even_succeeded, query } => {
            let ClaimInRealm { name, realm } = claim;
            let contents = name.contents(input)?;
            let (realm, global_id) = (realm.map(Into::into), name.global_id());
            let (ClaimName { app, operation, .. }, Change { reason, attempt_hash }) = (name, change);
            let (contents, even_succeeded) = (contents.as_deref(), Some(even_succeeded));
            let body =
                ReleaseClaim { app, operation, contents, realm, global_id, attempt_hash, even_succeeded, reason };
            query.post("/admin/v1/claims/release", &body, out, show::changed)
        }
        Action::Settle { claim, change, outcome, result, retention, query } => {
            if outcome != Outcome::Success && (result.is_some() || retention.is_some()) {
                return Err(usage(
                    "--result and --retention need --outcome success: nothing else is kept. Leave them out",
                ));
            }
            let outcome = match outcome {
                Outcome::Success => OutcomeName::Success,
                Outcome::Failure => OutcomeName::Failure,
                Outcome::Unknown => OutcomeName::Unknown,
            };
            let result = result.map(|result| json_of("--result", &result)).transpose()?;
            let ClaimInRealm { name, realm } = claim;
            let contents = name.contents(input)?;
            let (realm, global_id) = (realm.map(Into::into), name.global_id());
            let (ClaimName { app, operation, .. }, Change { reason, attempt_hash }) = (name, change);
            let (contents, result) = (contents.as_deref(), result.as_deref());
            let body = SettleClaim {
                app,
                operation,
                contents,
                realm,
                global_id,
                attempt_hash,
                outcome,
                result,
                retention,
                reason,
            };
            query.post("/admin/v1/claims/settle", &body, out, show::changed)
        }
        Action::List { app, realm, filter, after, limit, query } => {
            let client = AdminClient::new(query.admin)?;
            let filter = format!("app={app}&realm={}{}", word(&realm), filter.query());
            let page = list(&client, &filter, after.map(|after| after.to_string()), limit as usize)?;
            query.output.print(&page, out, show::list)
        }
    }
}

/// Reads a list page by page, and returns it as one page.
fn list(client: &AdminClient, filter: &str, mut after: Option<String>, limit: usize) -> anyhow::Result<Value> {
    let progress = (limit > PAGE_MAX).then(|| progress::spinner("Reading claims".to_owned()));
    let mut claims = Vec::new();
    loop {
        let from = after.map(|after| format!("&after={after}")).unwrap_or_default();
        let count = PAGE_MAX.min(limit - claims.len());
        let mut page = client.get(&format!("/admin/v1/claims?{filter}&limit={count}{from}"))?;
        let Value::Array(more) = page["claims"].take() else {
            anyhow::bail!("the gateway answered without a list of claims; is it of another release than this program?");
        };
        claims.extend(more);
        after = page["next"].as_str().map(str::to_owned);
        if let Some(progress) = &progress {
            progress.set_message(format!("Reading claims: {}", claims.len()));
        }
        // A page may be empty, and others come after it.
        if after.is_none() || claims.len() >= limit {
            page["claims"] = claims.into();
            return Ok(page);
        }
    }
}

/// Returns a choice as the gateway writes it.
fn word(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Parses the JSON of a flag.
pub(super) fn json_of(flag: &str, text: &str) -> anyhow::Result<Box<RawValue>> {
    serde_json::from_str(text)
        .map_err(|error| usage(format!("{flag} is not JSON: {error}. Text needs its own quotes: '\"done\"'")))
}

impl ClaimName {
    /// Returns the contents in canonical form.
    pub(super) fn contents(&self, input: &mut impl Read) -> anyhow::Result<Option<Box<RawValue>>> {
        let Some(contents) = &self.contents else { return Ok(None) };
        let contents = read_contents(contents, input)?.as_str().to_owned();
        RawValue::from_string(contents).map(Some).context("the contents cannot be sent")
    }

    pub(super) fn global_id(&self) -> Option<String> {
        self.global_id.map(|global_id| global_id.to_string())
    }
}

impl From<Realm> for record::Realm {
    fn from(realm: Realm) -> Self {
        match realm {
            Realm::Api => Self::Api,
            Realm::Proxy => Self::Proxy,
        }
    }
}

impl FilterArgs {
    /// Returns the filter as a part of a query.
    fn query(&self) -> String {
        let state = self.state.as_ref().map(word);
        let operation = self.operation.as_ref().map(ToString::to_string);
        filters([
            ("state", state),
            ("operation", operation),
            ("claimed_after", self.claimed_after.clone()),
            ("claimed_before", self.claimed_before.clone()),
        ])
    }
}
