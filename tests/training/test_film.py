import numpy as np
import pytest
from PIL import Image

from gpld.config import override
from gpld.training import film, saved, score


def pictures(count, height=48, width=64):
    """Pictures of one colour each, from black to nearly white."""
    shades = np.linspace(0, 250, count).astype(np.uint8)
    return [np.full((height, width, 3), shade, np.uint8) for shade in shades]


def read(path):
    with Image.open(path) as image:
        return np.asarray(image)


def test_an_animation_has_every_picture_and_its_time(tmp_path):
    film.save_gif(tmp_path / "film.gif", pictures(7))
    with Image.open(tmp_path / "film.gif") as image:
        assert (image.n_frames, image.size, image.info["loop"]) == (7, (64, 48), 0)
        shades = []
        for i in range(image.n_frames):
            image.seek(i)
            assert image.info["duration"] == film.FRAME_MILLISECONDS
            shades.append(image.convert("L").getpixel((5, 5)))
    np.testing.assert_allclose(shades, np.linspace(0, 250, 7), atol=2)


def test_a_strip_goes_from_the_first_picture_to_the_last(tmp_path):
    film.save_strip(tmp_path / "film.png", pictures(100))
    strip = read(tmp_path / "film.png")
    gap = 2
    assert strip.shape == (48, 8 * 64 + 7 * gap, 3)
    middles = strip[24, 32 :: 64 + gap, 0]
    np.testing.assert_allclose(middles, np.linspace(0, 250, 8), atol=3)
    assert (strip[:, 64:66] == 255).all()


def test_a_short_episode_gives_a_short_strip(tmp_path):
    film.save_strip(tmp_path / "film.png", pictures(3))
    assert read(tmp_path / "film.png").shape == (48, 3 * 64 + 2 * 2, 3)


def test_large_pictures_are_shrunk(tmp_path):
    film.save_gif(tmp_path / "film.gif", pictures(2, height=480, width=600))
    with Image.open(tmp_path / "film.gif") as image:
        assert image.size == (300, 240)


@pytest.fixture(scope="module")
def made(small_run, tmp_path_factory):
    try:
        return film.film(small_run, tmp_path_factory.mktemp("films") / "new", seed=5)
    except film.NoFilm as reason:
        pytest.skip(f"no pictures here: {reason}")


def test_an_agent_is_filmed_where_pictures_can_be_drawn(made):
    assert (made.gif.name, made.strip.name, made.gif.parent.name) == ("film.gif", "film.png", "new")
    with Image.open(made.gif) as image:
        # 501 agent steps, every sixth of them, and the last.
        assert (image.n_frames, image.size) == (85, (320, 240))
    strip = read(made.strip).astype(int)
    assert strip.shape == (240, 8 * 324 - 4, 3)
    first, last = strip[:, :320], strip[:, -320:]
    assert first.std() > 10  # not empty
    assert np.abs(first - last).max() > 50  # the pole has fallen


def test_the_films_return_is_the_score_of_its_seed_on_the_engine_that_draws(made, small_run):
    trained = saved.load(small_run)
    config = override(trained.config, {"backend": "dm_control"})
    (episode_return,) = score.score(trained._replace(config=config), episodes=1, seed=5).returns
    assert made.episode_return == pytest.approx(episode_return, rel=1e-6)


def test_the_filmed_episode_is_repeated_by_its_seed(small_run, tmp_path, monkeypatch):
    """Without pictures: the same seed gives the same episode, drawn at the same steps."""
    drawn = []
    monkeypatch.setattr("gpld.envs._make.choose", lambda task, backend, render: "dm_control")
    monkeypatch.setattr("gpld.envs._dm_control.choose_renderer", lambda drawing: None)
    monkeypatch.setattr(
        "gpld.envs._dm_control.DMControlStream.render",
        lambda stream, height, width: drawn.append(stream._env._step_count) or pictures(1)[0],
    )
    first = film.shoot(small_run, tmp_path / "a", 5)
    steps = list(drawn)
    again = film.shoot(small_run, tmp_path / "b", 5)
    assert steps == [2 * i for i in range(0, 500, 6)] + [1000]
    assert drawn == steps * 2
    assert first.episode_return == again.episode_return


@pytest.mark.parametrize("off", ["off", "disable"])
def test_drawing_turned_off_by_training_does_not_reach_the_films_process(
    small_run, tmp_path, monkeypatch, off
):
    seen = {}

    def run(command, env, **_):
        seen.update(env)
        raise film.subprocess.TimeoutExpired(command, 1.0)

    monkeypatch.setattr(film.subprocess, "run", run)
    monkeypatch.setenv("MUJOCO_GL", off)
    with pytest.raises(film.NoFilm, match="took more than 30 s"):
        film.film(small_run, tmp_path, timeout=30.0)
    assert "MUJOCO_GL" not in seen
    assert seen["JAX_PLATFORMS"] == "cpu"


def test_a_machine_that_cannot_draw_is_told_what_to_install(small_run, tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "crayons")
    with pytest.raises(film.NoFilm, match=r"MUJOCO_GL.*apt install libegl1"):
        film.film(small_run, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("errors", "task", "told"),
    [
        (
            "Traceback\nImportError: no GL\n",
            "walker-walk",
            "ImportError: no GL. MuJoCo draws with EGL",
        ),
        (
            "DependencyNotInstalled: pip install pygame\n",
            "gym:Pendulum-v1",
            "DependencyNotInstalled: pip install ",
        ),
        ("gpld.training.CheckpointError: damaged\n", "walker-walk", "gpld.training.CheckpointError: damaged"),
        ("", "gym:Pendulum-v1", "the process that draws was killed"),
    ],
)
def test_reasons(errors, task, told):
    reason = film._explain(errors, task)
    assert reason.startswith(told)
    assert ("apt install" in reason) == ("GL" in errors)
