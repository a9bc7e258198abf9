import numpy as np
import pytest

from hardware.limits import JointLimiter, average_window, braking_speed, limit_gripper

DT = 0.01


def limiter(jerk=1e9, low=-1.0, high=1.0, velocity=1.5, acceleration=8.0):
    one = np.ones(1)
    return JointLimiter(
        low=low * one,
        high=high * one,
        velocity=velocity * one,
        acceleration=acceleration * one,
        jerk=jerk * one,
        dt_s=DT,
    )


def test_braking_speed_covers_a_triangular_number_of_steps():
    # a Δ² = 8e-4: three steps of 3, 2, 1 times that cover 6 * 8e-4 = 4.8e-3 rad, from 3 * 0.08 rad/s.
    assert braking_speed(np.array([4.8e-3]), np.array([8.0]), DT) == pytest.approx([0.24])


def test_first_step_is_one_acceleration_step_and_a_near_target_is_hit_exactly():
    far, near = limiter(), limiter()
    far.seed(np.zeros(1))
    near.seed(np.zeros(1))
    assert far.step(np.array([0.9])) == pytest.approx([0.08 * DT])
    assert near.step(np.array([5e-4])) == pytest.approx([5e-4])


def test_a_target_with_known_speed_is_followed_without_lag():
    # 0.4 rad/s needs 5 ticks at 8 rad/s²; without feed-forward the lag would stay v²/2a = 0.01 rad.
    joint = limiter()
    joint.seed(np.zeros(1))
    for tick in range(1, 81):
        target = np.array([0.4 * DT * tick])
        output = joint.step(target, 1.0, np.array([0.4]))
    assert output == pytest.approx(target, abs=1e-9)


def test_step_of_one_radian_arrives_without_overshoot_at_the_three_limits():
    joint = limiter(jerk=80.0)
    joint.seed(np.zeros(1))
    path = np.array([joint.step(np.array([0.9]))[0] for _ in range(150)])
    speed = np.diff(path, prepend=0.0) / DT
    acceleration = np.diff(speed, prepend=0.0) / DT
    jerk = np.diff(acceleration, prepend=0.0) / DT
    assert path[-1] == pytest.approx(0.9)
    assert path.max() <= 0.9 + 1e-12
    assert np.abs(speed).max() <= 1.5 + 1e-9
    assert np.abs(acceleration).max() <= 8.0 + 1e-6
    assert np.abs(jerk).max() <= 80.0 * 1.1


def test_window_is_acceleration_over_jerk_in_ticks():
    assert average_window(np.array([8.0]), np.array([80.0]), DT) == 10
    assert average_window(np.array([7.5]), np.array([3750.0]), DT) == 1


def test_seed_outside_the_bounds_moves_only_inward():
    joint = limiter()
    joint.seed(np.array([1.04]))
    path = np.array([joint.step(np.array([1.5]))[0] for _ in range(100)])
    assert (np.diff(path, prepend=1.04) <= 1e-12).all()
    assert path[-1] == pytest.approx(1.0)


def test_brake_stops_within_v_squared_over_two_a_and_rests():
    joint = limiter(low=-9.0, high=9.0)
    joint.seed(np.zeros(1))
    for _ in range(60):
        joint.step(np.array([8.0]))
    start = joint.output.copy()
    for _ in range(30):
        joint.brake()
    assert joint.at_rest()
    assert 0 < joint.output[0] - start[0] <= 1.5**2 / (2 * 8.0) + 1e-9


def test_gripper_is_clamped_to_stroke_and_rate():
    assert limit_gripper(0.2, 0.02, low_m=0.0, high_m=0.08, step_m=0.002) == pytest.approx(0.022)
    assert limit_gripper(-1.0, 0.001, low_m=0.0, high_m=0.08, step_m=0.002) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_random_targets_never_leave_the_limits(seed):
    rng = np.random.default_rng(seed)
    n = 4
    velocity, acceleration = rng.uniform(0.2, 3.0, n), rng.uniform(1.0, 20.0, n)
    jerk = rng.uniform(20.0, 5000.0, n)
    low, high = -rng.uniform(0.01, 1.0, n), rng.uniform(0.01, 1.0, n)
    joints = JointLimiter(low=low, high=high, velocity=velocity, acceleration=acceleration, jerk=jerk, dt_s=DT)
    joints.seed(rng.uniform(low, high))
    path, target, speed = [joints.output], np.zeros(n), np.zeros(n)
    for index in range(1500):
        if index % rng.integers(1, 40) == 0:
            target, speed = rng.uniform(-3, 3, n), rng.choice([0.0, 1.0]) * rng.uniform(-4, 4, n)
        path.append(joints.brake() if rng.random() < 0.05 else joints.step(target, rng.uniform(0.1, 1.0), speed))
    path = np.array(path)
    speed = np.diff(path, axis=0, prepend=path[:1]) / DT
    assert (path >= low - 1e-9).all() and (path <= high + 1e-9).all()
    assert (np.abs(speed) <= velocity + 1e-9).all()
    assert (np.abs(np.diff(speed, axis=0)) <= acceleration * DT + 1e-9).all()
