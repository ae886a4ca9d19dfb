//! What somebody learns who guesses: nothing, neither from the answers nor from the time they take.

use std::hint::black_box;

use proptest::prelude::*;

use super::tests::{NOON, app};
use super::*;
use crate::domain::attempt::{Entropy, SystemEntropy};
use crate::domain::clock::{Clock, SystemClock};
use crate::tenants::secret::Secret;

/// Apps with one secret and with two, one of them switched off, among many others.
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
fn of_a_million_random_credentials_none_is_let_in() {
    let registry = registry();
    let keys = ["one-secret", "two-secret", "off-secret", "nobody"];
    for number in 0..1_000_000_u64 {
        let key = keys[usize::try_from(number % 4).unwrap()];
        let bits = SystemEntropy.bits();
        let authorization = format!("Bearer {key}.{bits:016x}{:016x}", bits.rotate_left(17) ^ number);
        assert_eq!(registry.authenticate_once(Some(&authorization), NOON).unwrap_err(), AuthError::Unauthenticated);
    }
}

proptest! {
    #[test]
    fn whatever_is_sent_is_refused_and_nothing_breaks(text in "\\PC{0,200}", key in "(one-secret|[a-z.]{0,20})") {
        let registry = registry();
        for authorization in [text.clone(), format!("Bearer {text}"), format!("Bearer {key}.{text}")] {
            prop_assert_eq!(registry.authenticate_once(Some(&authorization), NOON).unwrap_err(), AuthError::Unauthenticated);
        }
    }
}

/// Samples of each kind of guess.
const ROUNDS: usize = 4_000;

/// Calls in a sample: enough that the clock's own steps do not matter.
const CALLS: u32 = 32;

/// Welch's t of two samples, each without its slowest fifth: interruptions tell nothing of the code.
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

/// How far guesses at each of these apps are from guesses at the first, in standard errors. The apps take turns, so that
/// whatever else the machine does falls on all alike, and every guess is another one.
fn distances(registry: &Registry, keys: &[&str]) -> Vec<f64> {
    let clock = SystemClock::new();
    let mut samples = vec![Vec::with_capacity(ROUNDS); keys.len()];
    for round in 0..ROUNDS {
        for turn in 0..keys.len() {
            let kind = (turn + round) % keys.len();
            let guess = format!("Bearer {}.{}", keys[kind], Secret::random(&SystemEntropy).reveal());
            let begun = clock.monotonic();
            for _ in 0..CALLS {
                let refused = registry.authenticate_once(black_box(Some(&guess)), NOON);
                assert!(black_box(refused).is_err());
            }
            samples[kind].push(clock.monotonic().saturating_sub(begun).as_secs_f64());
        }
    }
    samples[1..].iter().map(|sample| welch(samples[0].clone(), sample.clone())).collect()
}

#[test]
fn the_time_of_a_refusal_does_not_tell_what_was_wrong() {
    /// Noise stays below it; a step that one kind of guess skips, even one comparison, is far beyond.
    const T_MAX: f64 = 20.0;
    let registry = registry();
    let keys = ["no-such-ap", "one-secret", "two-secret", "off-secret"];
    // A loaded machine may favour one kind by chance, but not three times the same one.
    let told = |found: &[f64]| found.iter().map(|t| t.abs() > T_MAX).collect::<Vec<_>>();
    let tries: Vec<_> = (0..3).map(|_| distances(&registry, &keys)).collect();
    eprintln!("Welch's t against an unknown app: {tries:.1?}");
    for (place, key) in keys[1..].iter().enumerate() {
        assert!(!tries.iter().all(|found| told(found)[place]), "{key}: {tries:?}");
    }
}
