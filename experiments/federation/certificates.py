"""Test certificates: an authority, a server's certificate for loopback, and key pairs of SuperNodes.

    python experiments/federation/certificates.py FOLDER --nodes 3

For trials and tests, by `trustme`, which is in the extra ``dev`` (``pip install trustme``). The server's certificate is
valid for 30 days, and the authority's key is thrown away. In use, a server's certificate comes from your own authority,
and each SuperNode makes its key itself and sends the public half.
"""

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.core.atomic_files import write_folder
from shoal.core.errors import InputError, require

_VALIDITY = datetime.timedelta(days=30)


def make_certificates(folder: Path, nodes: int, hosts: Sequence[str] = ()) -> None:
    """Make ``folder`` with ``ca.crt``, ``server.pem``, ``server.key``, and ``node-N``, ``node-N.pub`` for each node.

    Args:
        folder: that does not exist.
        nodes: number of key pairs.
        hosts: names or addresses of the server beside ``localhost`` and ``127.0.0.1``.

    Raises:
        InputError: ``folder`` exists or cannot be written, or no node is given.
    """
    require(nodes >= 1, f"'--nodes' must be at least 1; got {nodes}")
    require(not folder.exists(), f"{folder}: exists already; choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, lambda unfinished: _fill(unfinished, nodes, hosts))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from error


def _fill(folder: Path, nodes: int, hosts: Sequence[str]) -> None:
    authority = trustme.CA(organization_name="Shoal test authority")
    end = datetime.datetime.now(datetime.UTC) + _VALIDITY
    server = authority.issue_cert("localhost", "127.0.0.1", *hosts, common_name="Shoal test server", not_after=end)
    authority.cert_pem.write_to_path(folder / "ca.crt")
    server.cert_chain_pems[0].write_to_path(folder / "server.pem")
    _write_key(folder / "server.key", server.private_key_pem.bytes())
    for i in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        openssh, no_password = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        _write_key(folder / f"node-{i}", key.private_bytes(serialization.Encoding.PEM, openssh, no_password))
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"node-{i}.pub").write_bytes(public + b"\n")


def _write_key(path: Path, content: bytes) -> None:
    """Write a private key that its owner alone can read, from the first moment on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the certificates; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3, help="key pairs of SuperNodes (default: 3)")
    parser.add_argument("--host", action="append", default=[], help="a further name or address of the server")
    options = parser.parse_args(arguments)
    try:
        make_certificates(options.folder, options.nodes, options.host)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
