"""Which small mistakes in methods and mathematics the tests would miss: mutation testing with mutmut.

    python bench/mutants.py [NAME …] [--survivors] [--processes 2] [--out results/mutants.json]

Every mutant changes one place in `src/gescl/methods` or `src/gescl/maths`, and the tests that run it should fail. What
is known is kept in `mutants/`, so a run that was interrupted goes on where it stopped, and mutants of functions that
have changed are run again. After writing a test, `--survivors` runs those that it may kill, a NAME (as in
`gescl.maths.prox.*`) any others. `mutmut show NAME` prints a mutant, `mutmut results` those that survive.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
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
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/mutants.json"))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.nice(10)
    mutate_under_harmless_decorators()
    try_the_shortest_tests()
    names = options.names + (survivors() if options.survivors else [])
    program.cli(["run", "--max-children", str(options.processes), *names], standalone_mode=False)
    files = {path: dict(sorted(Counter(mutants.values()).items())) for path, mutants in outcomes().items() if mutants}
    total = sum((Counter(counts) for counts in files.values()), Counter())
    result = {
        "gescl": version("gescl"),
        "mutmut": version("mutmut"),
        "total": total,
        "files": files,
        "survivors": survivors(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{total['killed'] + total['timeout']} of {total.total() - total['not checked']} mutants were noticed")


if __name__ == "__main__":
    main()
