"""Makes certificates for development and tests: an authority, and one certificate a role.

Not for production: the authority's key lies beside the certificates. Source of the names:
chunkmesh/trust/access.py.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from chunkmesh.trust.access import Role

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
DEFAULT_DAYS = 365
_HOUR = dt.timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """Where a certificate and its key lie."""

    certfile: Path
    keyfile: Path


class Authority:
    """Signs certificates; its own lies in the folder as ca.crt and ca.key."""

    def __init__(self, folder: Path, name: str = "ChunkMesh development") -> None:
        """Make a new one."""
        self.folder = folder
        self.certfile = folder / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = dt.datetime.now(dt.UTC)
        builder = (
            _builder(self._name, self._name, self._key.public_key())
            .not_valid_before(now - _HOUR)
            .not_valid_after(now + dt.timedelta(days=10 * DEFAULT_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        self.certfile.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(folder / "ca.key", self._key)

    def issue(
        self, file_name: str, common_name: str, names: Sequence[str], *, days: float = DEFAULT_DAYS
    ) -> Issued:
        """Write file_name.crt and file_name.key; negative days make it expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        end = now + dt.timedelta(days=days)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(_name(common_name), self._name, key.public_key())
            .not_valid_before(min(now, end) - _HOUR)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if names:
            general = [_general_name(name) for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(general), critical=False)
        issued = Issued(
            certfile=self.folder / f"{file_name}.crt", keyfile=self.folder / f"{file_name}.key"
        )
        # The key first: who reads both in between finds a pair that does not match, not a new one.
        _write_key(issued.keyfile, key)
        certificate = builder.sign(self._key, hashes.SHA256())
        issued.certfile.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return issued

    def issue_role(self, role: Role, *, names: Sequence[str] = LOCAL_NAMES) -> Issued:
        """Write the certificate of a role, which servers of it also show to clients by name."""
        return self.issue(role.value, role.value, (role.certificate_name, *names))


def write_all(folder: Path, names: Sequence[str] = LOCAL_NAMES) -> Authority:
    """Write an authority and a certificate for each role."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder)
    for role in Role:
        authority.issue_role(role, names=names)
    return authority


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
