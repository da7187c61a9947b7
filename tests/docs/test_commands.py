"""Every command in our pages: its options are real, and it runs, or `commands.LEFT_OUT` says why not."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys

import jax
import pytest
import tyro

from gpld import cli, studies

from .commands import LEFT_OUT, filled, left_out, made_small
from .pages import DOCS, PAGES, ROOT, blocks, commands

NAMES = [f"gpld {name}" for name in cli.COMMANDS if name not in ("doctor", "tasks", "cost", "theory")]
NAMES += [f"gpld study {action}" for action in ("show", "run", "status", "table", "figure", "report")]
"""In a sentence, these words alone name a command that cannot do without more."""

TYPED = [text for text in {c.text: None for page in PAGES for c in commands(page)} if text not in NAMES]
"""What a reader types."""


def of(program):
    """The commands of a program, as parameters."""
    ours = [text for text in TYPED if filled(text).split()[0] == program]
    return pytest.mark.parametrize("text", ours)


def test_commands_are_found():
    assert len(TYPED) > 60
    assert {text.split()[0] for text in TYPED} >= {"gpld", "make", "python"}


class Parsed(Exception):  # noqa: N818
    """The options were understood, and nothing more is to happen."""


@pytest.fixture
def understand(monkeypatch):
    """Lets the real parsers read a command; what they refuse is raised."""

    def stops(parse):
        def parse_and_stop(*given, **options):
            parse(*given, **options)
            raise Parsed

        return parse_and_stop

    def read(text):
        name, *arguments = shlex.split(filled(text))[1:]
        if name == "train" and "--help" not in arguments:
            cli.parse_train(arguments)  # which validates, too
            return
        monkeypatch.setattr(tyro, "cli", stops(tyro.cli))
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stops(argparse.ArgumentParser.parse_args))
        with pytest.raises(SystemExit if "--help" in arguments else Parsed):
            cli.COMMANDS[name](arguments)

    return read


@pytest.mark.parametrize(
    "text",
    [
        text
        for text in TYPED
        if filled(text).startswith("gpld ") and text not in ("gpld COMMAND --help", "gpld study list")
    ],
)
def test_options_are_real(text, understand, capsys):
    understand(text)


@pytest.mark.parametrize(
    "text", ["gpld train walker-walk --presets nano", "gpld train walker-wlak", "gpld eval", "gpld tasks all"]
)
def test_options_that_are_not_are_noticed(text, understand, capsys):
    with pytest.raises((SystemExit, cli.ConfigError)):
        understand(text)


@of("make")
def test_targets_of_make_exist(text):
    *_, target = text.split()
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


@of("python")
def test_scripts_exist(text):
    _, script, *arguments = text.split()
    if script == "-m":
        assert arguments[0] in sys.stdlib_module_names
    else:
        assert (ROOT / script).is_file()


def test_every_study_is_on_the_page_about_the_paper():
    text = (DOCS / "reproduce.md").read_text()
    assert [name for name in studies.names() if not re.search(rf"gpld study run {name}\b", text)] == []


def test_the_study_that_the_page_writes_is_one(tmp_path):
    study, sweep = (block.code for block in blocks(DOCS / "studies.md") if block.language == "toml")
    (tmp_path / "entropy.toml").write_text(study)
    assert len(studies.plan(studies.get(str(tmp_path / "entropy.toml"))).runs) == 18
    (tmp_path / "swept.toml").write_text(study.split("[methods.usual]")[0].replace("baseline", "# ") + sweep)
    assert len(studies.plan(studies.get(str(tmp_path / "swept.toml"))).runs) == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(studies.names()) - {"smoke"}))
def test_hours_are_as_estimated(name):
    found = str(studies.estimate(studies.plan(studies.get(name))))
    hours = re.search(r"(?:about|at least|less than) [\d.,]+(?= GPU-hours)", found)
    text = (DOCS / "reproduce.md").read_text()
    lines = [line for line in text.splitlines() if re.search(rf"gpld study run {name}`", line)]
    assert hours
    assert lines
    assert [line for line in lines if hours[0] not in line] == []


# Running them


def test_all_reasons_are_needed():
    assert {left_out(text) for text in TYPED} == {*LEFT_OUT, None}


def run(command, folder):
    """Run a command as a reader would, in a folder of theirs. What it says is the result."""
    program, *words = shlex.split(command)
    start = ["-m", "gpld"] if program == "gpld" else [str(ROOT / words.pop(0))]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    words = [sys.executable, *start, *words]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """The folder in which the study of that name was run."""
    folder = tmp_path_factory.mktemp("smoke")
    run("gpld study run smoke", folder)
    return folder / "studies"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", sorted({made_small(text) for text in TYPED if not left_out(text)}), ids=lambda text: text[:50]
)
def test_it_runs(command, tmp_path, small_run, request):
    if "screenshots.py" in command and not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs Debian's chromium and chromium-driver")
    for name in {"runs/other", *re.findall(r"\bruns/\S+", command)}:
        shutil.copytree(small_run, tmp_path / name)
    if re.search(r"gpld study \w+ smoke", command):
        (tmp_path / "studies").symlink_to(request.getfixturevalue("smoke"))
    for name in cli.COMMANDS if " COMMAND " in command else [""]:
        assert run(command.replace("COMMAND", name), tmp_path)
