"""Formulas as MathML, which browsers draw by themselves: no script, and nothing from the network."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

__all__ = ["setup"]


def _inline(writer, node):
    writer.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _display(writer, node):
    writer.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app):
    """What Sphinx calls."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True}
