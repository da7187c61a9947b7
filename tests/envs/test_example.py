"""The example of an environment of one's own."""

import re
import subprocess
import sys

import pytest

from gpld.envs import check
from tests import scripts
from tests.docs.pages import DOCS

EXAMPLE = "examples/own_environment.py"


def test_the_environment_is_sound_and_that_of_the_page():
    assert check(scripts.load(EXAMPLE).Spring) == []
    page = (DOCS / "your_environment.md").read_text()
    (code,) = re.findall(r"```python\n(import gymnasium.*?)```", page, re.S)
    lines = (scripts.ROOT / EXAMPLE).read_text().splitlines()
    assert [line for line in code.splitlines() if line.startswith(" ") and line not in lines] == []


@pytest.mark.slow
def test_it_trains_and_acts(tmp_path):
    command = [sys.executable, str(scripts.ROOT / EXAMPLE), "--env-steps", "2200", "--run", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert 0 < float(re.findall(r"return of an episode: ([\d.]+)", done.stdout)[0]) <= 200
