//! The rules. Each reads all sources and returns its findings, one line each: `file:line: the finding, and the correction`.
//! The tables of `tidy.rs` list what is allowed.

use crate::source::{Named, Source};
use crate::{
    ENGINES, ENGINES_TABLE, FILE_LINES_MAX, HEAD_LINES_MAX, HOMES, LONG_FILES, MAIN_LINES_MAX, NOT_IN_CORE, ROOMS,
    SEEN_BY_CONFIG, TEST_SUPPORT, WORDS,
};

/// A room of a crate imports only rooms below its own.
pub(crate) fn rooms(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in gateway(sources) {
        let Some((room, allowed)) = ROOMS.iter().find(|(room, _)| lives_in(&source.path, room)) else {
            if source.is_program() && source.path != "src/lib.rs" {
                found.push(format!("{}:1: this is in no room; give it one in ROOMS of tests/tidy.rs", source.path));
            }
            continue;
        };
        for named in source.names() {
            let target = source.resolve(&named.words).unwrap_or_default();
            if target.first().is_some_and(|module| !room.ends_with(&format!("/{module}")) && !allowed.contains(module))
            {
                let below = if allowed.is_empty() { "nothing".to_owned() } else { allowed.join(", ") };
                let advice = format!("{room} imports {below} of its crate; pass this in as a value or a trait");
                found.push(finding(source, &named, &advice));
            }
        }
    }
    found
}

/// `config` names option structs, and nothing else of the crates above the rules.
pub(crate) fn options(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let is_seen = |word: &String| {
        let matches = |seen: &&str| seen.strip_prefix('*').map_or(word == seen, |ending| word.ends_with(ending));
        SEEN_BY_CONFIG.iter().any(matches)
    };
    for source in gateway(sources).filter(|source| lives_in(&source.path, "src/config")) {
        let names = source.names();
        let above = |named: &&Named| named.words[0].starts_with("oncegate_") && named.words[0] != "oncegate_core";
        let strays = names.iter().filter(above).filter(|named| !named.words.iter().any(is_seen));
        found.extend(
            strays.map(|named| finding(source, named, "`config` aggregates option structs, and names no more")),
        );
    }
    found
}

/// The rules are pure: no thread, no input or output.
pub(crate) fn purity(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let production = |source: &&Source| !TEST_SUPPORT.iter().any(|home| lives_in(&source.path, home));
    for source in gateway(sources).filter(|source| source.path.starts_with("crates/core/src")).filter(production) {
        for named in source.names() {
            if NOT_IN_CORE.iter().any(|banned| leads_with(&named.words, banned)) {
                found.push(finding(source, &named, "the rules are pure; move this up, or take the result as a value"));
            }
        }
    }
    found
}

/// Reports whether a path begins with `banned`. A lone word is no path: a field may be called `metrics`.
fn leads_with(words: &[String], banned: &str) -> bool {
    let banned: Vec<&str> = banned.split("::").collect();
    words.len() >= banned.len().max(2) && words.iter().zip(&banned).all(|(word, banned)| word == banned)
}

/// Only the table of engines names an engine, in code and in manifests. The program's manifest makes each an option.
pub(crate) fn engines(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in gateway(sources) {
        if source.path == ENGINES_TABLE || source.path.starts_with("crates/core/") {
            continue;
        }
        let names = source.names();
        let strays = names.iter().filter(|named| names_engine(&named.words));
        found.extend(strays.map(|named| finding(source, named, "name no engine here; take an `Arc<dyn Engine>`")));
    }
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        let of_engine = |name: &str| ENGINES.iter().any(|engine| name.strip_prefix("oncegate-") == Some(*engine));
        found.extend(source.dependencies().into_iter().filter(|name| of_engine(name)).map(|name| {
            format!("{}:1: `{name}` is an engine; move what both need into a crate below them", source.path)
        }));
    }
    found
}

/// Reports whether a path leads into a crate of an engine, or to the memory engine.
fn names_engine(words: &[String]) -> bool {
    let of_crate = |name: &String| ENGINES.iter().any(|engine| name.strip_prefix("oncegate_") == Some(*engine));
    words.first().is_some_and(of_crate) || mentions(words, "engine::memory")
}

/// Names with a home stand nowhere else.
pub(crate) fn homes(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in gateway(sources) {
        for (name, homes, advice) in HOMES {
            if homes.iter().any(|home| lives_in(&source.path, home)) {
                continue;
            }
            let advice = format!("`{name}` belongs in {}; {advice}", homes.join(", "));
            let names = source.names();
            let strays = names.iter().filter(|named| mentions(&named.words, name));
            found.extend(strays.map(|named| finding(source, named, &advice)));
        }
    }
    found
}

/// Reports whether a path is of a home: the file or folder itself, with or without its ending.
fn lives_in(path: &str, home: &str) -> bool {
    path.strip_prefix(home).is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
}

/// `name::` asks for the first word of a longer path, `one::two` for both in a row, `Name` for the word anywhere.
fn mentions(words: &[String], name: &str) -> bool {
    if let Some(root) = name.strip_suffix("::") {
        return words.len() > 1 && words[0] == root;
    }
    let name: Vec<&str> = name.split("::").collect();
    words.windows(name.len()).any(|window| window == name)
}

/// Every file opens with a few lines that say what lives there.
pub(crate) fn heads(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in gateway(sources) {
        let lines = source.text.lines().take_while(|line| line.starts_with("//!")).count();
        if lines == 0 {
            found.push(format!("{}:1: open with `//!` lines that say what lives here and what does not", source.path));
        } else if lines > HEAD_LINES_MAX && source.path != "src/lib.rs" {
            found.push(format!(
                "{}:{lines}: {lines} `//!` lines; say it in {HEAD_LINES_MAX}, and the rest where it belongs",
                source.path
            ));
        }
    }
    found
}

/// `main.rs` stays short; `lib.rs` holds no logic.
pub(crate) fn roots(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        if source.path == "src/main.rs" && source.text.lines().count() > MAIN_LINES_MAX {
            found.push(format!("src/main.rs:{MAIN_LINES_MAX}: main parses, runs and exits; move the rest to `cli`"));
        }
        if source.path == "src/lib.rs" {
            found.extend(logic_line(&source.masked).map(|line| {
                format!("src/lib.rs:{line}: only documentation, `mod` and `pub use` here; move it to a module")
            }));
        }
    }
    found
}

/// The first line that is neither part of a `use` nor a `mod` with its body in another file.
fn logic_line(masked: &str) -> Option<usize> {
    let plain = ["mod ", "pub mod ", "pub(crate) mod ", "use ", "pub use ", "pub(crate) use "];
    // Whether the line before left the group of a `use` open.
    let mut inside = false;
    for (number, line) in masked.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with("#[") || line.starts_with("#![") {
            continue;
        }
        let begins = plain.iter().any(|begin| line.starts_with(begin));
        let has_body = line.contains("mod ") && line.contains('{');
        if has_body || !(inside || begins) {
            return Some(number + 1);
        }
        inside = !line.ends_with(';');
    }
    None
}

/// A suppressed lint has a reason, and reports when it no longer applies.
pub(crate) fn expects(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for (number, line) in source.masked.lines().enumerate() {
            let line: String = line.split_whitespace().collect();
            let hidden = line.contains("cfg_attr(") && line.contains(",allow(");
            if line.contains("#[allow(") || line.contains("#![allow(") || hidden {
                let place = format!("{}:{}", source.path, number + 1);
                found.push(format!("{place}: write `#[expect(…, reason = \"…\")]`, or follow the lint"));
            }
        }
    }
    found
}

/// Doctests are off, so code in a doc comment would not be checked.
pub(crate) fn doctests(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            let line = line.trim_start();
            if (line.starts_with("///") || line.starts_with("//!")) && line.contains("```") {
                let place = format!("{}:{}", source.path, number + 1);
                found.push(format!("{place}: write the example as a test, or set `doctest` in Cargo.toml"));
            }
        }
    }
    found
}

/// A file that gets long has two subjects.
pub(crate) fn sizes(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in gateway(sources).filter(|source| !TEST_SUPPORT.iter().any(|home| lives_in(&source.path, home))) {
        let exception = LONG_FILES.iter().find(|(path, _, _)| *path == source.path);
        let most = exception.map_or(FILE_LINES_MAX, |(_, most, _)| *most);
        let lines = source.production_lines;
        if lines > most {
            let place = format!("{}:{most}", source.path);
            found.push(format!("{place}: {lines} lines before the tests, at most {most}; split it by subject"));
        }
    }
    found
}

/// Texts are about the project only: no folder of one machine, no host of a package registry.
pub(crate) fn places(sources: &[Source]) -> Vec<String> {
    // Assembled here, so that this file passes its own rule.
    let folders = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"]].map(|halves| halves.concat());
    let hosts =
        [["crates", ".io"], ["npmjs", ".org"], ["pypi", ".org"], ["rubygems", ".org"], ["proxy.golang", ".org"]]
            .map(|halves| halves.concat());
    let mut found = Vec::new();
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            let place = format!("{}:{}", source.path, number + 1);
            found.extend(folders.iter().filter(|folder| has_absolute(line, folder)).map(|folder| {
                format!("{place}: `{folder}` is a folder of one machine; write a path from the root of the tree")
            }));
            found.extend(
                hosts
                    .iter()
                    .filter(|host| line.contains(host.as_str()))
                    .map(|host| format!("{place}: `{host}` is the host of a package registry; name the package alone")),
            );
        }
    }
    found
}

/// Reports whether a line has the folder as the beginning of a path, not as a part of a longer one.
fn has_absolute(line: &str, folder: &str) -> bool {
    let goes_on = |char: char| char.is_alphanumeric() || "._-~*}".contains(char);
    line.match_indices(folder).any(|(at, _)| !line[..at].ends_with(goes_on))
}

fn gateway(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| source.is_gateway())
}

fn finding(source: &Source, named: &Named, advice: &str) -> String {
    format!("{}:{}: `{}`: {advice}", source.path, named.line, named.words.join("::"))
}

/// Words of the old private vocabulary stay out of code, comments and pages. The changelog quotes old releases; migrations
/// have checksums, and the contract has its own wording.
pub(crate) fn words(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let kept = ["CHANGELOG.md", "openapi.yaml", "migrations/", "tests/tidy"];
    for source in sources.iter().filter(|source| !kept.iter().any(|path| source.path.starts_with(path))) {
        for (number, line) in source.text.lines().enumerate() {
            let words: Vec<_> = line.split(|char: char| !char.is_alphanumeric() && char != '_').collect();
            for (old, instead) in WORDS {
                let old: Vec<_> = old.split(' ').collect();
                let times = words.windows(old.len()).filter(|window| *window == old).count();
                found.extend((0..times).map(|_| format!("{}:{}: say {instead}", source.path, number + 1)));
            }
        }
    }
    found
}
