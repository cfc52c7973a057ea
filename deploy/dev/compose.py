"""What docker-compose.yml says about obleth's own processes, with its variables filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from dotenv import dotenv_values

FILE: Final = Path(__file__).resolve().parents[2] / "docker-compose.yml"
_VARIABLE: Final = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Command:
    """One of obleth's services: its arguments, and its environment beside the machine's."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


class MissingVariable(Exception):
    """A variable that must be set is not; the message is the file's own."""


def filled_in(variables: Mapping[str, str]) -> dict[str, Any]:
    """The whole file under `variables`, merge keys resolved. Raises MissingVariable."""

    def fill(node: Any) -> Any:
        match node:
            case str():
                return _filled(node, variables)
            case list():
                return [fill(one) for one in node]
            case dict():
                return {key: fill(value) for key, value in node.items()}
            case _:
                return node

    found: dict[str, Any] = fill(yaml.safe_load(FILE.read_text()))
    for service in found["services"].values():
        if "deploy" in service:  # what is filled in is text, and this a number
            service["deploy"]["replicas"] = int(service["deploy"]["replicas"])
    return found


def commands(variables: Mapping[str, str]) -> dict[str, Command]:
    """Obleth's services by name, each with the `.env` beside the file, as compose gives it them."""
    beside = dotenv_values(FILE.parent / ".env")
    shared = {name: value for name, value in beside.items() if name.startswith("OBLETH_") and value}
    return {
        name: Command(tuple(service["command"]), shared | {**service.get("environment", {})})
        for name, service in filled_in(variables)["services"].items()
        if service["image"].startswith("obleth:")
    }


def _filled(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        given = variables.get(match["name"], "")
        if given or match["kind"] is None:
            return given
        if match["kind"] == "?":
            raise MissingVariable(f"{match['name']}: {match['rest']}")
        return match["rest"]

    return _VARIABLE.sub(value, text)
