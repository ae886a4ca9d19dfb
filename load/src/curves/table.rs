//! Curves as tables, one for each axis.

use std::fmt;

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
            let curves: Vec<_> = self.curves.iter().filter(|it| it.axis == axis && !it.points.is_empty()).collect();
            let Some(first) = curves.first() else { continue };
            let values: String = first.points.iter().map(|point| format!(" {} |", point.value)).collect();
            writeln!(
                f,
                "\n| {axis} |{values} last to first |\n| --- |{} ---: |",
                " ---: |".repeat(first.points.len())
            )?;
            for curve in curves {
                curve.fmt_rows(f)?;
            }
        }
        for line in &self.skipped {
            writeln!(f, "\nLEFT OUT {line}")?;
        }
        Ok(())
    }
}

impl Curve {
    fn fmt_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, points, .. } = self;
        row(f, &format!("{engine}: gateway, µs"), points.iter().map(|point| Some(point.gateway_us)))?;
        if points.iter().any(|point| point.store_us.is_some()) {
            row(f, &format!("{engine}: store, µs"), points.iter().map(|point| point.store_us))?;
        }
        row(f, &format!("{engine}: gateway, MiB"), points.iter().map(|point| Some(point.memory_mib)))
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, figures: impl Iterator<Item = Option<f64>>) -> fmt::Result {
    let figures: Vec<_> = figures.collect();
    let cells: String = figures.iter().map(|it| it.map_or(" – |".to_owned(), |it| format!(" {it:.1} |"))).collect();
    let ends = figures.first().copied().flatten().zip(figures.last().copied().flatten());
    let slope = ends.map_or("–".to_owned(), |(first, last)| format!("{:.2}", last / first.max(f64::MIN_POSITIVE)));
    writeln!(f, "| {name} |{cells} {slope} |")
}
