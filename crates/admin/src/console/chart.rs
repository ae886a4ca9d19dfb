//! Lines of rates and latencies, as pictures that need no script. A gap stays a gap.

use std::fmt::Write as _;

use maud::{Markup, html};

/// Size of a picture, in its own units.
const WIDTH: f32 = 160.0;
const HEIGHT: f32 = 24.0;

/// Points that a line has at most.
const POINTS_MAX: usize = 60;

/// Returns a line of these values, with this title for those who do not see it.
pub(super) fn sparkline(title: &str, values: &[Option<f32>]) -> Markup {
    let values = thinned(values);
    let highest = values.iter().flatten().copied().fold(f32::EPSILON, f32::max);
    html! {
        svg.line viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(title) preserveAspectRatio="none" {
            @for line in lines(&values, highest) { polyline points=(line) {} }
        }
    }
}

/// Returns at most [`POINTS_MAX`] values: means of neighbouring points.
#[expect(clippy::cast_precision_loss, reason = "few values")]
fn thinned(values: &[Option<f32>]) -> Vec<Option<f32>> {
    let each = values.len().div_ceil(POINTS_MAX).max(1);
    let mean = |part: &[Option<f32>]| {
        let known: Vec<f32> = part.iter().flatten().copied().collect();
        (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32)
    };
    values.chunks(each).map(mean).collect()
}

/// Returns the points of each line between two gaps.
#[expect(clippy::cast_precision_loss, reason = "few values")]
fn lines(values: &[Option<f32>], highest: f32) -> Vec<String> {
    let step = WIDTH / values.len().saturating_sub(1).max(1) as f32;
    let mut lines = vec![String::new()];
    for (index, value) in values.iter().enumerate() {
        match (value, lines.last_mut()) {
            (Some(value), Some(line)) => {
                let (x, y) = (index as f32 * step, (HEIGHT - 1.0) - value / highest * (HEIGHT - 2.0));
                // A string accepts everything that is written to it.
                let _ = write!(line, "{x:.0},{y:.0} ");
            }
            _ => lines.push(String::new()),
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_parts_the_line_and_many_points_become_few() {
        let drawn = sparkline("granted <b>", &[Some(0.0), Some(2.0), None, Some(1.0)]).into_string();
        assert_eq!(drawn.matches("<polyline").count(), 2, "{drawn}");
        assert!(drawn.contains("points=\"0,23 53,1 \"") && drawn.contains("granted &lt;b&gt;"), "{drawn}");
        assert!(sparkline("", &[]).into_string().contains("<svg"));
        let many = sparkline("", &vec![Some(1.5); 360]).into_string();
        assert!(many.len() < 700 && many.matches(',').count() == POINTS_MAX, "{many}");
        assert!(!many.contains("style"));
    }
}
