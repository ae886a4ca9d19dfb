//! The commands of the pages that newcomers paste: README.md, the quick start, the proxy guide with its example, the
//! locks, and README.md in Chinese. One shell runs them unchanged, page after page in one folder, while the gateways
//! that they start continue to run. Then it runs all of them again. Answers are compared with the pages. The pictures
//! of measurements are compared with their figures.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use oncegate_testkit::fresh;
use oncegate_testkit::missing::tool;
use serde_json::Value;

/// The pages in the order of reading: from where each is followed, and the number of its commands.
const PAGES: [(&str, &str, usize); 5] = [
    (include_str!("../../README.md"), "## Quick start", 3),
    (include_str!("../../docs/quick-start.md"), "# Quick start", 5),
    (include_str!("../../docs/proxy-guide.md"), "# Make your POSTs", 4),
    (include_str!("../../docs/locks.md"), "# Locks", 3),
    (include_str!("../../README.zh-CN.md"), "## 快速开始", 3),
];

/// The ports that the pages name. The test replaces each with a free one, since other tests use ports too.
const PORTS: [&str; 6] = ["8080", "9464", "8090", "9474", "8081", "9000"];
/// Starts of servers are `curl -fs URL || COMMAND`: they run in a separate terminal, and start nothing if a server
/// runs.
const STARTS: &str = "curl -fs ";
const EXAMPLE: &str = "examples/proxy/run\n";

/// Fields that differ from run to run. Only their shape is compared: the text between their digits.
const VARYING: [&str; 11] = [
    "attempt",
    "attempt_hash",
    "claimed_at",
    "expires_at",
    "fence",
    "global_id",
    "lease_expires_at",
    "lease_ms",
    "request_id",
    "timestamp",
    "waited_ms",
];

/// A command of a page, and the answer that the page shows for it.
struct Step {
    command: String,
    answer: Option<Value>,
}

#[test]
fn pages_can_be_pasted_twice_in_bash() {
    follow("bash");
}

#[test]
fn pages_can_be_pasted_twice_in_zsh() {
    follow("zsh");
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

/// Pictures of README.md: on a white card in every theme, with text that has a contrast of 4.5 : 1 to it (WCAG 2.1, 1.4.3).
#[test]
fn text_of_pictures_can_be_read_in_every_theme() {
    for (name, picture) in [
        ("claim", include_str!("../../docs/images/claim.svg")),
        ("overview", include_str!("../../docs/images/overview.svg")),
        ("performance", include_str!("../../docs/images/performance.svg")),
    ] {
        assert!(picture.contains("fill=\"#ffffff\" stroke=\"#d0d7de\""), "{name} has no card");
        let holds_text =
            |tag: &&str| ["svg ", "svg\n", "g ", "text ", "tspan "].iter().any(|name| tag.starts_with(name));
        let colors = picture.split('<').filter(holds_text).filter_map(|tag| tag.split_once("fill=\"#")?.1.get(..6));
        let colors: Vec<&str> = colors.collect();
        assert!(!colors.is_empty(), "{name} has text");
        for color in colors {
            let contrast = 1.05 / (luminance(color) + 0.05);
            assert!(contrast >= 4.5, "{name}: text of #{color} has a contrast of {contrast:.2} : 1");
        }
    }
}

/// Relative luminance of an sRGB color, as WCAG defines it.
fn luminance(color: &str) -> f64 {
    let part = |at: usize| {
        let value = f64::from(u8::from_str_radix(&color[at..at + 2], 16).expect("a color")) / 255.0;
        if value <= 0.039_28 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
}

fn follow(shell: &str) {
    let (Some(mut command), Some(_), Some(_)) = (tool(shell), tool("curl"), tool("python3")) else { return };
    let steps: Vec<Step> = PAGES.iter().flat_map(steps_of).chain([example()]).collect();
    let twice: Vec<&Step> = steps.iter().chain(&steps).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("an empty folder");
    symlink(root.join("examples"), folder.path().join("examples")).expect("the examples of a checkout");
    let programs = Path::new(env!("CARGO_BIN_EXE_oncegate")).parent().expect("the folder of the program");
    command.arg("-c").arg(script(&twice)).arg(programs).current_dir(folder.path()).stdin(Stdio::null());
    let output = command.env("ONCEGATE", env!("CARGO_BIN_EXE_oncegate")).output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    let servers = std::fs::read_to_string(folder.path().join("servers")).expect("what the servers said");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{printed}{servers}");
    for wrong in ["in use", "is held", "Traceback"] {
        assert!(!servers.contains(wrong), "{wrong}: {servers}");
    }
    let answers: Vec<&str> = printed.split(MARK).collect();
    assert_eq!(answers.len(), twice.len() + 1, "{printed}");
    for (step, printed) in twice.iter().zip(answers) {
        if step.command.contains("for i in 1 2") {
            assert_eq!(printed.matches("HTTP/1.1 201").count(), 2, "{printed}");
            assert_eq!(printed.to_lowercase().matches("idempotent-replayed: true").count(), 1, "{printed}");
        }
        let Some(expected) = &step.answer else { continue };
        let answer: Value = serde_json::from_str(printed).unwrap_or_else(|_| panic!("{}: {printed}", step.command));
        assert_eq!(normalised(&answer), normalised(expected), "{}\n{answer}", step.command);
    }
}

const MARK: &str = "----done----";

/// The shell script of these steps. Its `$0` is the folder of the program under test.
fn script(steps: &[&Step]) -> String {
    let mut script = "PATH=$0:$PATH\nservers=\n".to_owned();
    for step in steps {
        let command = &step.command;
        if let Some((url, start)) = command.strip_prefix(STARTS).and_then(|rest| rest.split_once(" || ")) {
            let start = start.trim_end();
            script += &[
                &format!("{{ {STARTS}{url} || exec {start}; }} >>servers 2>&1 </dev/null &\nservers=\"$servers $!\"\n"),
                &format!("for i in $(seq 300); do curl -fs {url} >curled && break; sleep 0.1; done\n"),
            ]
            .map(String::as_str)
            .concat();
        } else {
            script += command;
        }
        script += &["printf '\\n%s\\n' ", MARK, "\n"].concat();
    }
    script += "eval \"kill $servers\" 2>curled\nwait\n";
    let listen = format!("--listen 127.0.0.1:{} --admin-listen 127.0.0.1:{}", PORTS[0], PORTS[1]);
    let script = script.replace("oncegate serve;", &format!("oncegate serve {listen};"));
    PORTS.iter().fold(script, |script, port| script.replace(port, &free_port()))
}

/// A free port in whose digits no port of the pages is found again.
fn free_port() -> String {
    let ports = std::iter::repeat_with(|| fresh::port().to_string());
    ports.into_iter().find(|port| !PORTS.iter().any(|of_page| port.contains(of_page))).expect("a free port")
}

fn steps_of(&(page, from, count): &(&str, &str, usize)) -> Vec<Step> {
    let from = page.find(from).expect("the page has the heading");
    let steps = steps(&page[from..]);
    assert_eq!(steps.len(), count, "commands of the page: {from}");
    steps
}

/// The example of the proxy, as the guide names it.
fn example() -> Step {
    assert!(PAGES[2].0.contains(EXAMPLE.trim_end()), "the guide names the example");
    Step { command: EXAMPLE.to_owned(), answer: None }
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
