import numpy as np
import pytest
from PIL import Image

from gpld import cli, films
from gpld.analysis import open_loop
from gpld.films import _films


def test_the_bar_says_what_the_model_observed():
    film = open_loop.with_bar(np.full((4, 6, 8, 3), 7, np.uint8), context=1)
    assert film.shape == (4, 6 + open_loop.GAP, 8, 3)
    assert (film[:, open_loop.GAP :] == 7).all()
    colours = film[:, 0, 0]
    assert (colours[1] == colours[3]).all()
    assert (colours[0] != colours[1]).any()


@pytest.mark.slow
def test_a_dream_is_drawn_beside_the_episode(small_run, tmp_path):
    made = films.film_dream(small_run, tmp_path, steps=8)
    assert {path.name for path in made} >= {"dream.gif", "dream.png"}
    with Image.open(tmp_path / "dream.gif") as gif:
        assert gif.n_frames == 8
        assert gif.size == (2 * _films.WIDTH, _films.HEIGHT + open_loop.GAP)
        picture = np.asarray(gif.convert("RGB"))[open_loop.GAP :].astype(int)
    sides = picture[:, : _films.WIDTH], picture[:, _films.WIDTH :]
    assert min(side.std() for side in sides) > 5  # something is drawn
    assert (
        cli.main(
            ["eval", str(small_run), "--episodes", "1", "--dream", "--frames", "6", "--out", str(tmp_path)]
        )
        == 0
    )
    with Image.open(tmp_path / "dream.gif") as gif:
        assert gif.n_frames == 6


def test_other_tasks_are_refused_by_name(small_run, tmp_path, monkeypatch):
    monkeypatch.setattr(_films, "SUITE", ())
    with pytest.raises(films.NoFilm, match="not for cartpole-balance"):
        films.film_dream(small_run, tmp_path)
