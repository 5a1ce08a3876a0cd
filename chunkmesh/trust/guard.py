"""The guard of a gRPC port: finds out who calls, and whether the table lets him.

Certificates are checked by TLS before; here only their names count. A bearer key is looked up
before anything of the call's message is read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from chunkmesh.errors import Forbidden, Unauthenticated
from chunkmesh.trust.access import Door, Role, allowed_roles, roles_of_names
from chunkmesh.trust.identity import Identity
from chunkmesh.trust.key_file import KeyFile
from chunkmesh.trust.tls_files import TlsFiles

TENANT_KEY = "chunkmesh-tenant"
"""Metadata by which an operator says on whose behalf he calls."""
KEY_KEY = "authorization"
SCHEME = "Bearer"
TENANT_NAME = re.compile(r"[ -~]{1,64}")
"""Of a tenant in metadata; common names of certificates may be longer, and have nobody act for
them."""

Metadata = Iterable[tuple[str, str | bytes]]
PeerCertificate = Mapping[str, Iterable[bytes]]
"""What gRPC tells of the other end, by name; empty without TLS."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Stands at one port. Without TLS and keys it lets everybody do everything."""

    door: Door
    tls: TlsFiles | None = None
    """None is plain text."""
    is_mutual: bool = False
    """Whether TLS lets only clients with a certificate get as far as a call."""
    api_keys: KeyFile | None = None
    """Of users; None asks none of them for a key."""
    admin_keys: KeyFile | None = None
    """Of operators."""

    @property
    def knows_users(self) -> bool:
        """Whether it can tell anybody from a stranger."""
        return self.is_mutual or self.api_keys is not None

    def by_key(self, metadata: Metadata) -> Identity | None:
        """Return whom the key of a call names; None if it has none.

        Raises:
            Unauthenticated: the key is none.
        """
        if self.api_keys is None and self.admin_keys is None:
            return None
        offered = [value for key, value in metadata if key == KEY_KEY]
        if not offered:
            return None
        scheme, _, key = str(offered[0]).partition(" ")
        if len(offered) == 1 and scheme.lower() == SCHEME.lower():
            for keys, role in ((self.admin_keys, Role.ADMIN), (self.api_keys, Role.CLIENT)):
                tenant = None if keys is None else keys.current().tenant_of(key.strip())
                if tenant is not None:
                    return Identity(roles=frozenset({role}), name=tenant, tenant=tenant)
        raise Unauthenticated("the bearer key is not known here")

    def identify(self, by_key: Identity | None, peer: PeerCertificate) -> Identity:
        """Return who calls, by key or certificate.

        Raises:
            Unauthenticated: neither says so, where one is asked for.
        """
        if self.door is not Door.USERS:
            if self.is_mutual:
                return Identity(roles=_roles(peer), name=_owner(peer))
            return Identity(roles=frozenset(Role))
        if by_key is not None:
            return by_key
        return self._by_certificate(peer)

    def _by_certificate(self, peer: PeerCertificate) -> Identity:
        """Return who calls without a key at the users' port."""
        if self.is_mutual:
            roles = _roles(peer)
            if Role.ADMIN in roles:
                return Identity(roles=roles, name=_owner(peer))
            if self.api_keys is None:
                # Users' certificates are of their own authority, and have names of their own.
                owner = _owner(peer)
                return Identity(roles=roles or frozenset({Role.CLIENT}), name=owner, tenant=owner)
        if self.api_keys is not None:
            raise Unauthenticated("this port asks for a bearer key: authorization: Bearer KEY")
        roles = frozenset({Role.CLIENT})
        return Identity(roles=roles if self.admin_keys is not None else roles | {Role.ADMIN})

    def check(self, identity: Identity, method: str) -> None:
        """Let a caller pass.

        Raises:
            Forbidden: the table does not name his role.
        """
        allowed = allowed_roles(self.door, method)
        if not identity.roles & allowed:
            who = " or ".join(sorted(allowed)) or "nobody"
            mine = " and ".join(sorted(identity.roles)) or "without a role"
            raise Forbidden(f"{method} on the {self.door} is for {who}; this caller is {mine}")


def on_behalf(identity: Identity, metadata: Metadata) -> Identity:
    """Return the caller, or an operator as the tenant that he names.

    Raises:
        Forbidden: somebody else names one, or it is no name.
    """
    named = [value for key, value in metadata if key == TENANT_KEY]
    if not named:
        return identity
    if not identity.is_admin:
        raise Forbidden(f"{TENANT_KEY} is for operators")
    tenant = str(named[0])
    if len(named) > 1 or not TENANT_NAME.fullmatch(tenant):
        raise Forbidden(f"{TENANT_KEY} must be one tenant's name")
    return dataclasses.replace(identity, tenant=tenant)


def _roles(peer: PeerCertificate) -> frozenset[Role]:
    names = (name.decode("ascii", "replace") for name in peer.get("peer_dns", ()))
    return roles_of_names(names)


def _owner(peer: PeerCertificate) -> str:
    """Return the common name of a certificate."""
    return b"".join(peer.get("x509_common_name", ())).decode("utf-8", "replace")
