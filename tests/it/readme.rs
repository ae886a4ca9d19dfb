//! The commands of `README.md` and of the quick start, pasted as they stand, in order and in an empty folder, against a real
//! gateway; their answers are compared with the page. And the pictures of measurements, compared with their figures.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use oncegate_testkit::missing::tool;
use serde_json::Value;

use crate::support::gateway;

/// The pages, and how many commands each has at least, beside the one that starts a gateway.
const PAGES: [(&str, usize); 2] =
    [(include_str!("../../README.md"), 2), (include_str!("../../docs/quick-start.md"), 4)];

/// Commands that build and start a gateway. The test starts the binary under test in their place.
const STARTS: [&str; 1] = ["cargo run --release -- serve\n"];
/// Address of that gateway. The test's gateway listens elsewhere, and its `.curlrc` redirects curl.
const LISTENS: &str = "127.0.0.1:8080";

/// Fields that differ from run to run. Only their shape is compared: what stands between their digits.
const VARYING: [&str; 9] = [
    "attempt",
    "attempt_hash",
    "claimed_at",
    "expires_at",
    "fence",
    "lease_expires_at",
    "lease_ms",
    "request_id",
    "timestamp",
];

/// A command of the page, and the answer that the page shows for it.
struct Step {
    command: String,
    answer: Option<Value>,
}

#[tokio::test]
async fn its_commands_answer_as_it_says_in_bash() {
    follow("bash").await;
}

#[tokio::test]
async fn its_commands_answer_as_it_says_in_zsh() {
    follow("zsh").await;
}

#[test]
fn its_chart_shows_the_measured_figures() {
    shows_its_figures("scripts/draw-performance");
}

#[test]
fn the_picture_of_the_brokers_shows_the_counted_messages() {
    shows_its_figures("scripts/draw-brokers");
}

fn shows_its_figures(script: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let Some(mut python) = tool("python3") else { return };
    let output = python.arg(script).arg("--check").output().expect("python3 runs");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

async fn follow(shell: &str) {
    for (page, least) in PAGES {
        follow_page(shell, page, least).await;
    }
}

async fn follow_page(shell: &str, page: &str, least: usize) {
    let (Some(mut command), Some(_)) = (tool(shell), tool("curl")) else { return };
    let steps = steps(page);
    let (starts, steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| STARTS.contains(&step.command.as_str()));
    assert_eq!(starts.len(), 1, "the page starts one gateway");
    assert!(steps.len() >= least, "the page has commands to follow");

    let gateway = gateway::on_configured().start().await;
    let folder = tempfile::tempdir().expect("an empty folder");
    let home = tempfile::tempdir().expect("a folder for curl's configuration");
    std::fs::write(home.path().join(".curlrc"), leads_to(gateway.api())).expect("it is written");
    let commands: Vec<_> = steps.iter().map(|step| step.command.as_str()).collect();
    let script = commands.join(&format!("printf '\\n%s\\n' {MARK}\n"));
    command.arg("-c").arg(script).current_dir(folder.path()).env("CURL_HOME", home.path()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic").expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let printed = String::from_utf8(output.stdout).expect("text");
    for (step, printed) in steps.iter().zip(printed.split(MARK)) {
        let Some(expected) = &step.answer else { continue };
        let answer: Value = serde_json::from_str(printed).unwrap_or_else(|_| panic!("{}: {printed}", step.command));
        assert_eq!(normalised(&answer), normalised(expected), "{}\n{answer}", step.command);
    }
}

const MARK: &str = "----done----";

fn leads_to(address: SocketAddr) -> String {
    format!("connect-to = \"{LISTENS}:{address}\"\n")
}

/// The commands in the order of the page, each with the JSON block that directly follows it.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for (at, _) in page.match_indices("```sh\n") {
        let (command, rest) = page[at + 6..].split_once("```\n").expect("the block ends");
        let answer = rest.strip_prefix("```json\n").map(|rest| {
            let (answer, _) = rest.split_once("```").expect("the block ends");
            serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
        });
        steps.push(Step { command: command.to_owned(), answer });
    }
    steps
}

/// The answer with every run of hexadecimal digits in a varying field replaced by one `0`: fractions of seconds have no zeros at
/// their end.
fn normalised(answer: &Value) -> Value {
    let mut fields = answer.as_object().expect("an object").clone();
    for (name, value) in &mut fields {
        if VARYING.contains(&name.as_str()) {
            let digits = |char: char| if char.is_ascii_hexdigit() { '0' } else { char };
            let mut shape: Vec<char> = value.to_string().chars().map(digits).collect();
            shape.dedup_by(|one, next| *one == '0' && *next == '0');
            *value = shape.into_iter().collect::<String>().into();
        }
    }
    fields.into()
}
