"""N6: the learning rate is exact at every step, and a resumed run finds it by the step alone."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.config import from_overrides, validate
from bertworks.errors import ConfigError
from bertworks.recipe import OptimSettings
from bertworks.train.optim import learning_rate, learning_rate_by_clock

SCHEDULES = ("linear", "cosine", "wsd", "constant")


def rates(total, **values):
    settings = OptimSettings(**values)
    return [learning_rate(settings, step, total) for step in range(total + 1)]


def test_the_papers_rate_rises_to_step_10_000_and_falls_to_0_at_the_end():
    settings = OptimSettings()
    found = [learning_rate(settings, step, 1_000_000) for step in (0, 1, 5_000, 9_999, 10_000, 500_000, 999_999, 10**6)]
    # The decay is that of the whole run: where the warm-up ends, 1 % of it is over.
    assert found == pytest.approx([0, 1e-8, 5e-5, 9.999e-5, 9.9e-5, 5e-5, 1e-10, 0], rel=1e-9, abs=0)


def test_the_linear_rate_is_the_originals_formula_at_every_step():
    found = rates(400, lr=3e-4, warmup=30)
    assert found == [3e-4 * (step / 30 if step < 30 else 1 - step / 400) for step in range(401)]


def test_the_cosine_is_gpt_1s_at_every_step():
    found = rates(400, lr=1.0, schedule="cosine", warmup=30)
    assert found[:30] == [step / 30 for step in range(30)]
    assert found[30:] == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 400)) for step in range(30, 401)])
    assert found[400] == 0


def test_wsd_rises_stays_and_falls():
    found = rates(400, lr=1.0, schedule="wsd", warmup=30, decay_share=0.25)
    assert found[:30] == [step / 30 for step in range(30)]
    assert found[30:301] == [1.0] * 271
    assert found[300:] == pytest.approx([(400 - step) / 100 for step in range(300, 401)])


def test_constant_stays_after_the_warmup():
    assert rates(50, lr=2e-3, schedule="constant", warmup=4) == [0, 5e-4, 1e-3, 1.5e-3, *[2e-3] * 47]


@pytest.mark.parametrize(
    ("share", "total", "steps"), [(0.1, 1_000, 100), (0.1, 1_009, 100), (0.06, 99, 5), (0.1, 9, 0)]
)
def test_a_share_of_the_run_is_rounded_down_to_whole_steps(share, total, steps):
    """As the original's run_classifier does with warmup_proportion."""
    found = rates(total, lr=1.0, schedule="constant", warmup=share)
    assert found == [step / steps if step < steps else 1.0 for step in range(total + 1)]


@given(
    st.sampled_from(SCHEDULES),
    st.integers(1, 300),
    st.floats(0, 0.999) | st.integers(1, 400).map(float),
    st.floats(0.01, 1),
)
def test_every_rate_rises_then_never_rises_again(schedule, total, warmup, decay_share):
    decay_share = min(decay_share, 1 - warmup) if warmup < 1 else decay_share
    decay = {"decay_share": decay_share} if schedule == "wsd" else {}
    found = rates(total, lr=1.0, schedule=schedule, warmup=warmup, **decay)
    assert all(0 <= rate <= 1 for rate in found)
    warm = int(warmup) if warmup >= 1 else int(warmup * total)
    assert found[:warm] == sorted(set(found[:warm]))
    assert found[warm:] == sorted(found[warm:], reverse=True)
    if warm <= total and schedule != "constant":
        assert found[total] == 0


@given(st.sampled_from(SCHEDULES), st.integers(0, 1_000), st.sampled_from([0.0, 100.0, 300.0]))
def test_by_the_clock_a_share_of_the_time_is_a_share_of_the_steps(schedule, step, warmup):
    settings = OptimSettings(schedule=schedule, warmup=warmup, clock=True)
    assert learning_rate_by_clock(settings, step, step / 1_000) == learning_rate(settings, step, 1_000)


def test_by_the_clock_warmup_is_a_share_of_the_time_or_a_number_of_steps():
    by_time, by_steps = OptimSettings(lr=1.0, warmup=0.1), OptimSettings(lr=1.0, warmup=10)
    assert learning_rate_by_clock(by_time, step=500, share=0.05) == pytest.approx(0.5)
    assert learning_rate_by_clock(by_time, step=3, share=0.1) == pytest.approx(0.9)
    assert learning_rate_by_clock(by_steps, step=5, share=0.05) == 0.5
    assert learning_rate_by_clock(by_steps, step=10, share=0.05) == 0.95


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_an_update_after_the_end_of_the_time_has_rate_0(schedule):
    settings = OptimSettings(schedule=schedule, warmup=0, clock=True)
    assert learning_rate_by_clock(settings, 10, 1.3) == learning_rate(settings, 13, 10) == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "sgd"}, "name: 'sgd' is not allowed; choose 'adam', 'adamw' or 'lamb'"),
        ({"schedule": "step"}, "schedule: 'step' is not allowed"),
        ({"lr": 0.0}, "lr: 0.0 is too small; more than 0"),
        ({"lr": float("nan")}, "lr: nan"),
        ({"beta2": 1.0}, "beta2: 1.0 is too large; less than 1"),
        ({"eps": 0.0}, "eps: 0.0 is too small; more than 0"),
        ({"clip": -1.0}, "clip: -1.0 is too small; at least 0"),
        ({"weight_decay": -0.01}, "weight_decay: -0.01 is too small"),
        ({"warmup": -1}, "warmup: -1 is too small; at least 0"),
        ({"warmup": 10.5}, "warmup: 10.5 is neither a whole number of steps nor, less than 1, a share of the run"),
        ({"schedule": "wsd", "warmup": 0.5, "decay_share": 0.6}, "warmup: 0.5 and decay_share 0.6 are more than 1"),
        ({"decay_share": 0.5}, "decay_share: 0.5 is for schedule wsd, and the schedule is linear; leave it out"),
        ({"warm_up": 5}, "did you mean 'warmup'?"),
    ],
)
def test_wrong_settings_are_told_by_name_value_and_rule(values, said):
    with pytest.raises(ConfigError) as caught:
        validate(OptimSettings, values, "optim")
    assert said in str(caught.value)


def test_settings_come_from_the_command_line_as_from_a_recipe():
    found = from_overrides(OptimSettings, ["warmup=2000", "schedule=cosine", "lr=2.5e-4", "clock=true"], "optim")
    assert found == OptimSettings(warmup=2_000, schedule="cosine", lr=2.5e-4, clock=True)
