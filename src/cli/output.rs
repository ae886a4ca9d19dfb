//! Output of commands that list or show something: an aligned table for people, or JSON for programs. No value can send
//! control sequences to a terminal.

mod escape;
mod table;

use std::io::{self, IsTerminal, Stdout, Write};

use clap::{Args, ValueEnum};
use serde_json::Value;

pub(super) use self::escape::{cell, escaped};
pub(super) use self::table::{Column, page, record, table};

/// Introduces lines for the configuration file.
pub(super) const ADD_TO_FILE: &str = "Add this to the configuration file. A gateway that was started with this file takes it within \
     seconds, without a restart. One that was started without a file reads none: start it again with --config FILE.";

/// The format of a command's output.
#[derive(Args, Clone, Copy, Default, Debug)]
pub(super) struct OutputArgs {
    /// Format of the output
    #[arg(long, short, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, Default, Debug, ValueEnum)]
enum Format {
    #[default]
    /// Aligned columns with a header, for people
    Table,
    /// The complete data, for programs
    Json,
}

/// A destination for output.
pub(super) trait Out: Write + Sized {
    /// Reports whether the destination shows ANSI styles: a terminal whose user has not set `NO_COLOR`.
    fn is_styled(&self) -> bool;
}

impl Out for Stdout {
    fn is_styled(&self) -> bool {
        let is_dumb = super::variable("TERM").is_some_and(|term| term == "dumb");
        self.is_terminal() && super::may_color() && !is_dumb
    }
}

#[cfg(test)]
impl Out for Vec<u8> {
    fn is_styled(&self) -> bool {
        false
    }
}

/// Returns what is printed.
#[cfg(test)]
pub(super) fn text(print: impl FnOnce(&mut Vec<u8>) -> anyhow::Result<()>) -> String {
    let mut out = Vec::new();
    print(&mut out).expect("a vector takes all");
    String::from_utf8(out).expect("UTF-8")
}

impl OutputArgs {
    /// Prints `data` as JSON, or with `human` as text.
    pub(super) fn print<O: Out>(
        self,
        data: &Value,
        out: &mut O,
        human: impl FnOnce(&Value, &mut O) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self.output {
            Format::Table => human(data, out),
            Format::Json => Ok(writeln!(out, "{}", escape::json(data))?),
        }
    }
}

/// Returns the elements of a list in an answer; none if there is no such list.
pub(super) fn rows<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// Reports whether an error only means that the reader of the output has ended, as `head` does.
pub(super) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let is_pipe = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(is_pipe)
}
