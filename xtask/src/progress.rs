//! Progress for the person at the terminal; silent when standard error is not one.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// How often a bar is drawn when nothing is reported, so that it is seen to live.
const TICK: Duration = Duration::from_millis(200);

/// A bar of `length` steps.
pub(crate) fn bar(length: u64, doing: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {wide_bar} {human_pos}/{human_len} {elapsed} (eta {eta})");
    let bar = ProgressBar::new(length).with_style(style.expect("the template is well-formed"));
    bar.set_message(doing.to_string());
    bar.enable_steady_tick(TICK);
    bar
}
