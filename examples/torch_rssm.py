"""GPLD in a small PyTorch world model: a recurrent state-space model of a pendulum, with and without penalty.

    pip install '.[torch]'
    python examples/torch_rssm.py

The lines that add the penalty to the model are in `penalty_of`. Both models start from the same parameters
and see the same data; the table shows what the penalty does to the posterior's Jacobian, and at what cost.
"""

import argparse
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpld.penalty import torch as penalty

DETER, HIDDEN, ROWS, CLASSES, OBS = 64, 64, 8, 8, 3
BATCH, LENGTH, RHO = 16, 16, 0.5


class Result(NamedTuple):
    """A trained model's losses on unseen sequences."""

    reconstruction: float
    kl: float
    jacobian: float
    """Mean over states and rows of the squared Frobenius norm of the posterior's Jacobian."""


class Head(nn.Module):
    """Linear, RMS norm, SiLU, linear: logits of K categorical distributions."""

    def __init__(self, inputs: int):
        super().__init__()
        self.first = nn.Linear(inputs, HIDDEN)
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-4)
        self.out = nn.Linear(HIDDEN, ROWS * CLASSES)

    def forward(self, u: Tensor) -> Tensor:
        """Log-probabilities `[..., K, C]`, with 1% of the uniform distribution mixed in."""
        logits = self.out(functional.silu(self.norm(self.first(u)))).unflatten(-1, (ROWS, CLASSES))
        return (0.99 * logits.softmax(-1) + 0.01 / CLASSES).log()

    def described(self) -> penalty.Head:
        """This head as the closed form of the penalty takes it."""
        hidden = penalty.Hidden(self.first.weight.T, self.first.bias, self.norm.weight)
        return penalty.Head((hidden,), penalty.Output(self.out.weight.T, self.out.bias), rows=ROWS)


class WorldModel(nn.Module):
    """A recurrent latent h and a stochastic latent z, inferred from h and the observation."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(OBS, HIDDEN), nn.SiLU())
        self.gru = nn.GRUCell(ROWS * CLASSES, DETER)
        self.posterior, self.prior = Head(DETER + HIDDEN), Head(DETER)
        self.decoder = nn.Sequential(
            nn.Linear(DETER + ROWS * CLASSES, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, OBS)
        )

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruction loss and KL of `obs [T, B, 3]`, and posterior inputs u = [h, e], `[T * B, d]`."""
        h = obs.new_zeros(obs.shape[1], DETER)
        z = obs.new_zeros(obs.shape[1], ROWS * CLASSES)
        states, latents, posteriors, inputs = [], [], [], []
        for e in self.encoder(obs):
            h = self.gru(z, h)
            inputs.append(torch.cat([h, e], -1))
            logp = self.posterior(inputs[-1])
            sample = functional.one_hot(torch.distributions.Categorical(logits=logp).sample(), CLASSES)
            z = (sample + logp.exp() - logp.exp().detach()).flatten(1)  # straight-through gradients
            states.append(h)
            latents.append(z)
            posteriors.append(logp)
        h, z, post = torch.stack(states), torch.stack(latents), torch.stack(posteriors)
        reconstruction = (self.decoder(torch.cat([h, z], -1)) - obs).square().sum(-1).mean()
        prior = self.prior(h)
        kl = (post.exp() * (post - prior)).sum((-1, -2)).clamp(min=1.0).mean()
        return reconstruction, kl, torch.cat(inputs)


def penalty_of(model: WorldModel, u: Tensor, generator: torch.Generator) -> Tensor:
    """GPLD: one sign probe per row on half of the states (Algorithm 1 of the paper), in closed form."""
    head = model.posterior.described()
    sampled = u[penalty.sample_states(len(u), RHO, generator)]
    probes = penalty.draw_probes((1, len(sampled), ROWS, CLASSES), generator=generator)
    values = penalty.closed_form(head, penalty.first_preactivation(head, sampled), probes)
    return penalty.average(values, len(u))


def pendulum(batch: int) -> Tensor:
    """Noisy sine, cosine and speed of swinging pendulums, `[T, B, 3]`."""
    angle, speed = 2 * torch.randn(batch), torch.randn(batch)
    steps = []
    for _ in range(LENGTH):
        speed = speed - 0.3 * torch.sin(angle) - 0.02 * speed
        angle = angle + 0.3 * speed
        steps.append(torch.stack([torch.sin(angle), torch.cos(angle), speed], -1))
    clean = torch.stack(steps)
    return clean + 0.05 * torch.randn_like(clean)


def train(weight: float, steps: int, seed: int = 0) -> Result:
    """Train a model with a penalty of this initial weight (0: none), and measure it on unseen sequences."""
    torch.manual_seed(seed)
    probing = torch.Generator().manual_seed(seed)  # of its own, so that both models see the same data
    model = WorldModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for update in range(steps):
        reconstruction, kl, u = model(pendulum(BATCH))
        loss = reconstruction + 0.1 * kl
        if weight > 0:
            loss = loss + penalty.coefficient("sqrt", update, weight) * penalty_of(model, u, probing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.manual_seed(seed + 1)
    reconstruction, kl, u = model(pendulum(4 * BATCH))
    head = model.posterior.described()
    jacobian = penalty.closed_form(head, penalty.first_preactivation(head, u)).mean()
    return Result(reconstruction.item(), kl.item(), jacobian.item())


def main(arguments: list[str] | None = None) -> dict[float, Result]:
    """Train both models and print what became of them."""
    parser = argparse.ArgumentParser(description="A small PyTorch world model with and without GPLD.")
    parser.add_argument("--steps", type=int, default=300, help="updates of each model")
    parser.add_argument("--weight", type=float, default=0.5, help="initial weight of the penalty")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # with operations this small, a second thread only waits
    results = {weight: train(weight, options.steps, options.seed) for weight in (0.0, options.weight)}
    print(f"{'penalty':>8} {'reconstruction':>15} {'KL (nats)':>10} {'|Jacobian|^2 per row':>21}")
    for weight, result in results.items():
        print(f"{weight:8g} {result.reconstruction:15.4f} {result.kl:10.3f} {result.jacobian:21.5f}")
    return results


if __name__ == "__main__":
    main()
