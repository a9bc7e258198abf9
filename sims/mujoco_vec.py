"""The native simulator: E MuJoCo environments stepped by mujoco.rollout's thread pool, all else batched numpy.

One call into C++ per control step runs every substep of every environment. An environment's future depends on its own
state and generator alone, never on E, on the thread that ran it, or on its neighbours.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout
from numpy.typing import NDArray

from sims.arm_model import make_arm
from sims.base import BoolArray, Feature, FloatArray, Seed, SimSpec, Step
from sims.checks import check_state, checked_action, checked_mask
from sims.controllers import MAX_REFERENCE_ERROR_RAD
from sims.cores import usable_cores
from sims.episode_book import EpisodeBook
from sims.mujoco_pictures import MujocoPictures
from sims.mujoco_randomization import MujocoRandomization, holding_action
from sims.randomize import RandomizeConfig
from sims.render import Renderer
from sims.scene import SceneLayout
from sims.scene import load_model as load_model  # noqa: PLC0414  the engine's scenes, for those who look here
from sims.task_samplers import ParameterSampler
from sims.tasks import make_task
from sims.tasks.base import SceneView, state_observation

log = logging.getLogger(__name__)

CONTROL_HZ = 20.0
MAX_SPEED = 100.0
"""Joint or object speed (rad/s, m/s) beyond which a state counts as diverged; nothing here moves at a tenth of it."""
PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS
CONTROL_AND_FIXTURES = int(
    mujoco.mjtState.mjSTATE_CTRL | mujoco.mjtState.mjSTATE_MOCAP_POS | mujoco.mjtState.mjSTATE_MOCAP_QUAT
)


class MujocoVec:
    """``VecSim`` over MuJoCo: see sims/base.py for the contract."""

    def __init__(  # noqa: PLR0913  the task, the arm, and what a YAML file may say of each
        self,
        task: str = "lift",
        num_envs: int = 64,
        *,
        arm: str = "franka",
        action_mode: str = "ee_delta",
        num_threads: int | None = None,
        max_episode_steps: int | None = None,
        dense_reward: bool = False,
        terminate_on_success: bool = True,
        randomize: RandomizeConfig | Mapping[str, Any] | None = None,
        sampler: str | Mapping[str, Any] | ParameterSampler = "uniform",
        cameras: Sequence[str] = (),
        image_size: int = 64,
        render_workers: int = 1,
        seed: int = 0,
    ) -> None:
        """arm: ``franka``, … (sims/arm_model.py). num_threads: default one per usable core. max_episode_steps: default
        the task's own limit. randomize: ranges of what varies from episode to episode (sims/randomize.py); sampler: who
        chooses (sims/task_samplers.py). cameras: those seen as entries image_<camera>, image_size pixels square, drawn
        by render_workers processes (0: in the calling thread).
        """
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least one environment is needed")
        self.task = make_task(task)
        self.layout = SceneLayout(self.task, make_arm(arm), action_mode=action_mode, control_hz=CONTROL_HZ)
        self.model = self.layout.model
        self.dense_reward, self.terminate_on_success = dense_reward, terminate_on_success
        self._substeps = round(1.0 / (CONTROL_HZ * self.model.opt.timestep))
        threads = num_threads or usable_cores()
        self._pool = Rollout(nthread=threads)
        self._workers = [mujoco.MjData(self.model) for _ in range(threads)]
        self._random = self._randomization(RandomizeConfig.of(randomize), sampler, num_envs, seed)
        self._pictures: MujocoPictures | None = None
        if cameras:
            self._pictures = MujocoPictures(
                self.model, cameras, size=image_size, num_envs=num_envs, num_workers=render_workers
            )
        self._spec = self._describe(action_mode, max_episode_steps)
        self._allocate(num_envs)
        try:
            self.reset(seed)
        except BaseException:
            self.close()
            raise

    def _numbers(self) -> dict[str, Feature]:
        """Describes the low-dimensional entries."""
        return {"environment_state": self.task.features(), "state": self.layout.state_feature}

    def _randomization(
        self,
        config: RandomizeConfig | None,
        sampler: str | Mapping[str, Any] | ParameterSampler,
        num_envs: int,
        seed: int,
    ) -> MujocoRandomization | None:
        if config is None:
            return None
        return MujocoRandomization(
            self.model,
            config,
            sampler,
            num_envs=num_envs,
            action_dim=self.layout.action_feature.shape[0],
            entries={name: feature.shape[0] for name, feature in self._numbers().items()},
            seed=seed,
        )

    def _describe(self, action_mode: str, max_episode_steps: int | None) -> SimSpec:
        return SimSpec(
            name=self.task.name,
            engine="mujoco",
            observation=self._numbers() | ({} if self._pictures is None else self._pictures.features),
            action=self.layout.action_feature,
            action_mode=action_mode,
            control_hz=CONTROL_HZ,
            max_episode_steps=max_episode_steps or self.task.max_episode_steps,
            restorable=True,
            independent=self._random is None or self._random.independent,
            instruction=self.task.instruction,
            robot=self.layout.kind.name,
            cameras=tuple(self.model.camera(i).name for i in range(self.model.ncam)),
        )

    def _allocate(self, num_envs: int) -> None:
        self._scratch = mujoco.MjData(self.model)
        self._renderers: dict[tuple[int, int], Renderer] = {}
        self._qpos = slice(1, 1 + self.model.nq)  # FULLPHYSICS is (time, qpos, qvel, act)
        self._qvel = slice(1 + self.model.nq, 1 + self.model.nq + self.model.nv)
        self._book = EpisodeBook(num_envs)
        self._physics = np.zeros((num_envs, mujoco.mj_stateSize(self.model, PHYSICS)))
        self._reference = np.zeros((num_envs, self.model.nu))
        self._fixtures = np.zeros((num_envs, self.model.nmocap, 7))

    @property
    def num_envs(self) -> int:
        """E."""
        return len(self._physics)

    @property
    def spec(self) -> SimSpec:
        """Names, units, bounds, rates."""
        return self._spec

    @property
    def diverged_count(self) -> int:
        """Episodes ended by a non-finite or exploding state since construction."""
        return self._book.diverged_count

    @property
    def qpos(self) -> NDArray[np.float64]:
        """[E, nq] generalised positions (a view: don't write)."""
        return self._physics[:, self._qpos]

    @property
    def qvel(self) -> NDArray[np.float64]:
        """[E, nv] generalised velocities (a view: don't write)."""
        return self._physics[:, self._qvel]

    @property
    def reference(self) -> NDArray[np.float64]:
        """[E, nu] last commanded joint targets (rad) and gripper openings (m), as actuators are ordered (don't
        write).
        """
        return self._reference

    @property
    def fixtures(self) -> NDArray[np.float64]:
        """[E, nmocap, 7] where the episode put furniture and marks (don't write)."""
        return self._fixtures

    # ------------------------------------------------------------------ episodes

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """See ``VecSim.reset``."""
        rows = np.flatnonzero(checked_mask(mask, self.num_envs))
        self._book.reseed(seed, rows)
        self._begin(rows)
        return self.observe()

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Start the next episode of each environment in ``rows``; draws only from that environment's generator."""
        for row in rows:
            rng = self._book.generator(int(row))
            start = self.task.sample(rng, self.layout.workspace)
            qpos, self._fixtures[row], self._reference[row] = self.layout.place(start, rng)
            self._physics[row] = 0.0
            self._physics[row, self._qpos] = qpos
        if self._random is not None:
            self._random.begin(rows, self._book, holding_action(self.layout, self._reference[rows]))
        self._book.begin(rows)
        self._draw(rows)
        self._drawn()

    def _draw(self, rows: NDArray[np.int64]) -> None:
        """Begin to draw what ``rows`` look like now."""
        if self._pictures is not None:
            looks = None if self._random is None else self._random.looks
            self._pictures.begin(rows, self._physics, self._fixtures, looks)

    def _drawn(self) -> None:
        if self._pictures is not None:
            self._pictures.finish()

    def view(self) -> SceneView:
        """The current state as tasks see it, [E, …] each."""
        return self.layout.view(self.qpos, self._fixtures)

    def _observe(self, view: SceneView) -> dict[str, FloatArray]:
        obs: dict[str, FloatArray] = {
            "environment_state": self.task.observation(view).astype(np.float32),
            "state": state_observation(view).astype(np.float32),
        }
        if self._random is not None:
            obs = self._random.observed(obs, self._book)
        return obs if self._pictures is None else obs | self._pictures.entries()

    def observe(self) -> dict[str, FloatArray]:
        """See ``VecSim.observe``."""
        return self._observe(self.view())

    @property
    def success(self) -> BoolArray:
        """[E] whether the current state fulfils the task."""
        return self.task.success(self.view())

    # ------------------------------------------------------------------ step

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """See ``VecSim.step``. A diverged environment ends as terminated with reward 0; its last good state is
        final_obs.
        """
        action = checked_action(action, self.num_envs, self._spec)
        active = checked_mask(mask, self.num_envs)
        rows = np.flatnonzero(active)
        diverged = np.zeros(self.num_envs, dtype=bool)
        diverged[rows] = self._advance(rows, action[rows])
        self._draw(rows)  # while what follows is computed
        view = self.view()
        success = self.task.success(view) & ~diverged
        reward = self.task.reward(view) if self.dense_reward else success.astype(np.float64)
        reward = np.where(active & ~diverged, reward, 0.0)
        self._book.count(reward, active, diverged)
        self._drawn()
        final_obs = self._observe(view)
        terminated = active & (diverged | (success if self.terminate_on_success else False))
        truncated = active & ~terminated & (self._book.steps >= self._spec.max_episode_steps)
        info = self._book.info(success & active, diverged)
        ended = np.flatnonzero(terminated | truncated)
        if self._random is not None:
            info["parameters"] = self._random.episodes.parameters
            self._random.finished(ended, self._book.returns[ended], success[ended])
        obs = final_obs
        if len(ended):
            self._begin(ended)
            obs = self.observe()
        return Step(obs, reward.astype(np.float32), terminated, truncated, final_obs, info)

    def _advance(self, rows: NDArray[np.int64], action: NDArray[np.float64]) -> BoolArray:
        """Run one control step of ``rows``; returns which of them diverged (those keep their old state)."""
        if len(rows) == 0:
            return np.zeros(0, dtype=bool)
        if self._random is not None:
            action = self._random.delayed(rows, action)
        before, reference = self._physics[rows], self._reference[rows]
        command = self._command(before[:, self._qpos], reference, action)
        # Targets travel linearly within the control step, as an arm's own interpolator moves them.
        ramp = (np.arange(1, self._substeps + 1) / self._substeps)[None, :, None]
        control = (reference[:, None] + ramp * (command - reference)[:, None]) * self.layout.ctrl_scale
        after = self._simulate(rows, before, control)
        with np.errstate(invalid="ignore"):
            bad = ~np.isfinite(after).all(axis=1) | (np.abs(after[:, self._qvel]).max(axis=1) > MAX_SPEED)
        self._physics[rows] = np.where(bad[:, None], before, after)
        self._reference[rows] = command
        if bad.any():
            log.warning("physics diverged in environments %s; their episodes end here", rows[bad].tolist())
        return bad

    def _command(
        self, qpos: NDArray[np.float64], reference: NDArray[np.float64], action: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Actions [n, A] of all arms -> the actuators' targets [n, nu]."""
        command, start = reference.copy(), 0
        for arm in self.layout.arms:
            size = arm.controller.feature.shape[0]
            targets = arm.actuator[:-1]
            joints = qpos[:, arm.joint]
            target, opening = arm.controller.resolve(reference[:, targets], action[:, start : start + size])
            command[:, targets] = np.clip(target, joints - MAX_REFERENCE_ERROR_RAD, joints + MAX_REFERENCE_ERROR_RAD)
            command[:, arm.actuator[-1]] = opening
            start += size
        return command

    def _simulate(
        self, rows: NDArray[np.int64], before: NDArray[np.float64], control: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Physics states [n, nstate] of ``rows`` under controls [n, substeps, nu] -> those after the last substep."""
        more: dict[str, Any] = {}
        if self.layout.moves_fixtures:
            placed = self._fixtures[rows]
            stands = np.concatenate([placed[..., :3].reshape(len(rows), -1), placed[..., 3:].reshape(len(rows), -1)], 1)
            control = np.concatenate([control, np.repeat(stands[:, None], self._substeps, axis=1)], axis=2)
            more["control_spec"] = CONTROL_AND_FIXTURES
        model = self.model if self._random is None else self._random.models(rows)
        states, _ = self._pool.rollout(model, self._workers, before, control, **more)
        return np.asarray(states)[:, -1]

    # ------------------------------------------------------------------ state, pictures, end

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``VecSim.state``."""
        return {
            "physics": self._physics.copy(),
            "reference": self._reference.copy(),
            "fixtures": self._fixtures.copy(),
            **self._book.state(),
            **({} if self._random is None else self._random.state()),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``VecSim.restore``; a state of another task or number of environments is a ValueError."""
        check_state(state, self.state())
        self._physics, self._reference = np.array(state["physics"]), np.array(state["reference"])
        self._fixtures = np.array(state["fixtures"])
        self._book.restore(state)
        if self._random is not None:
            self._random.restore(state)
        self._draw(np.arange(self.num_envs))
        self._drawn()

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``VecSim.render``; camera None is ``front``."""
        data, model = self._scratch, self.model if self._random is None else self._random.show(env)
        mujoco.mj_setState(model, data, self._physics[env], PHYSICS)
        data.mocap_pos[:], data.mocap_quat[:] = self._fixtures[env, :, :3], self._fixtures[env, :, 3:]
        mujoco.mj_forward(model, data)
        size = (width, height)
        if size not in self._renderers:
            self._renderers[size] = Renderer(model, width=width, height=height)
        return self._renderers[size].frame(data, camera or "front")

    def close(self) -> None:
        """Stop the threads and free the GL contexts; callable twice."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        if self._pictures is not None:
            self._pictures.close()
        self._pool.close()
