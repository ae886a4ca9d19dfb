//! States of a claim in words.

/// Returns a state in English.
pub(super) fn english(state: &str) -> &str {
    match state {
        "in_progress" => "in progress",
        "succeeded" => "done",
        other => other,
    }
}

/// Returns a state in Chinese.
pub(super) fn chinese(state: &str) -> &str {
    match state {
        "in_progress" => "进行中",
        "succeeded" => "已完成",
        "unknown" => "结果未知",
        other => other,
    }
}
