//! Rules of metadata: compare-and-set.

use futures_util::future::join_all;

use super::super::EngineError;
use super::super::metadata::{METADATA_BYTES_MAX, Metadata};
use super::requests::attempt;
use super::subject::Subject;

/// Metadata is stored only over the expected value, and a repeated call succeeds.
pub async fn metadata_is_stored_only_over_the_expected_value(on: &Subject) {
    let (name, other_name) = (fresh_name(), fresh_name());
    let engine = &on.engine;
    let current = async || engine.get_metadata(&name).await.expect("the engine answers");
    let compare_and_set = async |expected: Option<&Metadata>, new: &Metadata| -> Result<bool, EngineError> {
        engine.compare_and_set_metadata(&name, expected, new).await
    };
    let (first, second) = (metadata("{\"n\": 1}"), metadata(&"ü".repeat(METADATA_BYTES_MAX / 2)));
    assert_eq!(current().await, None);
    assert_eq!(compare_and_set(Some(&first), &second).await, Ok(false), "nothing is stored");
    assert_eq!(current().await, None);
    assert_eq!(compare_and_set(None, &first).await, Ok(true));
    assert_eq!(current().await.as_ref(), Some(&first));
    assert_eq!(compare_and_set(None, &second).await, Ok(false), "a value is stored");
    assert_eq!(compare_and_set(Some(&second), &metadata("")).await, Ok(false), "another value is stored");
    assert_eq!(current().await.as_ref(), Some(&first), "and is unchanged");
    assert_eq!(compare_and_set(Some(&first), &second).await, Ok(true));
    assert_eq!(compare_and_set(Some(&first), &second).await, Ok(true), "a repeat succeeds");
    assert_eq!(compare_and_set(Some(&first), &first).await, Ok(false));
    assert_eq!(current().await.as_ref(), Some(&second));
    assert_eq!(engine.get_metadata(&other_name).await, Ok(None), "another name has another value");
    (on.pass)(on.tick).await;
    assert_eq!(compare_and_set(Some(&second), &metadata("")).await, Ok(true));
    assert_eq!(current().await, Some(metadata("")));
}

/// Of concurrent calls with the same expected value, one succeeds.
pub async fn of_many_racing_compare_and_sets_exactly_one_succeeds(on: &Subject) {
    let name = fresh_name();
    let mut current = None;
    for round in 0..5 {
        let racers: Vec<_> = (0..50)
            .map(|racer| {
                let (engine, name, expected) = (on.engine.clone(), name.clone(), current.clone());
                let new = metadata(&format!("{round}-{racer}"));
                tokio::spawn(async move {
                    let stored = engine.compare_and_set_metadata(&name, expected.as_ref(), &new).await;
                    (stored.expect("the engine answers"), new)
                })
            })
            .collect();
        let raced = join_all(racers).await.into_iter().map(|racer| racer.expect("no panic"));
        let winners: Vec<_> = raced.filter(|(stored, _)| *stored).map(|(_, new)| new).collect();
        assert_eq!(winners.len(), 1, "exactly one of 50 succeeds");
        current = on.engine.get_metadata(&name).await.expect("the engine answers");
        assert_eq!(current.as_ref(), winners.first());
    }
}

/// Returns a name that no other test uses.
fn fresh_name() -> String {
    format!("test.{}", attempt().timestamp().as_micros())
}

fn metadata(text: &str) -> Metadata {
    Metadata::new(text).expect("a short text")
}
