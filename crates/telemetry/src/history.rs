//! Rates and latencies of the last hour, day and two weeks, from the metrics of this process. A task reads them; what serves callers
//! does not know of it.

mod exposition;
mod file;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::exposition::Totals;

/// Seconds of a point, for each resolution.
pub const STEPS: [u64; 3] = [10, 60, 900];

/// Points that are kept: an hour, a day, two weeks.
const POINTS: [usize; 3] = [360, 1440, 1344];

/// Series that are kept. Operations beyond share the series `other/…`.
const SERIES_MAX: usize = 320;

/// Series that always have room: the totals, and those that further operations share.
const RESERVED: usize = 16;

/// Quantity of a series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Events per second: their mean over a point.
    PerSecond,
    /// A latency in seconds: the highest of a point.
    Seconds,
}

impl Unit {
    /// Returns the unit of a series of this name.
    pub fn of(name: &str) -> Self {
        if matches!(own_name(name), "p50" | "p99") { Self::Seconds } else { Self::PerSecond }
    }

    /// Returns its name in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "per_second",
            Self::Seconds => "seconds",
        }
    }
}

/// The history of this process, and of earlier ones with the same data folder.
#[derive(Default)]
pub struct History(Mutex<State>);

#[derive(Default)]
struct State {
    series: BTreeMap<String, [Ring; 3]>,
    previous: Option<(Duration, Totals)>,
}

/// The points of a series in one resolution. A point that is not a number is a gap.
#[derive(Clone, PartialEq, Debug, Default)]
struct Ring {
    /// The number of the newest point: its time in steps since 1970.
    newest: u64,
    /// The oldest first.
    values: VecDeque<f32>,
    /// Samples in the newest point.
    samples: u16,
}

impl History {
    /// Takes the metrics at this time: seconds since 1970, and the same of a monotonic clock. The first ones are the base of the next.
    pub fn take(&self, at: u64, monotonic: Duration, exposition: &str) {
        let totals = Totals::of(exposition);
        let mut state = self.state();
        let previous = state.previous.replace((monotonic, totals.clone()));
        let Some((before, previous)) = previous else { return };
        let seconds = monotonic.saturating_sub(before).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let mut values: BTreeMap<String, f64> = BTreeMap::new();
        let mut room = (SERIES_MAX - RESERVED).saturating_sub(state.series.len());
        for (name, value) in totals.since(&previous, seconds) {
            let is_kept = !name.contains('/') || state.series.contains_key(&name) || values.contains_key(&name);
            let name = if is_kept || room > 0 { name } else { format!("other/{}", own_name(&name)) };
            room = room.saturating_sub(usize::from(!is_kept));
            let known = values.entry(name.clone()).or_insert(0.0);
            *known = if Unit::of(&name) == Unit::Seconds { known.max(value) } else { *known + value };
        }
        for (name, value) in values {
            let rings = state.series.entry(name.clone()).or_default();
            for ((ring, step), points) in rings.iter_mut().zip(STEPS).zip(POINTS) {
                ring.put(at / step, value, Unit::of(&name), points);
            }
        }
    }

    /// Returns the names of all series.
    pub fn names(&self) -> Vec<String> {
        self.state().series.keys().cloned().collect()
    }

    /// Returns the points of a series with these numbers, in the resolution with this index in [`STEPS`].
    pub fn points(&self, name: &str, resolution: usize, first: u64, last: u64) -> Option<Vec<Option<f32>>> {
        let state = self.state();
        let ring = state.series.get(name)?.get(resolution)?;
        let last = last.min(first + POINTS.get(resolution).map_or(0, |points| *points as u64));
        Some((first..=last).map(|number| ring.get(number)).collect())
    }

    /// Returns the newest value of a series, if it was measured within a minute before `now`, in seconds since 1970.
    pub fn newest(&self, name: &str, now: u64) -> Option<f32> {
        const MINUTE: u64 = 60;
        let [step, ..] = STEPS;
        let points = self.points(name, 0, now.saturating_sub(MINUTE) / step, now / step)?;
        points.into_iter().rev().flatten().next()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the quantity of a series, without its app and operation.
fn own_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

impl Ring {
    #[expect(clippy::cast_possible_truncation, reason = "six digits are enough for a chart")]
    fn put(&mut self, number: u64, value: f64, unit: Unit, most: usize) {
        let value = value as f32;
        if number == self.newest
            && let Some(last) = self.values.back_mut()
        {
            *last = match unit {
                Unit::PerSecond => (*last * f32::from(self.samples) + value) / (f32::from(self.samples) + 1.0),
                Unit::Seconds => last.max(value),
            };
            self.samples = self.samples.saturating_add(1);
            return;
        }
        // The clock was set back: existing points stay.
        if number < self.newest && !self.values.is_empty() {
            return;
        }
        let gap = usize::try_from(number - self.newest).unwrap_or(usize::MAX).saturating_sub(1);
        if gap >= most {
            self.values.clear();
        } else if !self.values.is_empty() {
            self.values.extend(std::iter::repeat_n(f32::NAN, gap));
        }
        self.values.push_back(value);
        let beyond = self.values.len().saturating_sub(most);
        self.values.drain(..beyond);
        (self.newest, self.samples) = (number, 1);
    }

    fn get(&self, number: u64) -> Option<f32> {
        let age = usize::try_from(self.newest.checked_sub(number)?).ok()?;
        let index = self.values.len().checked_sub(age + 1)?;
        self.values.get(index).copied().filter(|value| !value.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(granted: u32, duplicates: u32) -> String {
        format!(
            "# HELP x\noncegate_claims_total{{app=\"shop\",operation=\"a\",result=\"granted\"}} {granted}\n\
             oncegate_claims_total{{app=\"shop\",operation=\"a\",result=\"duplicate_succeeded\"}} {duplicates}\n"
        )
    }

    #[test]
    fn rates_are_kept_in_three_resolutions_with_gaps() {
        let history = History::default();
        // 2 a second for a minute, nothing for a minute, 4 a second for a minute.
        let mut total = 0;
        for (round, rate) in [(0..7, 2), (13..20, 4)] {
            for number in round {
                history.take(60_000 + number * 10, Duration::from_secs(number * 10), &text(total, 0));
                total += rate * 10;
            }
        }
        let shown = |resolution: usize| {
            let step = STEPS[resolution];
            history.points("granted", resolution, 60_000 / step, (60_000 + 190) / step).unwrap()
        };
        let tens = shown(0);
        assert_eq!((tens[0], tens[1], tens[6]), (None, Some(2.0), Some(2.0)), "the first is the base");
        assert_eq!((tens[7], tens[12]), (None, None), "a gap");
        assert_eq!(tens[14], Some(4.0));
        let minutes = shown(1);
        assert_eq!((minutes[0], minutes[3]), (Some(2.0), Some(4.0)));
        assert_eq!(history.points("granted", 2, 60_000 / 900, 60_190 / 900).unwrap().len(), 1);
        assert_eq!(history.names(), ["duplicate", "granted", "shop/a/duplicate", "shop/a/granted"]);
        assert_eq!(history.points("none", 0, 0, 1), None);
        let newest = |now| history.newest("granted", now);
        assert_eq!((newest(60_199), newest(60_255), newest(60_260)), (Some(4.0), Some(4.0), None), "a minute");
        assert_eq!(history.newest("none", 60_199), None);
    }

    #[test]
    fn a_restart_of_the_counters_and_a_clock_that_goes_back_are_gaps() {
        let history = History::default();
        for (second, granted) in [(0, 100), (10, 200), (20, 5), (30, 15)] {
            history.take(1000 + second, Duration::from_secs(second), &text(granted, 0));
        }
        let points = history.points("granted", 0, 100, 103).unwrap();
        assert_eq!(points, [None, Some(10.0), None, Some(1.0)]);
        history.take(500, Duration::from_secs(40), &text(25, 0));
        assert_eq!(history.points("granted", 0, 100, 103).unwrap(), points);
    }

    #[test]
    fn the_series_are_bounded_and_so_are_the_points() {
        let history = History::default();
        let many = |count: u32| {
            (0..500).fold(String::new(), |text, operation| {
                text + &format!(
                    "oncegate_claims_total{{app=\"shop\",operation=\"o{operation}\",result=\"granted\"}} {count}\n"
                )
            })
        };
        for round in 0..400_u32 {
            let second = u64::from(round) * 10;
            history.take(
                second,
                Duration::from_secs(second),
                &if round < 2 { many(round * 10) } else { text(round * 10, 0) },
            );
        }
        assert!(history.names().len() <= SERIES_MAX, "{}", history.names().len());
        let other = history.points("other/granted", 0, 0, 1).unwrap_or_default();
        assert_eq!(history.points("granted", 1, 0, 0).unwrap()[0].map(|value| value > 1.0), Some(true), "{other:?}");
        let state = history.state();
        assert!(
            state
                .series
                .values()
                .flatten()
                .zip(POINTS.into_iter().cycle())
                .all(|(ring, most)| ring.values.len() <= most)
        );
    }
}
