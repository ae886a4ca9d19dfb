//! The rule of installing: commands on a page use the names and versions that the release workflow makes.

use crate::source::{Source, has_ending};

const RELEASE: &str = ".github/workflows/release.yml";
/// The architectures that `uname -m` prints on Linux.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];
const DOWNLOADS: &str = "github.com/oncegate/oncegate/releases/download/";

/// Products of a release.
struct Made {
    version: String,
    archives: Vec<String>,
    has_deb: bool,
    wheels: Vec<String>,
    npm: Vec<String>,
    crates: Vec<String>,
}

/// Pages and manifests name only archives, packages and images that a release makes, in its version.
pub(crate) fn installs(sources: &[Source]) -> Vec<String> {
    let made = Made::read(sources);
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| is_pasted(&source.path)) {
        for (number, line) in (1..).zip(source.text.lines()) {
            let wrong = made.wrong(line).into_iter();
            found.extend(wrong.map(|wrong| format!("{}:{number}: {wrong}; {RELEASE} does not make it", source.path)));
        }
    }
    found
}

fn is_pasted(path: &str) -> bool {
    let is_record = path.ends_with("CHANGELOG.md") || path.starts_with("docs/adr/");
    (has_ending(path, "md") && !is_record) || (has_ending(path, "yaml") && path.starts_with("deploy/"))
}

impl Made {
    fn read(sources: &[Source]) -> Self {
        let text = |path: &str| sources.iter().find(|source| source.path == path).map_or("", |source| &source.text);
        let value = |path: &str, key: &str| {
            let line = text(path).lines().map(str::trim).find_map(|line| line.strip_prefix(key));
            line.map_or("", |rest| rest.trim_matches([' ', '"', ','])).to_owned()
        };
        let release = text(RELEASE);
        let version = value("Cargo.toml", "version = ");
        let targets = release.lines().filter_map(|line| line.split_once("{target: ")?.1.split([',', '}']).next());
        let archives = targets.map(|target| format!("oncegate-{version}-{target}.tar.gz")).collect();
        let mut wheels = vec![value("clients/python/pyproject.toml", "name = ")];
        if release.contains("clients/python/server/build") {
            wheels.push("oncegate-server".into());
        }
        let npm = ["clients/typescript/package.json", "clients/typescript/server/package.json"];
        let npm = if release.contains("clients/typescript/publish") {
            npm.map(|path| value(path, "\"name\": ")).into()
        } else {
            Vec::new()
        };
        let crates = vec![value("clients/rust/Cargo.toml", "name = ")];
        Self { archives, has_deb: release.contains("scripts/build-deb"), wheels, npm, crates, version }
    }

    /// Returns the names of a line that no release makes.
    fn wrong(&self, line: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let version = &self.version;
        for architecture in ARCHITECTURES {
            let line = line.replace("$(uname -m)", architecture);
            for (tag, file) in after(&line, DOWNLOADS).filter_map(|rest| word(rest).split_once('/')) {
                let is_made = file.starts_with('$') || self.archives.iter().any(|archive| archive == file);
                if tag != format!("v{version}") || !is_made {
                    wrong.push(format!("{tag}/{file}"));
                }
            }
        }
        wrong.dedup();
        let of_deb =
            after(line, "oncegate_").map(word).filter(|rest| rest.starts_with(|char: char| char.is_ascii_digit()));
        wrong.extend(
            of_deb
                .filter(|rest| !self.has_deb || !rest.starts_with(&format!("{version}-1_")))
                .map(|rest| format!("oncegate_{rest}")),
        );
        let minor = version.rsplit_once('.').map_or("", |(minor, _)| minor);
        for tag in after(line, "ghcr.io/oncegate/oncegate:").chain(after(line, "newTag: ")).map(word) {
            if ![version, minor, "latest"].contains(&tag) {
                wrong.push(format!("the image {tag}"));
            }
        }
        wrong.extend(unknown(line, "pip install ", &self.wheels));
        wrong.extend(unknown(line, "cargo add ", &self.crates));
        for name in after(line, "@oncegate/").map(word) {
            let full = format!("@oncegate/{name}");
            if !self.npm.iter().any(|known| {
                full == *known || full.starts_with(&format!("{known}/")) || full.starts_with(&format!("{known}-"))
            }) {
                wrong.push(full);
            }
        }
        wrong
    }
}

/// Returns the text behind each occurrence.
fn after<'a>(line: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(before).map(move |(at, _)| &line[at + before.len()..])
}

/// The first word of a text: without quotes, and without the full stop of a sentence.
fn word(text: &str) -> &str {
    let end = text.find(|char: char| char.is_whitespace() || "`'\"),;<>|".contains(char)).unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}

/// Packages of ours that a command installs and no release makes.
fn unknown<'a>(line: &'a str, command: &'a str, known: &'a [String]) -> impl Iterator<Item = String> {
    let words =
        after(line, command).flat_map(|rest| rest.split(['`', '&', '#', '|']).next().unwrap_or("").split_whitespace());
    let names = words
        .map(|word| word.trim_matches(['\'', '"', '.', ',', ':', ')']).split(['[', '=', '@']).next().unwrap_or(""));
    names.filter(|name| name.starts_with("oncegate") && !known.iter().any(|known| known == name)).map(ToOwned::to_owned)
}
