"""Makes vector environments from a task's name or a factory."""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from gpld.config import ConfigError
from gpld.envs._base import EnvironmentFailure, RenderingError, VectorEnv, Worker, stream_seed
from gpld.envs._catalog import has_envpool, in_catalog, tasks
from gpld.envs._dm_control import (
    DMControlPixels,
    DMControlStream,
    choose_renderer,
    needs_renderer,
    rendering_message,
)
from gpld.envs._jax import FRAMES, JaxEnv, jax_task
from gpld.envs._process import Hosts
from gpld.envs._serial import SerialEnv
from gpld.envs._stream import MakeStream, Stream
from gpld.machine import cores, install
from gpld.tasks import GYM_PREFIX, JAX_PREFIX, POOL_PREFIX

log = logging.getLogger("gpld.envs")

BACKENDS = ("auto", "envpool", "dm_control", "gymnasium")


def make(
    task: str | Callable[[], Any],
    *,
    count: int,
    seed: int,
    action_repeat: int = 2,
    backend: Literal["auto", "envpool", "dm_control", "gymnasium"] = "auto",
    threads: int = 0,
    processes: int = 0,
    evaluation: bool = False,
    render: bool = False,
    pixels: bool = False,
    timeout: float | None = 120.0,
    restart_limit: int = 10,
    check: bool = True,
    share: int = 1,
    hosts: Hosts | None = None,
    pickles: bool = False,
    limit: int = FRAMES,
    kwargs: Mapping[str, Any] | None = None,
) -> VectorEnv:
    """A vector environment of `count` streams.

    `task` is a task of the suite (`walker-walk`), one of Gymnasium's registry (`gym:Pendulum-v1`), one of
    EnvPool's (`envpool:Ant-v4`), one written in JAX (`jax:module:name`; `limit` is the env steps after which
    its episodes are cut), or a function without arguments that returns a `gymnasium.Env`. `backend="auto"`
    takes EnvPool for the benchmark's tasks where it exists, and dm_control for the rest of the suite.
    `evaluation` gives other seeds than training's; `render` allows `env.render`; `pixels` gives images of
    the suite's tasks instead of states, drawn by dm_control. `threads` is EnvPool's for the suite (0: one a
    core). `processes` is dm_control's: 1 is this one, more are others beside it (0: one a core for images,
    this one for states). `share` is how many such environments share the cores, and `hosts` keeps the
    processes for the next one. For environments written in Python, `timeout` (seconds) and `restart_limit`
    are as `SerialEnv` describes, and `check` tries a Gymnasium environment for a few steps first, to explain
    mistakes. `pickles` lets them save states that are more than arrays and JSON, and run what such a state
    holds when it is restored. `kwargs` are arguments of an environment in Gymnasium's or EnvPool's registry.
    """
    _at_least(1, count=count, action_repeat=action_repeat, share=share, limit=limit)
    _at_least(0, seed=seed, threads=threads, processes=processes)
    own_cores = min(count, -(-cores() // share))
    chosen = choose(task, backend, render or pixels)
    if pixels and (chosen == "gymnasium" or _is_of(POOL_PREFIX, task)):
        raise ConfigError(f"pixels are for tasks of the suite; let {task} give images as observations")
    if chosen == "envpool":
        own = {"count": count, "seed": seed, "action_repeat": action_repeat, "evaluation": evaluation}
        return _envpool(str(task), threads or own_cores, render, kwargs, **own)
    seeds = partial(stream_seed, seed, evaluation=evaluation)
    if chosen == "jax":
        return JaxEnv(jax_task(str(task), action_repeat, limit), [*map(seeds, range(count))], restart_limit)
    watch = {"timeout": timeout, "restart_limit": restart_limit, "pickles": pickles}
    if chosen == "gymnasium":
        make_stream = _of_gymnasium(task, seeds, render, timeout, check, kwargs)
        return SerialEnv(make_stream, count=count, action_repeat=action_repeat, **watch)
    processes_of = {"hosts": hosts or Hosts(), "keep_hosts": hosts is not None}
    workers = min(count, processes or (own_cores if pixels else 1))
    drawing = {"render": render, "pixels": pixels}
    return _of_suite(str(task), seeds, count, action_repeat, workers, **drawing, **processes_of, **watch)


def _of_suite(task: str, *streams: Any, render: bool, pixels: bool, **options: Any) -> VectorEnv:
    """A task of dm_control's suite, or why there is none."""
    try:
        return _suite(task, *streams, render=render, pixels=pixels, **options)
    except (ConfigError, EnvironmentFailure):
        raise
    except Exception as error:  # of whatever kind: MuJoCo, dm_control and PyOpenGL have many
        needs_gl = render or pixels or needs_renderer(task)
        reason = rendering_message(error) if needs_gl else f"{type(error).__name__}: {error}"
        raise EnvironmentFailure(f"{task} cannot be made here: {reason}") from error


def _envpool(
    task: str, threads: int, render: bool, kwargs: Mapping[str, Any] | None, **own: Any
) -> VectorEnv:
    """A task of the benchmark on EnvPool, or one of EnvPool's own."""
    from gpld.envs._envpool import EnvPoolEnv, EnvPoolTask

    if _is_of(POOL_PREFIX, task):
        return EnvPoolTask(task, **own, render=render, kwargs=kwargs)
    return EnvPoolEnv(task, **own, threads=threads)


def _suite(
    task: str,
    seeds: Callable[..., int],
    count: int,
    action_repeat: int,
    processes: int,
    *,
    render: bool,
    pixels: bool,
    hosts: Hosts,
    **watch: Any,
) -> VectorEnv:
    if importlib.util.find_spec("dm_control") is None:
        raise ConfigError(f"task: {task!r} needs dm_control, which is not installed: {install('suite')}")
    # Before there are processes that would all try.
    choose_renderer(render=render or pixels or needs_renderer(task))
    taken = hosts.take(processes if processes > 1 else 0)
    stream = partial(DMControlStream, task, render=render)
    if pixels:
        stream = partial(DMControlPixels, task, action_repeat=action_repeat)
        action_repeat = 1  # of what is a step of theirs already

    def make_stream(index: int, restart: int) -> Stream:
        make_here = partial(stream, seed=seeds(index, restart=restart))
        return taken[index % len(taken)].stream(index, make_here) if taken else make_here()

    return SerialEnv(make_stream, count=count, action_repeat=action_repeat, hosts=taken, **watch)


def _at_least(minimum: int, **options: int) -> None:
    for name, value in options.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")


def _of_gymnasium(
    task: str | Callable[[], Any],
    seeds: Callable[..., int],
    render: bool,
    timeout: float | None,
    check: bool,
    kwargs: Mapping[str, Any] | None,
) -> MakeStream:
    from gpld.envs._gymnasium import GymnasiumStream, registered

    factory = task
    if isinstance(task, str):
        factory = registered(task.removeprefix("gym:"), render=render, kwargs=kwargs)
    if check:
        _check_env(factory, timeout)
    return lambda stream, restart: GymnasiumStream(
        factory, lambda episode: seeds(stream, restart=restart, episode=episode)
    )


def _is_of(prefix: str, task: str | Callable[[], Any]) -> bool:
    return isinstance(task, str) and task.startswith(prefix)


def choose(task: str | Callable[[], Any], backend: str = "auto", render: bool = False) -> str:
    """The backend that a task gets."""
    if backend not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    own, pool = not isinstance(task, str) or task.startswith(GYM_PREFIX), _is_of(POOL_PREFIX, task)
    if _is_of(JAX_PREFIX, task):
        if render:
            raise RenderingError(f"{task} does not render: no environment written in JAX does")
        if backend != "auto":
            raise ConfigError(f"backend {backend!r} does not fit task {task!r}, which needs none")
        return "jax"
    if pool and backend in ("auto", "envpool") and not has_envpool():
        raise ConfigError(f"task: {task!r} needs EnvPool, made for Linux on x86-64: {install('suite')}")
    if backend == "auto":
        if own:
            return "gymnasium"
        fast = pool or (has_envpool() and in_catalog(str(task)) and not render)
        return "envpool" if fast else "dm_control"
    problem = ""
    if own != (backend == "gymnasium"):
        problem = f"backend {backend!r} does not fit task {task!r}: gymnasium is for gym:ID and factories"
    elif pool:
        if backend != "envpool":
            problem = f"backend {backend!r} does not fit task {task!r}: only envpool has it"
    elif backend == "envpool" and not has_envpool():
        problem = "backend 'envpool' is not installed, or made for Linux on x86-64 only; use 'dm_control'"
    elif backend == "envpool" and render:
        problem = "backend 'envpool' does not render; use 'dm_control' for pictures"
    elif backend == "envpool" and not in_catalog(str(task)):
        names = ", ".join(t.name for t in tasks())
        problem = f"backend 'envpool' has no task {task!r}, only {names}; 'dm_control' has the whole suite"
    if problem:
        raise ConfigError(problem)
    return backend


def _check_env(factory: Callable[[], Any], timeout: float | None) -> None:
    from gpld.envs._check import check

    worker = Worker()
    try:
        issues = worker.submit(partial(check, factory, steps=30)).result(timeout)
    except TimeoutError:
        raise EnvironmentFailure(f"30 steps of this environment took more than {timeout:g} s") from None
    finally:
        worker.close()
    if errors := [str(f) for f in issues if f.level == "error"]:
        raise EnvironmentFailure("\n".join(["this environment cannot be used:", *errors]))
    for issue in issues:
        log.warning("%s", issue)
