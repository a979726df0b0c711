"""The results page: every number from a file, what is missing said so, and the page in docs as the files have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gescl import DataError
from gescl.paper.results_page import collect, results_page
from gescl.sweeps.choice import TriedSetting, write_tried

from ..report.made import write_run

ROOT = Path(__file__).parents[2]


def line(page: str, *starts: str) -> str:
    """The only line that begins so."""
    (found,) = [line for line in page.splitlines() if line.startswith("| " + " | ".join(starts) + " |")]
    return found


def matrix(learned: float, fall: float, tasks: int = 3) -> list[list[float]]:
    return [[learned - fall * (t - k) for k in range(t + 1)] for t in range(tasks)]


def test_the_page_in_docs_is_what_the_files_give() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == results_page(ROOT / "results"), "run: python -m gescl.paper.results_page"


def test_means_deviations_and_published_figures_stand_side_by_side(tmp_path: Path) -> None:
    for seed, learned in enumerate((0.7, 0.8)):
        write_run(tmp_path, "gescl", seed, name="cifar10-100", accuracy=matrix(learned, 0.0))
    write_run(tmp_path, "joint", name="cifar10-100", accuracy=[[None], [None, None], [0.9, 0.9, 0.9]])
    page = results_page(tmp_path)
    assert line(page, "`gescl`", "2") == (
        "| `gescl` | 2 | 0.750 ± 0.071 | 0.0000 ± 0.0000 | 0.750 ± 0.071 | 1.000 ± 0.000 | – | 83.3% | 0.745 | 0.0008 |"
    )
    assert line(page, "`joint`", "1").endswith("| 0.900 | – | 0.900 | – | +0.200 (one seed) | 100.0% | – | – |")
    assert "Not run yet: `gescl-distill`, `ags-cl`, `hat`" in page
    assert "## svhn\n\nNot run yet." in page


SPREAD = (-0.002, 0.0, 0.002)  # of three seeds; the same for all methods, so paired differences are exact


def write_seeds(out: Path, label: str, name: str, learned: float, fall: float = 0.0, spread: float = 0.0) -> None:
    """Three runs of six tasks; `spread` is of this method alone."""
    for seed, shift in enumerate(SPREAD):
        own = spread * (seed - 1)
        write_run(out, label, seed, name=name, accuracy=matrix(learned + shift + own, fall + shift / 10, 6))


def test_claims_are_decided_by_intervals(tmp_path: Path) -> None:
    for method, learned, fall in (
        ("gescl", 0.8, 0.0),
        ("gescl-distill", 0.82, 0.0),
        ("hat", 0.7, 0.0),
        ("ags-cl", 0.75, 0.01),
        ("ewc", 0.8, 0.1),
        ("si", 0.6, 0.1),
        ("finetune", 0.8, 0.12),
        ("frozen", 0.78, 0.0),
        ("joint", 0.79, 0.0),
    ):
        write_seeds(tmp_path, method, "cifar10-100", learned, fall)
    strongest = "AGS-CL is the strongest rival in average accuracy"
    assert "not measured" in line(results_page(tmp_path), strongest, "cifar10-100"), "without MAS"
    write_seeds(tmp_path, "mas", "cifar10-100", 0.74, 0.01, spread=0.05)
    page = results_page(tmp_path)
    kept = line(page, "GESCL keeps most of the first task", "cifar10-100")
    assert "| cannot be told | hat 1.000, gescl 1.000" in kept, "HAT keeps as much"
    assert "| yes | lead of gescl after 6 tasks minus after 2: +0.200 (+0.200 … +0.200) |" in line(
        page, "EWC falls behind as tasks accumulate", "cifar10-100"
    )
    assert "| cannot be told | ags-cl 0.725, mas 0.715, hat" in line(page, strongest, "cifar10-100"), "MAS is spread"
    ahead = line(page, "our aim: gescl-distill first, or tied with the first, without old data", "cifar10-100")
    assert "| yes | gescl-distill 0.820, gescl 0.800" in ahead
    assert "gescl-distill − gescl: +0.020 (+0.020 … +0.020) |" in ahead
    bound = line(page, "our aim: gescl-distill at 95% of joint or more", "cifar10-100")
    assert "| yes | 103.8% of joint; gescl-distill − joint: +0.030 (+0.030 … +0.030) |" in bound
    assert line(page, "every part of GESCL helps", "cifar10-100-ablation").endswith("| not measured | – |")
    assert "not measured" in line(page, "HAT is the strongest rival on SVHN", "svhn")


@pytest.mark.parametrize(
    ("rival", "spread", "verdict"), [(0.81, 0.0, "yes"), (0.83, 0.0, "**no**"), (0.83, 0.05, "yes")]
)
def test_first_or_tied_means_that_no_other_is_ahead(tmp_path: Path, rival: float, spread: float, verdict: str) -> None:
    write_seeds(tmp_path, "gescl-distill", "svhn", 0.82)
    write_seeds(tmp_path, "lwf", "svhn", rival, spread=spread)
    claim = "our aim: gescl-distill first, or tied with the first, without old data"
    assert f"| {verdict} |" in line(results_page(tmp_path), claim, "svhn")


def test_one_seed_tells_nothing(tmp_path: Path) -> None:
    for method, learned in (("gescl-distill", 0.9), ("lwf", 0.5)):
        write_run(tmp_path, method, name="svhn", accuracy=matrix(learned, 0.0))
    claim = "our aim: gescl-distill first, or tied with the first, without old data"
    assert "| cannot be told | gescl-distill 0.900, lwf 0.500" in line(results_page(tmp_path), claim, "svhn")
    assert "| cannot be told |" in line(results_page(tmp_path), "our aim: gescl-distill forgets little", "svhn")


@pytest.mark.parametrize(("fall", "verdict"), [(0.001, "yes"), (0.005, "**no**"), (0.0017, "cannot be told")])
def test_forgetting_is_held_against_its_limit(tmp_path: Path, fall: float, verdict: str) -> None:
    write_seeds(tmp_path, "gescl-distill", "svhn", 0.9, fall)
    found = line(results_page(tmp_path), "our aim: gescl-distill forgets little", "svhn")
    assert f"| {verdict} | " in found and "asked for: at most 0.005" in found


def test_the_rows_of_an_ablation_stand_beside_the_published_ones(tmp_path: Path) -> None:
    for label, learned in (("gescl", 0.8), ("gescl+without-mu_s", 0.5), ("gescl+without-plasticity", 0.81)):
        write_seeds(tmp_path, label, "cifar10-100-ablation", learned)
    page = results_page(tmp_path)
    full, without = (line(page, f"`gescl{part}`", "3") for part in ("+without-plasticity", "+without-mu_s"))
    assert full.endswith("| +0.010 (+0.010 … +0.010), ahead | 0.691 | 0.013 |")
    assert without.endswith("| -0.300 (-0.300 … -0.300), behind | 0.419 | 0.44 |")
    assert page.index("What each part of `gescl` contributes:") < page.index(full)
    assert line(page, "every part of GESCL helps", "cifar10-100-ablation").endswith("not measured | – |")
    write_seeds(tmp_path, "gescl+without-nu", "cifar10-100-ablation", 0.7)
    page = results_page(tmp_path)
    helps = line(page, "every part of GESCL helps", "cifar10-100-ablation")
    assert "| **no** | gescl+without-plasticity 0.810, gescl 0.800" in helps
    assert "| yes |" in line(page, "without μ_S is worst", "cifar10-100-ablation")


def test_notes_hardware_dates_and_tuned_settings_are_told(tmp_path: Path) -> None:
    hardware = {"cpu": "Abacus 3", "cores": 2, "gpu": None}
    write_run(tmp_path / "small" / "runs", name="svhn", hardware=hardware, finished="2031-05-06T07:08:09+00:00")
    (tmp_path / "small" / "runs" / "svhn" / "note.md").write_text("Half of the images.\n")
    tried = [
        TriedSetting(
            "gescl", {"mu_s": mu_s}, [7], {}, 0.9, 0.1, [0.8], [0.1], [0.9], [[]], 0.02, best=mu_s == 5, tied=mu_s > 1
        )
        for mu_s in (0.5, 5, 50)
    ]
    write_tried(tmp_path / "small" / "tuning" / "cifar10-100" / "gescl.json", tried)
    page = results_page(tmp_path)
    assert "Half of the images." in page and "Abacus 3" in page and "2031-05-06" in page
    assert "### Settings for cifar10-100\n\nTried on `cifar-100` with stream.tasks=5, with seed 7." in page
    assert "| `gescl` | mu_s = 5 | 0.900 ± 0.020 | 0.1000 | chosen |" in page
    assert "| `gescl` | mu_s = 50 | 0.900 ± 0.020 | 0.1000 | tied |" in page
    assert "| `gescl` | mu_s = 0.5 | 0.900 ± 0.020 | 0.1000 |  |" in page
    assert "To repeat all of them: `gescl reproduce svhn --budget small --seeds 1`." in page


def test_unfinished_runs_are_named_and_a_missing_folder_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path, name="svhn")
    (folder / "result.json").unlink()
    assert "unfinished" in results_page(tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        collect(tmp_path / "nothing", tmp_path)


def test_the_page_opens_with_which_method_on_which_stream_by_how_much(tmp_path: Path) -> None:
    for name, method, learned, fall, spread in (
        ("svhn", "gescl-distill", 0.82, 0.002, 0.0),
        ("svhn", "lwf", 0.80, 0.004, 0.0),
        ("svhn", "mas", 0.81, 0.0, 0.05),
        ("svhn", "joint", 0.9, 0.0, 0.0),
        ("domains", "gescl-distill", 0.7, 0.01, 0.0),
        ("domains", "lwf", 0.72, 0.01, 0.0),
        ("domains", "gescl", 0.71, 0.0, 0.0),
        ("domains", "frozen", 0.65, 0.0, 0.0),
        ("room", "gescl", 0.7, 0.0, 0.0),
        ("room", "gescl+without-plasticity", 0.65, 0.0, 0.0),
        ("room", "frozen", 0.6, 0.0, 0.0),
    ):
        write_seeds(tmp_path, method, name, learned, fall, spread)
    page = results_page(tmp_path)
    opening = page[: page.index("## The paper's claims")]
    assert "| method | domains (version 0.1.0) | svhn (version 0.1.0) |" in opening
    assert "| `gescl-distill` | 0.675 (0.030) | **0.815** (0.006) |" in opening
    assert "| `lwf` | 0.695 (0.030) | 0.790 (0.012) |" in opening and "| `mas` | – | **0.810** (0.000) |" in opening
    assert (
        "first, or cannot be told from the first, on 1 of 2 streams; on domains `gescl` is ahead by 0.035." in opening
    )
    assert "`gescl-distill` is ahead on 1 of 2 streams (svhn, by 0.025) and behind on 1 (domains, by 0.020)." in opening
    assert "Forgetting: `gescl-distill` 0.006 to 0.030 (most on domains), `gescl` 0.000" in opening
    assert "the paper's method, is ahead on 1 of 1 streams (domains, by 0.060) and behind on none." in opening
    assert "| yes | gescl-distill 0.815, lwf 0.790; gescl-distill − lwf: +0.025 (+0.025 … +0.025) |" in line(
        page, "our aim: gescl-distill ahead of lwf", "svhn"
    )
    assert "| **no** | lwf 0.695" in line(page, "our aim: gescl-distill ahead of lwf", "domains")
    assert "| yes | gescl 0.710, frozen 0.650;" in line(page, "our aim: gescl ahead of frozen", "domains")
    assert "Relative to it, `gescl-distill` reaches 90.6% on svhn." in opening
    assert "freeing filters is worth +0.050 (+0.050 … +0.050): `gescl` 0.700, `gescl+without-pl" in opening
    assert "With a larger network" not in opening
    write_run(tmp_path, "gescl-distill", name="cifar10-100-ags6", accuracy=matrix(0.8, 0.0))
    write_run(tmp_path, "lwf", name="cifar10-100-ags6", accuracy=matrix(0.79, 0.0))
    assert (
        "`gescl-distill` reaches 0.800 on cifar10-100 (`lwf` 0.790); published: `gescl` 0.745 (the paper, with a "
        "smaller network), `ags-cl` 0.760 (its authors, with this network)." in results_page(tmp_path)
    )
