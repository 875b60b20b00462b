"""Fitted densities on disk, so that figures need not train again: one safetensors file for each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from baselines import KDE
from continuous_sets import Density
from flows import Flow
from ours import Ours
from paper import Energy

FITS = Path(__file__).resolve().parent.parent / "build" / "fits"  # git ignores it
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Energy, Ours, Flow, KDE)}


def save_fit(folder: Path, dataset: str, system: str, density: Density) -> bool:
    """Write one density, whole or not at all; False for a kind that cannot be kept."""
    kind = type(density).__name__
    if kind not in KINDS:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, dataset, system)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    state = {k: v.detach().cpu().contiguous() for k, v in density.state().items()}
    facts = {"kind": kind, "system": system, "dataset": dataset, "facts": json.dumps(density.facts)}
    save_file(state, temporary, metadata=facts)
    os.replace(temporary, path)
    return True


def load_fits(folder: Path, dataset: str, device: str) -> dict[str, Density]:
    """All kept densities of a data set, by system."""
    found = {}
    for path in sorted(folder.glob(_name(dataset, "*"))):
        with safe_open(path, "pt") as file:
            facts = file.metadata()
            state = {k: file.get_tensor(k).to(torch.device(device)) for k in file.keys()}  # noqa: SIM118
        found[facts["system"]] = KINDS[facts["kind"]].restored(state, json.loads(facts["facts"]))
    return found


def _path(folder: Path, dataset: str, system: str) -> Path:
    return folder / _name(dataset, system)


def _name(dataset: str, system: str) -> str:
    return f"{dataset}--{system}.safetensors".replace(" ", "_").replace(",", "")
