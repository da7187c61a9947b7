"""Every option of an agent and a run, with its default and a line of help."""

import ast
import json
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the networks. The defaults are the paper's 12M agent."""

    deter: int = 2048
    """D: width of the deterministic latent h."""
    hidden: int = 256
    """Width of the hidden layers inside the dynamics."""
    stoch: int = 32
    """K: number of categorical variables in z."""
    classes: int = 16
    """C: classes of each categorical variable."""
    units: int = 256
    """Width of the encoder, decoder and head layers."""
    depth: int = 16
    """Images: channels of the convolutions, which have 2, 3, 4 and 4 times as many."""
    blocks: int = 8
    """Blocks of the block-diagonal recurrent layers; must divide deter."""
    prior_layers: int = 2
    """Hidden layers from h to the prior."""
    posterior_layers: int = 1
    """Hidden layers from [h, e] to the posterior."""
    encoder_layers: int = 3
    """Hidden layers of the vector encoder."""
    decoder_layers: int = 3
    """Hidden layers of the vector decoder."""
    reward_layers: int = 1
    """Hidden layers of the reward head."""
    continue_layers: int = 1
    """Hidden layers of the continue head."""
    policy_layers: int = 3
    """Hidden layers of the policy."""
    value_layers: int = 3
    """Hidden layers of the value."""
    bins: int = 255
    """Bins of the reward and value distributions; odd."""
    unimix: float = 0.01
    """Share of the uniform distribution mixed into prior and posterior."""


@dataclass(frozen=True)
class LossConfig:
    """Weights of the world-model loss."""

    reconstruction: float = 1.0
    """Weight of the observation loss."""
    reward: float = 1.0
    """Weight of the reward loss."""
    cont: float = 1.0
    """Weight of the continue loss."""
    dyn: float = 1.0
    """Weight of the KL that trains the prior."""
    rep: float = 0.1
    """Weight of the KL that trains the posterior."""
    free_nats: float = 1.0
    """KL below which neither KL term trains anything, in nats."""


@dataclass(frozen=True)
class BehaviorConfig:
    """Imagination, returns, actor and critic."""

    horizon: int = 25
    """H: imagined steps from every replayed state."""
    discount_horizon: int = 333
    """Effective horizon of the discount, in agent steps: discount is 1 - 1/this."""
    learned_discount: bool = True
    """Let the continue head predict the discount too, instead of multiplying by it."""
    trace: float = 0.95
    """Lambda of the lambda-returns."""
    entropy: float = 3e-4
    """Weight of the policy's entropy."""
    min_std: float = 0.1
    """Smallest standard deviation of a continuous policy."""
    max_std: float = 1.0
    """Largest standard deviation of a continuous policy."""
    slow_rate: float = 0.02
    """Rate at which the slow value follows the value, each update."""
    slow_weight: float = 1.0
    """Weight of the value loss towards the slow value's prediction."""
    slow_target: bool = False
    """Bootstrap imagined returns with the slow value instead of the value."""
    replay_value: float = 0.3
    """Weight of the value loss on replayed sequences."""
    return_rate: float = 0.01
    """Rate of the running percentiles that normalise returns."""
    return_low: float = 5.0
    """Lower percentile of the return range."""
    return_high: float = 95.0
    """Upper percentile of the return range."""
    return_limit: float = 1.0
    """Smallest return range divided by."""


@dataclass(frozen=True)
class OptimizerConfig:
    """One LaProp optimiser for all modules."""

    learning_rate: float = 4e-5
    """Learning rate after warm-up."""
    behavior_rate: float = 1.0
    """Learning rate of policy and value, in multiples of it."""
    warmup: int = 1000
    """Updates of linear warm-up."""
    clip: float = 0.3
    """Adaptive gradient clipping: largest ratio of a tensor's gradient norm to its own norm."""
    clip_floor: float = 1e-3
    """Smallest parameter norm used by the clipping."""
    beta1: float = 0.9
    """Decay of the momentum, which comes after the scaling."""
    beta2: float = 0.999
    """Decay of the running mean square."""
    eps: float = 1e-20
    """Added to the root mean square."""


@dataclass(frozen=True)
class PenaltyConfig:
    """The gradient penalty on the latent probability maps."""

    posterior: float = 0.5
    """lambda_post: initial weight of the posterior penalty; 0 for both is DreamerV3."""
    prior: float = 0.0
    """lambda_prior: initial weight of the prior penalty."""
    rho: float = 0.5
    """Fraction of the B*T states on which the penalty is evaluated."""
    estimator: Literal["probes", "vjp", "exact"] = "probes"
    """Random probes (Algorithm 1) in closed form or by vector-Jacobian products; or the exact norm."""
    probes: int = 1
    """Probes per row and state."""
    noise: Literal["rademacher", "gaussian"] = "rademacher"
    """Distribution of the probes."""
    rows: int = 0
    """Rows (categorical variables) penalised; 0 for all K."""
    random_rows: bool = False
    """Draw those rows at random for each update instead of taking the first ones."""
    scaling: Literal["sampled", "all"] = "sampled"
    """Average over the sampled states (Algorithm 1), or over all with zeros elsewhere (the authors' code)."""
    schedule: Literal["sqrt", "none", "linear", "exponential", "cosine", "step", "custom"] = "sqrt"
    """How the weights decay over updates."""
    scale: float = 1000.0
    """c0: updates after which the square-root schedule has fallen to 1/sqrt(2)."""
    floor: float = 0.001
    """Smallest weight while the penalty is on; unused by 'none'."""
    start: int = 0
    """Updates before the penalty starts."""
    decay_steps: int = 100_000
    """Updates over which linear, exponential and cosine decay."""
    step_interval: int = 10_000
    """Updates between the drops of the step schedule."""
    step_factor: float = 0.5
    """Factor of each drop of the step schedule."""
    custom: tuple[tuple[int, float], ...] = ()
    """(update, weight) pairs of the custom schedule."""


@dataclass(frozen=True)
class AgentConfig:
    """The agent: everything a compiled update depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    behavior: BehaviorConfig = field(default_factory=BehaviorConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    penalty: PenaltyConfig = field(default_factory=PenaltyConfig)
    compute: Literal["float32", "bfloat16"] = "float32"
    """Type of activations and matrix products; parameters, losses and probabilities are float32."""
    unroll: int = 1
    """Most steps of a recurrent scan compiled into one loop body: faster on GPUs, slower to compile."""
    kernels: Literal["auto", "fused", "plain"] = "auto"
    """Fused GPU kernels (fused), plain JAX (plain), or what is faster on this device (auto)."""


@dataclass(frozen=True)
class EnvConfig:
    """The training environments."""

    count: int = 16
    """Environments stepped together."""
    action_repeat: int = 2
    """Env steps that each action is held for; their rewards are summed."""
    pixels: bool = False
    """Observe 64x64 images of the suite's tasks instead of states, drawn by dm_control."""
    threads: int = 0
    """Threads that step the suite in EnvPool; 0 for one per core."""
    processes: int = 0
    """Processes that step dm_control: 1 for the one that trains, 0 for one per core with pixels, else 1."""
    restarts: int = 10
    """Restarts of broken environments before the run stops; EnvPool's need none."""
    timeout: float = 120.0
    """Seconds after which a step that has not returned counts as broken."""
    limit: int = 1000
    """Env steps after which an episode of a task jax:module:name is cut; others have limits of their own."""
    kwargs: tuple[str, ...] = ()
    """Arguments of gym:Name-v0 or envpool:Name-v0, NAME=VALUE: a number, true, false, [a list] or text."""
    pickle: bool = False
    """Pickle states that are more than arrays; resuming then runs what is in them: only your own folders."""

    @property
    def keyword_arguments(self) -> dict[str, Any]:
        """The arguments in `kwargs`, by name."""
        return {name: _value(text) for name, _, text in (word.partition("=") for word in self.kwargs)}


def _value(text: str) -> Any:
    """A value in JSON or as Python writes it; anything else is a text."""
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return read(text)
    return text


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer, and how much of it is trained on."""

    capacity: int = 5_000_000
    """The most agent steps stored; the oldest are overwritten."""
    batch: int = 16
    """B: sequences in a batch."""
    length: int = 64
    """T: agent steps in a sequence."""
    min_steps: int = 1024
    """Agent steps stored before training starts."""
    train_ratio: float = 512.0
    """Replayed steps trained on for each agent step taken."""
    online: bool = True
    """Train on every new sequence once, soon after it was seen, before uniform samples."""
    storage: Literal["auto", "device", "host"] = "auto"
    """Where the steps are stored; auto prefers the device and falls back to host memory."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training, in environments of its own."""

    every: int = 5000
    """Agent steps between evaluations; 0 for none."""
    episodes: int = 3
    """Episodes of each evaluation; the mean return of all is reported."""
    limit: int = 100_000
    """Agent steps after which an episode is cut off; its return so far counts."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, which a run is resumed from."""

    minutes: float = 10.0
    """Minutes between checkpoints."""
    keep: int = 2
    """Most recent checkpoints kept."""
    milestones: int = 0
    """Agent steps between models that are never removed, in milestones/ (12m: 39 MB each); 0 for none."""


@dataclass(frozen=True)
class LogConfig:
    """Where metrics go besides metrics.jsonl in the run folder."""

    every: int = 100
    """Updates between two lines of training metrics."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    films: int = 10
    """Agents from images: film every N-th evaluation, for TensorBoard; 0 for none."""
    wandb: bool = False
    """Log to Weights & Biases (needs the wandb extra)."""
    wandb_project: str = "gpld"
    """Project there."""
    wandb_entity: str = ""
    """User or team there; empty for the default of your account."""
    wandb_name: str = ""
    """Name of the run there; empty for that of its folder."""


@dataclass(frozen=True)
class Config:
    """A run: an agent, a task, and everything that decides what happens.

    An agent step is one stored step, the first observation of an episode included; it lasts `action_repeat`
    env steps. Every count says which of env steps, agent steps and updates it is in.
    """

    task: str
    """Task: domain-task of the suite (walker-walk), gym:Name-v0, envpool:Name-v0, or jax:module:name."""
    seed: int = 0
    """Seed of everything random in the run."""
    backend: Literal["auto", "envpool", "dm_control", "gymnasium"] = "auto"
    """Engine that runs the task; auto takes the fastest that has it."""
    env_steps: int = 1_000_000
    """Env steps to train for (agent steps times the action repeat)."""
    init_from: str = ""
    """Trained run that this one takes parts of: FOLDER, FOLDER@STEP for a saved step, NAME@demo, or a URL."""
    init: str = ""
    """Those parts, by name or pattern: encoder,dynamics.p*; empty for encoder,decoder. The rest is fresh."""
    max_skipped: int = 20
    """Updates in a row skipped for non-finite numbers before the run stops."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    @property
    def agent_steps(self) -> int:
        """Agent steps of the whole run."""
        return self.env_steps // self.env.action_repeat

    def updates_at(self, agent_steps: int) -> int:
        """Updates due once `agent_steps` have been taken.

        A function of the count alone, so that the same steps are followed by the same updates on a fast and
        on a slow machine, and before and after a resume. Steps before training starts are not made up for.
        """
        # A first sequence is complete one step after `length` steps of every environment.
        start = max(self.replay.min_steps, self.env.count * self.replay.length)
        trained_steps = max(0, agent_steps - start)
        return int(trained_steps * self._updates_per_agent_step)

    @property
    def _updates_per_agent_step(self) -> Fraction:
        return Fraction(self.replay.train_ratio) / (self.replay.batch * self.replay.length)
