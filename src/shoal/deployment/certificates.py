"""Test certificates: an authority, a server's certificate for loopback, and key pairs of SuperNodes.

    python -m shoal.deployment.certificates FOLDER --nodes 3

For trials and tests: valid for 30 days, with the authority's key thrown away. In use, a server's
certificate comes from your own authority, and each SuperNode makes its key itself and sends the public half.
"""

import argparse
import datetime
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.core.atomic_files import write_folder
from shoal.core.errors import InputError, require

DAYS = 30
"""How long a certificate is valid."""


def make_certificates(folder: Path, nodes: int, hosts: Sequence[str] = ()) -> None:
    """Make ``folder`` with ``ca.crt``, ``server.pem``, ``server.key``, and ``node-N``, ``node-N.pub`` for each node.

    Args:
        folder: that does not exist.
        nodes: key pairs to make.
        hosts: names or addresses of the server beside ``localhost`` and ``127.0.0.1``.

    Raises:
        InputError: ``folder`` exists or cannot be written, or there is no node.
    """
    require(nodes >= 1, f"'--nodes' must be at least 1; got {nodes}")
    require(not folder.exists(), f"{folder}: exists already; choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, lambda unfinished: _fill(unfinished, nodes, hosts))
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}; choose another folder") from error


def _fill(folder: Path, nodes: int, hosts: Sequence[str]) -> None:
    authority = ec.generate_private_key(ec.SECP384R1())
    name = _name("Shoal test authority")
    ca = _certificate(name, name, authority.public_key(), authority, x509.BasicConstraints(ca=True, path_length=0))
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    server = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_host(each) for each in ("localhost", "127.0.0.1", *hosts)])
    use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    signed = _certificate(_name("Shoal test server"), name, server.public_key(), authority, names, use)
    (folder / "server.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / "server.key", server, serialization.PrivateFormat.PKCS8)
    for i in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        _write_key(folder / f"node-{i}", key, serialization.PrivateFormat.OpenSSH)
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        (folder / f"node-{i}.pub").write_bytes(key.public_key().public_bytes(*form) + b"\n")


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for each in extensions:
        builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints))
    if any(isinstance(each, x509.BasicConstraints) for each in extensions):
        signs = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(signs, critical=True)
    return builder.sign(signer, hashes.SHA384())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a private key that its owner alone can read, from the first moment on."""
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """The script; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3, help="key pairs of SuperNodes (default: 3)")
    parser.add_argument("--host", action="append", default=[], help="a further name or address of the server")
    given = parser.parse_args(arguments)
    try:
        make_certificates(given.folder, given.nodes, given.host)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
