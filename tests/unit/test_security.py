"""The secret, what follows from it, and the rule by which services talk with keys, plainly, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
import zmq
from zmq.utils import z85

from shared.errors import InvalidRequest
from shared.seam import LOOPBACK, Seam, keys_of, seam_of
from shared.security import control_token, curve_pair, derive_key, keygen, load_secret, main
from shared.settings import ServiceSettings
from tests.processes import ROOT

SECRET = b"a secret of the deployment"
KEYED = Seam(keys_of(SECRET))


def settings_of(**fields: Any) -> ServiceSettings:
    return ServiceSettings.model_validate(fields)


# ------------------------------------------------------------------------------------------------------------ the file


def test_a_new_secret_is_the_owners_alone_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "folder" / "of" / "secrets" / "epd"
    before = os.umask(0)
    try:
        main(["keygen", str(path)])
    finally:
        os.umask(before)
    assert "a new secret" in capsys.readouterr().out
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert len(bytes.fromhex(text.strip())) == 32
    main(["keygen", str(path)])
    assert "stays" in capsys.readouterr().out
    assert path.read_text() == text
    main(["keygen", str(path), "--replace"])
    assert path.read_text() != text
    assert [found.name for found in path.parent.iterdir()] == ["epd"]


def test_without_a_path_the_secret_is_printed() -> None:
    command = [sys.executable, "-m", "shared.security", "keygen"]
    printed = [subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout for _ in range(2)]
    assert len(set(printed)) == 2
    assert all(len(bytes.fromhex(text.strip())) == 32 for text in printed)


def test_what_is_there_and_no_secret_is_told_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "epd"
    path.write_text("short\n")
    with pytest.raises(SystemExit, match="needs at least 16"):
        main(["keygen", str(path)])
    assert path.read_text() == "short\n"
    with pytest.raises(SystemExit, match="no secret was made"):
        main(["keygen", str(path / "below a file")])


def test_a_secret_in_a_folder_that_cannot_be_written_to_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "epd"
    path.write_bytes(SECRET)
    # Not by the folder's mode, which does not keep root from anything.
    monkeypatch.setattr("tempfile.mkstemp", lambda *_, **__: (_ for _ in ()).throw(PermissionError("read-only")))
    assert not keygen(path)
    with pytest.raises(PermissionError):
        keygen(tmp_path / "other")


def test_of_many_who_make_a_secret_at_once_one_wins_and_nobody_sees_half_of_it(tmp_path: Path) -> None:
    path, seen, made = tmp_path / "epd", set[bytes](), list[bool]()
    together = threading.Barrier(16)

    def make() -> None:
        together.wait()
        made.append(keygen(path))
        seen.add(load_secret(path))

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 15 + [True]
    assert len(seen) == 1


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o644, True), (0o604, True)])
def test_a_secret_that_others_can_read_is_a_warning(tmp_path: Path, mode: int, warned: bool) -> None:
    path = tmp_path / "epd"
    path.write_bytes(SECRET)
    path.chmod(mode)
    with structlog.testing.capture_logs() as logs:
        assert load_secret(path) == SECRET
    assert [line["log_level"] for line in logs] == ["warning"] * warned


@pytest.mark.parametrize(("mode", "warned"), [(0o440, False), (0o640, False), (0o444, True)])
def test_the_group_may_read_a_secret_that_was_mounted_for_it(
    tmp_path: Path, mode: int, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "epd"
    path.write_bytes(SECRET)
    path.chmod(mode)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(os, "getgroups", lambda: [path.stat().st_gid])
    with structlog.testing.capture_logs() as logs:
        load_secret(path)
    assert [line["log_level"] for line in logs] == ["warning"] * warned


def test_without_a_file_each_process_has_a_secret_of_its_own() -> None:
    assert load_secret(None) != load_secret(None)


# ------------------------------------------------------------------------------------------------------------ the keys


def test_keys_follow_from_the_secret_each_for_its_purpose() -> None:
    pairs = [curve_pair(secret, end) for secret in (SECRET, SECRET + b"!") for end in ("language", "encoder")]
    assert pairs == [curve_pair(secret, end) for secret in (SECRET, SECRET + b"!") for end in ("language", "encoder")]
    assert len({half for pair in pairs for half in (pair.public, pair.secret)}) == 8
    for pair in pairs:
        assert (len(pair.public), len(pair.secret)) == (40, 40)
        assert pair.public == zmq.curve_public(pair.secret)
    assert z85.decode(pairs[0].secret) == derive_key(SECRET, "curve/language")


def test_nothing_secret_shows_when_it_is_printed() -> None:
    shown = repr(KEYED)
    assert KEYED.keys is not None
    for hidden in (KEYED.keys.token, KEYED.keys.language.secret.decode(), KEYED.keys.encoder.secret.decode(), SECRET.decode()):
        assert hidden not in shown


# ------------------------------------------------------------------------------------------------------------ the rule


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.0.1", "::ffff:127.0.0.1"])
def test_without_a_secret_the_seam_is_plain_on_loopback(host: str) -> None:
    assert seam_of(settings_of(), SECRET, "EPD_HOST", host) == LOOPBACK


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "*", "10.0.0.7", "192.168.1.1", "fd00::7", "encoder", "localhost.evil"])
def test_without_a_secret_nothing_starts_where_others_are(host: str) -> None:
    with pytest.raises(ValueError, match="no keys to know its peers by: set EPD_SECRET_FILE") as caught:
        seam_of(settings_of(), SECRET, "EPD_HOST", host)
    assert str(caught.value).startswith(f"EPD_HOST is {host}, ")
    with structlog.testing.capture_logs() as logs:
        assert seam_of(settings_of(plain_seam=True), SECRET, "EPD_HOST", host) == Seam(anywhere=True)
    assert [(line["log_level"], "THE SEAM IS PLAIN" in line["event"]) for line in logs] == [("warning", True)]


def test_with_a_secret_the_seam_has_keys_anywhere() -> None:
    for host in ("0.0.0.0", "127.0.0.1"):
        assert seam_of(settings_of(secret_file="/secret"), SECRET, "EPD_HOST", host) == KEYED


def test_a_secret_and_the_wish_for_none_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="unset one of the two"):
        seam_of(settings_of(secret_file="/secret", plain_seam=True), SECRET, "EPD_HOST", "127.0.0.1")


@pytest.mark.parametrize(
    ("service", "variable", "host"), [("encoder", "EPD_HOST", "0.0.0.0"), ("language", "EPD_DATA_HOST", "10.0.0.7")]
)
def test_a_service_that_must_not_start_says_why_in_one_sentence(service: str, variable: str, host: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EPD_")}
    command = [sys.executable, "-m", f"services.{service}"]
    done = subprocess.run(command, cwd=ROOT, env=clean | {variable: host}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"not started: {variable} is {host}, where others can reach this service")


# ------------------------------------------------------------------------------------------------------- what is checked


def test_the_token_lets_pass_and_nothing_else_does() -> None:
    token = control_token(SECRET)
    assert KEYED.headers() == {"authorization": f"Bearer {token}"}
    KEYED.check_token(f"Bearer {token}")
    KEYED.check_token(f"bearer  {token}")
    close = (token[:-1], f"{token}0", token.upper(), control_token(b"another secret of some length"), "é")
    for wrong in (None, "", "Bearer", token, f"Basic {token}", *(f"Bearer {one}" for one in close)):
        with pytest.raises(InvalidRequest, match="different secrets") as caught:
            KEYED.check_token(wrong)
        assert caught.value.param == "authorization"


def test_a_plain_seam_asks_for_no_token_and_shows_none() -> None:
    for seam in (LOOPBACK, Seam(anywhere=True)):
        seam.check_token(None)
        assert seam.headers() == {}


@pytest.mark.parametrize("reply_to", ["tcp://10.0.0.7:1", "tcp://language:1", "tcp://[fd00::7]:1"])
def test_plain_embeddings_stay_on_loopback(reply_to: str) -> None:
    with pytest.raises(InvalidRequest, match="loopback addresses only") as caught:
        LOOPBACK.check_reply_to(reply_to)
    assert caught.value.param == "reply_to"
    for seam in (Seam(anywhere=True), KEYED):
        seam.check_reply_to(reply_to)


@pytest.mark.parametrize("seam", [LOOPBACK, Seam(anywhere=True), KEYED])
def test_no_seam_sends_to_what_is_no_destination(seam: Seam) -> None:
    seam.check_reply_to("tcp://127.0.0.1:5557")
    seam.check_reply_to("tcp://localhost:5557")
    for nowhere in (
        "tcp://0.0.0.0:1",
        "ipc:///tmp/x",
        "inproc://x",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:1;tcp://10.0.0.7:1",
        "",
    ):
        with pytest.raises(InvalidRequest, match="reply_to"):
            seam.check_reply_to(nowhere)


@pytest.mark.parametrize(("seam", "curve"), [(LOOPBACK, True), (Seam(anywhere=True), True), (KEYED, False)])
def test_both_ends_encrypt_or_neither_does(seam: Seam, curve: bool) -> None:
    seam.check_mode(seam.curve)
    with pytest.raises(InvalidRequest, match="give both the same EPD_SECRET_FILE") as caught:
        seam.check_mode(curve)
    assert caught.value.param == "curve"
