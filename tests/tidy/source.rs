//! Reads the tree, and parses Rust as far as the rules need: it separates code from comments, strings and tests, finds
//! the paths that the code names (with `use` groups expanded), and resolves them. It knows no rule.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Folders that are not the project's text. Hidden folders are not either, except those of `SHOWN`.
const SKIPPED: &[&str] = &["target", "oncegate-data", "node_modules"];
const SHOWN: &[&str] = &[".ci", ".config", ".github"];

/// Files that are read although their name has no ending, or an ending that is not in `ENDINGS`.
const NAMES: &[&str] = &["Makefile", "Dockerfile"];
const ENDINGS: &[&str] = &["rs", "md", "toml", "yaml", "yml", "json", "lua", "sql", "sh", "snap"];

/// One file of the tree.
pub(crate) struct Source {
    /// From the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and literals blanked; lines stay where they are.
    pub(crate) masked: String,
    /// `masked` with test items blanked as well.
    pub(crate) code: String,
    /// Number of lines before the tests.
    pub(crate) production_lines: usize,
}

/// A path that the code names: `a::b::C`, or a lone word.
pub(crate) struct Named {
    pub(crate) line: usize,
    pub(crate) words: Vec<String>,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (masked, code, production_lines) =
            if has_ending(path, "rs") { read_rust(path, text) } else { <_>::default() };
        Self { path: path.to_owned(), text: text.to_owned(), masked, code, production_lines }
    }

    /// The folder of the file, from the root; empty for a file that lies there.
    pub(crate) fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Returns true for Rust of the gateway itself: the program and its crates, but not the tools of the tests.
    pub(crate) fn is_gateway(&self) -> bool {
        let is_crate = self.path.starts_with("crates/") && !self.path.starts_with("crates/testkit/");
        (self.is_program() || is_crate) && has_ending(&self.path, "rs")
    }

    /// Returns true for files of the program, the package at the root.
    pub(crate) fn is_program(&self) -> bool {
        self.path.starts_with("src/")
    }

    /// The module that the file is, from the root of its crate: `src/api/claim.rs` is `api::claim`, `lib.rs` is empty.
    pub(crate) fn module(&self) -> Vec<&str> {
        let (_, path) = self.path.split_once("src/").unwrap_or_default();
        path.trim_end_matches(".rs").split('/').filter(|part| *part != "lib").collect()
    }

    /// Names of a manifest in `[dependencies]`; empty for other files.
    pub(crate) fn dependencies(&self) -> Vec<&str> {
        if !self.path.ends_with("Cargo.toml") {
            return Vec::new();
        }
        let (_, after) = self.text.split_once("\n[dependencies]\n").unwrap_or_default();
        let lines = after.split("\n[").next().unwrap_or_default().lines();
        lines.filter_map(|line| line.split(['.', ' ']).next()).filter(|name| !name.is_empty()).collect()
    }

    /// Every path in the production code.
    pub(crate) fn names(&self) -> Vec<Named> {
        names(&self.code)
    }

    /// A path of this file from the crate's root; `None` if it leads out of the crate, or cannot be determined.
    pub(crate) fn resolve<'a>(&'a self, words: &'a [String]) -> Option<Vec<&'a str>> {
        let mut at = self.module();
        let mut rest = words.iter().map(String::as_str).peekable();
        match *rest.peek()? {
            "crate" | "oncegate" => {
                rest.next();
                at.clear();
            }
            "self" => {
                rest.next();
            }
            "super" => {
                while rest.next_if_eq(&"super").is_some() {
                    at.pop();
                }
            }
            _ => return None,
        }
        at.extend(rest);
        Some(at)
    }
}

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the tree that the rules are about.
pub(crate) fn tree() -> Vec<Source> {
    let mut sources = Vec::new();
    walk(&root(), "", &mut sources);
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    sources
}

fn walk(folder: &Path, prefix: &str, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let entry = entry.expect("the folder can be listed");
        let name = entry.file_name().into_string().expect("file names are UTF-8");
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().expect("the kind of a file is known");
        let skipped = SKIPPED.contains(&name.as_str()) || (name.starts_with('.') && !SHOWN.contains(&name.as_str()));
        if kind.is_dir() && !skipped {
            walk(&entry.path(), &format!("{path}/"), sources);
        } else if kind.is_file() && is_text(&path) {
            let text = fs::read_to_string(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
            sources.push(Source::new(&path, &text));
        }
    }
}

fn is_text(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    NAMES.contains(&name)
        || ENDINGS.iter().any(|ending| has_ending(name, ending))
        || path.starts_with("scripts/")
        || path.starts_with(".ci/")
}

/// Reports whether a file's name ends in `.ending`.
pub(crate) fn has_ending(path: &str, ending: &str) -> bool {
    Path::new(path).extension().is_some_and(|own| own == ending)
}

fn read_rust(path: &str, text: &str) -> (String, String, usize) {
    let masked = mask(text);
    if path.ends_with("/tests.rs") || path.contains("/tests/") {
        return (masked, String::new(), 0);
    }
    let mut code = masked.clone();
    let mut production_lines = masked.lines().count();
    for item in test_items(&masked).into_iter().rev() {
        if is_inline_module(&masked[item.clone()]) {
            production_lines = masked[..item.start].lines().count();
        }
        code.replace_range(item.clone(), &blank(&masked[item]));
    }
    (masked, code, production_lines)
}

/// The text with comments, strings and characters blanked.
fn mask(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut masked = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = hidden_end(&chars, at).unwrap_or(at).min(chars.len());
        if end == at {
            masked.push(chars[at]);
            at += 1;
        } else {
            masked.extend(chars[at..end].iter().map(|&char| blanked(char)));
            at = end;
        }
    }
    masked
}

/// End of the comment or literal that begins at `at`; `None` if none begins there.
fn hidden_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, |rest| rest[0] == '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => {
            let mut end = at + 1;
            while chars.get(end).is_some_and(|&char| char != '"') {
                end += if chars[end] == '\\' { 2 } else { 1 };
            }
            Some(end + 1)
        }
        'r' if begins_word(chars, at) => {
            let hashes = chars[at + 1..].iter().take_while(|&&char| char == '#').count();
            let open = at + 1 + hashes;
            (chars.get(open) == Some(&'"')).then(|| {
                let closes = |rest: &[char]| {
                    rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|&char| char == '#')
                };
                find(chars, open + 1, closes) + 1 + hashes
            })
        }
        '\'' if next == Some('\\') => Some(find(chars, at + 3, |rest| rest[0] == '\'') + 1),
        // Otherwise it is a lifetime.
        '\'' => (chars.get(at + 2) == Some(&'\'')).then_some(at + 3),
        _ => None,
    }
}

/// Reports whether a raw string may begin here: not inside a word, unless the word is the `b` or `c` of the literal.
fn begins_word(chars: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|place| chars.get(place)).copied();
    let in_word = |char: Option<char>| char.is_some_and(is_word);
    !in_word(before(1)) || (matches!(before(1), Some('b' | 'c')) && !in_word(before(2)))
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut end, mut depth) = (at, 0);
    while end < chars.len() {
        match (chars[end], chars.get(end + 1)) {
            ('/', Some('*')) => (end, depth) = (end + 2, depth + 1),
            ('*', Some('/')) if depth == 1 => return end + 2,
            ('*', Some('/')) => (end, depth) = (end + 2, depth - 1),
            _ => end += 1,
        }
    }
    end
}

/// The first place from `at` on where `here` holds for the rest; the end if nowhere.
fn find(chars: &[char], at: usize, here: impl Fn(&[char]) -> bool) -> usize {
    (at..chars.len()).find(|&place| here(&chars[place..])).unwrap_or(chars.len())
}

/// Ranges of the items that only tests build.
fn test_items(masked: &str) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    let mut at = 0;
    while let Some(found) = masked[at..].find("#[cfg(") {
        let start = at + found;
        let condition = &masked[start + "#[cfg(".len()..];
        if ["test)", "any(test,", "all(test,"].iter().any(|test| condition.starts_with(test)) {
            at = item_end(masked.as_bytes(), start);
            items.push(start..at);
        } else {
            at = start + 1;
        }
    }
    items
}

/// End of the item that begins with an attribute at `at`.
fn item_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        if bytes[at..].starts_with(b"#[") {
            at = closing(bytes, at + 1);
        } else {
            break;
        }
    }
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'(' | b'[' => at = closing(bytes, at),
            b'{' => return closing(bytes, at),
            b';' => return at + 1,
            b'}' => return at,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Just behind the bracket that closes the one at `at`.
fn closing(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' if depth == 1 => return at,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
    }
    bytes.len()
}

/// Reports whether a test item is a module with its body here.
fn is_inline_module(item: &str) -> bool {
    let head = item.split(['{', ';']).next().unwrap_or(item);
    item.ends_with('}') && head.split_whitespace().rev().nth(1) == Some("mod")
}

fn blank(text: &str) -> String {
    // The number of bytes stays the same, so that the other ranges stay valid.
    text.bytes().map(|byte| blanked(char::from(byte))).collect()
}

fn blanked(char: char) -> char {
    if char == '\n' { '\n' } else { ' ' }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

#[derive(PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Separator,
    Mark(char),
}

/// Every path of the code, with groups taken apart: `use a::{b, c::d}` names `a::b` and `a::c::d`.
fn names(code: &str) -> Vec<Named> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at = if matches!(tokens[at].1, Token::Word(_)) { path(&tokens, at, &[], &mut found) } else { at + 1 };
    }
    found
}

fn tokens(code: &str) -> Vec<(usize, Token<'_>)> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let length = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
            let (token, length) = if length > 0 {
                (Token::Word(&rest[..length]), length)
            } else if rest.starts_with("::") {
                (Token::Separator, 2)
            } else {
                (Token::Mark(first), first.len_utf8())
            };
            if !matches!(token, Token::Mark(mark) if mark.is_whitespace()) {
                tokens.push((number + 1, token));
            }
            rest = &rest[length..];
        }
    }
    tokens
}

/// Reads the path that begins at `at`, below `above`; returns its end.
fn path(tokens: &[(usize, Token<'_>)], mut at: usize, above: &[String], found: &mut Vec<Named>) -> usize {
    let mut words = above.to_vec();
    while let Some((line, token)) = tokens.get(at) {
        match token {
            Token::Word(word) => words.push((*word).to_owned()),
            Token::Mark('*') if !words.is_empty() => words.push("*".to_owned()),
            Token::Mark('{') if !words.is_empty() => return group(tokens, at + 1, &words, found),
            _ => break,
        }
        at += 1;
        if tokens.get(at).is_none_or(|(_, next)| *next != Token::Separator) {
            // `a::{self, b}` names `a` itself.
            if words.len() > 1 && words.last().is_some_and(|word| word == "self") {
                words.pop();
            }
            found.push(Named { line: *line, words });
            return at;
        }
        at += 1;
    }
    // A path that stops at a separator, as `Vec::<u8>` does.
    if words.len() > above.len() {
        let line = tokens[at - 1].0;
        found.push(Named { line, words });
    }
    at
}

fn group(tokens: &[(usize, Token<'_>)], mut at: usize, above: &[String], found: &mut Vec<Named>) -> usize {
    while let Some((_, token)) = tokens.get(at) {
        at = match token {
            Token::Mark('}') => return at + 1,
            // What follows `as` is a name given here.
            Token::Word("as") => at + 2,
            Token::Word(_) | Token::Mark('*') => path(tokens, at, above, found),
            _ => at + 1,
        };
    }
    at
}
