"""Two processes under DistributedDataParallel do what one does with the same global batch."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "distributed_run.py"
spec = importlib.util.spec_from_file_location("distributed_run", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def test_two_processes_are_one(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = subprocess.run([*launch, SCRIPT, tmp_path], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2)]
    weights, logs, _ = script.run(str(tmp_path / "one"), processes=1)

    for name, tensor in weights.items():
        assert torch.equal(ranks[0]["weights"][name], ranks[1]["weights"][name])
        torch.testing.assert_close(ranks[0]["weights"][name], tensor, rtol=1e-4, atol=1e-5)
    compared = 0
    for found, wanted in zip(ranks[0]["logs"], logs, strict=True):
        for name, value in wanted.items():
            if "kl_" in name or "residual" in name or name.endswith("loss") or name == "grad_norm":
                assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
                compared += 1
    assert compared > 20
    assert {path.name for path in (tmp_path / "checkpoint-2").glob("rng_state*")} == {
        "rng_state_0.pth",
        "rng_state_1.pth",
    }
