"""The `obleth` command."""


def main() -> None:
    raise SystemExit("obleth: not composed yet")
