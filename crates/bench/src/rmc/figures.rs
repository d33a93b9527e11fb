//! `farside rmc figures`: Figures 3 to 7 of paper 003 from calls in virtual time, as tables and SVG drawings.

use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::result_file;
use farside_sim::call_bench::{Figure, document, figures};
use plotters::prelude::*;
use std::path::Path;

const WIDTH: u32 = 900;
const HEIGHT: u32 = 560;

type Failed = DrawingAreaErrorKind<std::io::Error>;

/// Prints the figures; draws each as a file of the folder `out`, if given.
pub fn run(out: Option<&Path>, output: Output) -> Result<(), Failure> {
    let failed = |e: farside::Error| Failure::check(format!("the model: {e}"));
    let all = figures().map_err(failed)?;
    let mut drawn = Vec::new();
    if let Some(folder) = out {
        let failed = |e| Failure::system(format!("{}: {e}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
        for figure in &all {
            let text = svg(figure).map_err(|e| Failure::system(format!("drawing: {e}")))?;
            let path = folder.join(format!("figure-{}.svg", figure.number));
            result_file::write(&path, text.as_bytes())?;
            drawn.push(path.display().to_string());
        }
    }
    let value = |figure: &Figure| {
        let lines: Vec<_> = figure
            .lines
            .iter()
            .map(|line| serde_json::json!({ "name": line.name, "points": line.points }))
            .collect();
        serde_json::json!({
            "figure": figure.number,
            "title": figure.title,
            "across": figure.across,
            "up": figure.up,
            "lines": lines,
        })
    };
    let values: Vec<_> = all.iter().map(value).collect();
    output.value(&serde_json::json!({ "model": true, "figures": values, "drawn": drawn }));
    document().map_err(failed)?.lines().for_each(|line| output.line(line));
    drawn.iter().for_each(|path| output.line(format!("drawn: {path}")));
    Ok(())
}

/// Returns the range of the values, slightly widened to keep points off the edge.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (least, greatest) = values.fold((f64::MAX, 0.0_f64), |(least, greatest), value| {
        (least.min(value), greatest.max(value))
    });
    if greatest <= 0.0 { 1.0..10.0 } else { least / 1.3..greatest * 1.3 }
}

fn svg(figure: &Figure) -> Result<String, Failed> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    let all = || figure.lines.iter().flat_map(|line| &line.points);
    let across = range(all().map(|point| point.0)).log_scale();
    let up = range(all().map(|point| point.1)).log_scale();
    let title = format!("Figure {} of 003, {}", figure.number, figure.title);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(72)
        .build_cartesian_2d(across, up)?;
    chart
        .configure_mesh()
        .x_desc(figure.across)
        .y_desc(figure.up)
        .x_label_formatter(&|value| format!("{value}"))
        .y_label_formatter(&|value| format!("{value}"))
        .light_line_style(BLACK.mix(0.05))
        .bold_line_style(BLACK.mix(0.15))
        .draw()?;
    for (number, line) in (0..).zip(&figure.lines) {
        let color = HSLColor(f64::from(number) / figure.lines.len() as f64, 0.75, 0.42);
        let series = LineSeries::new(line.points.iter().copied(), color.stroke_width(2));
        chart.draw_series(series)?;
        chart
            .draw_series(line.points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        let (x, y) = (110, 50 + 24 * number);
        area.draw(&PathElement::new([(x, y), (x + 28, y)], color.stroke_width(3)))?;
        area.draw(&Text::new(line.name.clone(), (x + 38, y - 8), ("sans-serif", 16)))?;
    }
    area.present()?;
    drop((chart, area));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_marked_as_models_and_contain_their_lines() {
        let all = figures().unwrap();
        assert_eq!(all.iter().map(|figure| figure.number).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
        for figure in &all {
            let text = svg(figure).unwrap();
            assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
            assert!(text.contains("model: "), "{}", figure.number);
            assert!(figure.lines.iter().all(|line| text.contains(&line.name)));
        }
    }
}
