//! Tests of the rules: each rule gets a small sample that breaks it, and one that does not.

use crate::circles::circles;
use crate::diagram;
use crate::installs;
use crate::pages;
use crate::rules;
use crate::source::Source;
use crate::{FILE_LINES_MAX, HEAD_LINES_MAX, MAIN_LINES_MAX};

type Rule = fn(&[Source]) -> Vec<String>;

/// Returns the findings of the rule in one file.
fn found(rule: Rule, path: &str, text: &str) -> Vec<String> {
    rule(&[Source::new(path, text)])
}

/// Asserts that the rule finds one thing in the file, at that line.
#[track_caller]
fn caught(rule: Rule, path: &str, text: &str, line: usize) {
    let found = found(rule, path, text);
    let place = format!("{path}:{line}: ");
    assert!(found.len() == 1 && found[0].starts_with(&place), "expected one finding at {place}got {found:#?}\n{text}");
}

#[track_caller]
fn passes(rule: Rule, path: &str, text: &str) {
    let found = found(rule, path, text);
    assert!(found.is_empty(), "{found:#?}\n{text}");
}

#[test]
fn an_import_of_a_higher_room_is_caught() {
    caught(rules::rooms, "crates/gateway/src/roster.rs", "\nuse crate::tenants::App;", 2);
    caught(rules::rooms, "crates/gateway/src/resilience/chain.rs", "fn f(g: &crate::Gateway) {}", 1);
    caught(rules::rooms, "crates/gateway/src/tenants/file.rs", "use super::super::resilience::chain::Chain;", 1);
    caught(rules::rooms, "crates/gateway/src/tenants/file.rs", "use crate::{\n    tenants::App,\n    Gateway,\n};", 3);
    caught(rules::rooms, "src/config/server.rs", "use super::super::server::run;", 1);
    caught(rules::rooms, "src/main.rs", "fn main() { oncegate::server::run() }", 1);
    caught(rules::rooms, "src/sidedoor.rs", "", 1);
    passes(rules::rooms, "crates/gateway/src/claim.rs", "use crate::{resilience::chain::Chain, tenants::App, roster};");
    passes(rules::rooms, "crates/gateway/src/resilience/retry.rs", "use super::chain::Chain;\nuse crate::roster;");
    passes(
        rules::rooms,
        "src/server/live.rs",
        "use super::Source;\nuse crate::config::Config;\nuse oncegate_web::head;",
    );
    passes(rules::rooms, "src/main.rs", "fn main() { oncegate::cli::run() }");
}

#[test]
fn files_that_import_each_other_are_caught() {
    let file = |name: &str, text: &str| Source::new(&format!("crates/redis/src/{name}.rs"), text);
    let circle = [
        file("url", "use super::address::Address;"),
        file("address", "use crate::reply::{self, Reply};"),
        file("reply", "fn f() -> crate::url::Url {}"),
        file("wire", "use super::url::Url;"),
    ];
    let found = circles(&circle);
    assert!(found.len() == 1 && found[0].contains("reply.rs, crates/redis/src/url.rs"), "{found:?}");
    assert!(circles(&circle[..2]).is_empty() && circles(&circle[1..]).is_empty());
    let parts = [
        file("url", "mod layout;\nuse self::layout::Layout;\nuse super::Redis;"),
        file("url/layout", "use super::Url;\nuse crate::lib_item;"),
        file("lib", "mod url;\nuse self::url::Url;"),
        Source::new("crates/disk/src/url.rs", "use super::address::Address;"),
        Source::new("crates/disk/src/address.rs", "#[cfg(test)]\nmod tests {\n    use crate::url::Url;\n}"),
    ];
    assert_eq!(circles(&parts), Vec::<String>::new());
}

#[test]
fn config_sees_options_but_no_more() {
    let path = "src/config/server.rs";
    passes(rules::options, path, "use oncegate_core::limits::Limits;\nuse oncegate_gateway::tenants::AppFile;");
    passes(rules::options, path, "use oncegate_proxy::options::server_of;\nuse oncegate_admin::TokenOptions;");
    caught(rules::options, path, "use oncegate_gateway::resilience::breaker::{Breaker, BreakerOptions};", 1);
    passes(rules::options, "src/server.rs", "use oncegate_admin::Admin;");
}

#[test]
fn tests_comments_and_strings_are_no_imports() {
    let text = r##"
//! As `crate::gateway` does.
/* crate::api /* crate::admin */ crate::cli */
const A: &str = "crate::server \" crate::server";
const B: &str = r#"crate::server " crate::server"#;
const C: (char, char, &'static str) = ('"', '\'', "crate::server");
#[cfg(any(test, feature = "test-util"))]
pub struct Helper {
    inner: crate::gateway::Gateway,
}
#[cfg(test)]
mod tests {
    use crate::gateway::Gateway;
    fn f() -> [u8; 2] { [b'{', b'"'] }
}
"##;
    passes(rules::rooms, "crates/gateway/src/resilience/chain.rs", text);
    passes(rules::rooms, "crates/gateway/src/resilience/chain/tests.rs", "use crate::gateway::Gateway;");
    // And what comes after them is read again.
    caught(rules::rooms, "crates/gateway/src/resilience/chain.rs", &format!("{text}use crate::gateway::Gateway;"), 16);
}

#[test]
fn an_impure_rule_is_caught() {
    caught(rules::purity, "crates/core/src/claim.rs", "fn f() { std::thread::yield_now(); }", 1);
    caught(rules::purity, "crates/core/src/claim.rs", "use std::{fmt, fs};", 1);
    passes(rules::purity, "crates/core/src/claim.rs", "use std::fmt;\nstruct A { fs: u8 }\nuse super::fs::B;");
    passes(rules::purity, "crates/redis/src/lib.rs", "use std::io;");
    passes(rules::purity, "crates/core/src/engine/conformance.rs", "use std::io;");
}

#[test]
fn an_engine_that_is_named_outside_the_table_is_caught() {
    caught(rules::engines, "crates/gateway/src/resilience/chain.rs", "use oncegate_redis::Redis;", 1);
    caught(rules::engines, "crates/gateway/src/lib.rs", "fn f() -> crate::engine::memory::Memory {}", 1);
    caught(rules::engines, "crates/gateway/src/lib.rs", "use oncegate_core::engine::{Engine, memory};", 1);
    caught(
        rules::engines,
        "crates/redis/Cargo.toml",
        "[package]\n\n[dependencies]\noncegate-disk.workspace = true\n",
        1,
    );
    passes(
        rules::engines,
        "crates/redis/Cargo.toml",
        "[package]\n\n[dependencies]\noncegate-driver.workspace = true\n",
    );
    passes(rules::engines, "Cargo.toml", "[package]\n\n[dependencies]\noncegate-disk.workspace = true\n");
    passes(rules::engines, "crates/gateway/src/lib.rs", "use crate::engine::{Engine, EngineError};");
    passes(rules::engines, "src/engines.rs", "use crate::engine::memory::Memory;\nuse oncegate_disk::SCHEME;");
    passes(rules::engines, "crates/core/src/engine/conformance.rs", "use crate::engine::memory::Memory;");
}

#[test]
fn a_name_away_from_home_is_caught() {
    for (path, text) in [
        ("crates/api/src/mod.rs", "fn f() { std::env::var(\"HOME\"); }"),
        ("src/server.rs", "use std::{env, io};"),
        ("src/cli/mod.rs", "fn f() { std::process::exit(1) }"),
        ("src/cli/mod.rs", "use std::process::{self, exit};"),
        ("crates/disk/src/lib.rs", "use std::time::SystemTime;"),
        ("crates/disk/src/lib.rs", "fn f() { Instant::now(); }"),
        ("crates/gateway/src/resilience/retry.rs", "fn f() { tokio::time::Instant::now(); }"),
        ("crates/web/src/problem.rs", "use oncegate_core::engine::{Engine, EngineError};"),
        ("crates/api/src/claim.rs", "use sqlx::PgPool;"),
        ("crates/api/src/claim.rs", "use oncegate_gateway::resilience::chain::Chain;"),
    ] {
        caught(rules::homes, path, text, 1);
    }
    for (path, text) in [
        ("src/config/mod.rs", "use std::env;"),
        ("src/cli.rs", "use std::env;"),
        ("src/main.rs", "fn main() { std::process::exit(1) }"),
        ("crates/core/src/clock.rs", "fn f() { std::time::SystemTime::now(); std::time::Instant::now(); }"),
        ("crates/web/src/problem.rs", "use oncegate_core::engine::{Determinate, EngineError, Indeterminate};"),
        ("crates/gateway/src/lib.rs", "use oncegate_core::engine::Engine;"),
        ("crates/postgres/src/lib.rs", "use sqlx::PgPool;"),
        ("crates/disk/src/lib.rs", "fn f(i: std::time::Instant) { tokio::time::timeout(D, g()); }"),
        ("crates/core/src/record.rs", "const V: &str = env!(\"CARGO_PKG_VERSION\");"),
        ("load/src/main.rs", "use std::env;"),
    ] {
        passes(rules::homes, path, text);
    }
}

#[test]
fn a_home_is_not_a_prefix_of_a_name() {
    caught(rules::homes, "src/configure.rs", "use std::env;", 1);
}

#[test]
fn a_file_without_an_opening_or_with_too_much_of_it_is_caught() {
    caught(rules::heads, "crates/gateway/src/lib.rs", "use std::fmt;", 1);
    caught(rules::heads, "crates/gateway/src/lib.rs", "\n//! Late.", 1);
    caught(rules::heads, "crates/gateway/src/lib.rs", &"//! Much.\n".repeat(HEAD_LINES_MAX + 1), HEAD_LINES_MAX + 1);
    passes(rules::heads, "crates/gateway/src/lib.rs", &"//! Enough.\n".repeat(HEAD_LINES_MAX));
    passes(rules::heads, "src/lib.rs", &"//! The map.\n".repeat(HEAD_LINES_MAX + 1));
}

#[test]
fn logic_in_the_roots_is_caught() {
    caught(rules::roots, "src/main.rs", &"\n".repeat(MAIN_LINES_MAX + 1), MAIN_LINES_MAX);
    caught(rules::roots, "src/lib.rs", "//! Map.\n\npub mod domain;\n\nfn helper() {}\n", 5);
    caught(rules::roots, "src/lib.rs", "pub mod domain;\nconst A: u8 = 1;\n", 2);
    caught(rules::roots, "src/lib.rs", "mod inline {\n    use std::fmt;\n}\n", 1);
    let map =
        "//! Map.\n#![warn(missing_docs)]\n\npub mod domain;\nmod b; // why\npub use domain::{\n    A,\n    B,\n};\n";
    passes(rules::roots, "src/lib.rs", map);
    passes(rules::roots, "src/main.rs", "fn main() {}\n");
}

#[test]
fn an_allowed_lint_is_caught() {
    caught(rules::expects, "tests/it/main.rs", "#[allow(dead_code)]\nfn f() {}", 1);
    caught(rules::expects, "load/src/main.rs", "\n#![allow(missing_docs)]", 2);
    caught(rules::expects, "src/lib.rs", "#![cfg_attr(test, allow(unused))]", 1);
    passes(
        rules::expects,
        "src/lib.rs",
        "// #[allow(x)] is never written\n#[expect(dead_code, reason = \"later\")]\nmod a;",
    );
}

#[test]
fn code_in_a_doc_comment_is_caught() {
    caught(rules::doctests, "crates/core/src/lib.rs", "/// Adds:\n/// ```\nfn add() {}", 2);
    passes(rules::doctests, "crates/core/src/lib.rs", "/// A `name`.\nfn f() {} // ```");
}

#[test]
fn a_long_file_is_caught_but_its_tests_do_not_count() {
    let production = "fn f() {}\n".repeat(FILE_LINES_MAX);
    let tests = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
    passes(rules::sizes, "crates/gateway/src/lib.rs", &format!("{production}{tests}"));
    caught(rules::sizes, "crates/gateway/src/lib.rs", &format!("fn g() {{}}\n{production}{tests}"), FILE_LINES_MAX);
    // The declaration of a test module elsewhere ends nothing.
    caught(
        rules::sizes,
        "crates/gateway/src/lib.rs",
        &format!("#[cfg(test)]\nmod tests;\n{production}"),
        FILE_LINES_MAX,
    );
    passes(rules::sizes, "crates/core/src/engine/conformance.rs", &production.repeat(2));
}

#[test]
fn a_link_that_leads_nowhere_is_caught() {
    let links: Rule = |sources| pages::links(sources, |path| ["README.md", "docs/disk.md"].contains(&path));
    caught(links, "README.md", "Text.\n[a](docs/engine.md)", 2);
    caught(links, "README.md", "[a](docs/disk.md) and ![b](picture.png)", 1);
    caught(links, "README.md", "[a](docs)", 1);
    caught(links, "docs/disk.md", "[a](../../README.md)", 1);
    caught(links, "docs/disk.md", "[a](/README.md)", 1);
    caught(links, "docs/disk.md", "[a]: gone.md", 1);
    passes(links, "docs/disk.md", "[a](../README.md#top) [c](https://example.org/x) [d](disk.md \"t\")");
    passes(links, "docs/disk.md", "`[a](gone.md)`\n```\n[a](gone.md)\n```\n[a]: ../README.md");
}

#[test]
fn a_link_to_a_heading_that_is_not_there_is_caught() {
    let links: Rule = |sources| pages::links(sources, |path| path == "docs/disk.md");
    caught(links, "docs/disk.md", "# Disk\n[a](#here)", 2);
    caught(links, "docs/disk.md", "```\n# here\n```\n[a](disk.md#here)", 4);
    passes(
        links,
        "docs/disk.md",
        "## When `fsync` fails: stop\n[a](#when-fsync-fails-stop) [b](disk.md#when-fsync-fails-stop)",
    );
}

#[test]
fn a_page_that_the_site_lacks_is_caught() {
    let tree = |pages: &[(&str, &str)]| pages.iter().map(|(path, text)| Source::new(path, text)).collect::<Vec<_>>();
    let summary = ("docs/SUMMARY.md", "- [Disk](disk.md)\n- [Overview](../README.md)");
    let overview = ("README.md", "[disk](docs/disk.md#top) [code](src/lib.rs)");
    assert!(pages::summary(&tree(&[summary, overview, ("docs/disk.md", "")])).is_empty());
    assert_eq!(pages::summary(&tree(&[summary, overview, ("docs/redis.md", "")])).len(), 1);
    assert_eq!(pages::summary(&tree(&[summary, overview, ("docs/disk.md", "[a](../load/README.md)")])).len(), 1);
}

#[test]
fn a_metric_that_the_page_lacks_or_invents_is_caught() {
    let code = Source::new("crates/telemetry/src/metrics.rs", "const UP: &str = \"oncegate_up\";\n");
    let page = |text: &str| Source::new("docs/reference/metrics.md", text);
    assert!(pages::metrics(&[code, page("| `oncegate_up` | | 1 |")]).is_empty());
    let code = Source::new("crates/telemetry/src/metrics.rs", "const UP: &str = \"oncegate_up\";\n");
    assert_eq!(pages::metrics(&[code, page("| `oncegate_down` | | 1 |")]).len(), 2);
}

#[test]
fn a_log_message_that_does_not_exist_is_caught() {
    let found = |text: &str| {
        let code = Source::new("crates/disk/src/lib.rs", "error!(\"the disk \\\n    engine stops: {why}\")");
        let page = Source::new(
            "docs/reference/logs.md",
            &format!("| Message | Do |\n| --- | --- |\n| {text} | Repair it |\n"),
        );
        pages::messages(&[code, page]).len()
    };
    assert_eq!(found("the disk engine stops: …"), 0);
    assert_eq!(found("the disk engine stops / it has stopped"), 1);
}

#[test]
fn the_diagram_draws_what_the_manifests_say() {
    let manifest = |path: &str, of: &[&str]| {
        let of = of.iter().map(|name| format!("oncegate-{name}.workspace = true\n")).collect::<Vec<_>>().concat();
        let text =
            format!("[package]\n\n[dependencies]\nserde = \"1\"\n{of}\n[dev-dependencies]\noncegate-x = \"1\"\n");
        Source::new(path, &text)
    };
    let sources = [
        manifest("Cargo.toml", &["core", "disk", "driver"]),
        manifest("crates/core/Cargo.toml", &[]),
        manifest("crates/driver/Cargo.toml", &["core"]),
        manifest("crates/disk/Cargo.toml", &["core", "driver"]),
        manifest("crates/testkit/Cargo.toml", &["core"]),
        manifest("load/Cargo.toml", &["core"]),
    ];
    let drawn = diagram::diagram(&diagram::crates(&sources));
    let lines: Vec<_> = drawn.lines().filter(|line| line.starts_with("    ")).map(str::trim).collect();
    assert_eq!(lines, ["program --> disk", "disk --> driver", "driver --> core"]);
}

#[test]
fn a_place_of_work_is_caught() {
    let folder = ["/wo", "rk/"].concat();
    let host = ["crates", ".io"].concat();
    caught(rules::places, "docs/run.md", &format!("\ncd {folder}main"), 2);
    caught(rules::places, "Cargo.toml", &format!("path = \"{folder}main\""), 1);
    caught(rules::places, "README.md", &format!("See https://{host}/x"), 1);
    passes(rules::places, "README.md", &format!("docs{folder}a.md, https://example.org{folder}"));
}

#[test]
fn a_line_that_installs_what_no_release_makes_is_caught() {
    let found = |line: &str| {
        let release = "- {target: x86_64-unknown-linux-musl, runner: a}\n- {target: aarch64-unknown-linux-musl, runner: b}\n\
                       scripts/build-deb\nclients/python/server/build\nclients/typescript/publish\n";
        installs::installs(&[
            Source::new(".github/workflows/release.yml", release),
            Source::new("Cargo.toml", "[workspace.package]\nversion = \"0.2.0\"\n"),
            Source::new("clients/python/pyproject.toml", "[project]\nname = \"oncegate\"\n"),
            Source::new("clients/typescript/server/package.json", "{\n  \"name\": \"@oncegate/server\",\n}\n"),
            Source::new("clients/rust/Cargo.toml", "[package]\nname = \"oncegate-client\"\n"),
            Source::new("README.md", line),
        ])
    };
    let url = "https://github.com/oncegate/oncegate/releases/download";
    for right in [
        &format!("curl {url}/v0.2.0/oncegate-0.2.0-$(uname -m)-unknown-linux-musl.tar.gz | tar -xz"),
        "deb=oncegate_0.2.0-1_$(dpkg --print-architecture).deb",
        "docker run ghcr.io/oncegate/oncegate:0.2.0 and ghcr.io/oncegate/oncegate:latest.",
        "pip install 'oncegate[redis]' oncegate-server && oncegate serve",
        "npx --package @oncegate/server oncegate serve",
        "cargo add oncegate-client --features redis",
    ] {
        assert!(found(right).is_empty(), "{right}: {:?}", found(right));
    }
    for wrong in [
        &format!("curl {url}/v0.1.0/oncegate-0.2.0-x86_64-unknown-linux-musl.tar.gz"),
        &format!("curl {url}/v0.2.0/oncegate-v0.2.0-x86_64-unknown-linux-musl.tar.gz"),
        &format!("curl {url}/v0.2.0/oncegate-0.2.0-aarch64-unknown-linux-gnu.tar.gz"),
        "deb=oncegate_0.2.0_amd64.deb",
        "docker run ghcr.io/oncegate/oncegate:v0.2.0",
        "pip install oncegate-gateway",
        "npx @oncegate/gateway",
        "cargo add oncegate",
    ] {
        assert!(!found(wrong).is_empty(), "{wrong}");
    }
}
