//! The rules of the pages: links lead to files and headings, the site has every page, and the lists of the reference
//! agree with the code.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, has_ending};

/// The pages that list every metric, and the log messages that need an action.
const METRICS: &str = "docs/reference/metrics.md";
const LOGS: &str = "docs/reference/logs.md";

/// The table of contents of the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Relative links of Markdown pages lead to files of the tree, and to headings that the pages have. A site has no folders to
/// show, so a link to one is wrong too.
pub(crate) fn links(sources: &[Source], is_file: impl Fn(&str) -> bool) -> Vec<String> {
    let headings: BTreeMap<&str, BTreeSet<String>> =
        pages(sources).map(|page| (page.path.as_str(), headings(page))).collect();
    let mut found = Vec::new();
    for page in pages(sources) {
        for (line, target) in targets(page) {
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { Some(page.path.clone()) } else { inside(page.folder(), file) };
            let place = format!("{}:{line}", page.path);
            let Some(path) = path.filter(|path| is_file(path)) else {
                found.push(format!("{place}: `{target}` leads to no file; link a file of the tree, from this folder"));
                continue;
            };
            let known = headings.get(path.as_str()).is_none_or(|headings| headings.contains(heading));
            if !heading.is_empty() && !known {
                found.push(format!("{place}: `{target}` leads to no heading; {path} has none of that name"));
            }
        }
    }
    found
}

/// The site has every page of `docs`, and every page that one of its pages links.
pub(crate) fn summary(sources: &[Source]) -> Vec<String> {
    let Some(summary) = sources.iter().find(|source| source.path == SUMMARY) else { return Vec::new() };
    let listed: Vec<String> = linked(summary);
    let mut found = Vec::new();
    for page in pages(sources).filter(|page| page.path.starts_with("docs/") && page.path != SUMMARY) {
        if !listed.contains(&page.path) {
            found.push(format!("{}:1: {SUMMARY} does not list this page; add it, so that the site has it", page.path));
        }
    }
    for page in pages(sources).filter(|page| listed.contains(&page.path)) {
        for path in linked(page).into_iter().filter(|path| has_ending(path, "md") && !listed.contains(path)) {
            found.push(format!("{}:1: links {path}, which {SUMMARY} does not list", page.path));
        }
    }
    found
}

/// The page of metrics lists exactly those of the code.
pub(crate) fn metrics(sources: &[Source]) -> Vec<String> {
    let names = |text: &str, quote: char| -> BTreeSet<String> {
        let quoted = text.split(quote).filter(|word| word.starts_with("oncegate_") && word.bytes().all(is_name));
        quoted.map(str::to_owned).collect()
    };
    let code = |source: &&Source| source.path.contains("telemetry") && has_ending(&source.path, "rs");
    let present: BTreeSet<_> = sources.iter().filter(code).flat_map(|source| names(&source.text, '"')).collect();
    let Some(page) = sources.iter().find(|source| source.path == METRICS) else { return Vec::new() };
    let rows = page.text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let listed: BTreeSet<_> = rows.flat_map(|cell| names(cell, '`')).collect();
    let missing = present.difference(&listed).map(|name| format!("{METRICS}:1: `{name}` is not listed; add its row"));
    let gone = listed.difference(&present).map(|name| format!("{METRICS}:1: `{name}` is listed, and does not exist"));
    missing.chain(gone).collect()
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte == b'_'
}

/// The log messages that the page explains are those of the code. `…` replaces what varies.
pub(crate) fn messages(sources: &[Source]) -> Vec<String> {
    let Some(page) = sources.iter().find(|source| source.path == LOGS) else { return Vec::new() };
    let code: String = sources.iter().filter(|source| source.path.contains("src/")).map(unbroken).collect();
    let table = page.text.lines().enumerate().skip_while(|(_, line)| !line.starts_with("| Message "));
    let mut found = Vec::new();
    for (index, row) in table.skip(2).take_while(|(_, line)| line.starts_with("| ")) {
        let cell = row.split(" | ").next().unwrap_or_default().trim_start_matches("| ");
        for part in cell.split(" / ").flat_map(|message| message.split('…')).map(str::trim) {
            if !code.contains(part) {
                let place = format!("{LOGS}:{}", index + 1);
                found.push(format!("{place}: no log message has `{part}`; write it as the code does"));
            }
        }
    }
    found
}

/// The text of a source with its broken string literals joined.
fn unbroken(source: &Source) -> String {
    let mut lines = source.text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

fn pages(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| has_ending(&source.path, "md"))
}

/// The files that a page links, from the root.
fn linked(page: &Source) -> Vec<String> {
    let files = targets(page).into_iter().filter_map(|(_, target)| {
        let file = target.split('#').next().filter(|file| !file.is_empty())?;
        inside(page.folder(), file)
    });
    files.collect()
}

/// The anchors of a page's headings, as code hosts and mdBook make them.
fn headings(page: &Source) -> BTreeSet<String> {
    let headings = prose(page).filter_map(|(_, line)| {
        let title = line.trim_start_matches('#');
        (line.starts_with('#') && title.starts_with(' ')).then(|| anchor(title.trim()))
    });
    headings.collect()
}

fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|char| char.is_alphanumeric() || "-_ ".contains(*char));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect::<String>().to_lowercase()
}

/// Targets of the links of a page, with their lines; links to other sites are left out.
fn targets(page: &Source) -> Vec<(usize, String)> {
    prose(page).flat_map(|(number, line)| targets_of(line).into_iter().map(move |target| (number, target))).collect()
}

/// The lines of a page outside of code blocks, with their numbers.
fn prose(page: &Source) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    page.text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

fn targets_of(line: &str) -> Vec<String> {
    // Every second piece stands between backticks.
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let reference = prose.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline
        .chain(reference)
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_start_matches('<').trim_end_matches('>').to_owned())
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

/// A relative path from a folder of the tree, from the root; `None` if it leaves the tree.
fn inside(folder: &str, relative: &str) -> Option<String> {
    if relative.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
