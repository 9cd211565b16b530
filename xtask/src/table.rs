//! Aligned columns for the terminal, and numbers a person can read.

use std::time::Duration;

/// Rows of cells, printed with each column as wide as its widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Columns before this one hold words, not numbers.
    numbers_from: usize,
    /// Columns from this one on hold words again.
    notes_from: usize,
}

impl Table {
    /// A table whose first `words` columns are aligned left, the others right.
    pub(crate) fn new(words: usize, header: &[&str]) -> Table {
        let header: Vec<String> = header.iter().map(ToString::to_string).collect();
        Table { notes_from: header.len(), rows: vec![header], numbers_from: words }
    }

    /// The same with the last `notes` columns aligned left too.
    pub(crate) fn with_notes(self, notes: usize) -> Table {
        Table { notes_from: self.notes_from - notes, ..self }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, one line per row.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| {
            self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let number = (self.numbers_from..self.notes_from).contains(&at);
                let padded = if number { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
                line.push_str(&padded);
                line.push_str("  ");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A count with separators: 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration with the unit that suits its size.
pub(crate) fn duration(duration: Duration) -> String {
    let us = duration.as_secs_f64() * 1e6;
    match us {
        _ if us < 1_000.0 => format!("{us:.0} us"),
        _ if us < 100_000.0 => format!("{:.2} ms", us / 1e3),
        _ if us < 10_000_000.0 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that do not line up under their heading get misread.
    #[test]
    fn columns_line_up() {
        let mut table = Table::new(1, &["name", "ops/s"]);
        table.row(vec!["a".into(), grouped(1_234_567)]);
        table.row(vec!["longer".into(), grouped(12)]);
        assert_eq!(table.text(), "name        ops/s\na       1,234,567\nlonger         12\n");
    }

    /// A unit that flips at the wrong place is a factor of a thousand.
    #[test]
    fn durations_carry_the_unit_of_their_size() {
        for (us, text) in
            [(7, "7 us"), (999, "999 us"), (1_500, "1.50 ms"), (150_000, "150 ms"), (12_000_000, "12.0 s")]
        {
            assert_eq!(duration(Duration::from_micros(us)), text);
        }
    }
}
