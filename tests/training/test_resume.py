"""A run that is killed and resumed ends with the bits of one that was not."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mrp_hf.training.checkpoints import HEAD_WEIGHTS_NAME, load_head

SCRIPT = Path(__file__).parent / "kill_and_resume.py"
spec = importlib.util.spec_from_file_location("kill_and_resume", SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The head after a run without interruption, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    trainer = script.build_trainer(str(folder))
    trainer.train()
    return trainer, folder


def assert_same_head(found, wanted):
    for name, tensor in wanted.mrp_head.state_dict().items():
        assert torch.equal(found.mrp_head.state_dict()[name], tensor), name


def test_killed_while_saving_and_resumed(whole, tmp_path):
    uninterrupted, _ = whole
    # The same kernels as in this process: float32 sums depend on the number of threads.
    environment = os.environ | {
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    process = subprocess.run([sys.executable, SCRIPT, tmp_path], env=environment, capture_output=True, text=True)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert names(tmp_path) == ["_saving-checkpoint-6", "checkpoint-3"]

    resumed = script.build_trainer(str(tmp_path))
    resumed.train(resume_from_checkpoint=True)
    assert_same_head(resumed.model, uninterrupted.model)
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-3", "checkpoint-6", "checkpoint-9"]
    last = [[entry for entry in run.state.log_history if "loss" in entry][-1] for run in (resumed, uninterrupted)]
    assert last[0] == last[1]


@pytest.mark.parametrize("step", [3, 6, 9])
def test_resumed_from_any_checkpoint(whole, tmp_path, step):
    uninterrupted, folder = whole
    resumed = script.build_trainer(str(tmp_path))
    resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    assert_same_head(resumed.model, uninterrupted.model)


def test_checkpoints_hold_the_head_and_not_the_backbone(whole):
    trainer, folder = whole
    checkpoint = folder / "checkpoint-9"
    assert names(checkpoint) == [
        "config.json",
        HEAD_WEIGHTS_NAME,
        "optimizer.pt",
        "rng_state.pth",
        "scheduler.pt",
        "trainer_state.json",
        "training_args.bin",
    ]
    head = sum(parameter.numel() for parameter in trainer.model.mrp_head.parameters())
    size = sum(file.stat().st_size for file in checkpoint.iterdir())
    assert size < 3 * 4 * head + 2**16


def test_without_a_complete_checkpoint(whole, tmp_path):
    _, folder = whole
    trainer = script.build_trainer(str(tmp_path / "new"))
    with pytest.raises(ValueError, match=r"holds no complete checkpoint: start without"):
        trainer.train(resume_from_checkpoint=True)
    torn = tmp_path / "new" / "checkpoint-3"
    shutil.copytree(folder / "checkpoint-3", torn)
    (torn / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=r"holds no complete checkpoint"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=r"checkpoint-3', which lacks \['optimizer.pt'\]"):
        trainer.train(resume_from_checkpoint=str(torn))
    with pytest.raises(ValueError, match="nowhere', which lacks"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "nowhere"))


def test_a_head_of_another_model_is_refused(whole, tiny_model):
    _, folder = whole
    checkpoint = folder / "checkpoint-3"
    with pytest.raises(ValueError, match="trained with mrp_prediction='residual', the model has 'direct'"):
        load_head(tiny_model(mrp_prediction="direct"), checkpoint)
    with pytest.raises(ValueError, match="trained with num_mrp_layers=1"):
        load_head(tiny_model(num_mrp_layers=2), checkpoint)
    with pytest.raises(ValueError, match="does not fit the model"):
        load_head(tiny_model(hidden_size=16), checkpoint)
    with pytest.raises(ValueError, match=f"has no {HEAD_WEIGHTS_NAME}"):
        load_head(tiny_model(), folder)
