//! Files of a crate import each other one way. A file and the folder of its parts are one subject, so that imports between a file
//! and those below it may lead both ways.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::Source;

/// The files that each file imports, by their paths.
type Imports<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Every circle, by its shortest way, once.
pub(crate) fn circles(sources: &[Source]) -> Vec<String> {
    let imports = imports(sources);
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for file in imports.keys() {
        if let Some(way) = way_back(&imports, file).filter(|_| !seen.contains(file)) {
            found
                .push(format!("{file}:1: imports itself by way of {}; move what both need below them", way.join(", ")));
            seen.extend(way);
        }
    }
    found
}

fn imports(sources: &[Source]) -> Imports<'_> {
    let files: Vec<_> = sources.iter().filter(|source| source.is_gateway()).collect();
    let modules: BTreeMap<_, _> =
        files.iter().map(|file| ((crate_of(file), file.module()), file.path.as_str())).collect();
    let mut imports = Imports::new();
    for file in files {
        let (own_crate, module) = (crate_of(file), file.module());
        for named in file.names() {
            let target = file.resolve(&named.words).unwrap_or_default();
            // The longest beginning that is a file; the rest names an item in it.
            let file_of =
                |length: usize| modules.get(&(own_crate, target[..length].to_vec())).map(|path| (length, *path));
            let Some((length, path)) = (1..=target.len()).rev().find_map(file_of) else { continue };
            if !module.starts_with(&target[..length]) && !target[..length].starts_with(&module) {
                imports.entry(file.path.as_str()).or_default().insert(path);
            }
        }
    }
    imports
}

/// The folder of the crate that a file belongs to.
fn crate_of(file: &Source) -> &str {
    file.path.split_once("src/").map_or("", |(folder, _)| folder)
}

/// The shortest way from a file through its imports back to it, without its beginning.
fn way_back<'a>(imports: &Imports<'a>, from: &'a str) -> Option<Vec<&'a str>> {
    let mut reached_from = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(file) = next.pop_front() {
        for below in imports.get(file).into_iter().flatten().copied() {
            if below == from {
                let mut way = vec![from];
                let mut at = file;
                while at != from {
                    way.push(at);
                    at = reached_from[at];
                }
                way.reverse();
                return Some(way);
            }
            if !reached_from.contains_key(below) {
                reached_from.insert(below, file);
                next.push_back(below);
            }
        }
    }
    None
}
