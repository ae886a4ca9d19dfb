//! Secret settings in separate files: `<key>_file` names the file, in any layer. The file is read with its layer;
//! the rest of the program does not see where a value came from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::layers::Layer;
use super::path::KeyPath;
use super::problem::Problem;

/// Keys that may be read from a file. `*` matches any name.
const KEYS: &[(&[&str], Form)] = &[
    (&["engines", "*"], Form::Text),
    (&["registry", "url"], Form::Text),
    (&["admin", "tokens", "*"], Form::Text),
    (&["admin", "tokens", "*", "digest"], Form::Text),
    (&["apps", "*", "secrets"], Form::List),
];

/// Suffix of the key that names the file.
const SUFFIX: &str = "_file";

/// More than any of these values needs.
const BYTES_MAX: u64 = 64 << 10;

/// Content of a file.
#[derive(Clone, Copy)]
enum Form {
    /// Text without the final line break.
    Text,
    /// Lines, without empty ones and comments that begin with `#`.
    List,
}

/// Replaces the `_file` keys of a layer by the files' contents. A key whose file has a problem stays unset.
pub(super) fn resolve(layer: &mut Layer) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (pattern, form) in KEYS {
        let mut keys = Vec::new();
        collect(layer.table(), pattern, &KeyPath::default(), &mut keys);
        for file_key in keys {
            let origin = layer.origin(&file_key);
            let named = layer.take(&file_key);
            let key = file_key.renamed(file_key.last().strip_suffix(SUFFIX).unwrap_or_default());
            let read = match named {
                _ if layer.get(&key).is_some() => Err(format!("set either this or `{}`, not both", key.last())),
                Some(Value::String(path)) => read(&path, *form).map(|value| (path, value)),
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

/// Returns the files that a layer names, before they are read.
pub(super) fn named(layer: &Layer) -> Vec<PathBuf> {
    let mut keys = Vec::new();
    for (pattern, _) in KEYS {
        collect(layer.table(), pattern, &KeyPath::default(), &mut keys);
    }
    keys.iter().filter_map(|key| Some(layer.get(key)?.as_str()?.into())).collect()
}

/// Adds the `_file` keys to these keys.
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

/// Collects the `_file` keys of this pattern in a table.
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

/// Reads a file. Errors never contain its content.
fn read(path: &str, form: Form) -> Result<Value, String> {
    // The value itself, written here by mistake, must not appear in a message.
    if path.contains("://") || path.starts_with("sha256:") || path.contains('\n') {
        return Err(format!("not a path; a name that ends in `{SUFFIX}` names a file that holds the value"));
    }
    let text = read_text(Path::new(path)).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => format!("{path} is not UTF-8 text"),
        io::ErrorKind::FileTooLarge => format!("{path} is longer than {BYTES_MAX} bytes; it must hold the value alone"),
        _ => format!("cannot read {path}: {error}"),
    })?;
    match form {
        Form::Text => match text.trim_end_matches(['\r', '\n']) {
            "" => Err(format!("{path} is empty; it must hold the value")),
            text if text.contains('\n') => Err(format!("{path} has more than one line; it must hold the value alone")),
            text => Ok(text.into()),
        },
        Form::List => {
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
