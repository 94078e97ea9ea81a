"""Progress of the measurement of a profile."""

import pytest

import chunk_grpo as cg
from chunk_grpo.library.profiles import profiled
from chunk_grpo.parallel import Workers, exhaust


@pytest.mark.parametrize("with_ode", [False, True])
def test_a_profile_is_at_its_end_when_every_sampler_has_taken_its_steps(
    model: cg.Model, capsys: pytest.CaptureFixture[str], with_ode: bool
) -> None:
    prompts = model.encode(["a red circle", "a blue square"])
    sampling = model.sampling(num_steps=4, shift=3.0)
    capsys.readouterr()
    exhaust(profiled(model.base, prompts, range(2), sampling, 3, Workers.alone(), with_ode=with_ode))
    assert capsys.readouterr().err.splitlines()[-1] == "profiling: 4/4, 0 s left"
