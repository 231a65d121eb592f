"""A replica's address and keys follow from where it is; between machines nothing is open by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.encoder.settings import EncoderSettings
from services.fleet import place
from services.fleet.place import Place, own_secret, reached_at, settings_at

LAPTOP = Place("192.168.1.7", ("192.168.1.7",), cpus=2.0)
TWO_HERE = Place("127.0.0.3", ("127.0.0.2", "127.0.0.3"), cpus=0.5)
CLUSTER = Place("10.0.0.2", ("10.0.0.1", "10.0.0.2"), cpus=4.0)


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("EPD_HOST", "EPD_SECRET_FILE", "EPD_PLAIN_SEAM", "EPD_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(place.tempfile, "gettempdir", lambda: str(tmp_path))


def test_alone_it_stays_on_loopback_with_a_secret_of_this_user(tmp_path: Path) -> None:
    settings = settings_at(LAPTOP, EncoderSettings, {})
    assert settings.host == "127.0.0.1"
    assert settings.secret_file == own_secret(tmp_path)
    assert settings.secret_file.stat().st_mode & 0o777 == 0o600


def test_nodes_that_are_all_on_this_machine_each_have_their_address() -> None:
    assert settings_at(TWO_HERE, EncoderSettings, {}).host == "127.0.0.3"


def test_between_machines_it_does_not_start_without_keys() -> None:
    with pytest.raises(ValueError, match=r"nodes at 10\.0\.0\.1, 10\.0\.0\.2.*secret_file"):
        settings_at(CLUSTER, EncoderSettings, {})


def test_with_keys_it_listens_where_its_node_is(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    settings = settings_at(CLUSTER, EncoderSettings, {"secret_file": secret})
    assert (settings.host, settings.secret_file) == ("10.0.0.2", secret)
    assert settings_at(CLUSTER, EncoderSettings, {"plain_seam": True}).host == "10.0.0.2"
    assert settings_at(LAPTOP, EncoderSettings, {"secret_file": secret}).host == "192.168.1.7"


def test_what_the_environment_says_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EPD_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("EPD_HOST", "0.0.0.0")
    settings = settings_at(CLUSTER, EncoderSettings, {})
    assert (settings.host, settings.secret_file) == ("0.0.0.0", tmp_path / "secret")
    assert reached_at(CLUSTER, settings.host) == "10.0.0.2"
    assert reached_at(CLUSTER, "10.9.9.9") == "10.9.9.9"


@pytest.mark.parametrize(("where", "threads"), [(CLUSTER, 4), (TWO_HERE, 1)])
def test_it_has_as_many_threads_as_it_has_cores(where: Place, threads: int) -> None:
    assert settings_at(where, EncoderSettings, {"plain_seam": True}).threads == threads
    assert settings_at(where, EncoderSettings, {"plain_seam": True, "threads": 7}).threads == 7


def test_a_folder_that_others_can_write_to_holds_no_secret(tmp_path: Path) -> None:
    own_secret(tmp_path).parent.chmod(0o777)
    with pytest.raises(ValueError, match="no folder of this user's alone"):
        own_secret(tmp_path)
