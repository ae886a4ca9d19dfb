//! Helpers for tests of `oncegate config check --connect`.

use std::time::Duration;

use oncegate_driver::scheme::Inspection;
use oncegate_testkit::output::print;
use oncegate_testkit::wait::until;

use super::engine::SCHEME;

async fn inspect(url: &str) -> Inspection {
    let inspect = SCHEME.inspect.expect("a check of members");
    let found = inspect(url.to_owned()).await;
    assert!(!format!("{found:?}").contains("hunter"), "{found:?}");
    found
}

/// Checks until the result is as expected: a busy machine may delay an answer for longer than a check waits, and members elect a leader
/// first.
pub(crate) async fn inspect_until(url: &str, what: &str, is_expected: impl Fn(&Inspection) -> bool) -> Inspection {
    let mut found = inspect(url).await;
    until(what, Duration::from_secs(10), async || {
        if !is_expected(&found) {
            print(format_args!("{what}: {found:?}"));
            found = inspect(url).await;
        }
        is_expected(&found)
    })
    .await;
    found
}

/// Checks that there is no problem.
pub(crate) async fn assert_usable(url: &str) -> Inspection {
    inspect_until(url, "no problem", |found| found.problems.is_empty()).await
}

/// Checks that there is one problem, with this part.
pub(crate) async fn assert_problem(url: &str, part: &str) {
    inspect_until(url, part, |found| found.problems.len() == 1 && found.problems[0].contains(part)).await;
}
