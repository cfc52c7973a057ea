"""The command says in one line what is wrong, and ends with the exit code that says whose fault."""

import logging
import socket
import sys
from collections.abc import Callable, Iterator

import pytest
import structlog

from obleth import __version__, cli

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def obleth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command that ends by itself: its exit code, standard output and standard error."""

    def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
        for name, value in environment.items():
            monkeypatch.setenv(f"OBLETH_{name}", value)
        monkeypatch.setattr(sys, "argv", ["obleth", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, printed.out, printed.err

    return run


def test_the_version_is_the_packages(obleth: Command) -> None:
    assert obleth("--version") == (0, f"obleth {__version__}\n", "")


def test_without_a_command_the_commands_are_listed(obleth: Command) -> None:
    code, out, err = obleth()
    assert code == 2
    for command in (
        "serve", "demo", "controlplane", "dataplane", "migrate", "backend", "replay", "top",
        "explain",
    ):  # fmt: skip
        assert f"\n  {command} " in out + err


@pytest.mark.parametrize("token", [{}, {"ADMIN_TOKEN": ""}])
@pytest.mark.parametrize("command", ["serve", "controlplane"])
def test_without_an_admin_token_nothing_starts(
    obleth: Command, command: str, token: dict[str, str]
) -> None:
    assert obleth(command, **token) == (
        2,
        "",
        "obleth: OBLETH_ADMIN_TOKEN is required and must not be blank\n",
    )


def test_a_blank_admin_token_is_refused_without_being_repeated(obleth: Command) -> None:
    code, _, err = obleth("serve", ADMIN_TOKEN="   ")
    assert code == 2
    assert err.startswith("obleth: OBLETH_ADMIN_TOKEN: must be ")


@pytest.mark.parametrize("command", ["serve", "dataplane"])
def test_several_workers_without_redis_are_refused(obleth: Command, command: str) -> None:
    code, _, err = obleth(command, "--workers", "2", ADMIN_TOKEN="x" * 16)
    assert code == 2
    assert err == (
        "obleth: 2 workers need OBLETH_REDIS_URL: without it each would hand out every model's"
        " slots again\n"
    )


def test_the_embedded_command_is_one_process_with_redis_too(obleth: Command) -> None:
    code, _, err = obleth(
        "serve", "--workers", "2", ADMIN_TOKEN="x" * 16, REDIS_URL="redis://127.0.0.1:6379"
    )
    assert code == 2
    assert err.startswith("obleth: `obleth serve` is one process")


def test_the_embedded_commands_help_promises_no_several_workers(obleth: Command) -> None:
    code, out, _ = obleth("serve", "--help")
    assert code == 0
    assert "--workers" in out
    assert "OBLETH_REDIS_URL" not in out
    assert "`obleth dataplane`" in " ".join(out.split())
    assert "OBLETH_REDIS_URL" in obleth("dataplane", "--help")[1]


@pytest.mark.parametrize(
    ("command", "variable"), [("serve", "PROXY_LISTEN"), ("controlplane", "ADMIN_LISTEN")]
)
def test_a_taken_port_is_one_clear_line(obleth: Command, command: str, variable: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = obleth(command, ADMIN_TOKEN="x" * 16, **{variable: where})
    assert code == 1
    assert err == (
        f"obleth: cannot listen on {where}: address already in use;"
        f" set OBLETH_{variable} to another host:port\n"
    )


def test_a_variable_that_is_no_setting_is_warned_of_with_what_may_be_meant(
    obleth: Command,
) -> None:
    code, _, err = obleth("migrate", GLOBL_MAX_IN_FLIGHT="5", LOG_FORMAT="console")
    assert code == 0
    assert "OBLETH_GLOBL_MAX_IN_FLIGHT is not a setting of obleth; is OBLETH_GLOBAL_MAX" in err


def test_migrating_twice_is_migrating_once(obleth: Command) -> None:
    assert obleth("migrate")[0] == 0
    assert obleth("migrate")[0] == 0


def test_a_database_that_is_away_is_one_clear_line(obleth: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    url = f"postgresql+asyncpg://user:canary@127.0.0.1:{port}/name"
    code, _, err = obleth("migrate", DATABASE_URL=url)
    assert code == 1
    assert err.startswith("obleth: OBLETH_DATABASE_URL: ")
    assert err.count("\n") == 1
    assert "canary" not in err


def test_a_folder_that_cannot_be_used_stops_the_demo(obleth: Command) -> None:
    with open("file", "w"):
        pass
    code, _, err = obleth("demo", "--data", "file/inside")
    assert (code, err) == (1, "obleth: cannot use the folder file/inside: Not a directory\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "nowhere"], "not host:port"),
        (["--slots", "0"], "slots"),
        (["--token-ms", "-1"], "token-ms"),
    ],
)
def test_the_backend_names_the_option_that_is_wrong(
    obleth: Command, options: list[str], said: str
) -> None:
    code, _, err = obleth("backend", *options)
    assert code == 2
    assert said in err


def test_a_replay_names_what_is_wrong(obleth: Command) -> None:
    code, _, err = obleth("replay", "none.csv", "--tenant", "a=b")
    assert (code, err) == (2, "obleth: none.csv: No such file or directory\n")
    code, _, err = obleth("replay", "none.csv", "--tenant", "a")
    assert (code, err) == (2, "obleth: 'a': a tenant is given as name=key or name:weight=key\n")
