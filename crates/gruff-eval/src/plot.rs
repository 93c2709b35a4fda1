//! Pictures for where people would rather look: SVG, through plotters.

use std::io::Write;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::{ChunkPerplexity, Error, Result, TensorComparison, WholeFile};

const SIZE: (u32, u32) = (960, 540);
const FONT: &str = "sans-serif";
const LINE: RGBColor = RGBColor(31, 119, 180);
const POINTS: RGBColor = RGBColor(255, 127, 14);
/// What the legend of tensors takes of the picture's width.
const LEGEND: f64 = 0.28;
/// Kinds of tensors that get a colour of their own.
const COLORS: usize = 12;

type Fault = DrawingAreaErrorKind<std::io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws the perplexity so far, with its error, and that of each window alone, to an SVG file at `path`.
///
/// # Errors
/// [`Error::Io`] when it cannot be written, [`Error::Plot`] when it cannot be drawn.
pub fn plot_perplexity(path: &Path, title: &str, chunks: &[ChunkPerplexity]) -> Result<()> {
    write(path, |area| {
        let values = chunks.iter().flat_map(|chunk| {
            let perplexity = chunk.perplexity;
            [chunk.own, perplexity.value - perplexity.error, perplexity.value + perplexity.error]
        });
        let (low, high) = bounds(values);
        let margin = 0.05 * (high - low).max(0.1 * high.abs()).max(1e-9);
        let (low, high) = ((low - margin).max(0.0), high + margin);
        let last = chunks.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .caption(title, (FONT, 20))
            .margin(15)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.5..last + 0.5, low..high)?;
        chart.configure_mesh().x_desc("window").y_desc("perplexity").draw()?;
        let at = |chunk: &ChunkPerplexity| chunk.chunk as f64;
        let above = chunks.iter().map(|chunk| (at(chunk), chunk.perplexity.value + chunk.perplexity.error));
        let below =
            chunks.iter().rev().map(|chunk| (at(chunk), chunk.perplexity.value - chunk.perplexity.error));
        chart.draw_series([Polygon::new(above.chain(below).collect::<Vec<_>>(), LINE.mix(0.15))])?;
        let own = chunks.iter().map(|chunk| Circle::new((at(chunk), chunk.own), 3, POINTS.filled()));
        chart
            .draw_series(own)?
            .label("this window alone")
            .legend(|(x, y)| Circle::new((x + 8, y), 3, POINTS.filled()));
        let so_far = chunks.iter().map(|chunk| (at(chunk), chunk.perplexity.value));
        chart
            .draw_series(LineSeries::new(so_far, LINE.stroke_width(2)))?
            .label("so far, ± one standard error")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 16, y)], LINE.stroke_width(2)));
        legend(&mut chart)
    })
}

/// Draws the relative error of each tensor over its layer, a colour for each kind of tensor, to an SVG file at
/// `path`. Tensors outside layers stand at the left end; those that are equal, or cannot be compared,
/// are left out.
///
/// # Errors
/// As [`plot_perplexity`].
pub fn plot_tensors(path: &Path, title: &str, tensors: &[TensorComparison]) -> Result<()> {
    let mut kinds: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for tensor in tensors.iter().filter(|tensor| tensor.relative() > 0.0 && tensor.relative().is_finite()) {
        let (layer, kind) = split(&tensor.name);
        let point = (layer, tensor.relative());
        match kinds.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, points)) => points.push(point),
            None => kinds.push((kind, vec![point])),
        }
    }
    // Kinds with the largest errors get colours and a line in the legend.
    kinds.sort_by(|(_, a), (_, b)| worst(b).total_cmp(&worst(a)));
    write(path, |area| {
        let points = || kinds.iter().flat_map(|(_, points)| points);
        let (low, high) = bounds(points().map(|(_, error)| *error));
        let (_, last) = bounds(points().map(|(layer, _)| *layer));
        let last = last.max(0.0);
        // The legend stands behind the last layer, where nothing is drawn.
        let end = last + 0.5 + LEGEND * (last + 2.0) / (1.0 - LEGEND);
        let mut chart = ChartBuilder::on(area)
            .caption(title, (FONT, 20))
            .margin(15)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(-1.5..end, (low / 2.0..high * 2.0).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("layer (-1: outside layers)")
            .y_desc("relative RMS error")
            .x_label_formatter(&|layer| if *layer <= last { layer.to_string() } else { String::new() })
            .y_label_formatter(&|error| format!("{error:.0e}"))
            .draw()?;
        for (index, (kind, points)) in kinds.iter().enumerate() {
            let color = if index < COLORS {
                HSLColor(index as f64 / COLORS as f64, 0.7, 0.45)
            } else {
                HSLColor(0.0, 0.0, 0.6)
            };
            let drawn =
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
            if index < COLORS {
                drawn.label(kind.as_str()).legend(move |(x, y)| Circle::new((x + 8, y), 3, color.filled()));
            }
        }
        legend(&mut chart)
    })
}

/// `blk.3.ffn_up.weight` is `ffn_up.weight` of layer 3.
fn split(name: &str) -> (f64, String) {
    let in_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match in_layer.and_then(|(layer, kind)| Some((layer.parse::<u32>().ok()?, kind))) {
        Some((layer, kind)) => (f64::from(layer), kind.to_owned()),
        None => (-1.0, name.to_owned()),
    }
}

fn worst(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|(_, error)| *error).fold(0.0, f64::max)
}

/// The least and the largest of finite values; 1 and 1 without any.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) = finite
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
    if low <= high { (low, high) } else { (1.0, 1.0) }
}

fn legend<'a, Y>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, Y>>,
) -> Result<(), Fault>
where
    Y: Ranged<ValueType = f64>,
{
    let mut labels = chart.configure_series_labels();
    labels
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 13))
        .draw()
}

/// Draws, then writes the picture beside `path` and renames it.
fn write(path: &Path, draw: impl FnOnce(&Area) -> Result<(), Fault>) -> Result<()> {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present())
    };
    drawn.map_err(|error| Error::Plot { path: path.to_owned(), fault: error.to_string() })?;
    let mut file = WholeFile::create(path).map_err(Error::write(path))?;
    file.write_all(svg.as_bytes()).map_err(Error::write(path))?;
    file.put_in_place().map_err(Error::write(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Estimate, TensorErrors};

    fn chunk(chunk: usize, own: f64) -> ChunkPerplexity {
        ChunkPerplexity { chunk, chunks: 3, perplexity: Estimate { value: own, error: 1.0 }, own }
    }

    fn tensor(name: &str, relative: f64) -> TensorComparison {
        let errors = TensorErrors { max: relative, rms: relative, relative, cosine: 1.0, not_finite: 0 };
        TensorComparison {
            name: name.to_owned(),
            shape: Some(vec![4]),
            other_shape: Some(vec![4]),
            block_type: None,
            other_type: None,
            errors: Some(errors),
        }
    }

    #[test]
    fn pictures_show_every_point() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        plot_perplexity(&path, "a <model> & a text", &[chunk(1, 20.0), chunk(2, 30.0), chunk(3, 25.0)])
            .unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("a &lt;model&gt; &amp; a text") && svg.contains("perplexity"), "{svg}");
        // Three windows and one in the legend.
        assert_eq!(svg.matches("<circle").count(), 4);
        let tensors = [
            tensor("blk.0.ffn_up.weight", 0.01),
            tensor("blk.7.ffn_up.weight", 0.0),
            tensor("output.weight", 0.1),
        ];
        plot_tensors(&path, "errors", &tensors).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.contains("ffn_up.weight") && svg.contains("output.weight"));
        // The one that is equal is left out.
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn nothing_to_show_is_a_picture_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.svg");
        plot_perplexity(&path, "none", &[]).unwrap();
        plot_tensors(&path, "none", &[]).unwrap();
        plot_perplexity(&path, "one", &[chunk(1, 5.0)]).unwrap();
        let error = plot_tensors(&folder.path().join("no/plot.svg"), "none", &[]).unwrap_err().to_string();
        assert!(error.contains("cannot be written"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
