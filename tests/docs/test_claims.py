"""What pages repeat from elsewhere is still so: messages of the code, measured numbers, defaults, files."""

import ast
import json
import re
import statistics

import numpy as np
import pytest
from scipy import stats

from gpld import config as options
from gpld import results
from gpld.config import Config
from gpld.population import TITLES
from gpld.training import saved

from .pages import DOCS, ROOT, blocks

GAP = "…"
"""In messages on pages, what the code fills in."""


def literals():
    """All strings of the code, with gaps for what is filled in; and the Makefile."""
    for path in (ROOT / "gpld").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
                yield "".join(map(str, parts))
    yield (ROOT / "Makefile").read_text()


MESSAGES = [block.code.strip() for block in blocks(DOCS / "troubleshooting.md") if block.language == "text"]


@pytest.fixture(scope="module")
def code():
    return "\n".join(literals())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda text: text[:40])
def test_messages_are_those_of_the_code(message, code):
    assert message in code


def test_a_message_that_the_code_does_not_have_is_noticed(code):
    assert "out: … holds a run with other options" in code
    assert "out: … holds a run with different options" not in code


def rows(path):
    return {
        line for line in path.read_text().splitlines() if line.startswith("| ") and re.search(r"\d", line)
    }


def test_performance_shows_what_was_measured():
    shown = rows(DOCS / "performance.md")
    assert len(shown) >= 10
    assert shown - rows(ROOT / "results" / "README.md") == set()


RESULTS = ROOT / "results"
VARIANTS = {"baseline": "DreamerV3", "probes": "GPLD, closed-form probes", "exact": "GPLD, exact"}
DREAMER, GPLD = TITLES["dreamerv3"], TITLES["gpld"]


def table(heading, number=0):
    """Titles and rows of a table below a heading of results/README.md."""
    _, below = (RESULTS / "README.md").read_text().split(f"\n{heading}\n")
    lines = re.findall(r"(?:^\|.*\n)+", below, re.M)[number].splitlines()
    titles, _, *cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return titles, cells


def update_rows(path):
    """What the table of updates says of each measurement in a file."""
    measured = [
        row
        for row in json.loads(path.read_text())["rows"]
        if row["observations"] == "states" and row["variant"] in VARIANTS
        if row["rho"] in (0.0, 0.5) and row["ratio"] is not None
    ]
    baselines = {row["runs"]: row["ms"] for row in measured if row["variant"] == "baseline"}
    for row in measured:
        more = ["", ""]
        if row["variant"] != "baseline":
            more = [f"{row['ratio']:.3f}", f"{row['ms'] - baselines[row['runs']]:.3f}"]
        times = [f"{row['ms']:.3f}", f"{row['spread']:.3f}", *more]
        size = [f"{row['kernels']:,.0f}", f"{row['temporary_GiB']:.2f}"]
        yield [str(row["runs"]), VARIANTS[row["variant"]], *times, *size]


def test_updates_took_as_long_as_the_table_says():
    measured = [row for path in RESULTS.glob("update*.json") for row in update_rows(path)]
    _, shown = table("## One update on an NVIDIA H200")
    assert len(shown) >= 11
    assert [row for row in shown if row not in measured] == []


def curves(name, method, learning_rate):
    """Returns by thousands of env steps of each run in a file of results."""
    runs = json.loads((RESULTS / f"learning-{name}.json").read_text())["runs"]
    return [
        {round(steps, -3): value for steps, value in zip(run["env_steps"], run["returns"], strict=True)}
        for run in runs
        if (run["method"], run["learning_rate"]) == (method, learning_rate)
    ]


def published(task, by="env_steps"):
    """The same of the published runs, by the env steps that they name or by their agent steps."""
    runs = results.published().query("task == @task").groupby("seed")
    return [dict(zip(run[by], run["return"], strict=True)) for _, run in runs]


def episodes(name):
    """Returns of training episodes by the env steps at which they end, of each run of DreamerV3 in a file."""
    runs = json.loads((RESULTS / f"learning-{name}.json").read_text())["runs"]
    return [
        {int(steps): value for steps, value in run["training"].items()}
        for run in runs
        if run["method"] == DREAMER
    ]


def by_thousands(groups):
    return [[{round(steps, -3): x for steps, x in run.items()} for run in group] for group in groups]


def means(runs, start, end):
    """The mean return of each run from some thousands of steps to others."""
    between = [[x for steps, x in run.items() if start <= round(steps, -3) <= end] for run in runs]
    return np.array([statistics.mean(values) for values in between])


def of_means(values):
    return f"{values.mean():.0f} ({values.min():.0f} to {values.max():.0f})"


def p(one, two):
    """How likely groups would differ so by chance: all ways to divide the runs among them."""

    def difference(x, y, axis):
        return x.mean(axis) - y.mean(axis)

    return f"{stats.permutation_test((one, two), difference, n_resamples=np.inf).pvalue:.2f}"


def compared(groups, reference):
    """Rows of a table: how many runs, their mean returns, and p against one of the groups."""
    return [
        [f"{len(group)}", of_means(group), "" if group is reference else p(group, reference)]
        for group in groups
    ]


def cell(runs, env_steps):
    """Mean, smallest and largest return; that of a single run; nothing where runs had ended."""
    values = [run[env_steps] for run in runs if env_steps in run]
    if len(values) < 2:
        return "".join(f"{value:.0f}" for value in values)
    return f"{statistics.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def assert_learned(heading, columns, until=100_000, every=10_000, number=0):
    (_, *titles), shown = table(heading, number)
    for title, runs in zip(titles, columns, strict=True):
        assert f", {len(runs)} seed" in title
    rows = range(every, until + 1, every)
    assert shown == [[f"{steps:,}", *(cell(runs, steps) for runs in columns)] for steps in rows]


def test_cartpole_learned_what_the_table_says():
    ours = "cartpole-swingup"
    columns = [curves(ours, DREAMER, 4e-5), curves(ours, GPLD, 4e-5), published("cartpole-swingup")]
    assert_learned("## Learning, against the published curves", columns)


def test_walkers_learned_what_the_table_says():
    same_options, four_envs = "walker-walk-published", "walker-walk-4-envs"
    columns = [
        curves(same_options, DREAMER, 1e-4),
        curves(four_envs, DREAMER, 1e-4),
        curves(four_envs, DREAMER, 2e-4),
        curves(same_options, GPLD, 1e-4),
        curves(four_envs, GPLD, 2e-4),
        published("walker-walk"),
    ]
    assert_learned("### walker-walk", columns)


def test_walkers_that_do_not_repeat_learned_what_the_table_says():
    names, methods = ("walker-walk-published-once", "walker-walk-dynamics"), (DREAMER, GPLD)
    columns = [curves(name, method, 1e-4) for name in names for method in methods]
    columns.append(published("walker-walk", by="agent_steps"))
    assert_learned("### walker-walk with actions that are not repeated", columns, until=50_000, every=5_000)

    text = (RESULTS / "README.md").read_text()
    ours, others = (means(runs, 5_000, 20_000) for runs in (columns[0], columns[-1]))
    assert f"{ours.mean():.0f} and {others.mean():.0f} over these four points" in text
    assert f"a permutation test gives p {p(ours, others)})" in text
    ours, others = (means(runs, 25_000, 50_000) for runs in (columns[0], columns[-1]))
    assert f"at 25k to 50k is {of_means(ours)}" in text
    assert f"published one {of_means(others)}, p {p(ours, others)}." in text


def test_the_code_of_2023_learned_what_the_tables_say():
    heading = "### walker-walk by DreamerV3's code of 2023"
    runs, ours = episodes("walker-walk-code-2023"), episodes("walker-walk-published-once")
    columns = [runs[:4], runs[4:], ours]
    assert_learned(heading, by_thousands(columns), until=40_000, every=4_000)

    columns.append(published("walker-walk", by="agent_steps"))
    unchanged, changed, _, others = late = [means(runs, 20_000, 40_000) for runs in columns]
    _, rows = table(heading, 1)
    assert [row[1:] for row in rows] == compared(late, others)
    text = (RESULTS / "README.md").read_text()
    assert f"four with and four without them differ with p {p(unchanged, changed)}." in text
    _, changed, ours, _ = (means(runs, 8_000, 16_000) for runs in columns)
    assert f"pay {changed.mean():.0f}, ours {ours.mean():.0f}, p {p(changed, ours)}," in text


def test_walkers_with_changes_undone_learned_what_the_tables_say():
    heading = "### walker-walk with the changes undone"
    runs = episodes("walker-walk-undone")
    groups = [runs[i : i + 4] for i in range(0, len(runs), 4)]
    assert_learned(heading, by_thousands(groups), until=40_000, every=4_000)

    code = episodes("walker-walk-code-2023")
    groups += [episodes("walker-walk-published-once"), code[4:], code[:4]]
    groups.append(published("walker-walk", by="agent_steps"))
    late = [means(group, 20_000, 32_000) for group in groups]
    *_, unchanged, others = late
    _, rows = table(heading, 1)
    assert [row[1:] for row in rows] == [
        [
            f"{len(group)}",
            of_means(group),
            "" if group is others else p(group, others),
            "" if group is others or group is unchanged else p(group, unchanged),
        ]
        for group in late
    ]
    text = (RESULTS / "README.md").read_text()
    most = max(max(run.values()) for run in runs)
    assert f"the {len(runs)} runs pay {np.concatenate(late[:6]).mean():.0f}," in text
    assert f"pays more than {most:.0f}," in text
    plain, ours = late[4], late[6]
    assert f"ours pay {plain.mean():.0f}, where they pay {ours.mean():.0f} (p {p(plain, ours)})" in text
    plain, ours = (means(groups[i], 8_000, 16_000) for i in (4, 6))
    assert f"{plain.mean():.0f} against {ours.mean():.0f}, p {p(plain, ours)}," in text
    undone = [group.mean() for group in late[:4]]
    shown = f"{min(undone):.0f} to {max(undone):.0f} at 20k to 32k agent steps"
    shown += f" where the published pay {others.mean():.0f},"
    assert shown in (DOCS / "performance.md").read_text()


REPLICATED = np.array([476.12, 661.77, 464.36, 385.73, 658.26])
"""At 250k env steps of walker-walk: four runs of DreamerV3's code of 2026 and one of 2024's, by others."""


def test_walkers_learned_as_replicated_ones_did():
    heading = "### walker-walk beside DreamerV3's later code"
    others = published("walker-walk")
    assert_learned(
        heading, [curves("walker-walk-250k", DREAMER, 4e-5), others], until=250_000, every=50_000, number=1
    )

    ours = means(episodes("walker-walk-250k"), 240_000, 250_000)
    groups = [ours, REPLICATED[:4], REPLICATED, means(others, 250_000, 250_000)]
    _, rows = table(heading)
    assert [row[1:] for row in rows] == compared(groups, ours)
    text = (RESULTS / "README.md").read_text()
    shown = "{:.0f}, {:.0f}, {:.0f} and {:.0f}, of four runs of the code of 2026, and {:.0f},"
    assert shown.format(*REPLICATED) in text
    shown = [f"{group.mean():.0f}" for group in (ours, REPLICATED, groups[-1])]
    assert "ours pay {} at 250k env steps, that code {}, the published {} |".format(*shown) in text


def test_the_code_of_2023_with_sizes_of_today_learned_what_the_page_says():
    code, ours = episodes("walker-walk-code-2023")[:4], episodes("walker-walk-published-once")
    groups = [episodes("walker-walk-sizes"), ours, code, published("walker-walk", by="agent_steps")]
    resized, ours, code, others = (means(runs, 8_000, 16_000) for runs in groups)
    text = (RESULTS / "README.md").read_text()
    shown = f"the four pay {of_means(resized)}, ours {of_means(ours)}, p {p(resized, ours)},"
    assert f"{shown} and that code as it was {of_means(code)}, p {p(resized, code)}." in text
    assert f"the published runs pay {others.mean():.0f} there" in text


def test_walkers_of_2023_learned_what_the_table_says():
    runs = curves("walker-walk-2023", DREAMER, 1e-4)
    columns = [runs[:4], runs[4:], published("walker-walk")]
    assert_learned("### walker-walk with more of 2023", columns, until=60_000)


def test_small_walkers_that_do_not_repeat_learned_what_the_table_says():
    runs = episodes("walker-walk-once")
    (_, title, *_), shown = table("### The published runs did not repeat their actions")
    assert title == f"ours, {len(runs)} seeds"
    until = sorted(runs[0])[1:]  # the first are random
    assert [row[:2] for row in shown] == [[f"{steps:,}", cell(runs, steps)] for steps in until]


def test_starts_took_as_long_as_the_table_says():
    rows = json.loads((RESULTS / "start.json").read_text())["rows"]
    _, shown = table("### From the command to the first update")
    assert shown == [[row["cache"], f"{row['seconds']:.1f}"] for row in rows]


@pytest.mark.parametrize(("number", "name"), [(0, "environments"), (1, "environments-h200")])
def test_environments_were_as_fast_as_the_tables_say(number, name):
    rates = json.loads((RESULTS / f"{name}.json").read_text())["agent_steps_per_second"]
    (_, *tasks), rows = table("## Environments", number)
    for backend, (_, *shown) in zip(("envpool", "dm_control"), rows, strict=True):
        assert shown == [f"{rates[task][backend]:,.0f}" for task in tasks]


def test_symbols_have_the_defaults_of_the_options():
    flat = {name: str(value) for name, value in options.flat(Config("walker-walk")).items()}
    found = 0
    for line in (DOCS / "method.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 6 or not (names := re.findall(r"`([\w.]+)`", cells[4])):
            continue
        for name, value in zip(names, cells[3].split(", "), strict=True):
            assert float(flat[name]) == float(value), name
            found += 1
    assert found >= 11


def test_files_that_pages_name_exist():
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    named = set(re.findall(r"`((?:gpld|tests|examples|benchmarks|scripts|results)/[\w/.]+)`", text))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_options_that_may_change_are_those_of_the_code():
    text = (DOCS / "troubleshooting.md").read_text()
    (sentence,) = re.findall(r"Free to change are (.*?)\.\s+Everything else", text, re.S)
    assert set(re.findall(r"`([\w.]+)`", sentence)) - {"env_steps"} == {
        name.strip(".") for name in saved.FREE
    }
