import dataclasses
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from gpld import cli, config as options, films, pictures as picture_files
from gpld.analysis import open_loop
from gpld.config import Config, override
from gpld.films import _films
from gpld.pictures import rate as picture_rate
from gpld.training import CheckpointError, saved, score
from gpld.types import Spaces
from tests.training.test_logs import events


def pictures(count, height=48, width=64):
    """Pictures with a square that moves over a shade that brightens."""
    made = []
    for i, shade in enumerate(np.linspace(0, 250, count).astype(np.uint8)):
        picture = np.full((height, width, 3), shade, np.uint8)
        picture[8:24, 2 * i : 2 * i + 16] = (200, 60, 20)
        made.append(picture)
    return made


def read(path):
    with Image.open(path) as image:
        return np.asarray(image)


def decode_gif(path):
    with Image.open(path) as image:
        frames = []
        for i in range(image.n_frames):
            image.seek(i)
            frames.append((np.asarray(image.convert("RGB")), image.info["duration"]))
        assert image.info["loop"] == 0
    return [frame for frame, _ in frames], {duration for _, duration in frames}


def decode_mp4(path):
    av = pytest.importorskip("av")
    with av.open(path) as file:
        (stream,) = file.streams
        kind = stream.codec_context.name, stream.codec_context.pix_fmt, float(stream.average_rate)
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)], kind


# Files


def test_a_gif_has_every_picture_and_its_time(tmp_path):
    picture_files.save_gif(tmp_path / "film.gif", pictures(12))
    frames, durations = decode_gif(tmp_path / "film.gif")
    assert durations == {80}
    assert len(frames) == 12
    for frame, picture in zip(frames, pictures(12), strict=True):
        np.testing.assert_allclose(frame, picture, atol=2)


@pytest.mark.parametrize(("height", "width"), [(48, 64), (47, 65)])
def test_an_mp4_has_every_picture_for_browsers_and_phones(tmp_path, height, width):
    path, sent = tmp_path / "new" / "film.mp4", pictures(12, height, width)
    picture_files.save_mp4(path, sent)
    frames, kind = decode_mp4(path)
    assert kind == ("h264", "yuv420p", 12.5)
    assert len(frames) == 12
    for frame, picture in zip(frames, sent, strict=True):
        assert frame.shape == (48, 64 + 2 * (width % 2), 3)
        # At edges of colours, of which H.264 has but a fourth of the pixels, errors are large.
        errors = np.abs(frame[:height, :width].astype(int) - picture)
        assert np.median(errors) <= 3
        assert errors.mean() < 5
    # Its index is before its pictures, so that it plays while it is being loaded.
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    assert [file.name for file in path.parent.iterdir()] == ["film.mp4"]


def test_the_same_pictures_are_the_same_files(tmp_path):
    for save in (picture_files.save_mp4, picture_files.save_gif):
        for name in ("a", "b"):
            save(tmp_path / name, pictures(5))
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("count", "rate"), [(1, 12.5), (100, 12.5), (200, 25), (1000, 50)])
def test_long_films_play_faster(count, rate):
    assert picture_rate(count) == rate


@pytest.mark.parametrize(("codecs", "output"), [(None, "needs PyAV"), (set(), "needs libx264")])
def test_a_codec_that_is_missing_is_named_and_the_gif_is_written(tmp_path, monkeypatch, codecs, output):
    if codecs is None:
        monkeypatch.setitem(sys.modules, "av", None)
    else:
        monkeypatch.setattr("av.codecs_available", codecs)
    (tmp_path / "film.mp4").write_bytes(b"of an older film")
    made = _films._save(tmp_path, "film", pictures(3), 1.25)
    assert made.mp4 is None
    assert output in made.no_mp4
    assert str(made).endswith(f"(return 1.2); {made.no_mp4}")
    assert "pip install 'av>=15'" in str(made)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.gif", "film.png"]


def test_a_strip_goes_from_the_first_picture_to_the_last(tmp_path):
    picture_files.save_strip(tmp_path / "film.png", pictures(20))
    strip = read(tmp_path / "film.png")
    gap = 2
    assert strip.shape == (48, 8 * 64 + 7 * gap, 3)
    chosen = [round(i * 19 / 7) for i in range(8)]
    for place, number in enumerate(chosen):
        left = place * (64 + gap)
        np.testing.assert_array_equal(strip[:, left : left + 64], pictures(20)[number])
    assert (strip[:, 64:66] == 255).all()


def test_a_short_episode_gives_a_short_strip(tmp_path):
    picture_files.save_strip(tmp_path / "film.png", pictures(3))
    assert read(tmp_path / "film.png").shape == (48, 3 * 64 + 2 * 2, 3)


def test_large_pictures_are_shrunk():
    assert _films._resized(np.zeros((480, 600, 3), np.uint8)).shape == (240, 300, 3)
    assert _films._resized(np.zeros((48, 64, 3), np.uint8)).shape == (48, 64, 3)


# Episodes


@pytest.fixture(scope="module")
def made(small_run, tmp_path_factory):
    try:
        (made,) = films.film(small_run, tmp_path_factory.mktemp("films") / "new", frames=20, seed=5)
        return made
    except films.NoFilm as reason:
        pytest.skip(f"no pictures here: {reason}")


def test_an_agent_is_filmed_where_pictures_can_be_drawn(made):
    assert [path.name for path in (made.mp4, made.gif, made.strip)] == ["film.mp4", "film.gif", "film.png"]
    assert made.gif.parent.name == "new"
    frames, _ = decode_gif(made.gif)
    assert (len(frames), frames[0].shape) == (20, (240, 320, 3))
    smooth, (codec, _, rate) = decode_mp4(made.mp4)
    assert (len(smooth), smooth[0].shape, codec, rate) == (20, (240, 320, 3), "h264", 12.5)
    # Both are of the same pictures; a GIF has but 256 colours.
    for one, other in zip(frames, smooth, strict=True):
        assert np.abs(one.astype(int) - other).mean() < 6
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


@pytest.mark.slow
def test_the_filmed_episode_is_repeated_by_its_seed(small_run, tmp_path, monkeypatch):
    """Without pictures: the same seed gives the same episode, drawn at the same steps."""
    drawn = []
    monkeypatch.setattr("gpld.envs._make.choose", lambda task, backend, render: "dm_control")
    monkeypatch.setattr("gpld.envs._dm_control.choose_renderer", lambda render: None)
    monkeypatch.setattr(
        "gpld.envs._dm_control.DMControlStream.render",
        lambda stream, height, width: drawn.append(stream._env._step_count) or pictures(1)[0],
    )
    first, second = _films.record_films(small_run, tmp_path / "a", 5, films=2)
    steps = drawn[: len(drawn) // 2]
    # 100 of 501 agent steps, of two env steps each, from the first to the last.
    assert (len(steps), steps[0], steps[-1]) == (100, 0, 1000)
    assert set(np.diff(steps)) == {10, 12}
    assert drawn == steps * 2
    drawn.clear()
    (again,) = _films.record_films(small_run, tmp_path / "b", 6, frames=4)
    assert drawn == [0, 334, 666, 1000]
    assert second.gif.name == "film-1.gif"
    assert second.episode_return == again.episode_return != first.episode_return
    drawn.clear()
    _films.record_films(small_run, tmp_path / "c", 5, limit=4)
    assert drawn == [0, 2, 4, 6]


@pytest.mark.parametrize("off", ["off", "disable"])
def test_drawing_turned_off_by_training_does_not_reach_the_films_process(
    small_run, tmp_path, monkeypatch, off
):
    seen = {}

    def run(command, env, **_):
        seen.update(env)
        raise _films.subprocess.TimeoutExpired(command, 1.0)

    monkeypatch.setattr(_films.subprocess, "run", run)
    monkeypatch.setenv("MUJOCO_GL", off)
    with pytest.raises(films.NoFilm, match="took more than 30 s"):
        films.film(small_run, tmp_path, timeout=30.0)
    assert "MUJOCO_GL" not in seen
    assert seen["JAX_PLATFORMS"] == "cpu"


@pytest.mark.slow
def test_an_environment_that_does_not_render_is_told_so(small_run, tmp_path, monkeypatch):
    """It takes no `render_mode`, or draws nothing though it was given one."""
    (tmp_path / "blind.py").write_text(BLIND)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("Deaf", "Blind"):
        run = tmp_path / name
        shutil.copytree(small_run, run)
        config = dataclasses.replace(options.load(run / "config.json"), task=f"gym:blind:{name}-v0")
        options.save(config, run / "config.json")
        with pytest.raises(films.NoFilm, match=r"^this environment does not render"):
            films.film(run, tmp_path)


BLIND = """
import gymnasium
from tests.training.helpers import Pole

class Blind(Pole):
    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return None

gymnasium.register("Deaf-v0", lambda: Pole())
gymnasium.register("Blind-v0", Blind)
"""


@pytest.mark.parametrize(
    ("errors", "task", "output"),
    [
        (
            "Traceback\nImportError: no GL\n",
            "walker-walk",
            "ImportError: no GL. MuJoCo renders with EGL",
        ),
        (
            "DependencyNotInstalled: pip install pygame\n",
            "gym:Pendulum-v1",
            "DependencyNotInstalled: pip install ",
        ),
        ("gpld.training.CheckpointError: damaged: x\n", "walker-walk", "damaged: x"),
        ("", "gym:Pendulum-v1", "the process that renders was killed"),
    ],
)
def test_reasons(errors, task, output):
    reason = _films._explain(errors, task)
    assert reason.startswith(output)
    assert ("apt install" in reason) == ("GL" in errors)


# Commands


def made_of(out, number):
    name = f"film-{number}" if number else "film"
    return films.Film(out / f"{name}.gif", out / f"{name}.png", 3.21, out / f"{name}.mp4")


@pytest.mark.parametrize(
    ("flags", "count", "frames"), [([], 1, 100), (["--films", "0", "--frames", "7"], 2, 7)]
)
def test_eval_films_with_its_seed(small_run, tmp_path, monkeypatch, capsys, flags, count, frames):
    asked = []

    def film(run, out, **options):
        asked.append((run, out, options))
        return [made_of(out, i) for i in range(options["films"])]

    monkeypatch.setattr("gpld.films.film", film)
    arguments = ["eval", str(small_run), "--episodes", "2", "--video", "--seed", "8", "--out", str(tmp_path)]
    assert cli.main([*arguments, "--limit", "3", *flags]) == 0
    assert asked == [(small_run, tmp_path, {"films": count, "frames": frames, "limit": 3, "seed": 8})]
    output = capsys.readouterr().out.splitlines()
    files = (
        f"film: {tmp_path / 'film.mp4'}, {tmp_path / 'film.gif'}, some of its frames: {tmp_path / 'film.png'}"
    )
    assert output[-count] == f"{files} (return 3.2)"
    assert len([line for line in output if line.startswith("film: ")]) == count


def test_eval_goes_on_without_a_film(small_run, tmp_path, monkeypatch, capsys):
    def film(*_, **__):
        raise films.NoFilm("no screen")

    monkeypatch.setattr("gpld.films.film", film)
    assert cli.main(["eval", str(small_run), "--episodes", "2", "--video", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "gpld eval: no film: no screen\n"
    assert (tmp_path / "evaluation.json").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--films", "-1"], "films: -1 is not allowed; it must be at least 0 and at most 1000"),
        (["--films", "3"], "films: nothing is filmed without --video"),
        (["--frames", "50"], "frames: nothing is filmed without --video or --dream"),
        (["--frames", "0"], "frames: 0 is not allowed; it must be at least 1 and at most 10000"),
    ],
)
def test_mistakes(small_run, capsys, flags, message):
    assert cli.main(["eval", str(small_run), *flags]) == 2
    assert capsys.readouterr().err == f"gpld eval: {message}\n"


# Predictions


def side(rng, shape=(16, 16, 3)):
    """A made-up trajectory of 12 steps and two episodes, of images and of one number."""
    obs = {
        "view": np.full((12, 2, *shape), 90, np.uint8),
        "time": rng.uniform(size=(12, 2, 1)).astype(np.float32),
    }
    obs["view"][:, :, 4:8, 4:8] = rng.integers(256, size=(12, 2, 1, 1, 3))
    return open_loop.Trajectory(obs, rng.uniform(size=(12, 2)).astype(np.float32))


@pytest.fixture
def seer(tmp_path, monkeypatch):
    """An agent that sees, and what it is made to predict."""
    rng = np.random.default_rng(0)
    found = open_loop.OpenLoop(side(rng), side(rng), 5)
    spaces = Spaces.of({"view": (16, 16, 3), "time": (1,)}, 1, images=["view"])
    monkeypatch.setattr("gpld.analysis.open_loop.open_loop", lambda trained, **_: found)
    return saved.Trained(tmp_path / "run", Config("walker-walk"), spaces, None, 1000, 10), found


def test_predictions_of_images_are_films(seer, tmp_path):
    trained, found = seer
    made = films.film_predictions(trained, tmp_path / "out")
    names = [f"open-loop{name}" for name in ("-view.mp4", "-view.gif", "-view.png", ".pdf", ".png")]
    assert [path.name for path in made] == names
    shown = open_loop.pictures(found, "view")
    assert shown.shape[1:] == (3 * 132, 2 * 132 - 4, 3)
    for frames in (decode_mp4(made[0])[0], decode_gif(made[1])[0]):
        assert len(frames) == 12
        for frame, picture in zip(frames, shown, strict=True):
            assert frame.shape == picture.shape
            assert np.median(np.abs(frame.astype(int) - picture)) <= 3
    strip = read(made[2])
    first = open_loop.pictures(found, "view", 1)[0]
    np.testing.assert_array_equal(strip[:, : first.shape[1]], first)
    np.testing.assert_array_equal(first[4:132, :128], shown[0, 4:132, :128])
    with Image.open(made[4]) as figure:
        assert figure.text["Description"].startswith("walker-walk, 1,000 env steps, seed 0; ")


def test_predictions_without_a_codec_are_gifs(seer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    made = films.film_predictions(seer[0], tmp_path)
    assert [path.name for path in made] == [
        "open-loop-view.gif",
        "open-loop-view.png",
        "open-loop.pdf",
        "open-loop.png",
    ]


@pytest.mark.slow
def test_eval_predicts_from_states(small_run, tmp_path, capsys):
    flags = ["--episodes", "2", "--open-loop", "--out", str(tmp_path)]
    assert cli.main(["eval", str(small_run), *flags]) == 0
    pdf, png = (tmp_path / f"open-loop.{suffix}" for suffix in ("pdf", "png"))
    assert capsys.readouterr().out.splitlines()[-1] == f"predictions: {pdf}, {png}"
    assert pdf.read_bytes().startswith(b"%PDF")
    assert len(np.unique(read(png).reshape(-1, 4), axis=0)) > 50


def test_eval_tells_why_there_are_no_predictions(small_run, tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise films.NoPredictions("an episode ended after 3 steps")

    monkeypatch.setattr("gpld.films.film_predictions", refuse)
    arguments = ["--episodes", "2", "--open-loop", "--out", str(tmp_path)]
    assert cli.main(["eval", str(small_run), *arguments]) == 1
    assert capsys.readouterr().err == "gpld eval: no predictions: an episode ended after 3 steps\n"


# Finished runs


@pytest.mark.parametrize("board", [True, False])
def test_a_finished_run_is_filmed_and_tensorboard_shows_it(small_run, tmp_path, monkeypatch, board):
    def film(run, out, *, timeout):
        assert timeout == 90
        picture_files.save_gif(out / "film.gif", pictures(3))
        picture_files.save_strip(out / "film.png", pictures(3))
        return [made_of(out, 0)]

    def predict(trained, out):
        picture_files.save_strip(out / "open-loop.png", pictures(2))
        return [out / "open-loop.pdf", out / "open-loop.png"]

    trained = saved.load(small_run)
    config = override(trained.config, {"log": {"tensorboard": board}})
    monkeypatch.setattr(_films.saved, "load", lambda folder: trained._replace(config=config))
    monkeypatch.setattr(_films, "film", film)
    monkeypatch.setattr(_films, "film_predictions", predict)
    output = list(films.film_finished(tmp_path))
    assert output[0] == str(made_of(tmp_path, 0))
    assert output[1] == f"predictions: {tmp_path / 'open-loop.pdf'}, {tmp_path / 'open-loop.png'}"
    shown = [(value.tag, event.step) for event in events(tmp_path) for value in event.summary.value]
    names = ["films/film", "films/film-frames", "films/open-loop-frames"] if board else []
    assert shown == [(name, 400) for name in names]


def test_a_run_that_cannot_be_filmed_says_why(small_run, monkeypatch):
    def no_film(*_, **__):
        raise films.NoFilm("no screen")

    def no_predictions(*_):
        raise films.NoPredictions("too short")

    monkeypatch.setattr(_films, "film", no_film)
    monkeypatch.setattr(_films, "film_predictions", no_predictions)
    assert list(films.film_finished(small_run)) == ["no film: no screen", "no predictions: too short"]


def test_only_what_is_told_in_words_is_passed_over():
    def fail(error):
        raise error

    assert films.attempt("film", lambda: 3) == (3, "")
    output = [films.NoFilm("no screen"), films.NoPredictions("too short"), CheckpointError("damaged")]
    assert [films.attempt("film", lambda error=error: fail(error)) for error in output] == [
        (None, "no film: no screen"),
        (None, "no film: too short"),
        (None, "no film: damaged"),
    ]
    with pytest.raises(ValueError, match="a mistake"):
        films.attempt("film", lambda: fail(ValueError("a mistake")))
