//! Settings that may hold a secret, and so may stand in a file of their own: `<key>_file` names it, in whichever layer.
//! The file is read together with the layer; what comes after never knows where a value stood.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::layers::Layer;
use super::path::KeyPath;
use super::problem::Problem;

/// The keys that have a file's form. `*` is any name.
const KEYS: &[(&[&str], Holds)] = &[
    (&["engines", "*"], Holds::Text),
    (&["registry", "url"], Holds::Text),
    (&["admin", "tokens", "*"], Holds::Text),
    (&["apps", "*", "secrets"], Holds::List),
];

/// What is added to a key's name.
const SUFFIX: &str = "_file";

/// Longer than any of these values; what is longer is another file.
const BYTES_MAX: u64 = 64 << 10;

/// What a key is set to by its file.
#[derive(Clone, Copy)]
enum Holds {
    /// The text of the file, without the line's end.
    Text,
    /// The lines of the file, without empty ones and those that begin with `#`.
    List,
}

/// Puts the values that a layer has in files into their places. What is wrong with a file leaves its key unset.
pub(super) fn resolve(layer: &mut Layer) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (pattern, holds) in KEYS {
        let mut keys = Vec::new();
        collect(layer.table(), pattern, &KeyPath::default(), &mut keys);
        for file_key in keys {
            let origin = layer.origin(&file_key);
            let named = layer.take(&file_key);
            let key = file_key.renamed(file_key.last().strip_suffix(SUFFIX).unwrap_or_default());
            let read = match named {
                _ if layer.has(&key) => Err(format!("set either this or `{}`, not both", key.last())),
                Some(Value::String(path)) => read(&path, *holds).map(|value| (path, value)),
                _ => Err("expected a text, the path of a file".to_owned()),
            };
            match read {
                Ok((path, value)) => {
                    let named_by = origin.map(|origin| format!("{origin}, ")).unwrap_or_default();
                    layer.set_from_file(key, value, format!("{named_by}{file_key} ({path})"));
                }
                Err(message) => problems.push(Problem { source: origin, ..Problem::of_key(file_key, message) }),
            }
        }
    }
    problems
}

/// The files that a layer names, before they are read.
pub(super) fn named(layer: &Layer) -> Vec<PathBuf> {
    let mut keys = Vec::new();
    for (pattern, _) in KEYS {
        collect(layer.table(), pattern, &KeyPath::default(), &mut keys);
    }
    keys.iter().filter_map(|key| Some(layer.get(key)?.as_str()?.into())).collect()
}

/// These keys, and the file's form of those that have one.
pub(super) fn with_file_keys(mut keys: Vec<KeyPath>) -> Vec<KeyPath> {
    let is_of = |pattern: &[&str], key: &KeyPath| {
        pattern.len() == key.names().len()
            && pattern.iter().zip(key.names()).all(|(pattern, name)| *pattern == "*" || pattern == name)
    };
    let has_form = |key: &&KeyPath| KEYS.iter().any(|(pattern, _)| is_of(pattern, key));
    let files: Vec<_> =
        keys.iter().filter(has_form).map(|key| key.renamed(format!("{}{SUFFIX}", key.last()))).collect();
    keys.extend(files);
    keys
}

/// The keys of a table that name the file of a key of this pattern.
fn collect(table: &Table, pattern: &[&str], at: &KeyPath, found: &mut Vec<KeyPath>) {
    let Some((first, rest)) = pattern.split_first() else { return };
    for (name, value) in table {
        let stem = name.strip_suffix(SUFFIX).filter(|stem| !stem.is_empty());
        match value {
            Value::Table(inner) if !rest.is_empty() && (*first == "*" || first == name) => {
                collect(inner, rest, &at.child(name), found);
            }
            _ if rest.is_empty() && stem.is_some_and(|stem| *first == "*" || *first == stem) => {
                found.push(at.child(name));
            }
            _ => {}
        }
    }
}

/// What a file holds. An error never repeats it.
fn read(path: &str, holds: Holds) -> Result<Value, String> {
    // Whoever wrote the value itself here did not mean to have it shown.
    if path.contains("://") || path.starts_with("sha256:") || path.contains('\n') {
        return Err(format!("this is no path; a name that ends in `{SUFFIX}` names a file that holds the value"));
    }
    let text = read_text(Path::new(path)).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => format!("{path} is not UTF-8 text"),
        io::ErrorKind::FileTooLarge => format!("{path} is longer than {BYTES_MAX} bytes; it must hold the value alone"),
        _ => format!("cannot read {path}: {error}"),
    })?;
    match holds {
        Holds::Text => match text.trim_end_matches(['\r', '\n']) {
            "" => Err(format!("{path} is empty; it must hold the value")),
            text if text.contains('\n') => Err(format!("{path} has more than one line; it must hold the value alone")),
            text => Ok(text.into()),
        },
        Holds::List => {
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            let list: Vec<_> = lines.map(Value::from).collect();
            if list.is_empty() {
                Err(format!("{path} is empty; it must hold one value a line"))
            } else {
                Ok(list.into())
            }
        }
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > BYTES_MAX { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(text) }
}
