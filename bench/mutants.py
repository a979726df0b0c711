"""Which small mistakes in methods and mathematics the tests would miss: mutation testing with mutmut.

    python bench/mutants.py [NAME …] [--survivors] [--sample 0.2] [--processes 2] [--out results/mutants.json]

Every mutant changes one place in `src/gescl/methods` or `src/gescl/maths`, and the tests that run it should fail. What
is known is kept in `mutants/`, so a run that was interrupted goes on where it stopped, and mutants of functions that
have changed are run again. After writing a test, `--survivors` runs those that it may kill, a NAME (as in
`gescl.maths.prox.*`) any others. `--sample` tries a random share of all, always the same ones: a fifth of them tells in
half an hour what share is noticed, to about two points. `mutmut show NAME` prints a mutant, `mutmut results` those that
survive.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from hashlib import sha256
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import libcst as cst
from mutmut import __main__ as program
from mutmut.mutation import file_mutation
from mutmut.mutation.data import SourceFileMutationData
from mutmut.state import state
from mutmut.stats import status_by_exit_code

#: Decorators that change nothing but how a function is run. mutmut leaves every decorated function alone, since it does
#: not know what a decorator does, but most of the mathematics is under one of these.
HARMLESS = {"torch.no_grad()", "torch.inference_mode()"}
#: Of the tests that run a function, the shortest are tried, up to these seconds together: what a survivor costs.
SECONDS = 6.0
MUTATED = [Path("src/gescl/methods"), Path("src/gescl/maths")]


def mutate_under_harmless_decorators() -> None:
    visitor = file_mutation.MutationVisitor
    skips = visitor._skip_node_and_children

    def _skip_node_and_children(self: Any, node: cst.CSTNode) -> bool:
        decorators = node.decorators if isinstance(node, cst.FunctionDef) else ()
        names = {cst.Module([]).code_for_node(each.decorator) for each in decorators}
        return False if names and names <= HARMLESS else bool(skips(self, node))

    visitor._skip_node_and_children = _skip_node_and_children


def try_the_shortest_tests() -> None:
    load = program.collect_or_load_stats

    def collect_or_load_stats(*args: Any, **options: Any) -> None:
        load(*args, **options)
        known = state()
        for tests in known.tests_by_mangled_function_name.values():
            shortest = sorted(tests, key=known.duration_by_test.__getitem__)
            for test, total in zip(
                shortest, accumulate(known.duration_by_test[test] for test in shortest), strict=True
            ):
                if total > SECONDS and test != shortest[0]:
                    tests.remove(test)

    program.collect_or_load_stats = collect_or_load_stats


def try_a_sample(share: float) -> None:
    collect = program.collect_source_file_mutation_data

    def sampled(**options: Any) -> tuple[list[Any], Any]:
        mutants, by_path = collect(**options)
        return [mutant for mutant in mutants if _place(mutant[1]) < share], by_path

    program.collect_source_file_mutation_data = sampled


def _place(name: str) -> float:
    """Where a mutant stands among all, from 0 to 1, at random but always the same."""
    return int.from_bytes(sha256(name.encode()).digest()[:4]) / 2**32


def outcomes() -> dict[str, dict[str, str]]:
    """By file, every mutant and what became of it."""
    found = {}
    for path in sorted(path for folder in MUTATED for path in folder.glob("*.py")):
        data = SourceFileMutationData(path=path)
        data.load()
        found[path.as_posix()] = {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
    return found


def survivors() -> list[str]:
    return [
        name
        for mutants in outcomes().values()
        for name, outcome in mutants.items()
        if outcome not in ("killed", "timeout", "not checked")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants to run again, as in 'gescl.maths.prox.*'")
    parser.add_argument("--survivors", action="store_true", help="run those again that survived")
    parser.add_argument("--sample", type=float, default=1.0, help="the share of all mutants to try")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/mutants.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.nice(10)
    mutate_under_harmless_decorators()
    try_the_shortest_tests()
    try_a_sample(options.sample)
    names = options.names + (survivors() if options.survivors else [])
    program.cli(["run", "--max-children", str(options.processes), *names], standalone_mode=False)
    files = {path: dict(sorted(Counter(mutants.values()).items())) for path, mutants in outcomes().items() if mutants}
    total = sum((Counter(counts) for counts in files.values()), Counter())
    result = {
        "gescl": version("gescl"),
        "mutmut": version("mutmut"),
        "sample": options.sample,
        "total": total,
        "files": files,
        "survivors": survivors(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    tried, noticed = total.total() - total["not checked"], total["killed"] + total["timeout"]
    error = (noticed / tried * (1 - noticed / tried) / tried) ** 0.5 if tried else 0.0
    print(f"{noticed} of {tried} mutants were noticed ({noticed / max(1, tried):.1%} ± {error:.1%})")


if __name__ == "__main__":
    main()
