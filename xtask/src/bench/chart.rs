//! Charts as SVG: bars for a figure over the cases of a suite, lines where one case was done with growing amounts.
//!
//! Written by hand because a few rectangles and lines are all that is needed; plain text, so that a change of the
//! figures is a readable change of the file. They bring their own white ground, so that they are legible on a dark page too.

use std::fmt::Write;

use super::figures::{Figure, Unit};
use super::report::{Row, SavedRow};

/// The longest bar, or the width of a curve's grid.
const SPAN: f64 = 500.0;
/// Room for what stands right of it: a figure and a ratio.
const RIGHT: f64 = 190.0;
/// About the width of a letter; labels get as much room as the longest needs.
const LETTER: f64 = 6.1;
const LEFT_MIN: f64 = 120.0;
const MARGIN: f64 = 12.0;
const BAR: f64 = 13.0;
const GAP: f64 = 11.0;
const TOP: f64 = 60.0;
/// Ours first, then peers.
const COLOURS: [&str; 4] = ["#0b7285", "#868e96", "#e8590c", "#5f3dc4"];
/// Figures without a chart: they say how the others are to be read, or stand in the table.
const NOT_DRAWN: [&str; 10] = [
    "max",
    "p99.9",
    "client us/op",
    "client us/event",
    "client us/lock",
    "client us/arrival",
    "empty RSS",
    "calm worst",
    "it took",
    "cycle p50",
];
/// Between the figures at the ends of lines.
const LINE_HEIGHT: f64 = 12.0;
/// A case done with so many amounts, or more, is a curve.
const CURVE_POINTS_MIN: usize = 3;
const CURVE_HEIGHT: f64 = 260.0;
const CURVE_LEFT: f64 = 90.0;
/// Room for the last figure of a line.
const CURVE_RIGHT: f64 = 90.0;

/// The charts of a suite: file names and contents.
pub(super) fn all(suite: &str, rows: &[&SavedRow]) -> Vec<(String, String)> {
    let mut charts = Vec::new();
    // Parts of a suite have figures of their own, so all rows are looked through.
    let mut figures: Vec<&Figure> = Vec::new();
    for figure in rows.iter().filter_map(|row| row.medians.first()).flat_map(|median| &median.0) {
        let is_drawn = figure.is_compared() && !NOT_DRAWN.contains(&figure.name);
        if is_drawn && figures.iter().all(|known| known.name != figure.name) {
            figures.push(figure);
        }
    }
    for figure in figures {
        let with: Vec<&SavedRow> = rows
            .iter()
            .copied()
            .filter(|row| row.medians.first().is_some_and(|m| m.get(figure.name).is_some()))
            .collect();
        let curves = curves_of(&with);
        if suite == "growth" || curves.iter().any(|curve| curve.len() > CURVE_POINTS_MIN) {
            for curve in curves.iter().filter(|curve| curve.len() >= CURVE_POINTS_MIN) {
                let Row { case, amount, nodes, .. } = &curve[0].row;
                let words = format!("{suite}-{case}-{nodes}-{}-over-{}-curve", figure.name, amount.of);
                let name = format!("{}.svg", in_file_names(&words));
                charts.push((name, curve_chart(curve, figure.name, figure.unit)));
            }
        }
        if suite != "growth" {
            let name = format!("{}.svg", in_file_names(&format!("{suite}-{}", figure.name)));
            charts.push((name, bars(suite, &with, figure.name, figure.unit)));
        }
    }
    charts
}

/// Words as they can stand in the name of a file.
fn in_file_names(words: &str) -> String {
    let plain: String =
        words.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    plain.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// Rows that differ in their amount alone, together.
fn curves_of<'a>(rows: &[&'a SavedRow]) -> Vec<Vec<&'a SavedRow>> {
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
    let mut x = MARGIN;
    for (at, system) in systems.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        text(svg, x + 14.0, 41.0, "start", system);
        x += 36.0 + LETTER * system.len() as f64;
    }
}

/// Every system of the rows, in the order of those rows that have most: a system has one colour in all of them.
fn systems_of(rows: &[&SavedRow]) -> Vec<String> {
    let most = rows.iter().map(|row| &row.row.systems).max_by_key(|systems| systems.len());
    let mut all = most.cloned().unwrap_or_default();
    for system in rows.iter().flat_map(|row| &row.row.systems) {
        if !all.contains(system) {
            all.push(system.clone());
        }
    }
    all
}

fn colour_of(systems: &[String], system: &str) -> &'static str {
    let at = systems.iter().position(|known| known == system).unwrap_or(0);
    COLOURS[at % COLOURS.len()]
}

/// Cases differ by factors of a thousand, so each has its own scale: what can be compared by eye are the systems, and how
/// ours compares stands behind each figure of another.
fn bars(suite: &str, rows: &[&SavedRow], figure: &str, unit: Unit) -> String {
    let label = |row: &SavedRow| {
        let case = &row.row;
        let plural = if case.nodes == 1 { "" } else { "s" };
        let count = crate::table::grouped(case.amount.count);
        format!("{}, {count} {}, {} node{plural}", case.case, case.amount.of, case.nodes)
    };
    let longest = rows.iter().map(|row| label(row).chars().count()).max().unwrap_or(0);
    let left = (longest as f64 * LETTER + MARGIN + 8.0).max(LEFT_MIN);
    let height = TOP + rows.iter().map(|row| row.medians.len() as f64 * BAR + GAP).sum::<f64>() + GAP;
    let title = format!("{suite}: {figure} ({}; each case to its own scale)", better(unit));
    let mut svg = head(left + SPAN + RIGHT, height, &title);
    let systems = systems_of(rows);
    legend(&mut svg, &systems);
    let mut y = TOP;
    for row in rows {
        let value_of = |at: usize| row.medians.get(at).and_then(|median| median.get(figure));
        let largest = (0..row.medians.len()).filter_map(value_of).fold(f64::MIN_POSITIVE, f64::max);
        text(&mut svg, left - 8.0, y + BAR * row.medians.len() as f64 / 2.0 + 3.0, "end", &label(row));
        for (at, system) in row.row.systems.iter().enumerate() {
            let Some(value) = value_of(at) else { continue };
            let (length, colour) = (SPAN * value / largest, colour_of(&systems, system));
            let thick = BAR - 2.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{thick:.1}\" fill=\"{colour}\"/>"
            );
            let ratio =
                value_of(0).filter(|_| at > 0 && value > 0.0).map(|ours| format!("  (ratio {:.2}x)", ours / value));
            let words = format!("{}{}", unit.text(value), ratio.unwrap_or_default());
            text(&mut svg, left + length + 5.0, y + BAR - 4.0, "start", &words);
            y += BAR;
        }
        y += GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn better(unit: Unit) -> &'static str {
    if unit == Unit::PerSecond { "more is better" } else { "less is better" }
}

/// Amounts grow by factors, so both axes are logarithmic.
fn curve_chart(rows: &[&SavedRow], figure: &str, unit: Unit) -> String {
    let first = &rows[0].row;
    let nodes = match (first.amount.of, first.nodes) {
        ("members", _) => String::new(),
        (_, 1) => ", 1 node".to_string(),
        (_, nodes) => format!(", {nodes} nodes"),
    };
    let title = format!("{}{nodes}: {figure} over {} ({})", first.case, first.amount.of, better(unit));
    let mut svg = head(CURVE_LEFT + SPAN + CURVE_RIGHT, TOP + CURVE_HEIGHT + 44.0, &title);
    let systems = systems_of(rows);
    legend(&mut svg, &systems);
    let xs: Vec<f64> = rows.iter().map(|row| (row.row.amount.count.max(1) as f64).log10()).collect();
    let log = |value: f64| value.max(1e-3).log10();
    let values = rows.iter().flat_map(|row| row.medians.iter().filter_map(|m| m.get(figure))).map(log);
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
    let (from, to) = (xs[0], xs[xs.len() - 1].max(xs[0] + 0.1));
    let x_at = |x: f64| CURVE_LEFT + (x - from) / (to - from) * SPAN;
    let y_at = |y: f64| TOP + (high - y) / (high - low) * CURVE_HEIGHT;
    for decade in low as i32..=high as i32 {
        let (y, end) = (y_at(f64::from(decade)), CURVE_LEFT + SPAN);
        let _ = writeln!(svg, "<path d=\"M{CURVE_LEFT:.1} {y:.1}H{end:.1}\" stroke=\"#dee2e6\"/>");
        text(&mut svg, CURVE_LEFT - 8.0, y + 4.0, "end", &unit.text(10f64.powi(decade)));
    }
    for (row, x) in rows.iter().zip(&xs) {
        text(&mut svg, x_at(*x), TOP + CURVE_HEIGHT + 18.0, "middle", &crate::table::grouped(row.row.amount.count));
    }
    text(&mut svg, CURVE_LEFT + SPAN / 2.0, TOP + CURVE_HEIGHT + 36.0, "middle", first.amount.of);
    let mut ends: Vec<(f64, f64, String)> = Vec::new();
    for system in &systems {
        let colour = colour_of(&systems, system);
        let value_of = |row: &SavedRow| {
            let at = row.row.systems.iter().position(|known| known == system)?;
            row.medians.get(at)?.get(figure)
        };
        let points: Vec<(f64, f64, f64)> = rows
            .iter()
            .zip(&xs)
            .filter_map(|(row, x)| value_of(row).map(|value| (x_at(*x), y_at(log(value)), value)))
            .collect();
        let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        let _ = writeln!(svg, "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
        for (x, y, _) in &points {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        ends.extend(points.last().map(|(x, y, value)| (*x, *y, unit.text(*value))));
    }
    label_ends(&mut svg, ends);
    svg.push_str("</svg>\n");
    svg
}

/// Writes the last figure of each line behind it; where lines end close together, one below the other.
fn label_ends(svg: &mut String, mut ends: Vec<(f64, f64, String)>) {
    ends.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut placed: Vec<(f64, f64)> = Vec::new();
    for (x, y, words) in ends {
        let below = placed.iter().filter(|(other, _)| (other - x).abs() < 1.0).map(|(_, y)| y + LINE_HEIGHT);
        let y = below.fold(y, f64::max);
        placed.push((x, y));
        text(svg, x + 7.0, y + 4.0, "start", &words);
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::Figures;
    use super::super::report::Amount;
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
        let (members, case, rounds) = (vec![3, 3], "put".to_string(), Vec::new());
        let row = Row { suite: "etcd", nodes: 3, case, amount, systems, members, rounds };
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
        assert!(svg.contains("100  (ratio 3.00x)"), "{svg}");
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
    }

    /// A case with growing amounts is a line per system, over all of its points.
    #[test]
    fn growing_amounts_make_a_curve() {
        let rows = [row(1, 10.0, 10.0), row(10, 100.0, 20.0), row(100, 500.0, 30.0), row(1000, 900.0, 40.0)];
        let charts = all("etcd", &rows.iter().collect::<Vec<_>>());
        let curve =
            charts.iter().find(|(name, _)| name == "etcd-put-3-ops-s-over-in-flight-curve.svg").expect("a curve");
        assert_eq!(curve.1.matches("<polyline").count(), 2);
        assert_eq!(curve.1.matches("<circle").count(), 8);
    }
}
