"""Advice that is written for Python, in the words of the command line."""

from __future__ import annotations

import re
import shlex

__all__ = ["in_flags"]


def in_flags(text: str) -> str:
    """Advice for Python as advice for the command line.

    >>> in_flags("kinds={'id': 'category'} takes it in; if it is one, reading={'na': ['-999']} marks it")
    '-k id=category takes it in; if it is one, --na=-999 marks it'
    """
    text = re.sub(r"kinds=\{'([^']*)': '(\w+)'\}", lambda m: f"-k {shlex.quote(f'{m[1]}={m[2]}')}", text)
    text = re.sub(r"reading=\{'dates': '(\w+)'\}", r"--dates \1", text)
    return re.sub(r"reading=\{'na': \['([^']*)'\]\}", lambda m: f"--na={shlex.quote(m[1])}", text)
