"""``detail: low`` of a picture: it is looked at as one of about 512x512 pixels, where its family's processor has limits."""

from __future__ import annotations

from typing import Any

LOW_SIDE = 512
"""Pixels of a side, where sides are bounded; where areas are, it is the square of that."""

_SWITCHES = ("do_image_splitting", "crop_to_patches")
"""What processors call it that they cut a picture into tiles, each of which counts as a picture."""


def low_settings(processor: Any) -> dict[str, Any]:
    """The keyword arguments by which a picture processor of transformers keeps to low detail; none where it always makes the
    same of a picture. What it allows less of by itself stays as it is."""
    names = processor.valid_kwargs.__annotations__
    if tiles := {name: False for name in _SWITCHES if name in names and getattr(processor, name, None)}:
        return tiles
    size = processor.size
    if size is None or not size.longest_edge:
        return {}
    if "merge_size" in names and size.shortest_edge:
        # By areas, which transformers keeps under the names of edges.
        return area_settings(processor, LOW_SIDE**2)
    if size.shortest_edge:
        return {}
    return {"size": {"longest_edge": min(size.longest_edge, LOW_SIDE)}}


def area_settings(processor: Any, area: int) -> dict[str, Any]:
    """The same for a processor that bounds areas; ``area`` is in its own measure."""
    size = processor.size
    return {"size": {"shortest_edge": min(size.shortest_edge, area), "longest_edge": min(size.longest_edge, area)}}
