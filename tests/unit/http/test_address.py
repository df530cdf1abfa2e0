"""Addresses: what others reach, the file they find it by, and ports that cannot be had."""

import ipaddress
import socket
from pathlib import Path

import pytest

from sleuth.errors import InputError
from sleuth.http.server import authority, bind, reachable_host
from sleuth.retrieval.service.server import advertise


def test_the_file_is_there_while_the_server_is(tmp_path: Path) -> None:
    folder = tmp_path / "addresses"
    with advertise(folder, "127.0.0.1", 8000) as path:
        assert [each.name for each in folder.iterdir()] == ["Host127.0.0.1_IP8000.txt"]
        assert path.read_text() == "127.0.0.1:8000"
    assert list(folder.iterdir()) == []


def test_the_file_goes_when_the_server_fails_and_when_it_is_gone_already(tmp_path: Path) -> None:
    with pytest.raises(KeyError), advertise(tmp_path, "localhost", 1):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with advertise(tmp_path, "localhost", 1) as path:
        path.unlink()


def test_a_stale_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "Host127.0.0.1_IP8000.txt").write_text("of a server that was killed")
    with advertise(tmp_path, "127.0.0.1", 8000) as path:
        assert path.read_text() == "127.0.0.1:8000"


def test_a_folder_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"Host127.0.0.1_IP1.txt"),
        advertise(tmp_path / "file" / "addresses", "127.0.0.1", 1),
    ):
        raise AssertionError


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "localhost", "::1"])
def test_a_host_of_its_own_is_the_address(host: str) -> None:
    assert reachable_host(host) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])  # noqa: S104
def test_everywhere_is_the_address_of_this_machine(host: str) -> None:
    address = ipaddress.ip_address(reachable_host(host))
    assert not address.is_unspecified
    bind(str(address), 0).close()


def test_an_address_of_version_six_stands_in_brackets() -> None:
    assert authority("::1", 80) == "[::1]:80"
    assert authority("127.0.0.1", 80) == "127.0.0.1:80"


def test_port_0_is_a_free_one() -> None:
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", 0) as second:
        assert 0 < first.getsockname()[1] != second.getsockname()[1] > 0


def test_a_port_in_use_is_an_input_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1"):
            bind("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"198\.51\.100\.1"):
        bind("198.51.100.1", 0)
    with pytest.raises(InputError, match="'no such host'"):
        bind("no such host", 0)
