import pytest

from tests import scripts

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def example():
    return scripts.load("examples/torch_rssm.py")


@pytest.mark.slow
def test_the_penalty_smooths_the_posterior_and_the_model_still_learns(example, capsys):
    results = example.main(["--steps", "40", "--weight", "0.5"])
    untrained = example.train(0.0, steps=0)
    assert results[0.5].jacobian < untrained.jacobian < results[0.0].jacobian
    assert results[0.5].jacobian < 0.5 * results[0.0].jacobian
    for result in results.values():
        assert result.reconstruction < 0.8 * untrained.reconstruction
    assert len(capsys.readouterr().out.splitlines()) == 3
