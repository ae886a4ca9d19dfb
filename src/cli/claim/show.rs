//! Output of `oncegate claim` for people.

use serde_json::Value;

use crate::cli::output::{self, Column, Out, cell, escaped};

/// Longest contents in a list; JSON output has all of it.
const CONTENTS_CHARS_MAX: usize = 60;

const COLUMNS: &[Column] = &[
    ("GLOBAL ID", |claim| cell(&claim["global_id"])),
    ("STATE", |claim| cell(&claim["state"])),
    ("CLAIMED AT", |claim| cell(&claim["claimed_at"])),
    ("EXPIRES AT", |claim| cell(&claim["expires_at"])),
    ("OPERATION", |claim| cell(&claim["operation"])),
    ("CONTENTS", contents),
];

/// Prints a page of claims.
pub(super) fn list(page: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    output::page(page, "claims", COLUMNS, "There are no such claims.", out)
}

/// Prints a claim.
pub(super) fn record(claim: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let text = |name: &str| cell(&claim[name]);
    let state = text("state");
    let state = match &*state {
        "in_progress" => "in_progress: an attempt is running".to_owned(),
        "succeeded" => "succeeded: the operation was done".to_owned(),
        "unknown" => "unknown: it may have been done; look up its effect, then settle it".to_owned(),
        _ => state,
    };
    let expires_at = match &claim["expires_at"] {
        Value::Null => "never, only when it is settled or released".to_owned(),
        expires_at => cell(expires_at),
    };
    let mut fields = vec![
        ("App", text("app")),
        ("Operation", text("operation")),
        ("Global ID", text("global_id")),
        ("State", state),
        ("Claimed at", text("claimed_at")),
        ("Expires at", expires_at),
        ("Attempt", format!("hash {}, timestamp {}", text("attempt_hash"), text("timestamp"))),
        ("Fence", text("fence")),
    ];
    fields.extend(claim.get("caller").map(|caller| ("Caller", cell(caller))));
    for (member, name) in [("contents", "Contents"), ("contents_sha256", "SHA-256"), ("result", "Result")] {
        fields.extend(claim.get(member).map(|value| (name, escaped(&value.to_string()))));
    }
    if claim["late"] == true {
        fields.push(("Late", "recorded from an outcome that found no claim".to_owned()));
    }
    fields.extend([
        ("Lease", format!("{}, then {}", text("lease"), text("on_lease_end"))),
        ("Retention", format!("{}, if unknown {}", text("retention"), text("unknown_retention"))),
        ("Kept in", format!("engine {}, chain {}", text("engine"), text("chain"))),
    ]);
    output::record(&fields, out)
}

/// Prints the result of a change.
pub(super) fn changed(answer: &Value, out: &mut impl Out) -> anyhow::Result<()> {
    let [app, global_id, state] = ["app", "global_id", "state"].map(|name| cell(&answer[name]));
    let claim = format!("Claim {global_id} of app `{app}`");
    match &answer["expires_at"] {
        _ if state == "released" => writeln!(out, "{claim} is released. Its operation can be claimed again.")?,
        Value::Null => writeln!(out, "{claim} is {state} until it is settled or released.")?,
        expires_at => writeln!(out, "{claim} is {state} until {}.", cell(expires_at))?,
    }
    Ok(())
}

/// Returns the contents of a claim, or their digest, cut to a readable length.
fn contents(claim: &Value) -> String {
    let text = match (claim.get("contents"), claim.get("contents_sha256")) {
        (Some(contents), _) => escaped(&contents.to_string()),
        (None, Some(digest)) => format!("SHA-256 {}", cell(digest)),
        (None, None) => "-".to_owned(),
    };
    if text.chars().count() <= CONTENTS_CHARS_MAX {
        return text;
    }
    text.chars().take(CONTENTS_CHARS_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use serde_json::json;

    use super::*;

    const ID: &str = "2ca8a31a53ad078ffd0c7c8c80158af7";

    fn printed(print: fn(&Value, &mut Vec<u8>) -> anyhow::Result<()>, value: &Value) -> String {
        let mut out = Vec::new();
        print(value, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_list_is_a_row_for_each_claim() {
        let at = "2026-10-01T08:00:00Z";
        let claims = json!([
            { "global_id": ID, "state": "succeeded", "claimed_at": at, "expires_at": null, "operation": "order.submit",
              "contents": { "order_id": "A-1001" } },
            { "global_id": ID, "state": "unknown", "claimed_at": at, "expires_at": at, "operation": null,
              "contents_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" },
            { "global_id": ID, "state": "in_progress", "claimed_at": at, "expires_at": at, "operation": "default",
              "contents": "\u{1b}[2J\u{9b}" },
        ]);
        assert_snapshot!(printed(list, &json!({ "claims": claims, "next": ID })), @r#"
        GLOBAL ID                         STATE        CLAIMED AT            EXPIRES AT            OPERATION     CONTENTS
        2ca8a31a53ad078ffd0c7c8c80158af7  succeeded    2026-10-01T08:00:00Z  -                     order.submit  {"order_id":"A-1001"}
        2ca8a31a53ad078ffd0c7c8c80158af7  unknown      2026-10-01T08:00:00Z  2026-10-01T08:00:00Z  -             SHA-256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15…
        2ca8a31a53ad078ffd0c7c8c80158af7  in_progress  2026-10-01T08:00:00Z  2026-10-01T08:00:00Z  default       "\u001b[2J\u{9b}"

        There are more: --after 2ca8a31a53ad078ffd0c7c8c80158af7
        "#);
        assert_eq!(printed(list, &json!({ "claims": [], "next": null })), "There are no such claims.\n");
    }

    #[test]
    fn a_claim_is_a_line_for_each_field() {
        let claim = json!({
            "app": "shop", "operation": "order.submit", "global_id": ID, "state": "unknown", "claimed_at": "2026-10-01T08:00:00Z",
            "expires_at": null, "attempt_hash": "9f86d081", "caller": "pod/shop-7c9", "timestamp": 1_790_841_600_000_000_u64, "fence": 7,
            "contents": { "order_id": "A-1001" }, "late": true, "lease": "30s", "on_lease_end": "unknown", "retention": "1d",
            "unknown_retention": "7d", "engine": "primary", "chain": "default"
        });
        assert_snapshot!(printed(record, &claim), @r#"
        App         shop
        Operation   order.submit
        Global ID   2ca8a31a53ad078ffd0c7c8c80158af7
        State       unknown: it may have been done; look up its effect, then settle it
        Claimed at  2026-10-01T08:00:00Z
        Expires at  never, only when it is settled or released
        Attempt     hash 9f86d081, timestamp 1790841600000000
        Fence       7
        Caller      pod/shop-7c9
        Contents    {"order_id":"A-1001"}
        Late        recorded from an outcome that found no claim
        Lease       30s, then unknown
        Retention   1d, if unknown 7d
        Kept in     engine primary, chain default
        "#);
    }

    #[test]
    fn a_change_prints_the_new_state() {
        let answer = |state: &str, expires_at: Value| json!({ "app": "shop", "global_id": ID, "state": state, "expires_at": expires_at });
        for (answer, end) in [
            (answer("released", Value::Null), "is released. Its operation can be claimed again.\n"),
            (answer("succeeded", "2026-10-01T08:00:00Z".into()), "is succeeded until 2026-10-01T08:00:00Z.\n"),
            (answer("unknown", Value::Null), "is unknown until it is settled or released.\n"),
        ] {
            assert!(printed(changed, &answer).ends_with(end), "{answer}");
        }
    }
}
