"""An environment as somebody else would write it: a motor, one joint, Isaac Lab's own conventions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import isaaclab.sim as sim_utils
import mujoco
import torch
from isaaclab.actuators import ImplicitActuatorCfg
from isaaclab.assets import ArticulationCfg
from isaaclab.envs import DirectRLEnv, DirectRLEnvCfg
from isaaclab.scene import InteractiveSceneCfg
from isaaclab_newton.physics import MJWarpSolverCfg, NewtonCfg

from sims.isaaclab_usd import write_arm

MJCF = """
<mujoco><worldbody><body name="base">
  <inertial mass="1" pos="0 0 0" diaginertia="0.01 0.01 0.01"/>
  <body name="arm"><inertial mass="0.5" pos="0.1 0 0" diaginertia="0.01 0.01 0.01"/>
    <joint name="spin" axis="0 0 1" range="-3 3" armature="0.01" limited="true"/>
    <geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0" contype="0" conaffinity="0"/>
  </body></body></worldbody></mujoco>
"""


def SpinnerCfg() -> DirectRLEnvCfg:
    """The configuration, with its asset written where nobody else looks."""
    usd = Path(tempfile.mkdtemp(prefix="robopo-spinner-")) / "spinner.usda"
    write_arm(mujoco.MjModel.from_xml_string(MJCF), "spin", usd)
    cfg = DirectRLEnvCfg()
    cfg.decimation, cfg.episode_length_s = 2, 1.0
    cfg.action_space, cfg.observation_space, cfg.state_space = 1, 3, 0
    solver = MJWarpSolverCfg(njmax=10, nconmax=5, ls_iterations=50, disable_contacts=True)
    cfg.sim = sim_utils.SimulationCfg(dt=0.01, render_interval=2, physics=NewtonCfg(solver_cfg=solver))
    cfg.scene = InteractiveSceneCfg(num_envs=2, env_spacing=2.0)
    drive = ImplicitActuatorCfg(joint_names_expr=["spin"], stiffness=20.0, damping=2.0, joint_effort_limit=10.0)
    cfg.scene.robot = ArticulationCfg(
        prim_path="{ENV_REGEX_NS}/Robot", spawn=sim_utils.UsdFileCfg(usd_path=str(usd)), actuators={"spin": drive}
    )
    return cfg


class Spinner(DirectRLEnv):
    """Turn to a goal angle; ``broken`` [E] makes observations NaN, as an exploding solver does."""

    cfg_class = staticmethod(SpinnerCfg)

    def __init__(self, cfg, render_mode=None, **kwargs):
        super().__init__(cfg, render_mode, **kwargs)
        self.robot = self.scene["robot"]
        self.goal = torch.zeros(self.num_envs, 1)
        self.target = torch.zeros(self.num_envs, 1)
        self.broken = torch.zeros(self.num_envs, dtype=torch.bool)

    def _pre_physics_step(self, actions):
        self.target = self.robot.data.joint_pos.torch + 0.5 * actions

    def _apply_action(self):
        self.robot.actuators.target_command.set_position_index(value=self.target)

    def _get_observations(self):
        data = self.robot.data
        obs = torch.cat([data.joint_pos.torch, data.joint_vel.torch, self.goal], dim=-1)
        obs[self.broken] = float("nan")
        return {"policy": obs}

    def _get_rewards(self):
        return -(self.robot.data.joint_pos.torch - self.goal).abs()[:, 0]

    def _get_dones(self):
        late = self.episode_length_buf >= self.max_episode_length
        return torch.zeros_like(late), late

    def _reset_idx(self, ids):
        super()._reset_idx(ids)
        start = 2 * torch.rand(len(ids), 1) - 1
        self.robot.write_joint_position_to_sim_index(position=start, env_ids=ids)
        self.robot.write_joint_velocity_to_sim_index(velocity=torch.zeros_like(start), env_ids=ids)
        self.goal[ids.long()] = 2 * torch.rand(len(ids), 1) - 1
        self.broken[ids.long()] = False
