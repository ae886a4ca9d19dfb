//! Checks the rules of the house over the whole tree: allowed imports, files that may read a clock, heads and lengths
//! of files, and links of pages. The tables here at the top hold what the rules allow.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/diagram.rs"]
mod diagram;
#[path = "tidy/installs.rs"]
mod installs;
#[path = "tidy/pages.rs"]
mod pages;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/samples.rs"]
mod samples;
#[path = "tidy/source.rs"]
mod source;

use source::Source;

/// The rooms inside a crate, which no manifest keeps apart, and the modules of the same crate that each may import. What a
/// crate may import, its manifest says.
const ROOMS: &[(&str, &[&str])] = &[
    ("crates/gateway/src/tenants", &[]),
    ("crates/gateway/src/roster", &[]),
    ("crates/gateway/src/resilience", &["roster"]),
    ("src/engines", &[]),
    ("src/config", &["engines"]),
    ("src/server", &["config", "engines"]),
    ("src/cli", &["config", "engines", "server"]),
    ("src/main", &["cli"]),
];

/// The only names of crates above the rules that `config` uses, by a word of the path. They are the option structs that it
/// aggregates, which are declared next to the code that they configure. `*` stands for the beginning of a name.
const SEEN_BY_CONFIG: &[&str] = &["options", "*Options", "*Base", "tenants"];

/// The crates of engines. Only the table of engines names one, and the engine of `core`, `memory`: all other code takes an
/// `Arc<dyn Engine>`.
const ENGINES: &[&str] = &["disk", "redis", "postgres", "etcd", "zookeeper"];

/// The table of engines.
const ENGINES_TABLE: &str = "src/engines.rs";

/// Names that the rules never use, since they are pure. Their manifest has libraries for tests only.
const NOT_IN_CORE: &[&str] = &["std::fs", "std::net", "std::io", "std::env", "std::thread"];

/// Names with a home: they may not be used outside of it. The last column is the advice. A home is a file or a folder.
const HOMES: &[(&str, &[&str], &str)] = &[
    ("std::env", &["src/config", "src/cli"], "read the environment in `config` or `cli` and pass the value on"),
    ("process::exit", &["src/main.rs"], "return an error: `main` turns it into an exit code"),
    ("SystemTime", &["crates/core/src/clock.rs"], "take a `Clock`"),
    ("Instant::now", &["crates/core/src/clock.rs"], "take a `Clock`; to wait, use `tokio::time::sleep` or `timeout`"),
    (
        "engine::Engine",
        &[
            "crates/core",
            "crates/driver",
            "crates/coordination",
            "crates/disk",
            "crates/redis",
            "crates/postgres",
            "crates/etcd",
            "crates/zookeeper",
            "crates/outage",
            "crates/gateway",
            "src/engines.rs",
            "src/server",
            "src/cli",
        ],
        "call a use case of `gateway`: only below it a call goes to an engine",
    ),
    (
        "sqlx::",
        &["crates/postgres", "crates/gateway/src/tenants", "crates/database"],
        "keep SQL next to the code of its table",
    ),
    ("oncegate_gateway::resilience", &["crates/admin", "src"], "call a use case of `gateway`: chains are below them"),
];

/// Maximum number of `//!` lines at the top of a file. `lib.rs` is the map of the modules and may be longer.
const HEAD_LINES_MAX: usize = 6;

/// Maximum length of `main.rs`.
const MAIN_LINES_MAX: usize = 40;

/// Maximum length of the production code of a file, which is everything before its tests. A longer file has two
/// subjects.
const FILE_LINES_MAX: usize = 400;

/// Files that may be longer, with their own limit and the reason. Keep it empty.
const LONG_FILES: &[(&str, usize, &str)] = &[];

/// Files that only tests and `test-util` build: not production code, as far as size goes.
const TEST_SUPPORT: &[&str] = &["crates/core/src/engine/conformance", "crates/core/src/engine/faulty"];

/// Words and phrases that must not come back, and the term to use instead.
const WORDS: &[(&str, &str)] = &[
    ("PRE", "`claim call`"),
    ("dice", "`rng`"),
    ("story", "`scenario` or `history`"),
    ("told", "`answered`, `reported`, `delivered` or another plain verb"),
    ("deed", "`operation` or `step`"),
    ("deeds", "`operations` or `steps`"),
    ("keeper", "`outage journal`"),
    ("gathering", "`batch`"),
    ("swap_note", "`compare_and_set`"),
    ("heed", "`observer`"),
    ("greet", "`TLS handshake`"),
    ("lanes", "`connections`"),
    ("whoever", "the caller, or another noun"),
    ("Whoever", "the caller, or another noun"),
    ("somebody", "another caller, or another noun"),
    ("Somebody", "another caller, or another noun"),
    ("as ever", "`as before`, or leave it out"),
    ("hear of", "`notice` or `learn of`"),
    ("hears of", "`notices` or `learns of`"),
    ("is spoken", "another plain verb"),
    ("stand beside", "`be beside` or `be declared beside`"),
    ("stands beside", "`is beside` or `is declared beside`"),
];

#[test]
fn rooms_of_a_crate_import_one_way() {
    hold("rooms of a crate import one way", rules::rooms);
}

#[test]
fn files_of_a_crate_import_one_way() {
    hold("files of a crate import one way", circles::circles);
}

#[test]
fn config_names_options_only() {
    hold("config names options only", rules::options);
}

#[test]
fn the_rules_are_pure() {
    hold("the rules are pure", rules::purity);
}

#[test]
fn only_the_table_of_engines_names_an_engine() {
    hold("only the table of engines names an engine", rules::engines);
}

#[test]
fn names_stay_at_home() {
    hold("names stay at home", rules::homes);
}

#[test]
fn files_open_with_what_they_are_for() {
    hold("files open with what they are for", rules::heads);
}

#[test]
fn main_is_short_and_lib_is_a_map() {
    hold("main is short and lib is a map", rules::roots);
}

#[test]
fn lints_are_expected_not_allowed() {
    hold("lints are expected, not allowed", rules::expects);
}

#[test]
fn doc_comments_have_no_code_that_is_not_run() {
    hold("doc comments have no code that is not run", rules::doctests);
}

#[test]
fn files_have_one_subject() {
    hold("files have one subject", rules::sizes);
}

#[test]
fn links_lead_somewhere() {
    let root = source::root();
    hold("links lead somewhere", |sources| pages::links(sources, |path| root.join(path).is_file()));
}

#[test]
fn pages_install_what_a_release_makes() {
    hold("pages install what a release makes", installs::installs);
}

#[test]
fn the_site_has_every_page() {
    hold("the site has every page", pages::summary);
}

#[test]
fn the_page_of_metrics_is_complete() {
    hold("the page of metrics is complete", pages::metrics);
}

#[test]
fn explained_log_messages_exist() {
    hold("explained log messages exist", pages::messages);
}

/// With `UPDATE=1` it writes the diagram.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test has no configuration that could pass the variable on")]
fn the_diagram_of_crates_is_current() {
    let path = source::root().join("ARCHITECTURE.md");
    let page = std::fs::read_to_string(&path).expect("the page can be read");
    let Some(corrected) = diagram::corrected(&page, &diagram::crates(&source::tree())) else { return };
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, corrected).expect("the page can be written");
    } else {
        panic!(
            "the diagram in ARCHITECTURE.md is not that of the manifests; write it with `UPDATE=1 cargo test --test tidy`"
        );
    }
}

#[test]
fn plain_terms_are_used() {
    hold("plain terms are used", rules::words);
}

#[test]
fn nothing_names_a_place_of_work() {
    hold("nothing names a place of work", rules::places);
}

/// A rule over nothing would hold always.
#[test]
fn the_tree_is_really_read() {
    let sources = source::tree();
    for path in ["src/main.rs", "src/lib.rs", "crates/core/src/clock.rs", "tests/tidy.rs", "Cargo.toml", "Makefile"] {
        assert!(sources.iter().any(|source| source.path == path), "{path} was not read");
    }
}

/// Applies a rule to the tree and fails with its findings.
fn hold(name: &str, rule: impl Fn(&[Source]) -> Vec<String>) {
    let found = rule(&source::tree());
    assert!(found.is_empty(), "{name}: {} to correct\n{}", found.len(), found.join("\n"));
}
