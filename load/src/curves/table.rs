//! Curves as tables, one for each axis.

use std::{collections::BTreeSet, fmt};

use super::{Axis, Curve, Curves, PER_SECOND, Point};

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gateway {:.1} µs", self.gateway_us)?;
        if let Some(store) = self.store_us {
            write!(f, ", store {store:.1} µs")?;
        }
        write!(f, ", {:.1} MiB", self.memory_mib)
    }
}

impl fmt::Display for Curves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{PER_SECOND} claims/s, medians of {} round(s) of {} s; generator, gateway and store on {}",
            self.rounds, self.seconds, self.setting
        )?;
        for axis in Axis::ALL {
            let curves: Vec<_> = self.all.iter().filter(|it| it.axis == axis && !it.points.is_empty()).collect();
            let values: BTreeSet<u64> = curves.iter().flat_map(|it| &it.points).map(|point| point.value).collect();
            if values.is_empty() {
                continue;
            }
            let heads: Vec<_> = values.iter().map(|value| format!(" {value} |")).collect();
            writeln!(
                f,
                "\n| {axis} |{} last to first |\n| --- |{} ---: |",
                heads.concat(),
                " ---: |".repeat(values.len())
            )?;
            for curve in curves {
                curve.fmt_rows(f, &values)?;
            }
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}

impl Curve {
    /// Writes the rows of an engine, with a column for each of these values.
    fn fmt_rows(&self, f: &mut fmt::Formatter<'_>, values: &BTreeSet<u64>) -> fmt::Result {
        let mut row = |what: &str, figure: fn(&Point) -> Option<f64>| {
            let of = |value: &u64| self.points.iter().find(|point| point.value == *value).and_then(figure);
            let cells: Vec<_> =
                values.iter().map(|value| of(value).map_or(" – |".to_owned(), |it| format!(" {it:.1} |"))).collect();
            let ends = self.points.first().and_then(figure).zip(self.points.last().and_then(figure));
            let slope =
                ends.map_or("–".to_owned(), |(first, last)| format!("{:.2}", last / first.max(f64::MIN_POSITIVE)));
            writeln!(f, "| {}: {what} |{} {slope} |", self.engine, cells.concat())
        };
        row("gateway, µs", |point| Some(point.gateway_us))?;
        if self.points.iter().any(|point| point.store_us.is_some()) {
            row("store, µs", |point| point.store_us)?;
        }
        row("gateway, MiB", |point| Some(point.memory_mib))
    }
}
