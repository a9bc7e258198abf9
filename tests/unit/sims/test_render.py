"""One frame at a time: contexts side by side, and their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest

from sims.render import Renderer, open_gl_context

SCENE = """<mujoco><worldbody><light pos="0 0 3"/><camera name="above" pos="0 0 2"/>
<geom type="box" size=".3 .3 .3" rgba="1 0 0 1"/></worldbody></mujoco>"""

FORGOTTEN = """
import sys, weakref
class Early: pass
early = Early()
weakref.finalize(early, int)  # weakref's exit hook is now older than EGL's
import mujoco
from sims.render import Renderer
from sims.batch_render import BatchRenderer
import numpy as np
model = mujoco.MjModel.from_xml_string(sys.argv[1])
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
try:
    first = Renderer(model, width=32, height=32)
except RuntimeError as error:
    raise SystemExit(77)
frames = [first.frame(data, "above")]
second = Renderer(model, width=32, height=32)
frames += [second.frame(data, "above"), first.frame(data, "above")]
closed = Renderer(model, width=48, height=32)
closed.close()
frames.append(second.frame(data, "above"))
physics = np.zeros((1, mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)))
here = BatchRenderer(model, ("above",), width=32, height=32, num_workers=0)
there = BatchRenderer(model, ("above",), width=32, height=32, num_workers=1)
there.submit(physics)  # never fetched
frames.append(here.render(physics)["above"][0])
frames.append(first.frame(data, "above"))
good = all(int(frame[16, 16, 0]) > 80 + frame[16, 16, 1] for frame in frames)
raise SystemExit(0 if good else "a frame without a red box")
"""


@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_renderers_side_by_side_all_draw_and_end_quietly_when_forgotten(backend: str) -> None:
    environment = {**os.environ, "MUJOCO_GL": backend, "PYTHONPATH": str(Path(__file__).parents[3])}
    environment.pop("PYOPENGL_PLATFORM", None)
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", FORGOTTEN, SCENE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    if done.returncode == 77:
        pytest.skip(f"{backend} is not installed")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_errors_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = Renderer(model, width=32, height=24)
    assert renderer.frame(data, "above").shape == (24, 32, 3)
    assert renderer.frame(data, "above").dtype == np.uint8
    with pytest.raises(ValueError, match="unknown camera 'abve': known are above"):
        renderer.frame(data, "abve")
    renderer.close()
    renderer.close()
    with pytest.raises(RuntimeError, match="closed"):
        renderer.frame(data, "above")
    with pytest.raises(ValueError, match="larger than the scene's buffer"):
        Renderer(model, width=10_000, height=24)
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    with pytest.raises(RuntimeError, match=r"no headless OpenGL context .*nonsense.*apt-get install"):
        open_gl_context(8, 8)
