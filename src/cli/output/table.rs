//! Tables and records: columns aligned with spaces, no borders, nothing cut off or wrapped. Each line is a row, for
//! tools that work on lines.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use serde_json::Value;

use super::{Out, cell, rows};

/// A column: its header, and the text of its cell for a row.
pub(in crate::cli) type Column = (&'static str, fn(&Value) -> String);

const BOLD: &str = "\u{1b}[1m";
const RESET: &str = "\u{1b}[0m";

/// Prints rows under a header.
pub(in crate::cli) fn table(rows: &[Value], columns: &[Column], out: &mut impl Out) -> anyhow::Result<()> {
    let mut table = empty();
    table.set_header(columns.iter().map(|(header, _)| *header));
    table.add_rows(rows.iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect::<Vec<_>>()));
    let text = aligned(&mut table);
    let (header, rest) = text.split_once('\n').unwrap_or((&text, ""));
    if out.is_styled() {
        return Ok(writeln!(out, "{BOLD}{header}{RESET}\n{rest}")?);
    }
    Ok(writeln!(out, "{text}")?)
}

/// Prints the page of a list that an answer has under this name, and how to get the next one. An empty page is reported
/// as a sentence.
pub(in crate::cli) fn page(
    answer: &Value,
    name: &str,
    columns: &[Column],
    empty: &str,
    out: &mut impl Out,
) -> anyhow::Result<()> {
    let found = rows(answer, name);
    if found.is_empty() {
        return Ok(writeln!(out, "{empty}")?);
    }
    table(found, columns, out)?;
    if !answer["next"].is_null() {
        writeln!(out, "\nThere are more: --after {}", cell(&answer["next"]))?;
    }
    Ok(())
}

/// Prints fields, one per line.
pub(in crate::cli) fn record(fields: &[(&str, String)], out: &mut impl Out) -> anyhow::Result<()> {
    let mut table = empty();
    table.add_rows(fields.iter().map(|(name, value)| vec![*name, value]));
    Ok(writeln!(out, "{}", aligned(&mut table))?)
}

fn empty() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn aligned(table: &mut Table) -> String {
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use insta::assert_snapshot;
    use serde_json::json;

    use super::super::cell;
    use super::*;

    /// Output on a terminal.
    #[derive(Default)]
    struct Styled(Vec<u8>);

    impl Write for Styled {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Out for Styled {
        fn is_styled(&self) -> bool {
            true
        }
    }

    const COLUMNS: &[Column] = &[("NAME", |row| cell(&row["name"])), ("SINCE", |row| cell(&row["since"]))];

    fn shown(rows: &[Value]) -> String {
        let mut out = Vec::new();
        table(rows, COLUMNS, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_aligned_by_their_width_on_the_screen() {
        let rows = [
            json!({ "name": "primary", "since": 1 }),
            json!({ "name": "東京\u{1b}", "since": null }),
            json!({ "since": "a long text that is neither wrapped nor cut off, so that every row stays on its own line, at any width" }),
        ];
        assert_snapshot!(shown(&rows), @r"
        NAME        SINCE
        primary     1
        東京\u{1b}  -
        -           a long text that is neither wrapped nor cut off, so that every row stays on its own line, at any width
        ");
        assert_eq!(shown(&[]), "NAME  SINCE\n");
    }

    #[test]
    fn a_record_is_a_line_for_each_field() {
        let mut out = Vec::new();
        record(&[("App", "shop".into()), ("Operation", "order.submit".into())], &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "App        shop\nOperation  order.submit\n");
    }

    #[test]
    fn only_a_terminal_gets_a_bold_header() {
        let mut out = Styled::default();
        table(&[json!({ "name": "a" })], COLUMNS, &mut out).unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "\u{1b}[1mNAME  SINCE\u{1b}[0m\na     -\n");
    }
}
