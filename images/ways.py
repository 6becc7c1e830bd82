"""Draws ways.svg, of the start page: what each of four ranks holds, in five ways to share work.

Run it from the repository's root: python images/ways.py
"""

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from ranklab.plots import RANK_COLORS, STYLE, as_drawing, pale

RANKS, LAYERS = 4, 4
ALT = (
    "Five small pictures of four ranks, each in its color, and of a model of four layers. Data "
    "parallelism: every rank has a quarter of the batch and all four layers. Pipeline: one model, "
    "each layer on another rank. Tensor parallelism: one model, each layer cut into four strips, "
    "one for each rank. Sharding: every rank has a quarter of the batch and keeps a quarter of "
    "each layer. Experts: every rank has a quarter of the batch and the first and third layer; of "
    "the second and fourth it has experts of its own. Below each picture stands what is sent. An "
    "outline is drawn around each whole model: four in data parallelism, one elsewhere."
)
EMPTY = {"facecolor": "white", "edgecolor": "0.75", "linestyle": ":"}


def box(ax, x, y, width, height, color, **how):
    ax.add_patch(
        Rectangle((x, y), width, height, **{"facecolor": color, "edgecolor": "white", **how})
    )


def batch(ax, parts):
    """The batch, left of the model: whole and gray, or a part for each rank."""
    height = 4 / parts
    for r in range(parts):
        color = RANK_COLORS[r] if parts > 1 else "0.6"
        box(ax, 0, 4 - (r + 1) * height + 0.06, 0.45, height - 0.12, color)


def outline(ax, models):
    """Around each whole model."""
    height = 4 / models
    for m in range(models):
        how = {"edgecolor": "0.15", "linewidth": 1.3, "zorder": 3}
        box(ax, 0.84, m * height + 0.02, 4.04, height - 0.04, "none", **how)


def data(ax):
    """Rows of ranks: each has all layers."""
    for r in range(RANKS):
        for layer in range(LAYERS):
            box(ax, 0.9 + layer, 3.06 - r, 0.92, 0.88, pale(RANK_COLORS[r], 0.6))


def pipeline(ax):
    for layer in range(LAYERS):
        box(ax, 0.9 + layer, 0.06, 0.92, 3.88, pale(RANK_COLORS[layer], 0.6))


def tensor(ax):
    for layer in range(LAYERS):
        for r in range(RANKS):
            color = pale(RANK_COLORS[r], 0.6)
            box(
                ax,
                0.9 + layer,
                3 - r + (0.06 if r == 3 else 0),
                0.92,
                0.94 if r in (0, 3) else 1,
                color,
            )


def sharded(ax):
    """As data, but of each layer a rank keeps a quarter."""
    for r in range(RANKS):
        for layer in range(LAYERS):
            box(ax, 0.9 + layer, 3.06 - r, 0.92, 0.88, "white", **EMPTY)
            box(ax, 0.9 + layer + 0.23 * r, 3.06 - r, 0.23, 0.88, pale(RANK_COLORS[r], 0.6))


def experts(ax):
    """As data, but every second layer has experts: others on each rank."""
    for r in range(RANKS):
        for layer in range(LAYERS):
            color = pale(RANK_COLORS[r], 0.6)
            if layer % 2:
                for half in (0, 1):
                    box(ax, 0.9 + layer + 0.47 * half, 3.06 - r, 0.45, 0.88, color)
                    number = 2 * r + half + 1
                    ax.text(1.12 + layer + 0.47 * half, 3.47 - r, number, ha="center", va="center")
            else:
                box(ax, 0.9 + layer, 3.06 - r, 0.92, 0.88, color)


WAYS = [
    (data, RANKS, "data parallelism", "gradients", "chapters 10 to 15"),
    (pipeline, 1, "pipeline", "activations, at the seams", "chapters 16 and 17"),
    (tensor, 1, "tensor parallelism", "a sum, for each layer", "chapter 18"),
    (sharded, RANKS, "sharding", "weights and gradients", "chapter 19"),
    (experts, RANKS, "experts", "tokens, to their experts", "chapter 21"),
]


def key(ax):
    """What is what."""
    ax.text(0, 3.8, "left: the batch, then", va="center")
    ax.text(0, 3.2, "four layers, an outline", va="center")
    ax.text(0, 2.6, "around a whole model", va="center")
    for r in range(RANKS):
        box(ax, 0.05, 1.54 - 0.62 * r, 0.45, 0.45, RANK_COLORS[r])
        ax.text(0.75, 1.76 - 0.62 * r, f"rank {r}", va="center")
    box(ax, 2.75, 1.54, 0.45, 0.45, "white", **EMPTY)
    ax.text(3.4, 1.95, "kept by\nothers", va="top", linespacing=1.1)


def main():
    with matplotlib.rc_context(STYLE):
        fig, axes = plt.subplots(3, 2, figsize=(5.2, 6.6))
        for ax, (draw, parts, title, sent, where) in zip(axes.flat, WAYS, strict=False):
            batch(ax, parts)
            draw(ax)
            outline(ax, RANKS if draw is data else 1)
            ax.set_title(title, fontsize=12, fontweight="bold", loc="left")
            ax.text(0, -0.55, f"sent: {sent}", va="center")
            ax.text(0, -1.2, where, va="center", color="0.35")
        key(axes.flat[-1])
        for ax in axes.flat:
            ax.set(xlim=(-0.1, 5), ylim=(-1.5, 4.1))
            ax.axis("off")
        picture = as_drawing(fig, "ways", ALT)
    Path(__file__).with_name("ways.svg").write_text(picture.svg)


if __name__ == "__main__":
    main()
