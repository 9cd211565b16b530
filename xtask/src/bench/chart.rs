//! Charts as SVG: bars for a figure over the cases of a suite, lines where one case was done with growing amounts.
//!
//! Written by hand because a few rectangles and lines are all that is needed; plain text, so that a change of the
//! figures is a readable change of the file.

use std::fmt::Write;

use super::figures::Unit;
use super::report::SavedRow;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 110.0;
const BAR: f64 = 13.0;
const GAP: f64 = 11.0;
const TOP: f64 = 56.0;
/// Ours first, then peers.
const COLOURS: [&str; 4] = ["#0b7285", "#adb5bd", "#e8590c", "#5f3dc4"];
/// A case done with so many amounts, or more, is a curve.
const CURVE_POINTS_MIN: usize = 3;
const CURVE_HEIGHT: f64 = 260.0;
const CURVE_LEFT: f64 = 90.0;

/// The charts of a suite: file names and contents.
pub(super) fn all(suite: &str, rows: &[&SavedRow]) -> Vec<(String, String)> {
    let mut charts = Vec::new();
    let Some(first) = rows.first().and_then(|row| row.medians.first()) else { return charts };
    for figure in first.0.iter().filter(|figure| figure.unit != Unit::Count) {
        let with: Vec<&&SavedRow> =
            rows.iter().filter(|row| row.medians.first().is_some_and(|m| m.get(figure.name).is_some())).collect();
        let slug: String = figure.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let curves = curves_of(&with);
        if suite == "growth" || curves.iter().any(|curve| curve.len() > CURVE_POINTS_MIN) {
            for curve in curves.iter().filter(|curve| curve.len() >= CURVE_POINTS_MIN) {
                let case: String =
                    curve[0].row.case.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
                let nodes = curve[0].row.nodes;
                let name = format!("{suite}-{case}-{nodes}-{slug}-curve.svg").to_lowercase();
                charts.push((name, curve_chart(curve, figure.name, figure.unit)));
            }
        }
        if suite != "growth" {
            charts.push((format!("{suite}-{slug}.svg").to_lowercase(), bars(suite, &with, figure.name, figure.unit)));
        }
    }
    charts
}

/// Rows that differ in their amount alone, together.
fn curves_of<'a>(rows: &[&'a &SavedRow]) -> Vec<Vec<&'a SavedRow>> {
    let mut curves: Vec<Vec<&SavedRow>> = Vec::new();
    for row in rows {
        let same = |curve: &&mut Vec<&SavedRow>| {
            let first = &curve[0].row;
            let of = row.row.amount.of;
            let same_size = first.nodes == row.row.nodes || of == "members";
            same_size && (&first.case, first.amount.of) == (&row.row.case, of)
        };
        match curves.iter_mut().find(same) {
            Some(curve) => curve.push(row),
            None => curves.push(vec![row]),
        }
    }
    curves
}

fn head(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>\n",
        escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

fn legend(svg: &mut String, systems: &[String]) {
    let mut x = 12.0;
    for (at, system) in systems.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        text(svg, x + 14.0, 39.0, "start", system);
        x += 40.0 + 6.5 * system.len() as f64;
    }
}

fn systems_of(rows: &[&&SavedRow]) -> Vec<String> {
    rows.iter().map(|row| &row.row.systems).max_by_key(|systems| systems.len()).cloned().unwrap_or_default()
}

fn bars(suite: &str, rows: &[&&SavedRow], figure: &str, unit: Unit) -> String {
    let values: Vec<f64> = rows.iter().flat_map(|row| row.medians.iter().filter_map(|m| m.get(figure))).collect();
    let largest = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let height = TOP + rows.iter().map(|row| row.medians.len() as f64 * BAR + GAP).sum::<f64>() + GAP;
    let mut svg = head(WIDTH, height, &format!("{suite}: {figure}"));
    legend(&mut svg, &systems_of(rows));
    let mut y = TOP;
    for row in rows {
        let case = &row.row;
        let plural = if case.nodes == 1 { "" } else { "s" };
        let label = format!("{}, {} {}, {} node{plural}", case.case, case.amount.count, case.amount.of, case.nodes);
        text(&mut svg, LEFT - 8.0, y + BAR * row.medians.len() as f64 / 2.0 + 4.0, "end", &label);
        for (at, median) in row.medians.iter().enumerate() {
            let Some(value) = median.get(figure) else { continue };
            let length = (WIDTH - LEFT - RIGHT) * value / largest;
            let colour = COLOURS[at % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                BAR - 2.0
            );
            text(&mut svg, LEFT + length + 5.0, y + BAR - 4.0, "start", &unit.text(value));
            y += BAR;
        }
        y += GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

/// Amounts grow by factors, so both axes are logarithmic.
fn curve_chart(rows: &[&SavedRow], figure: &str, unit: Unit) -> String {
    let first = &rows[0].row;
    let title = format!("{}, {} node(s): {figure} over {}", first.case, first.nodes, first.amount.of);
    let height = TOP + CURVE_HEIGHT + 40.0;
    let mut svg = head(WIDTH, height, &title);
    legend(&mut svg, &first.systems);
    let xs: Vec<f64> = rows.iter().map(|row| (row.row.amount.count.max(1) as f64).log10()).collect();
    let log = |value: f64| value.max(1e-3).log10();
    let values = rows.iter().flat_map(|row| row.medians.iter().filter_map(|m| m.get(figure))).map(log);
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
    let (from, to) = (xs[0], xs[xs.len() - 1].max(xs[0] + 0.1));
    let x_at = |x: f64| CURVE_LEFT + (x - from) / (to - from) * (WIDTH - CURVE_LEFT - RIGHT);
    let y_at = |y: f64| TOP + (high - y) / (high - low) * CURVE_HEIGHT;
    for decade in low as i32..=high as i32 {
        let y = y_at(f64::from(decade));
        let end = WIDTH - RIGHT;
        let _ = writeln!(svg, "<path d=\"M{CURVE_LEFT:.1} {y:.1}H{end:.1}\" stroke=\"#dee2e6\"/>");
        text(&mut svg, CURVE_LEFT - 8.0, y + 4.0, "end", &unit.text(10f64.powi(decade)));
    }
    for (row, x) in rows.iter().zip(&xs) {
        text(&mut svg, x_at(*x), TOP + CURVE_HEIGHT + 18.0, "middle", &crate::table::grouped(row.row.amount.count));
    }
    text(&mut svg, WIDTH - RIGHT, TOP + CURVE_HEIGHT + 34.0, "end", first.amount.of);
    for system in 0..first.systems.len() {
        let colour = COLOURS[system % COLOURS.len()];
        let points: Vec<(f64, f64, f64)> = rows
            .iter()
            .zip(&xs)
            .filter_map(|(row, x)| {
                row.medians.get(system)?.get(figure).map(|value| (x_at(*x), y_at(log(value)), value))
            })
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y, _) in &points {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        if let Some((x, y, value)) = points.last() {
            text(&mut svg, x + 7.0, y + 4.0, "start", &unit.text(*value));
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::super::report::{Amount, Row};
    use super::*;

    fn row(count: u64, ours: f64, peer: f64) -> SavedRow {
        let figures = |value| {
            let mut figures = Figures::default();
            figures.add("ops/s", Unit::PerSecond, value);
            figures
        };
        let medians = vec![figures(ours), figures(peer)];
        let systems = vec!["ours".to_string(), "a < b".to_string()];
        let amount = Amount { count, of: "in flight" };
        let row = Row { suite: "etcd", nodes: 3, case: "put".to_string(), amount, systems, rounds: Vec::new() };
        SavedRow { row, medians }
    }

    /// A bar that is not as long as its figure says the opposite of the table beside it.
    #[test]
    fn bars_are_as_long_as_their_figures_and_names_are_escaped() {
        let rows = [row(1, 300.0, 100.0)];
        let charts = all("etcd", &rows.iter().collect::<Vec<_>>());
        let [(name, svg)] = &charts[..] else { panic!("one chart") };
        assert_eq!(name, "etcd-ops-s.svg");
        assert!(svg.contains("width=\"500.0\"") && svg.contains("width=\"166.7\""), "{svg}");
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
    }

    /// A case with growing amounts is a line per system, over all of its points.
    #[test]
    fn growing_amounts_make_a_curve() {
        let rows = [row(1, 10.0, 10.0), row(10, 100.0, 20.0), row(100, 500.0, 30.0), row(1000, 900.0, 40.0)];
        let charts = all("etcd", &rows.iter().collect::<Vec<_>>());
        let curve = charts.iter().find(|(name, _)| name == "etcd-put-3-ops-s-curve.svg").expect("a curve");
        assert_eq!(curve.1.matches("<polyline").count(), 2);
        assert_eq!(curve.1.matches("<circle").count(), 8);
    }
}
