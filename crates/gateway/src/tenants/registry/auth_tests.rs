//! Guessing credentials reveals nothing: answers and their timing are the same for each kind of mistake.

use std::hint::black_box;

use oncegate_core::attempt::{Entropy, SystemEntropy};
use oncegate_core::clock::{Clock, SystemClock};
use proptest::prelude::*;

use super::tests::NOON;
use super::*;
use crate::tenants::secret::Secret;
use crate::tenants::tests::app;

/// Apps with one secret and with two, one of them disabled, among many others.
fn registry() -> Registry {
    let secret = || Secret::random(&SystemEntropy).reveal().to_owned();
    let others = (0..100).map(|number| app(&format!("other{number:03}"), &[&secret()]));
    let own = [
        app("one-secret", &[&secret()]),
        app("two-secret", &[&secret(), &secret()]),
        App { disabled: true, ..app("off-secret", &[&secret()]) },
    ];
    Registry::of(others.chain(own))
}

#[test]
fn no_random_credential_is_accepted() {
    let registry = registry();
    let keys = ["one-secret", "two-secret", "off-secret", "absent"];
    for number in 0..1_000_000_u64 {
        let key = keys[usize::try_from(number % 4).unwrap()];
        let bits = SystemEntropy.bits();
        let authorization = format!("Bearer {key}.{bits:016x}{:016x}", bits.rotate_left(17) ^ number);
        assert_eq!(registry.authenticate_once(Some(&authorization), NOON).unwrap_err(), AuthError::Unauthenticated);
    }
}

proptest! {
    #[test]
    fn arbitrary_text_is_refused(text in "\\PC{0,200}", key in "(one-secret|[a-z.]{0,20})") {
        let registry = registry();
        for authorization in [text.clone(), format!("Bearer {text}"), format!("Bearer {key}.{text}")] {
            prop_assert_eq!(registry.authenticate_once(Some(&authorization), NOON).unwrap_err(), AuthError::Unauthenticated);
        }
    }
}

/// Samples per kind of guess.
const ROUNDS: usize = 4_000;

/// Calls per sample: enough to make the clock's resolution irrelevant.
const CALLS: u32 = 32;

/// Welch's t of two samples, each without its slowest fifth, which contains interruptions.
fn welch(mut a: Vec<f64>, mut b: Vec<f64>) -> f64 {
    let moments = |sample: &mut Vec<f64>| {
        sample.sort_by(f64::total_cmp);
        sample.truncate(sample.len() * 4 / 5);
        let count = f64::from(u32::try_from(sample.len()).unwrap());
        let mean = sample.iter().sum::<f64>() / count;
        let variance = sample.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    };
    let ((mean_a, error_a), (mean_b, error_b)) = (moments(&mut a), moments(&mut b));
    (mean_a - mean_b) / (error_a + error_b).sqrt()
}

/// Returns the distance of guesses at each app from guesses at the first one, in standard errors. The apps alternate,
/// so that other load on the machine affects all alike. Every guess is different.
fn distances(registry: &Registry, keys: &[&str]) -> Vec<f64> {
    let clock = SystemClock::new();
    let mut samples = vec![Vec::with_capacity(ROUNDS); keys.len()];
    for round in 0..ROUNDS {
        for turn in 0..keys.len() {
            let kind = (turn + round) % keys.len();
            let guess = format!("Bearer {}.{}", keys[kind], Secret::random(&SystemEntropy).reveal());
            let started = clock.monotonic();
            for _ in 0..CALLS {
                let refused = registry.authenticate_once(black_box(Some(&guess)), NOON);
                assert!(black_box(refused).is_err());
            }
            samples[kind].push(clock.monotonic().saturating_sub(started).as_secs_f64());
        }
    }
    samples[1..].iter().map(|sample| welch(samples[0].clone(), sample.clone())).collect()
}

#[test]
fn the_time_of_a_refusal_does_not_depend_on_its_reason() {
    /// Above the noise, and far below the effect of one comparison that only one kind of guess performs.
    const T_MAX: f64 = 20.0;
    let registry = registry();
    let keys = ["no-such-ap", "one-secret", "two-secret", "off-secret"];
    // A loaded machine may favour one kind by chance, but not the same one three times.
    let is_distinct = |found: &[f64]| found.iter().map(|t| t.abs() > T_MAX).collect::<Vec<_>>();
    let tries: Vec<_> = (0..3).map(|_| distances(&registry, &keys)).collect();
    eprintln!("Welch's t against an unknown app: {tries:.1?}");
    for (place, key) in keys[1..].iter().enumerate() {
        assert!(!tries.iter().all(|found| is_distinct(found)[place]), "{key}: {tries:?}");
    }
}
