//! The tables that commands print, read back.

use std::collections::BTreeMap;

/// The cells of a row by the header above them.
pub(crate) type Row = BTreeMap<String, String>;

/// Reads a table up to its end or an empty line. Panics if a cell is not aligned with its header.
pub(crate) fn rows(text: &str) -> Vec<Row> {
    let mut lines = text.lines().take_while(|line| !line.is_empty());
    let header: Vec<char> = lines.next().expect("a header").chars().collect();
    let starts: Vec<usize> = (0..header.len())
        .filter(|place| header[*place] != ' ' && (*place == 0 || header[place.saturating_sub(2)..*place] == [' ', ' ']))
        .collect();
    let cut = |line: &[char], column: usize| {
        let start = starts[column].min(line.len());
        let end = starts.get(column + 1).map_or(line.len(), |next| (*next).min(line.len()));
        let before = line[..start].iter().rev().take(2);
        assert!(before.copied().all(|char| char == ' '), "not aligned: {text}");
        line[start..end].iter().collect::<String>().trim_end().to_owned()
    };
    let row = |line: &str| {
        let line: Vec<char> = line.chars().collect();
        (0..starts.len()).map(|column| (cut(&header, column), cut(&line, column))).collect()
    };
    lines.map(row).collect()
}
