//! What a test says besides passing: seeds to run it again with, and figures worth a look.

/// Says it, where it is shown if the test fails or its output is asked for.
#[expect(clippy::print_stdout, reason = "seeds and figures are to be seen")]
pub fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
