"""The figures: what they show, and that their files are what they should be."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gescl.report.capacity import draw_capacity, layers_of
from gescl.report.confusion import draw_confusion
from gescl.report.cost import draw_cost, short_number
from gescl.report.curves import draw_average, draw_every_task, draw_first_task, draw_forgetting
from gescl.report.drawing import Drawing, render, style
from gescl.report.grouping import group_runs
from gescl.report.importance import draw_importance, draw_kernels
from gescl.report.matrices import draw_matrices
from gescl.report.run_files import read_events
from gescl.report.runs import Group, read_runs
from gescl.report.samples import draw_samples
from gescl.report.style import COLOURS, NARROW, WIDE, looks
from gescl.report.task_names import TaskNames
from gescl.report.training_curves import draw_training
from gescl.report.writer import DRAWERS, Drawer
from gescl.store import read_tensors, write_tensors

from .conftest import Report
from .made import LAYERS, fading, write_run

NAMES = {
    "first-task", "average-accuracy", "forgetting", "every-task", "accuracy-matrix", "capacity", "importance",
    "kernels", "cost", "training", "confusion", "samples",
}  # fmt: skip
PICTURES = {"kernels", "samples"}  # without numbers


def group_of(folder: Path) -> Group:
    (group,) = group_runs(read_runs(folder)[0])
    return group


def drawn(folder: Path, *drawers: Drawer, width: float = WIDE) -> tuple[Group, dict[str, Drawing]]:
    """The figures that some drawers, or all, make of the runs in a folder."""
    group = group_of(folder)
    look = looks(group.methods)
    with style():
        found = [drawing for draw in drawers or DRAWERS if (drawing := draw(group, look, width)) is not None]
    return group, {drawing.name: drawing for drawing in found}


def test_a_method_that_nobody_knows_is_drawn_in_every_figure(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    write_run(tmp_path, "brand-new", free_filters=[{"conv1": 3}] * 3, important_filters=[{"conv1": 5}] * 3)
    group, figures = drawn(tmp_path)
    assert figures.keys() == NAMES
    assert list(group.methods) == ["gescl", "brand-new"]
    (axes,) = figures["first-task"].figure.axes
    assert looks(group.methods)["brand-new"].colour in [line.get_color() for line in axes.lines]
    assert "brand-new" in [text.get_text() for text in axes.texts]
    for name in ("average-accuracy", "every-task", "accuracy-matrix", "capacity", "cost", "training"):
        assert "brand-new" in figures[name].alt


def test_every_figure_is_written_in_three_formats_and_its_numbers_in_a_fourth(report: Report) -> None:
    files = {path.name: path.read_bytes() for path in (report.out / "figures" / "digits").iterdir()}
    expected = {f"{name}.{suffix}" for name in NAMES for suffix in ("png", "svg", "pdf")}
    assert files.keys() == expected | {f"{name}.csv" for name in NAMES - PICTURES}
    for name, content in files.items():
        if name.endswith("svg"):
            ElementTree.fromstring(content)
        elif name.endswith("csv"):
            assert len(list(csv.DictReader(StringIO(content.decode())))) > 1
        else:
            assert content.startswith(b"\x89PNG" if name.endswith("png") else b"%PDF")
            assert b"/Type3" not in content  # publishers refuse such fonts


@pytest.mark.parametrize(
    "methods", [("gescl",), ("gescl", "finetune"), ("gescl", "ewc", "frozen", "finetune", "joint")]
)
def test_a_figure_is_exactly_as_wide_as_its_card_and_narrow_ones_fit_a_telephone(
    tmp_path: Path, methods: tuple[str, ...]
) -> None:
    for method in methods:
        write_run(tmp_path, method)
    widths = {name: drawing.figure.get_figwidth() for name, drawing in drawn(tmp_path)[1].items()}
    assert set(widths.values()) <= {WIDE, NARROW}
    assert widths["first-task"] == NARROW and widths["every-task"] == (WIDE if len(methods) > 1 else NARROW)
    assert {drawing.figure.get_figwidth() for drawing in drawn(tmp_path, width=NARROW)[1].values()} == {NARROW}


def test_many_layers_go_on_in_further_rows(tmp_path: Path) -> None:
    layers = {f"conv{k}": 8 for k in range(20)}
    write_run(tmp_path, "gescl", free_filters=[layers] * 3, important_filters=[layers] * 3)
    panels = [axes for axes in drawn(tmp_path, draw_capacity)[1]["capacity"].figure.axes if axes.get_visible()]
    assert len(panels) == 20
    assert len({round(axes.get_position().y0, 3) for axes in panels}) == 4
    # The names of tasks stand under the lowest panel of each column, and nowhere else.
    named = [axes for axes in panels if axes.xaxis.get_major_ticks()[0].label1.get_visible()]
    assert named == panels[-5:]


def test_names_of_tasks_are_on_the_axes_shortened_and_in_full_for_the_mouse(tmp_path: Path) -> None:
    names = ["latin", "greek small letters with accents", "<arrows>"]
    write_run(tmp_path, "gescl", tasks=names)
    write_run(tmp_path, "finetune", tasks=names)
    drawers = (draw_first_task, draw_average, draw_forgetting, draw_every_task, draw_matrices, draw_capacity)
    for drawing in drawn(tmp_path, *drawers, width=NARROW)[1].values():
        with style():
            svg = ElementTree.fromstring(render(drawing).svg)
        titles = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}title")]
        texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
        shown = names if drawing.name != "forgetting" else names[:2]  # the last task cannot have been forgotten
        assert set(shown) <= set(titles), drawing.name
        assert "latin" in texts and any(text and text.startswith("greek s") for text in texts), drawing.name
        assert names[1] not in texts  # it has no room
    inline = render(drawing).inline_svg("one")
    assert "<title>greek small letters with accents</title>" in inline and "hover" not in inline


def test_names_are_level_where_they_fit_and_thinned_out_where_they_are_many() -> None:
    assert TaskNames(["0-1", "2-3"], 2.0).level and not TaskNames(["cyrillic-capitals"] * 4, 2.0).level
    assert TaskNames(["cyrillic-capitals"] * 4, 2.0).height > TaskNames(["0-1"] * 4, 2.0).height
    with style():
        (axes,) = (Figure().subplots(),)
        TaskNames([f"task number {k}" for k in range(1, 26)], 2.0).set_ticks(axes)
    assert axes.get_xticks().tolist() == list(range(1, 26, 2))
    assert axes.get_xticklabels()[1].get_text() == "task n…ber 3"


def test_every_line_of_a_task_ends_at_its_name(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", accuracy=[[0.9], [0.5, 0.8], [0.4, 0.7, 0.95]], tasks=["red", "green", "blue"])
    (panel,) = drawn(tmp_path, draw_every_task)[1]["every-task"].figure.axes
    heights = {text.get_text(): text.get_position()[1] for text in panel.texts}
    assert heights == pytest.approx({"red": 0.4, "green": 0.7, "blue": 0.95})
    named = [(line.get_gid(), line.get_color()) for line in panel.lines if line.get_gid()]
    assert len(named) == 6 and len(set(named)) == 3  # each line, and the one from its end to its name, alike


def test_forgetting_of_each_task_is_its_best_minus_its_last(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", accuracy=[[0.8], [0.9, 0.7], [0.6, 0.75, 0.95]])
    drawing = drawn(tmp_path, draw_forgetting)[1]["forgetting"]
    (line,) = [line for line in drawing.figure.axes[0].lines if line.get_marker() == "o"]
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([0.3, 0.0])
    assert [row["forgetting"] for row in drawing.data] == pytest.approx([0.3, 0.0])


def test_one_task_or_one_measurement_cannot_show_forgetting(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "gescl", accuracy=[[0.9]])
    write_run(tmp_path / "once", "joint", accuracy=[[None], [0.9, 0.8]])
    assert not drawn(tmp_path / "one", draw_forgetting)[1]
    assert not drawn(tmp_path / "once", draw_forgetting)[1]


def test_the_legend_of_capacity_has_the_colours_of_the_bars(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    write_run(tmp_path, "gescl-distill")
    drawing = drawn(tmp_path, draw_capacity)[1]["capacity"]
    (legend,) = drawing.figure.legends
    colours = [to_hex(patch.get_facecolor()) for patch in legend.findobj(Rectangle)]
    assert colours[:4] == [COLOURS["gescl"], COLOURS["gescl-distill"]] * 2
    bars = {
        to_hex(tuple(np.asarray(part.get_facecolor())[0]))
        for axes in drawing.figure.axes
        for part in axes.collections[:1]
    }
    assert bars == set(colours[:2])


def test_captions_speak_of_seeds_only_where_there_are_several(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0)
    words = ("seed", "mean", "band", "deviation", "interval")
    for drawing in drawn(tmp_path)[1].values():
        assert not [word for word in words if word in drawing.caption.lower()], drawing.caption
    write_run(tmp_path, "gescl", 1)
    for drawing in drawn(tmp_path)[1].values():
        assert "seed" in drawing.caption, drawing.name


def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    chosen = [drawn(tmp_path, draw_first_task)[1]["first-task"] for _ in range(2)]
    with style():
        one, again = map(render, chosen)
    assert (one.png, one.svg, one.pdf) == (again.png, again.svg, again.pdf)


def test_a_figure_in_the_page_is_well_formed_and_has_names_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    with style():
        file = render(drawn(tmp_path, draw_capacity)[1]["capacity"])
    inline = [file.inline_svg(prefix) for prefix in ("one", "two")]
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in inline]
    assert ids[0] and not ids[0] & ids[1]
    for text, own in zip(inline, ids, strict=True):
        ElementTree.fromstring(text.replace("xlink:href", "href"))
        assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', text)) <= own
        assert "var(--ink)" in text and "#1b1f24" not in text  # the page's own colours, for dark mode


def test_the_alternative_text_tells_first_and_last_accuracy(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", accuracy=[[0.9], [0.85, 0.9]])
    write_run(tmp_path, "finetune", accuracy=[[0.92], [0.41, 0.9]])
    _, figures = drawn(tmp_path, draw_first_task, draw_matrices)
    assert "gescl from 0.90 to 0.85; finetune from 0.92 to 0.41" in figures["first-task"].alt
    assert "finetune .41, .90" in figures["accuracy-matrix"].alt


def test_lines_and_bands_are_mean_and_range_over_seeds(tmp_path: Path) -> None:
    for seed, last in enumerate((0.7, 0.8, 0.6)):
        write_run(tmp_path, "gescl", seed, accuracy=[[0.9], [last, 0.9]])
    (axes,) = drawn(tmp_path, draw_first_task)[1]["first-task"].figure.axes
    assert np.asarray(axes.lines[0].get_ydata()).tolist() == pytest.approx([0.9, 0.7])
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert band[:, 1].min() == pytest.approx(0.6) and band[:, 1].max() == pytest.approx(0.9)


def test_capacity_counts_important_redrawn_and_resting_filters(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    group = group_of(tmp_path)
    layers = layers_of(group.methods["gescl"], read_events(group.runs[0].folder))
    assert {name: layer.size for name, layer in layers.items()} == LAYERS
    # conv1 has 8 filters: after tasks 1, 2, 3 are 4, 3, 2 of them free, and of these every even one is redrawn.
    assert layers["conv1"].important.tolist() == [4, 5, 6]
    assert layers["conv1"].redrawn.tolist() == pytest.approx([2, 1, 1])
    assert layers["conv1"].resting.tolist() == pytest.approx([2, 2, 1])


def test_filters_of_a_method_that_redraws_none_are_free_as_they_are(tmp_path: Path) -> None:
    file = write_run(tmp_path, "gescl") / "events.jsonl"
    file.write_text(file.read_text().replace('"redrawn"', '"something else"'))
    group = group_of(tmp_path)
    layer = layers_of(group.methods["gescl"], read_events(group.runs[0].folder))["conv1"]
    assert layer.redrawn.tolist() == [0, 0, 0] and layer.resting.tolist() == [4, 3, 2]


def test_methods_that_do_not_tell_filters_apart_have_no_capacity(tmp_path: Path) -> None:
    write_run(tmp_path, "finetune")
    group = group_of(tmp_path)
    with style():
        assert draw_capacity(group, looks(group.methods), WIDE) is None
        assert draw_importance(group, looks(group.methods), WIDE) is None


def test_important_kernels_are_framed(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    write_run(tmp_path, "finetune")
    drawing = drawn(tmp_path, draw_kernels)[1]["kernels"]
    frames = [
        len(part.get_paths()) for axes in drawing.figure.axes for part in axes.collections
        if isinstance(part, PatchCollection)
    ]  # fmt: skip
    assert frames == [6]  # of the 8 kernels, as the log says; fine-tuning does not tell filters apart
    assert "gescl: 6 of 8 important" in drawing.alt


def test_predictions_are_marked_right_or_wrong(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    write_run(tmp_path, "finetune")
    drawing = drawn(tmp_path, draw_samples)[1]["samples"]
    texts = [text.get_text() for axes in drawing.figure.axes for text in axes.texts]
    assert texts.count("✗ left") == 6  # three tasks, two methods
    assert texts.count("✓ left") == 12 and texts.count("✓ right") == 6
    assert "gescl 9 of 12; finetune 9 of 12" in drawing.alt


def test_confusion_counts_all_test_images(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    write_run(tmp_path, "lwf")
    drawing = drawn(tmp_path, draw_confusion)[1]["confusion"]
    assert [row["images"] for row in drawing.data] == [20, 0, 5, 15] * 3  # of gescl alone, as with sample images
    assert "gescl, task-1 0.88" in drawing.alt and "lwf" not in drawing.alt
    panel = drawing.figure.axes[0]
    assert [text.get_text() for text in panel.get_yticklabels()] == ["left", "right"]


def test_of_many_tasks_the_most_confused_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "gescl", accuracy=fading("gescl", 0, tasks=25))
    tensors, header = read_tensors(folder / "samples.safetensors")
    tensors["24.confusion"] = torch.tensor([[0, 20], [20, 0]])
    write_tensors(folder / "samples.safetensors", tensors, header)
    drawing = drawn(tmp_path, draw_confusion)[1]["confusion"]
    assert "12 of 25 tasks" in drawing.caption and "task-25 0.00" in drawing.alt and "task-13" not in drawing.alt
    assert len(drawing.data) == 25 * 4


def test_runs_that_counted_no_confusion_have_no_figure_of_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "gescl")
    tensors, header = read_tensors(folder / "samples.safetensors")
    write_tensors(
        folder / "samples.safetensors", {k: v for k, v in tensors.items() if not k.endswith("confusion")}, header
    )
    group, figures = drawn(tmp_path, draw_confusion, draw_samples)
    assert figures.keys() == {"samples"} and not group.remarks


def test_samples_of_runs_with_other_images_are_not_mixed(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0)
    write_run(tmp_path, "finetune", 0, classes=("up", "down"))
    found = draw_samples(group_of(tmp_path), looks(["gescl", "finetune"]), WIDE)
    assert found is not None and "finetune" in found.alt  # the same images: the seed decides
    other = tmp_path / "other"
    write_run(other, "gescl", 0)
    write_run(other, "finetune", 1, accuracy=fading("finetune", 1))
    (other / "digits" / "finetune" / "seed-1" / "samples.safetensors").unlink()
    group = group_of(other)
    found = draw_samples(group, looks(["gescl", "finetune"]), WIDE)
    assert found is not None and "finetune" not in found.alt
    assert any(remark.startswith("Sample images of finetune cannot be shown") for remark in group.remarks)


def test_time_is_relative_to_fine_tuning_with_the_same_seed(tmp_path: Path) -> None:
    for seed, base in ((0, 2.0), (1, 4.0)):
        write_run(tmp_path, "finetune", seed, seconds=base)
        write_run(tmp_path, "gescl", seed, seconds=3 * base)
    group = group_of(tmp_path)
    with style():
        drawing = draw_cost(group, looks(group.methods), WIDE)
    assert drawing is not None and "training time ÷ finetune's" in drawing.alt
    assert "gescl 560, 3, 2.4e+04; finetune 0, 1, 2.4e+04" in drawing.alt


def test_without_fine_tuning_time_is_in_seconds(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", seconds=12.5)
    drawing = draw_cost(group_of(tmp_path), looks(["gescl"]), WIDE)
    assert drawing is not None and "training time, seconds" in drawing.alt and "12.5" in drawing.alt


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (24_000, "24k"), (1.5e6, "1.5M"), (2e9, "2G")])
def test_large_numbers_on_axes_are_short(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize("name", ["events.jsonl", "model.gescl", "samples.safetensors"])
@pytest.mark.parametrize("damage", ["gone", "garbage"])
def test_a_file_that_cannot_be_read_costs_its_figures_alone(tmp_path: Path, name: str, damage: str) -> None:
    file = write_run(tmp_path, "gescl") / name
    if damage == "gone":
        file.unlink()
    else:
        file.write_text("{}\n[")
    group, figures = drawn(tmp_path)
    lost = {
        "events.jsonl": {"training", "importance"},
        "model.gescl": {"kernels"},
        "samples.safetensors": {"samples", "confusion"},
    }
    assert figures.keys() == NAMES - lost[name]
    assert any("of gescl cannot be shown" in remark for remark in group.remarks)


def test_another_seed_stands_in_for_a_damaged_file(tmp_path: Path) -> None:
    (write_run(tmp_path, "gescl", 0) / "model.gescl").unlink()
    write_run(tmp_path, "gescl", 1)
    group, figures = drawn(tmp_path, draw_kernels)
    assert "kernels" in figures and not group.remarks


@pytest.mark.parametrize(
    ("tasks", "accuracy"),
    [
        (1, [[0.9]]),
        (25, fading("gescl", 0, tasks=25)),
        (2, [[None], [None, 0.7]]),
        (2, [[None], [None, None]]),
        (2, [[0.0], [0.0, 0.0]]),
    ],
)
def test_streams_of_any_length_and_with_gaps_can_be_drawn(
    tmp_path: Path, tasks: int, accuracy: list[list[float | None]]
) -> None:
    write_run(tmp_path, "gescl", accuracy=accuracy)
    _, figures = drawn(tmp_path)
    assert figures.keys() >= NAMES - {"cost", "forgetting"}
    with style():
        render(figures["accuracy-matrix"])


def test_names_of_any_kind_can_be_drawn(tmp_path: Path) -> None:
    names = ["$x_1$", "漢字", "a" * 60]
    write_run(tmp_path, "method $\\frac$", tasks=names, classes=("$", "<b>"))
    _, figures = drawn(tmp_path, draw_matrices, draw_samples)
    with style():
        for drawing in figures.values():
            ElementTree.fromstring(render(drawing).svg)


def test_a_loss_of_zero_fits_a_logarithmic_axis(tmp_path: Path) -> None:
    file = write_run(tmp_path, "gescl") / "events.jsonl"
    file.write_text(file.read_text().replace('"loss": 1.0', '"loss": 0.0'))
    drawing = draw_training(group_of(tmp_path), looks(["gescl"]), WIDE)
    assert drawing is not None
    low, high = drawing.figure.axes[0].get_ylim()
    assert 0 < low < high
