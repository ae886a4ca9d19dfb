//! `oncegate generate`: writes man pages and shell completions, for packages and for users without one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use super::Cli;

/// Shells that get a completion file.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Headings of the help texts, and the man page sections they become.
const SECTIONS: [(&str, &str); 3] = [
    ("\n.SH EXTRA\nExamples:\n", "\n.SH EXAMPLES\n"),
    ("\nEnvironment:\n", "\n.SH ENVIRONMENT\n"),
    ("\nExit codes:\n", "\n.SH \"EXIT STATUS\"\n"),
];

const EXAMPLES: &str = "\
Examples:
  oncegate generate completions ~/.local/share/bash-completion/completions
  oncegate generate man /usr/local/share/man/man1";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct GenerateArgs {
    /// Kind of files to write
    kind: Kind,
    /// Directory to write the files into; created if it does not exist
    dir: PathBuf,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Kind {
    /// A completion file for each of bash, fish and zsh
    Completions,
    /// A man page for the program and each of its commands
    Man,
}

/// Writes the files and prints the path of each.
pub(super) fn run(args: &GenerateArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let GenerateArgs { kind, dir } = args;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let written = match kind {
        Kind::Completions => completions(dir),
        Kind::Man => man_pages(dir),
    };
    for path in written.with_context(|| format!("cannot write to {}", dir.display()))? {
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

fn completions(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut command = Cli::command();
    let written = SHELLS.map(|shell| clap_complete::generate_to(shell, &mut command, "oncegate", dir));
    Ok(written.into_iter().collect::<Result<_, _>>()?)
}

fn man_pages(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut written = Vec::new();
    man_page(command, dir, &mut written)?;
    Ok(written)
}

/// Writes the page of a command, then those of its subcommands.
fn man_page(command: Command, dir: &Path, written: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let subcommands: Vec<_> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut page = String::from_utf8(page)?;
    for (heading, section) in SECTIONS {
        page = page.replace(heading, section);
    }
    let path = dir.join(man.get_filename());
    fs::write(&path, unfilled(&page))?;
    written.push(path);
    subcommands.into_iter().try_for_each(|sub| man_page(sub, dir, written))
}

/// Returns a page whose indented lines are printed as they are: they are commands and lists.
fn unfilled(page: &str) -> String {
    let (mut unfilled, mut is_indented) = (String::with_capacity(page.len()), false);
    for line in page.lines() {
        if line.starts_with("  ") != is_indented {
            is_indented = !is_indented;
            unfilled.push_str(if is_indented { ".nf\n" } else { ".fi\n" });
        }
        unfilled.push_str(line);
        unfilled.push('\n');
    }
    unfilled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(kind: Kind) -> (tempfile::TempDir, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("made/on/the/way");
        let mut out = Vec::new();
        run(&GenerateArgs { kind, dir: dir.clone() }, &mut out).unwrap();
        let names = String::from_utf8(out).unwrap();
        let names = names.lines().map(|path| Path::new(path).strip_prefix(&dir).unwrap().display().to_string());
        (folder, names.collect())
    }

    #[test]
    fn every_command_has_a_man_page() {
        let (folder, names) = generated(Kind::Man);
        for name in
            ["oncegate.1", "oncegate-serve.1", "oncegate-claim.1", "oncegate-claim-show.1", "oncegate-generate.1"]
        {
            assert!(names.iter().any(|known| known == name), "no {name} in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("help")), "{names:?}");
        let page = fs::read_to_string(folder.path().join("made/on/the/way/oncegate.1")).unwrap();
        for section in ["\n.SH EXAMPLES\n", "\n.SH ENVIRONMENT\n", "\n.SH \"EXIT STATUS\"\n"] {
            assert!(page.contains(section), "no {section:?} in {page}");
        }
        assert!(!page.contains("EXTRA"), "{page}");
        assert!(page.contains("\n.SH EXAMPLES\n.nf\n  oncegate serve"), "{page}");
        assert!(page.contains("\n.fi\n\n.SH ENVIRONMENT\n.nf\n"), "{page}");
    }

    #[test]
    fn completions_have_the_names_that_shells_look_for() {
        let (_folder, names) = generated(Kind::Completions);
        assert_eq!(names, ["oncegate.bash", "oncegate.fish", "_oncegate"]);
    }
}
