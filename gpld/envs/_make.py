"""Makes vector environments from a task's name or a factory."""

import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal

from gpld.config import ConfigError, check_backend
from gpld.envs._base import (
    EnvironmentFailure,
    RenderingError,
    Stream,
    VectorEnv,
    Worker,
    stream_seed,
)
from gpld.envs._catalog import has_dm_control, has_envpool, in_catalog, load_envpool, tasks
from gpld.envs._check import check as check_env
from gpld.envs._dm_control import (
    DMControlPixels,
    DMControlStream,
    choose_renderer,
    needs_renderer,
    rendering_message,
)
from gpld.envs._gymnasium import Factory, GymnasiumStream, registered
from gpld.envs._jax import FRAMES, JaxEnv, jax_task
from gpld.envs._process import Host, Hosts
from gpld.envs._serial import SerialEnv
from gpld.machine import cores, install
from gpld.tasks import GYM_PREFIX, JAX_PREFIX, POOL_PREFIX

log = logging.getLogger("gpld.envs")


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
    takes EnvPool for the benchmark's tasks where it can be imported, and dm_control for the rest of the
    suite. `evaluation` gives other seeds than training's; `render` allows `env.render`; `pixels` gives images
    of the suite's tasks instead of states, drawn by dm_control. `threads` is EnvPool's for the suite (0: one
    a core). `processes` is dm_control's: 1 is this one, more are others beside it (0: one a core for images,
    this one for states). `share` is how many such environments share the cores, and `hosts` keeps the
    processes for the next one. For environments written in Python, `timeout` (seconds) and `restart_limit`
    are as `SerialEnv` describes, and `check` tries a Gymnasium environment for a few steps first, to explain
    mistakes (of EnvPool's, two seeds). `pickles` lets them save more than arrays and JSON, and run what such
    a state holds when it is restored. `kwargs` are arguments of one in Gymnasium's or EnvPool's registry.
    """
    _at_least(1, count=count, action_repeat=action_repeat, share=share, limit=limit)
    _at_least(0, seed=seed, threads=threads, processes=processes)
    own_cores = min(count, -(-cores() // share))
    chosen, is_pool = choose(task, backend, render or pixels), str(task).startswith(POOL_PREFIX)
    if pixels and (chosen == "gymnasium" or is_pool):
        raise ConfigError(f"pixels are for tasks of the suite; let {task} give images as observations")
    if chosen == "envpool":
        from gpld.envs._envpool import EnvPoolEnv, EnvPoolTask

        own = {"count": count, "seed": seed, "action_repeat": action_repeat, "evaluation": evaluation}
        if is_pool:
            return EnvPoolTask(str(task), **own, render=render, check=check, kwargs=kwargs)
        return EnvPoolEnv(str(task), **own, threads=threads or own_cores)
    seeds = partial(stream_seed, seed, evaluation=evaluation)
    if chosen == "jax":
        return JaxEnv(jax_task(str(task), action_repeat, limit), [*map(seeds, range(count))], restart_limit)
    watch = {"count": count, "timeout": timeout, "restart_limit": restart_limit, "pickles": pickles}
    if chosen == "gymnasium":
        factory = registered(task.removeprefix("gym:"), render, kwargs) if isinstance(task, str) else task
        if check:
            _check_env(factory, timeout)
        return _of_factory(factory, seeds, str(task), action_repeat=action_repeat, **watch)
    workers = min(count, processes or (own_cores if pixels else 1))
    return _suite(str(task), seeds, action_repeat, render, pixels, workers, hosts, **watch)


def _of_factory(factory: Factory, seeds: Callable[..., int], name: str, **watch: Any) -> VectorEnv:
    """A Gymnasium environment, whose every episode has its own seed, or why there is none."""

    def make_stream(index: int, restart: int) -> Stream:
        return GymnasiumStream(factory, lambda episode: seeds(index, restart=restart, episode=episode))

    try:
        return SerialEnv(make_stream, **watch)
    except (ConfigError, EnvironmentFailure):
        raise
    except Exception as error:  # of whatever kind: what its constructor does is its own affair
        raise EnvironmentFailure(f"{name} cannot be made here: {type(error).__name__}: {error}") from error


def _suite(
    task: str,
    seeds: Callable[..., int],
    action_repeat: int,
    render: bool,
    pixels: bool,
    processes: int,
    hosts: Hosts | None,
    **watch: Any,
) -> VectorEnv:
    """A task of dm_control's suite, or why there is none."""
    if not has_dm_control():
        raise ConfigError(f"task: {task!r} needs dm_control, which is not installed: {install('suite')}")
    draws = render or pixels or needs_renderer(task)
    stream = partial(DMControlStream, task, render=render)
    if pixels:
        stream = partial(DMControlPixels, task, action_repeat=action_repeat)
        action_repeat = 1  # of what is a step of theirs already
    taken: list[Host] = []

    def make_stream(index: int, restart: int) -> Stream:
        make_here = partial(stream, seed=seeds(index, restart=restart))
        return taken[index % len(taken)].stream(index, make_here) if taken else make_here()

    try:
        choose_renderer(render=draws)  # before there are processes that would all try
        taken += (hosts or Hosts()).take(processes if processes > 1 else 0)
        kept = {"hosts": taken, "keep_hosts": hosts is not None}
        return SerialEnv(make_stream, action_repeat=action_repeat, **kept, **watch)
    except (ConfigError, EnvironmentFailure):
        raise
    except Exception as error:  # of whatever kind: MuJoCo, dm_control and PyOpenGL have many
        reason = rendering_message(error) if draws else f"{type(error).__name__}: {error}"
        raise EnvironmentFailure(f"{task} cannot be made here: {reason}") from error


def _at_least(minimum: int, **options: int) -> None:
    for name, value in options.items():
        if value < minimum:
            raise ValueError(f"{name} must be at least {minimum}, not {value}")


def choose(task: str | Callable[[], Any], backend: str = "auto", render: bool = False) -> str:
    """The backend that a task gets."""
    name = task if isinstance(task, str) else f"{GYM_PREFIX}{task}"
    check_backend(name, backend)
    if name.startswith(GYM_PREFIX):
        return "gymnasium"
    if name.startswith(JAX_PREFIX):
        if render:
            raise RenderingError(f"{task} does not render: no environment written in JAX does")
        return "jax"
    if name.startswith(POOL_PREFIX):
        if not has_envpool():
            raise ConfigError(f"task: {task!r} needs EnvPool, which is not installed: {install('suite')}")
        return "envpool"
    if backend == "auto":
        fast = has_envpool() and in_catalog(name) and not render and _envpool_works()
        return "envpool" if fast else "dm_control"
    if backend == "envpool":
        if not has_envpool():
            raise ConfigError(f"backend 'envpool' is not installed: {install('suite')}, or use 'dm_control'")
        if render:
            raise ConfigError("backend 'envpool' does not render; use 'dm_control' for pictures")
        if not in_catalog(name):
            names = f"only {', '.join(t.name for t in tasks())}; 'dm_control' has the whole suite"
            raise ConfigError(f"backend 'envpool' has no task {task!r}, {names}")
    return backend


@cache
def _envpool_works() -> bool:
    """Whether EnvPool can be imported; where it cannot, say why once, unless nothing can stand in for it."""
    try:
        load_envpool()
    except ConfigError as problem:
        if not has_dm_control():
            raise
        log.warning("%s. dm_control takes its place, which is slower", str(problem).removeprefix("task: "))
        return False
    return True


def _check_env(factory: Callable[[], Any], timeout: float | None) -> None:
    worker = Worker()
    try:
        issues = worker.submit(partial(check_env, factory, steps=30)).result(timeout)
    except TimeoutError:
        raise EnvironmentFailure(f"30 steps of this environment took more than {timeout:g} s") from None
    finally:
        worker.close()
    if errors := [str(f) for f in issues if f.level == "error"]:
        raise EnvironmentFailure("\n".join(["this environment cannot be used:", *errors]))
    for issue in issues:
        log.warning("%s", issue)
