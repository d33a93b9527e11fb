//! SVG plots: panels of lines, and their legends.

use farside_command::failure::Failure;
use farside_command::result_file;
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use std::path::Path;

/// Width of a legend.
pub(crate) const NAMES_WIDTH: u32 = 270;
/// Size of a chart with its legend.
const CHART_WIDTH: u32 = 1_000;
const CHART_HEIGHT: u32 = 560;
/// Where the first name of a legend is, and how far the next one is from it.
const NAMES_TOP: i32 = 60;
const NAMES_STEP: i32 = 28;

/// Ratio of the values of a chart above which their axis is logarithmic.
const LINEAR_MAX: f64 = 30.0;

pub(crate) type Drawing<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Failed = DrawingAreaErrorKind<std::io::Error>;

/// Lines over one axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// What is above it.
    pub title: String,
    /// Label of the horizontal axis.
    pub across: String,
    /// Lines with their names; points that are not positive are not drawn.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Draws charts, one below the other, and writes the file.
///
/// # Errors
/// `Failure::System` if the file cannot be written.
pub fn draw(path: &Path, charts: &[Chart]) -> Result<(), Failure> {
    let text = svg(charts).map_err(|e| Failure::system(format!("drawing: {e}")))?;
    result_file::write(path, text.as_bytes())
}

fn svg(charts: &[Chart]) -> Result<String, Failed> {
    let mut text = String::new();
    let count = u32::try_from(charts.len().max(1)).unwrap_or(1);
    let longest = charts.iter().map(|chart| chart.lines.len()).max().unwrap_or(0);
    let legend = NAMES_TOP + NAMES_STEP * i32::try_from(longest).unwrap_or(0);
    let height = CHART_HEIGHT.max(legend.unsigned_abs());
    let size = (CHART_WIDTH, height * count);
    let whole = SVGBackend::with_string(&mut text, size).into_drawing_area();
    whole.fill(&WHITE)?;
    for (area, chart) in whole.split_evenly((count as usize, 1)).iter().zip(charts) {
        let (left, key) = area.split_horizontally(CHART_WIDTH - NAMES_WIDTH);
        let names: Vec<&str> = chart.lines.iter().map(|(name, _)| name.as_str()).collect();
        let positive = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points.iter().copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect()
        };
        let lines: Vec<_> = (0..).zip(chart.lines.iter().map(|line| positive(&line.1))).collect();
        let lines: Vec<_> = lines.iter().map(|(number, points)| (*number, &**points)).collect();
        let all = || lines.iter().flat_map(|(_, points)| *points).map(|point| point.1);
        let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
        if most < LINEAR_MAX * least {
            linear_panel(&left, &chart.title, &chart.across, &lines)?;
        } else {
            panel(&left, &chart.title, (&chart.across, 0), names.len(), &lines)?;
        }
        name_lines(&key, &names)?;
    }
    whole.present()?;
    drop(whole);
    Ok(text)
}

/// Draws lines, each by its number of `count`, on logarithmic axes; the numbers across have `places` decimal places.
pub(crate) fn panel(
    area: &Drawing<'_>,
    title: &str,
    (across_name, places): (&str, usize),
    count: usize,
    lines: &[(usize, &[(f64, f64)])],
) -> Result<(), Failed> {
    let all = || lines.iter().flat_map(|(_, points)| *points);
    let across = range(all().map(|point| point.0)).log_scale().base(2.0);
    let up = range(all().map(|point| point.1)).log_scale();
    let chart = builder(area, title).build_cartesian_2d(across, up)?;
    draw_lines(chart, (across_name, places), count, lines)
}

/// As [`panel`], with the values from zero on.
fn linear_panel(
    area: &Drawing<'_>,
    title: &str,
    across_name: &str,
    lines: &[(usize, &[(f64, f64)])],
) -> Result<(), Failed> {
    let all = || lines.iter().flat_map(|(_, points)| *points);
    let across = range(all().map(|point| point.0)).log_scale().base(2.0);
    let up = 0.0..range(all().map(|point| point.1)).end;
    let chart = builder(area, title).build_cartesian_2d(across, up)?;
    draw_lines(chart, (across_name, 0), lines.len(), lines)
}

fn builder<'a, 'b>(area: &'a Drawing<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, ("sans-serif", 20)).margin(12);
    builder.x_label_area_size(46).y_label_area_size(64);
    builder
}

fn draw_lines<X, Y>(
    mut chart: ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    (across_name, places): (&str, usize),
    count: usize,
    lines: &[(usize, &[(f64, f64)])],
) -> Result<(), Failed>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc(across_name)
        .x_label_formatter(&|across| format!("{across:.places$}"))
        .y_label_formatter(&|value| format!("{}", (value * 1e6).round() / 1e6))
        .light_line_style(BLACK.mix(0.05))
        .bold_line_style(BLACK.mix(0.15))
        .draw()?;
    for (number, points) in lines {
        let color = color(*number, count);
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
    }
    Ok(())
}

/// Returns the range of the values, widened so that no point is on the edge.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (least, greatest) = values.fold((f64::MAX, 0.0_f64), |(least, greatest), value| {
        (least.min(value), greatest.max(value))
    });
    if greatest <= 0.0 { 1.0..10.0 } else { least / 1.3..greatest * 1.3 }
}

/// Draws the legend.
pub(crate) fn name_lines(area: &Drawing<'_>, names: &[&str]) -> Result<(), Failed> {
    for (number, name) in (0..).zip(names) {
        let (x, y) = (10, NAMES_TOP + NAMES_STEP * number);
        let color = color(usize::try_from(number).unwrap_or(0), names.len());
        area.draw(&PathElement::new([(x, y), (x + 28, y)], color.stroke_width(3)))?;
        area.draw(&Text::new((*name).to_owned(), (x + 38, y - 8), ("sans-serif", 16)))?;
    }
    Ok(())
}

/// Returns colour `number` of `count`: evenly spaced hues, every other one darker.
pub(crate) fn color(number: usize, count: usize) -> HSLColor {
    let hue = number as f64 / count.max(1) as f64;
    HSLColor(hue, 0.75, if number.is_multiple_of(2) { 0.5 } else { 0.33 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_have_their_titles_lines_and_legends() {
        let line = |name: &str| (name.to_owned(), vec![(1.0, 2.0), (2.0, 0.0), (4.0, 3.0)]);
        let chart = |title: &str, names: &[&str]| Chart {
            title: title.to_owned(),
            across: "threads".to_owned(),
            lines: names.iter().map(|name| line(name)).collect(),
        };
        let text = svg(&[chart("Figure A", &["one", "two"]), chart("Figure B", &[])]).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for part in ["Figure A", "Figure B", "one", "two", "threads"] {
            assert!(text.contains(part), "{part}");
        }
        // Two points of each line: what is not positive is left out.
        assert_eq!(text.matches("<circle").count(), 4);
        assert!(svg(&[]).unwrap().contains("</svg>"));
        let steep = vec![("steep".to_owned(), vec![(1.0, 0.1), (2.0, 1_000.0)])];
        let chart =
            Chart { title: "Figure C".to_owned(), across: "bytes".to_owned(), lines: steep };
        let ticks = |text: &str, tick: &str| text.lines().any(|line| line.trim() == tick);
        let far = svg(&[chart]).unwrap();
        assert!(ticks(&far, "0.1") && ticks(&far, "1000") && !ticks(&far, "0"), "{far}");
        assert!(ticks(&text, "0"), "values of one order begin at zero");
    }
}
