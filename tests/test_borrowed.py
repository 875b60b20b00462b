"""Private functions of torch and scikit-learn do what we use them for, in the versions that are named here."""

import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from ctem import CTEM
from ctem.training import borrowed

SEEN = {"torch": "2.13", "scikit-learn": "1.9"}  # the newest minor versions with which this test has passed
SOURCE = Path(borrowed.__file__).parents[1]


@pytest.mark.parametrize("package", SEEN)
def test_no_newer_version_is_used_than_was_seen(package):
    """A newer one may have changed what is private: read its source, then raise the version in SEEN."""
    used, seen = ([int(part) for part in text.split(".")[:2]] for text in (version(package), SEEN[package]))
    assert used <= seen


def test_no_other_module_uses_what_is_private():
    private = re.compile(r"\btorch\._[a-z]|\bsklearn[\w.]*\._[a-z]|from sklearn[\w.]* import .*\b_[a-z]")
    users = [path for path in SOURCE.rglob("*.py") if private.search(path.read_text("utf-8"))]
    assert [path.name for path in users] == ["borrowed.py"]


def test_lists_of_tensors_are_changed_in_place():
    values = [torch.ones(2), torch.zeros(3)]
    borrowed.each_add_(values, 1)
    borrowed.each_mul_(values, 2.0)
    assert [each.tolist() for each in values] == [[4.0, 4.0], [2.0, 2.0, 2.0]]
    assert [each.tolist() for each in borrowed.each_sub(values, values)] == [[0.0, 0.0], [0.0, 0.0, 0.0]]


def test_the_fused_step_is_that_of_adamw():
    ours, theirs = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    rate, decay, (first, second) = 0.1, 0.01, (0.9, 0.999)
    kept = [torch.zeros(2)], [torch.zeros(2)]
    with torch.no_grad():
        borrowed.fused_adamw_(
            [ours], [torch.tensor([0.5, 1.0])], *kept, [], [torch.tensor(1.0)], lr=rate, beta1=first, beta2=second,
            weight_decay=decay, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
    theirs.grad = torch.tensor([0.5, 1.0])
    torch.optim.AdamW([theirs], rate, (first, second), 1e-8, decay).step()
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_weights_and_names_are_checked_as_scikit_learn_does():
    X = np.zeros((2, 1))
    assert borrowed.checked_sample_weight([1, 2], X).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="Negative values"):
        borrowed.checked_sample_weight([1, -2], X)
    model = CTEM()
    model.n_features_in_ = 2
    assert borrowed.checked_feature_names(model, None).tolist() == ["x0", "x1"]
    assert borrowed.output_config(model)["dense"] == "default"
