"""The vectors of contents and global IDs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted import VECTORS
from typed import typed

from oncegate import JsonText, NotCanonical, canonical, global_id

CONTENTS: dict[str, Any] = json.loads((VECTORS / "contents.json").read_text())
GATEWAYS: dict[str, Any] = json.loads((Path(VECTORS).parents[1] / "tests" / "vectors" / "global_id.json").read_text())


@pytest.mark.parametrize("vector", CONTENTS["accepted"], ids=lambda vector: vector["name"])
def test_accepted(vector: dict[str, Any]) -> None:
    contents = typed(vector["input"])
    assert canonical(contents) == vector["canonical"]
    assert global_id(CONTENTS["app_key"], CONTENTS["operation"], contents) == vector["global_id"]


@pytest.mark.parametrize("vector", CONTENTS["refused"], ids=lambda vector: vector["name"])
def test_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(NotCanonical) as refused:
        canonical(typed(vector["input"]))
    assert (refused.value.reason, refused.value.path) == (vector["reason"], vector["path"])


@pytest.mark.parametrize("vector", GATEWAYS["accepted"], ids=lambda vector: vector["contents_json"])
def test_the_global_ids_of_the_gateway(vector: dict[str, Any]) -> None:
    contents = JsonText(vector["contents_json"])
    assert canonical(contents) == vector["canonical"]
    assert global_id(vector["app_key"], vector["operation"], contents) == vector["global_id"]
    assert canonical(JsonText(vector["canonical"])) == vector["canonical"]


@pytest.mark.parametrize("vector", GATEWAYS["refused"], ids=lambda vector: vector["why"])
def test_what_the_gateway_refuses(vector: dict[str, Any]) -> None:
    with pytest.raises(NotCanonical):
        canonical(JsonText(vector["contents_json"]))
