//! `oncegate id`: computes a global ID as gateways do, without one.

use std::io::{Read, Write};

use anyhow::Context as _;
use clap::Args;
use oncegate_core::canonical::{Canonical, NotCanonical, canonicalize};
use oncegate_core::global_id::GlobalId;
use oncegate_core::tenant::{AppKey, Operation};

use super::failure::usage;

/// Not a doc comment, as the other arguments have: braces and quotes would be read as Markdown.
pub(super) const CONTENTS_HELP: &str =
    r#"Contents of the operation as JSON, such as '{"order_id":"A-1001"}', or - for standard input"#;

const EXAMPLES: &str = "\
Examples:
  oncegate id --app shop --operation order.submit '{\"order_id\": \"A-1001\"}'
  oncegate id --app shop --canonical - < contents.json
  oncegate id --app shop '\"A-1001\"'";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct IdArgs {
    /// Key of the app, such as shop
    #[arg(long)]
    app: AppKey,
    /// Operation, such as order.submit
    #[arg(long, default_value = "default")]
    operation: Operation,
    /// Print the canonical form of the contents too, on the next line
    #[arg(long)]
    canonical: bool,
    #[arg(allow_negative_numbers = true, help = CONTENTS_HELP)]
    contents: String,
}

pub(super) fn run(args: &IdArgs, input: &mut impl Read, out: &mut impl Write) -> anyhow::Result<()> {
    let contents = read_contents(&args.contents, input)?;
    writeln!(out, "{}", GlobalId::of(&args.app, &args.operation, &contents))?;
    if args.canonical {
        writeln!(out, "{}", contents.as_str())?;
    }
    Ok(())
}

/// Returns the canonical form of contents from the command line, or from standard input if the argument is a dash.
pub(super) fn read_contents(argument: &str, input: &mut impl Read) -> anyhow::Result<Canonical> {
    let mut json = Vec::new();
    if argument == "-" {
        input.read_to_end(&mut json).context("cannot read the contents from standard input")?;
    } else {
        json.extend_from_slice(argument.as_bytes());
    }
    canonicalize(&json).map_err(|error| match &error {
        // The shell removes one pair of quotes, which makes this the likeliest mistake.
        NotCanonical::Syntax { .. } => usage(format!("{error}. Text needs its own quotes: '\"A-1001\"'")),
        _ => usage(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MD5 of `shop`, `order.submit` and `{"order_id":"A-1001"}`, one to a line.
    const ID: &str = "2ca8a31a53ad078ffd0c7c8c80158af7";

    fn id(contents: &str, input: &str, canonical: bool) -> anyhow::Result<String> {
        let (app, operation) = ("shop".parse()?, "order.submit".parse()?);
        let args = IdArgs { app, operation, canonical, contents: contents.to_owned() };
        let mut out = Vec::new();
        run(&args, &mut input.as_bytes(), &mut out)?;
        Ok(String::from_utf8(out)?)
    }

    #[test]
    fn the_id_is_that_of_the_canonical_contents() {
        let canonical = r#"{"order_id":"A-1001"}"#;
        assert_eq!(id(canonical, "", false).unwrap(), format!("{ID}\n"));
        assert_eq!(id("-", "{ \"order_id\": \"A-1001\" }\n", true).unwrap(), format!("{ID}\n{canonical}\n"));
    }

    #[test]
    fn bare_text_is_refused_with_the_quotes_it_lacks() {
        let error = id("A-1001", "", false).unwrap_err().to_string();
        assert!(error.ends_with(". Text needs its own quotes: '\"A-1001\"'"), "{error}");
        assert!(id("null", "", false).is_err());
    }
}
