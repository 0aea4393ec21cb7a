# Copyright 2026 The authors of this repository. Licensed under the Apache License, Version 2.0.
"""Makes TLS certificates for a learner and for the hosts of environment servers.

    python -m libtorchbeast.tools.certificates FOLDER --hosts envs-1,envs-2,10.0.0.5 --days 365

Writes FOLDER/ca.crt, learner.crt and learner.key, and HOST.crt and HOST.key for each host. Name the
hosts as the learner's --server_addresses name them. A host's certificate is valid for servers on
that host only, and the learner's certificate is valid for clients only. The key of the certificate
authority (CA) is not kept, so that nobody can sign more certificates. To add a host, make all files
anew in another folder. A program that learns its hosts later can keep the CA's `Pair`, as
examples/slurm and examples/ray do.
"""

import argparse
import contextlib
import datetime
import ipaddress
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from libtorchbeast.flags import Parser, UserError, require, whole

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    sys.exit(
        f"libtorchbeast.tools.certificates: error: pip install -r requirements-poly.txt ({error})"
    )

LEARNER, CA = "learner", "ca"  # names of files
MAX_DAYS = 36_500
# Certificates are valid from this long ago, because the hosts' clocks may differ.
CLOCKS_DIFFER = datetime.timedelta(hours=1)
PEM = serialization.Encoding.PEM


class Pair(NamedTuple):
    """A certificate and its private key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def texts(self) -> tuple[bytes, bytes]:
        """Returns the certificate and the key as PEM."""
        form = serialization.PrivateFormat.PKCS8
        key = self.key.private_bytes(PEM, form, serialization.NoEncryption())
        return self.cert.public_bytes(PEM), key

    @classmethod
    def from_texts(cls, cert: bytes, key: bytes) -> "Pair":
        """Makes a pair of what `texts` returned."""
        private_key = serialization.load_pem_private_key(key, None)
        assert isinstance(private_key, ec.EllipticCurvePrivateKey)
        return cls(x509.load_pem_x509_certificate(cert), private_key)

    def write(self, folder: Path, name: str) -> None:
        """Writes NAME.crt, and NAME.key, which only this user may read. Raises FileExistsError if
        one of the files exists."""
        cert, key = self.texts()
        _write(folder / f"{name}.crt", cert, 0o644)
        _write(folder / f"{name}.key", key, 0o600)


def make_ca(days: float) -> Pair:
    """Returns a certificate authority, which is signed by itself."""
    return _sign("TorchBeast's throw-away CA", days, None, [])


def certify_learner(ca: Pair, days: float) -> Pair:
    """Returns the pair with which a learner shows servers who it is."""
    return _sign(LEARNER, days, ca, [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])])


def certify_host(ca: Pair, host: str, days: float) -> Pair:
    """Returns the pair for the servers on `host`, which is a name or an IP address."""
    ip = _ip_of(host)
    name = x509.DNSName(host) if ip is None else x509.IPAddress(ip)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return _sign(host, days, ca, [purpose, x509.SubjectAlternativeName([name])])


def _sign(name: str, days: float, ca: Pair | None, extensions: list[x509.ExtensionType]) -> Pair:
    """Makes a key and its certificate, signed by `ca` or, if that is None, by itself. It is valid
    for `days` from now; if `days` is negative, it has expired already."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    until = now + datetime.timedelta(days=days)
    is_ca, signer = ca is None, key if ca is None else ca.key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if ca is None else ca.cert.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - CLOCKS_DIFFER)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), critical=True)
        .add_extension(_key_usage(is_ca), critical=True)
    )
    own_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    its_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    for extension in (own_key, its_key, *extensions):
        builder = builder.add_extension(extension, critical=False)
    return Pair(builder.sign(signer, hashes.SHA256()), key)


def _key_usage(is_ca: bool) -> x509.KeyUsage:
    """The CA signs certificates and nothing else, the others sign their handshakes."""
    unused = dict.fromkeys(
        "content_commitment key_encipherment data_encipherment key_agreement crl_sign "
        "encipher_only decipher_only".split(),
        False,
    )
    return x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, **unused)


# ============================================================================================= main
def make_parser() -> Parser:
    parser = Parser("libtorchbeast.tools.certificates", __doc__)
    add = parser.add_argument
    add("folder", type=Path, help="The folder to write into. Files that exist are not replaced.")
    add("--hosts", required=True, metavar="HOST,...", help="The hosts' names or IP addresses.")
    days = "How many days the certificates are valid."
    add("--days", type=whole(1, MAX_DAYS), default=365, help=days)
    return parser


def hosts_of(flags: argparse.Namespace) -> list[str]:
    """Returns the hosts that --hosts names. Raises UserError if one of them is no host name or IP
    address, is there twice, or has the name of another file."""
    hosts = [host.strip().strip("[]") for host in flags.hosts.split(",")]
    for i, host in enumerate(hosts):
        is_name = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", host)
        is_host = bool(is_name or _ip_of(host))
        require(flags, "hosts", is_host, f"names or IP addresses, seen {host!r}")
        taken = host in (LEARNER, CA) or host in hosts[:i]
        require(flags, "hosts", not taken, f"each once, and other names than {host!r}")
    return hosts


def _ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def write(flags: argparse.Namespace) -> list[str]:
    """Makes all certificates and writes them; returns their names, but for the CA's. Raises
    UserError if a flag has a value that cannot be used, or one of the files exists."""
    hosts = hosts_of(flags)
    ca = make_ca(flags.days)
    pairs = {LEARNER: certify_learner(ca, flags.days)}
    pairs |= {host: certify_host(ca, host, flags.days) for host in hosts}
    flags.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in [f"{CA}.crt", *(f"{name}.{kind}" for name in pairs for kind in ("crt", "key"))]:
        if (flags.folder / name).exists():
            raise UserError(f"{flags.folder / name} exists already; choose another folder")
    _write(flags.folder / f"{CA}.crt", ca.texts()[0], 0o644)
    for name, pair in pairs.items():
        pair.write(flags.folder, name)
    return list(pairs)


def _write(path: Path, text: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(text)


def main(argv: list[str] | None = None) -> None:
    try:
        flags = make_parser().parse_args(argv)
        names = write(flags)
    except (UserError, OSError) as error:
        sys.exit(f"libtorchbeast.tools.certificates: error: {error}")
    print(f"Valid for {flags.days} days. These are the files and flags that each host needs:")
    for name in names:
        own = flags.folder / name
        print(f"{name}: --tls_cert {own}.crt --tls_key {own}.key --tls_ca {flags.folder / CA}.crt")


if __name__ == "__main__":
    main()
