"""Reports about files that no other test names."""

from pathlib import Path

import numpy as np
import pytest
from gguf_hybrid.tools.convert import main
from support import checkpoints


def test_a_checkpoint_converted_for_mlx_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Report 84: MLX moves the taps of the convolution and adds 1 to the norms; converted again,
    the model would load and talk nonsense."""
    tensors = checkpoints.weights(checkpoints.DENSE)
    for name, array in tensors.items():
        if "conv1d" in name:
            tensors[name] = np.moveaxis(array, 2, 1)
        elif name.endswith("layernorm.weight"):
            tensors[name] = array + array.dtype.type(1)
    path = checkpoints.single_file(checkpoints.DENSE, tmp_path / "mlx", tensors)
    assert main([str(path), "--outfile", str(tmp_path / "m.gguf")]) == 1
    error = capsys.readouterr().err
    assert "conv1d.weight" in error and "MLX" in error and error.count("\n") == 1
    assert not (tmp_path / "m.gguf").exists()
