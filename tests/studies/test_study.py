import dataclasses

import pytest

from gpld import memory, studies
from gpld.analysis import cost
from gpld.config import PER_RUN, ConfigError, flat
from gpld.envs._dm_control import PIXELS
from gpld.studies import _estimate, _study
from gpld.tasks import DMC, LOCOMOTION, PROPRIO, QUADRUPED
from tests.studies.helpers import TEXT, small

NAMES = {
    "proprio",
    "locomotion",
    "locomotion-short",
    "variants-short",
    "quadruped",
    "pixels",
    "pixels-short",
    "ablation-rho-posterior",
    "ablation-rho-prior",
    "ablation-lambda",
    "ablation-decay",
    "ablation-estimator",
    "warm-start",
    "cost",
    "sensitivity",
    "smoke",
}
ABLATION_TASKS = ("walker-run", "hopper-hop", "cheetah-run")


def settings(name, *options):
    """What the methods of a study set some options of the penalty to."""
    study = studies.get(name)
    configs = {method: study.config(study.tasks[0], method, 0) for method in study.methods}
    return {
        method: tuple(getattr(c.agent.penalty, option) for option in options) for method, c in configs.items()
    }


def test_the_papers_studies_are_all_there():
    assert set(studies.names()) == NAMES


@pytest.mark.parametrize(
    ("name", "tasks", "env_steps"),
    [
        ("proprio", PROPRIO, (1_000_000, 2_000_000)),
        ("locomotion", LOCOMOTION, (1_000_000,)),
        ("quadruped", QUADRUPED, (4_000_000,)),
        ("pixels", DMC, (1_000_000,)),
        ("ablation-lambda", ABLATION_TASKS, (1_000_000,)),
    ],
)
def test_tasks_steps_and_seeds_are_the_papers(name, tasks, env_steps):
    study = studies.get(name)
    assert study.tasks == tasks
    assert study.env_steps == env_steps
    assert study.seeds == (0, 1, 2, 3, 4)


def test_methods_and_ablations_are_the_papers():
    assert settings("proprio", "posterior", "prior", "rho", "schedule", "scale", "floor") == {
        "DreamerV3": (0.0, 0.0, 0.5, "sqrt", 1000.0, 0.001),
        "GPLD-DreamerV3": (0.5, 0.0, 0.5, "sqrt", 1000.0, 0.001),
    }
    off = {"DreamerV3": (0.0, 0.0)}
    posterior, prior = (
        settings(f"ablation-rho-{side}", "posterior", "prior", "rho") for side in ("posterior", "prior")
    )
    assert [posterior[f"rho {rho:g}"] for rho in (0.25, 0.5, 0.75, 1)] == [
        (0.5, 0.0, rho) for rho in (0.25, 0.5, 0.75, 1.0)
    ]
    assert [prior[f"rho {rho:g}"] for rho in (0.25, 0.5, 0.75, 1)] == [
        (0.0, 0.5, rho) for rho in (0.25, 0.5, 0.75, 1.0)
    ]
    pairs = [(0.25, 0.0), (0.5, 0.0), (0.0, 0.5), (0.25, 0.25), (0.5, 0.5), (0.75, 0.75)]
    weights = {f"({a:g}, {b:g})": (a, b) for a, b in pairs}
    assert settings("ablation-lambda", "posterior", "prior") == off | weights
    assert set(settings("ablation-decay", "schedule").values()) == {("sqrt",), ("none",)}
    assert set(settings("ablation-estimator", "estimator", "scaling").values()) == {
        (estimator, scaling) for estimator in ("probes", "exact") for scaling in ("sampled", "all")
    }


@pytest.mark.parametrize("name", sorted(NAMES - {"ablation-estimator", "variants-short"}))
def test_studies_have_the_papers_penalty_as_printed(name):
    assert set(settings(name, "scaling", "floor", "start").values()) == {("sampled", 0.001, 0)}


@pytest.mark.parametrize("name", ["ablation-rho-posterior", "ablation-rho-prior"])
def test_ablations_of_rho_hold_the_strength_fixed_and_say_so(name):
    purpose = " ".join(studies.get(name).purpose.split())
    assert "rho changes how many states are seen and not how strong the penalty is" in purpose
    assert "its weight is rho times lambda, and rho changes its strength too" in purpose


LAUNCHED = {"method": "gpld-launched"}


@pytest.mark.parametrize(("presets", "floor"), [(["nano"], 0.1), (["nano", "pixels"], 0.01)])
def test_any_study_can_add_a_named_method_with_options_over_it(presets, floor):
    joint = LAUNCHED | {"agent": {"penalty": {"prior": 0.5}}}
    methods = {"DreamerV3": {"method": "dreamerv3"}, "launched": LAUNCHED, "joint": joint}
    plan = small(presets=presets, methods=methods)
    penalties = {run.method: run.config.agent.penalty for run in plan.runs}
    found = {name: (p.posterior, p.prior, p.scaling, p.floor) for name, p in penalties.items()}
    assert found == {
        "DreamerV3": (0.0, 0.0, "sampled", 0.001),
        "launched": (0.5, 0.0, "all", floor),
        "joint": (0.5, 0.5, "all", floor),
    }
    # They are trained side by side, in one program for each task.
    assert [len(group.runs) for group in plan.groups] == [6, 6]


@pytest.mark.parametrize("name", sorted(NAMES - {"cost"}))
def test_groups_hold_every_run_once_and_share_all_but_what_may_differ(name):
    study = studies.get(name)
    plan = studies.plan(study)
    expected = {(t, m, s) for t in study.tasks for m in study.methods for s in study.seeds}
    runs = [(run.task, run.method, run.seed) for run in plan.runs]
    assert len(runs) == len(expected)
    assert set(runs) == expected
    assert len({run.name for run in plan.runs}) == len(runs)
    assert len({group.name for group in plan.groups}) == len(plan.groups)
    for group in plan.groups:
        assert len(group.runs) <= 10
        shared = [{k: v for k, v in flat(run.config).items() if k not in PER_RUN} for run in group.runs]
        assert all(one == shared[0] for one in shared)


def test_a_warm_start_has_one_run_of_each_task_to_begin_with():
    study = studies.get("warm-start")
    plan = studies.plan(study)
    assert [(start.task, start.name) for start in plan.starts] == [
        (task, f"{task}/start/seed0") for task in ("hopper-hop", "quadruped-walk")
    ]
    for start in plan.starts:
        # 250k agent steps of the baseline, from pixels as all are.
        assert (start.config.agent_steps, start.config.env.pixels) == (250_000, True)
        assert start.config.agent.penalty.posterior == start.config.agent.penalty.prior == 0.0
    assert [group.start for group in plan.groups] == [*plan.starts]
    assert {run.config.env_steps for run in plan.runs} == {1_000_000}
    assert studies.estimate(plan).runs == 22


def test_estimates_know_the_size_of_images_without_drawing_one():
    start, *_ = studies.plan(studies.get("warm-start")).starts
    assert _estimate.spaces_of(start.config).obs == (("image", (PIXELS, PIXELS, 3)),)


def test_the_cost_is_that_of_the_papers_settings_timed_together():
    plan = studies.plan(studies.get("cost"))
    (group,) = plan.groups
    assert [cost.setting_of(run.config) for run in group.runs] == [cost.BASELINE, *cost.paper_settings()]
    assert "less than 0.1 GPU-hours" in str(studies.estimate(plan))


def test_the_comparison_of_a_task_is_one_program():
    assert [len(group.runs) for group in studies.plan(studies.get("proprio")).groups] == [10] * 18


def test_more_seeds_leave_the_names_of_runs_and_groups_as_they_were():
    few, many = small(), small(seeds=[3, 4, 5])
    assert {run.name for run in few.runs} < {run.name for run in many.runs}
    assert [group.name for group in few.groups] == [group.name for group in many.groups]


def test_a_plan_survives_its_file(tmp_path):
    plan = small(start={"env_steps": 600})
    assert {start.config.env_steps for start in plan.starts} == {600}
    plan.write(tmp_path)
    again = studies.read_plan(tmp_path)
    assert again.groups == plan.groups
    assert dataclasses.asdict(again.study) == dataclasses.asdict(plan.study)


def test_a_users_file_is_a_study(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    study = studies.get(path)
    assert (study.name, study.title, next(iter(study.methods))) == ("mine", "Small", "DreamerV3")
    config = study.config("walker-walk", "half, rho 1", 4)
    assert (config.seed, config.env_steps, config.agent.penalty.rho) == (4, 1200, 1.0)


def test_runs_are_scored_where_all_environments_have_made_their_steps():
    study = _study.parse(TEXT.replace("env_steps = ", "env_steps = [250_001, 250_002, 500_000] # "), "mine")
    env = study.config("walker-walk", "half, rho 1", 4).env
    together = env.count * env.action_repeat
    assert together > 2
    assert all(step % together == 0 for step in study.env_steps)
    assert [-(-step // together) * together for step in (250_001, 500_000)] == list(study.env_steps)


@pytest.mark.parametrize("name", studies.names())
def test_runs_of_our_studies_end_where_they_are_scored(name):
    study = studies.get(name)
    for task in study.tasks:
        for method in study.methods:
            env = study.config(task, method, study.seeds[0]).env
            steps = (*study.env_steps, study.start.env_steps)
            assert not any(step % (env.count * env.action_repeat) for step in steps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": []}, "tasks: .* at least one task"),
        ({"seeds": [1, 1]}, "seeds: .* different seeds"),
        ({"env_steps": [200, 100]}, "env_steps: .* increasing"),
        ({"env_steps": ["many"]}, r"env_steps\[0\]: 'many' is not of type int"),
        ({"baseline": "nobody"}, "baseline: 'nobody' is not allowed; it must be one of its methods"),
        ({"figures": ["pie"]}, r"figures\[0\]: 'pie' is not one of aggregate"),
        ({"films": ["dog-run"]}, "films: .* some of its tasks"),
        (
            {"start": {"env_steps": 600, "method": "nobody"}},
            "start.method: 'nobody' is not allowed; it must be one of its methods, ",
        ),
        ({"start": {"env_steps": -5}}, "start.env_steps: -5 is not allowed; it must be at least 0"),
        (
            {"start": {"env_steps": 600, "init": "encoder, encodr"}},
            "start.init: 'encoder, encodr' is not allowed; it must be some of encoder, dynamics, decoder, ",
        ),
        ({"options": {"task": "cheetah-run"}}, "options: task is not set here, but by the study's tasks"),
        ({"options": {"env_steps": 5}}, "options: env_steps is not set here, but by the study's env_steps"),
        (
            {"methods": {"DreamerV3": {"seed": 1}}},
            "DreamerV3: seed is not set here, but by the study's seeds",
        ),
        ({"methods": [1]}, r"methods: \[1\] is not a group of options"),
        ({"methods": [1], "sweep": {"seed": [1]}}, r"methods: \[1\] is not a group of options"),
        ({"start": {"steps": 600}}, "start.steps: no such option"),
        ({"work": "rest"}, "work: 'rest' is not one of train, time"),
        ({"speed": 3}, "speed: no such option"),
        ({"methods": {"DreamerV3": 3}}, "DreamerV3: 3 is not a group of options"),
        (
            {"methods": {"DreamerV3": {"method": "dreamer"}}},
            "small, cartpole-balance, DreamerV3: method: 'dreamer' is not a method; did you mean dreamerv3",
        ),
        (
            {"methods": {"DreamerV3": {"method": 3}}},
            "method: 3 is not a method",
        ),
        (
            {"methods": {"DreamerV3": LAUNCHED}, "options": {"agent": {"penalty": {"posterior": 0.0}}}},
            "posterior: 0.0 is not allowed with method gpld-launched",
        ),
        (
            {"options": {"agent": {"penalti": {}}}},
            "cartpole-balance, DreamerV3: agent.penalti: no such option",
        ),
        ({"presets": ["tiny"]}, "preset: 'tiny' is not a preset"),
        ({"methods": {"DreamerV3": {}, "a b": {}, "a/b": {}}}, "names of methods are too similar"),
        ({"methods": {"DreamerV3": {}, "..": {}}}, r"methods: '\.\.' is not allowed; it must have a letter"),
        (
            {"methods": {"DreamerV3": {}, "start": {}}, "start": {"env_steps": 600}},
            "methods: 'start' is not allowed",
        ),
    ],
)
def test_mistakes_in_a_file_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        small(**changes)


def test_a_study_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="did you mean proprio"):
        studies.get("propio")
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read"):
        studies.get("nowhere.toml")
    with pytest.raises(ConfigError, match="x is not a TOML file"):
        _study.parse("title = ", "x")


@pytest.mark.slow
def test_an_estimate_is_in_proportion_to_what_was_measured():
    whole = studies.estimate(studies.plan(studies.get("proprio")))
    part = studies.estimate(studies.plan(studies.get("locomotion")))
    assert (whole.runs, whole.groups) == (180, 18)
    assert whole.updates == 180 * 499_488
    # Ten runs in a program: a little faster than the eight that were measured at 3.00 ms.
    assert whole.gpu_hours == pytest.approx(180 * 499_488 * 2.85e-3 / 3600, rel=0.03)
    assert part.gpu_hours == pytest.approx(whole.gpu_hours / 6, rel=0.02)
    # A finished run keeps two checkpoints of parameters, the slow value and two averages; 9.7M floats each.
    assert whole.disk / 180 == pytest.approx(2 * 3.1 * 4 * 9.7e6, rel=0.1)
    assert whole.disk_at_work > 10 * 1_000_000 * 2048 * 2  # the replay's h of ten runs alone
    kept = studies.plan(dataclasses.replace(studies.get("locomotion"), keep_replay=True))
    assert studies.estimate(kept).disk > 15 * part.disk
    seldom = dataclasses.replace(studies.get("locomotion"), options={"checkpoint": {"milestones": 50_000}})
    # Ten models of 500k agent steps, of parameters alone.
    more = studies.estimate(studies.plan(seldom)).disk - part.disk
    assert more / 60 == pytest.approx(10 * 4 * 9.7e6, rel=0.05)


@pytest.mark.parametrize(("members", "ms"), [(1, 13.30), (4, 8.94)])
def test_an_update_from_images_takes_what_was_measured(members, ms):
    """See results/update-pixels.json."""
    config = studies.get("pixels").config("walker-run", "GPLD-DreamerV3", 0)
    parameters = memory.memory_estimate(config, _estimate.spaces_of(config)).gradients // 8
    assert _estimate.update_ms(config, parameters, members) == pytest.approx(ms, rel=2e-3)


SWEPT = """
tasks = ["walker-run"]
seeds = [0, 1]
presets = ["nano"]

[sweep]
agent.optimizer.learning_rate = [1e-3, 3e-3]
preset = ["1m", "12m"]
"""


def test_a_sweep_is_a_method_for_each_setting():
    study = _study.parse(SWEPT, "swept")
    names = [f"learning_rate={rate},preset={size}" for rate in ("0.001", "0.003") for size in ("1m", "12m")]
    assert list(study.methods) == names
    assert study.baseline == names[0]
    config = study.config("walker-run", names[3], 1)
    assert (config.agent.optimizer.learning_rate, config.agent.model.deter, config.env.count) == (
        3e-3,
        2048,
        4,
    )
    planned = studies.plan(study)
    assert sorted(len(group.runs) for group in planned.groups) == [4, 4]  # sizes are programs, rates are not
    assert f"walker-run/{names[3]}/seed0" in {run.name for run in planned.runs}


def test_a_sweep_of_methods_that_a_file_names():
    text = SWEPT + '\n[methods.GPLD]\n[methods.Dreamer]\nmethod = "dreamerv3"\n'
    study = _study.parse(text.replace("presets", 'baseline = "Dreamer"\npresets'), "swept")
    assert len(study.methods) == 8
    assert study.baseline == "Dreamer, learning_rate=0.001,preset=1m"
    assert study.config("walker-run", study.baseline, 0).agent.penalty.posterior == 0.0
    assert _study.from_dict(dataclasses.asdict(study), "swept") == study  # as a plan keeps it


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sweep = 3", "sweep: 3 is not a group of options"),
        ("[sweep]", "sweep: no option is named"),
        ("[sweep]\nagent.loss.dyn = 3", "sweep: agent.loss.dyn: 3 is not a list of values"),
        (
            "[sweep]\nagent.loss.dny = [3]",
            "sweep: agent.loss.dny: no such option; did you mean agent.loss.dyn",
        ),
        ('[sweep]\ntask = ["walker-run"]', "sweep: task cannot be swept here; tasks names them"),
        (
            "[options]\nagent.loss.dyn = 1\n[sweep]\nagent.loss.dyn = [3]",
            "sweep: agent.loss.dyn is swept, and options sets it too",
        ),
        (
            "[methods.A]\nagent.loss.dyn = 1\n[sweep]\nagent.loss.dyn = [3]",
            "sweep: agent.loss.dyn is swept, and A sets it too",
        ),
    ],
)
def test_mistakes_in_a_sweep_are_named(line, message):
    with pytest.raises(ConfigError) as told:
        _study.parse(f'tasks = ["walker-run"]\n{line}\n', "mine")
    assert str(told.value).startswith(f"study: mine: {message}")
