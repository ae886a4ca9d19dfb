//! Output of a test, apart from its result: seeds to run it again with, and measured figures.

/// Prints a line, which is shown if the test fails or its output is requested.
#[expect(clippy::print_stdout, reason = "seeds and figures are to be seen")]
pub fn print(line: impl std::fmt::Display) {
    println!("{line}");
}
