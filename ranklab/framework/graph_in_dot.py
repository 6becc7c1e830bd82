"""A graph of arrays in DOT: values on the way down, gradients on the way up."""

import numpy as np

GRAY, ORANGE = 'color="gray60" fontname=Helvetica', 'color="#B34E00"'


def both_ways(nodes, arrows):
    """The graph. nodes: name -> (value, gradient); arrows: (later, earlier) -> what goes up."""
    dot = [f"nodesep=0.6; ranksep=0.5; node [shape=box style=rounded {GRAY}]"]
    for name, (value, grad) in nodes.items():
        inside = f"{name}<br/>{_text_of(value)}<br/><font {ORANGE}>{_text_of(grad)}</font>"
        dot.append(f'"{name}" [label=<{inside}>]')
    for (later, earlier), part in arrows.items():
        edge, up = f'"{earlier}" -> "{later}"', f"dir=back style=dashed {ORANGE} font{ORANGE}"
        label = f'label="{_text_of(part, end=chr(92) + "n")}" fontname=Helvetica'
        dot += [f"{edge} [color=gray60]", f"{edge} [{up} {label}]"]
    return f"digraph {{{'; '.join(dot)}}}"


def _text_of(array, end="<br/>"):
    rows = np.atleast_2d(array.astype(int)).tolist()
    return end.join("  ".join(map(str, row)) for row in rows)
